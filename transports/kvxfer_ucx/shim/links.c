/* A link's life: made, connected, stopped, closed, its worker destroyed.
 *
 * A link stops for one reason, the first, and never runs again. Fencing and leaving go on from
 * any other reason. Invariants: the endpoint is closed outside UCX's callbacks; a worker is
 * destroyed only when nothing of ours is with it, so that no request points into freed memory. */

static void peer_stop(kvu_peer *p, int why, const char *text)
{
    if (p->stop >= why)
        return;
    if (p->stop == RUNS)
        snprintf(p->reason, sizeof p->reason, "%s", text);
    p->stop = why;
    p->close_at = now_ns() + GRACE_NS;
}

static void on_error(void *arg, ucp_ep_h ep, ucs_status_t status)
{
    (void)ep;
    peer_stop(arg, FAILED, ucx.ucs_status_string(status));
    ((kvu_peer *)arg)->close_at = 0;
}

static void close_endpoint(kvu_peer *p)
{
    if (p->ep == NULL || p->closing)
        return;
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
        .flags = UCP_EP_CLOSE_FLAG_FORCE,
    };
    p->closing = 1;
    for (size_t i = 0; i < p->region_count; i++)
        if (p->keys[i] != NULL && p->open == NULL)
            p->keys[i] = (ucx.ucp_rkey_destroy(p->keys[i]), NULL);
    p->close_request = ucx.ucp_ep_close_nbx(p->ep, &param);
    if (p->close_request == NULL || UCS_PTR_IS_ERR(p->close_request)) {
        p->close_request = NULL;
        p->closed = 1;
    }
}

static void look_at_close(kvu_peer *p)
{
    if (p->close_request == NULL
        || ucx.ucp_request_check_status(p->close_request) == UCS_INPROGRESS)
        return;
    request_free(p->close_request);
    p->close_request = NULL;
    p->closed = 1;
}

static void stop_watching(kvu_peer *p, int *fd)
{
    if (*fd >= 0)
        epoll_ctl(p->s->epoll_fd, EPOLL_CTL_DEL, *fd, NULL);
    if (fd == &p->pid_fd && *fd >= 0)
        close(*fd);
    *fd = -1;
}

static void forget_alive(kvu_peer *p)
{
    pthread_mutex_lock(&all_lock);
    for (kvu_peer **at = &all_peers; *at != NULL; at = &(*at)->all_next)
        if (*at == p) {
            *at = p->all_next;
            break;
        }
    pthread_mutex_unlock(&all_lock);
}

static void destroy_worker(kvu_peer *p)
{
    for (size_t i = 0; i < p->region_count; i++)
        if (p->keys[i] != NULL)
            p->keys[i] = (ucx.ucp_rkey_destroy(p->keys[i]), NULL);
    stop_watching(p, &p->worker_fd);
    stop_watching(p, &p->pid_fd);
    ucx.ucp_worker_destroy(p->worker);
    p->worker = NULL;
    p->ep = NULL;
    p->dead = 1;
    forget_alive(p);
}

/* The way down of a link that has stopped. */
static void peer_wind_down(kvu_peer *p)
{
    while (p->queue != NULL)
        op_drop_tail(p->queue);
    int idle = p->open == NULL && p->ready == NULL;
    uint64_t now = now_ns();
    if (p->stop >= FENCING && !p->asked) {
        p->asked = 1;
        send_control(p, MSG_FENCE, 0);
    }
    if (idle && !p->bye_sent && p->stop >= FENCED_BY_PEER) {
        p->bye_sent = 1;
        send_control(p, MSG_BYE, 1);
        /* Time for the message to leave, and for the other side to end what it has under way. */
        uint64_t wait = p->stop == LEAVING && !p->quiet && !p->gone ? POLITE_NS : BYE_NS;
        if (p->stop != FENCING && p->close_at > now + wait)
            p->close_at = now + wait;
    }
    int answered = p->stop == FENCING && p->quiet && idle;
    /* Closing by force while writes over tcp are under way has crashed UCX: what the other side
     * or the system has ended already ends them too, so that is waited for, within bounds. */
    answered = answered || (p->stop == LEAVING && p->quiet && p->bye_sent
                            && now + POLITE_NS - BYE_NS >= p->close_at);
    if (now >= p->close_at || answered || (idle && p->stop == FAILED))
        close_endpoint(p);
    look_at_close(p);
    int proof = p->worker_is_proof || p->quiet || p->gone;
    int wanted = p->stop == LEAVING || (p->stop == FENCING && proof);
    if (wanted && idle && p->open == NULL && (p->ep == NULL || p->closed))
        destroy_worker(p);
}

/* Everything that follows from what UCX has told since the last call. */
static int peer_advance(kvu_peer *p)
{
    int count = peer_refill(p);
    while (p->ready != NULL) {
        op *o = p->ready;
        p->ready = o->ready_next;
        if (p->ready == NULL)
            p->ready_end = &p->ready;
        op_next_step(o);
    }
    if (p->stop != RUNS && !p->dead)
        peer_wind_down(p);
    return count;
}

kvu_peer *kvu_peer_new(kvu_session *s, uint64_t handle, const unsigned char *cookie,
                       unsigned char *address, size_t *address_size)
{
    ucp_worker_params_t params = {
        .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
        .thread_mode = UCS_THREAD_MODE_SERIALIZED,
    };
    kvu_peer *p = calloc(1, sizeof *p);
    ucp_address_t *found = NULL;
    size_t size = 0;
    if (p == NULL)
        return NULL;
    p->s = s;
    p->handle = handle;
    p->worker_fd = p->pid_fd = -1;
    p->queue_end = &p->queue;
    p->ready_end = &p->ready;
    memcpy(p->own, cookie, KVU_COOKIE);
    lock_engine(s);
    ucs_status_t status = ucx.ucp_worker_create(s->context, &params, &p->worker);
    if (status == UCS_OK) {
        ucp_am_handler_param_t handler = {
            .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS
                        | UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG,
            .id = AM_ID,
            .flags = UCP_AM_FLAG_WHOLE_MSG,
            .cb = on_message,
            .arg = p,
        };
        status = ucx.ucp_worker_set_am_recv_handler(p->worker, &handler);
        if (status == UCS_OK)
            status = ucx.ucp_worker_get_efd(p->worker, &p->worker_fd);
        if (status == UCS_OK)
            status = ucx.ucp_worker_get_address(p->worker, &found, &size);
        if (status == UCS_OK && size > *address_size)
            status = UCS_ERR_BUFFER_TOO_SMALL;
        if (status == UCS_OK) {
            memcpy(address, found, size);
            *address_size = size;
        }
        if (found != NULL)
            ucx.ucp_worker_release_address(p->worker, found);
        if (status != UCS_OK)
            ucx.ucp_worker_destroy(p->worker);
    }
    if (status == UCS_OK) {
        struct epoll_event event = {.events = EPOLLIN, .data.u64 = 0};
        epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, p->worker_fd, &event);
        pthread_mutex_lock(&s->ring);
        p->next = s->peers;
        s->peers = p;
        pthread_mutex_unlock(&s->ring);
        pthread_mutex_lock(&all_lock);
        p->all_next = all_peers;
        all_peers = p;
        pthread_mutex_unlock(&all_lock);
    }
    unlock_engine(s);
    write_event(s->kick_fd);
    if (status == UCS_OK)
        return p;
    say(s, "no worker: %s", ucx.ucs_status_string(status));
    free(p);
    return NULL;
}

static int take_regions(kvu_peer *p, size_t count, const uint64_t *handles, const uint64_t *bases,
                        const uint64_t *lengths)
{
    uint64_t *ends = calloc(count + 1, sizeof *ends);
    p->region_handles = calloc(count + 1, sizeof(uint64_t));
    p->region_ends = calloc(count + 1, 2 * sizeof(uint64_t));
    p->keys = calloc(count + 1, sizeof(ucp_rkey_h));
    p->withdrawn = calloc(count + 1, 1);
    p->is_host = calloc(count + 1, 1);
    if (ends == NULL || p->region_handles == NULL || p->region_ends == NULL || p->keys == NULL
        || p->withdrawn == NULL || p->is_host == NULL) {
        free(ends);
        return -1;
    }
    for (size_t i = 0; i < count; i++) {
        p->region_handles[i] = handles[i];
        p->region_ends[2 * i] = bases[i];
        p->region_ends[2 * i + 1] = ends[i] = bases[i] + lengths[i];
    }
    int made = spans_build(&p->spans, count, bases, ends);
    free(ends);
    p->region_count = count;
    return made;
}

static void drop_regions(kvu_peer *p)
{
    for (size_t i = 0; i < p->region_count; i++)
        if (p->keys[i] != NULL)
            ucx.ucp_rkey_destroy(p->keys[i]);
    p->region_count = 0;
    spans_free(&p->spans);
    free(p->region_handles);
    free(p->region_ends);
    free(p->keys);
    free(p->withdrawn);
    free(p->is_host);
    p->region_handles = p->region_ends = NULL;
    p->keys = NULL;
    p->withdrawn = p->is_host = NULL;
}

/* UCX's own parsers take no length: what they read past the end is zeros, not our memory. */
static unsigned char *padded(const unsigned char *data, size_t size)
{
    unsigned char *copy = calloc(1, size + PAD_BYTES);
    if (copy != NULL)
        memcpy(copy, data, size);
    return copy;
}

static ucs_status_t unpack_keys(kvu_peer *p, size_t count, const unsigned char *keys,
                                const uint64_t *key_sizes, const uint64_t *key_kinds)
{
    for (size_t i = 0, at = 0; i < count; at += key_sizes[i], i++) {
        unsigned char *key = padded(keys + at, key_sizes[i]);
        if (key == NULL)
            return UCS_ERR_NO_MEMORY;
        ucs_status_t status = ucx.ucp_ep_rkey_unpack(p->ep, key, &p->keys[i]);
        free(key);
        if (status != UCS_OK) {
            p->keys[i] = NULL;
            return status;
        }
        p->is_host[i] = key_kinds[i] == UCS_MEMORY_TYPE_HOST;
    }
    return UCS_OK;
}

/* Which operations the link's transports carry out themselves. The others UCX would emulate by
 * messages, and a process in which an emulated operation is under way aborts when the one that
 * asked for it dies (seen: "unexpected error: Endpoint timeout"). They are refused. */
static void look_at_transports(kvu_peer *p, int pid)
{
    static const char *const both[] = {"cma", "knem", "xpmem", "rc", "dc", "gga", "cuda_ipc"};
    ucp_transport_entry_t entries[TRANSPORTS_MAX];
    memset(entries, 0, sizeof entries);
    ucp_ep_attr_t attr = {
        .field_mask = UCP_EP_ATTR_FIELD_TRANSPORTS,
        .transports = {entries, TRANSPORTS_MAX, sizeof *entries},
    };
    p->can_put = p->can_get = (char)p->s->shared_only;
    if (p->s->shared_only || ucx.ucp_ep_query(p->ep, &attr) != UCS_OK)
        return;
    for (size_t i = 0; i < attr.transports.num_entries && i < TRANSPORTS_MAX; i++) {
        const char *name = entries[i].transport_name;
        if (name == NULL)
            continue;
        if (strcmp(name, "tcp") == 0)
            p->can_put = 1;
        if (strcmp(name, "cma") == 0)
            p->copy_pid = pid; /* UCX has found that we may */
        for (size_t k = 0; k < sizeof both / sizeof *both; k++)
            if (strncmp(name, both[k], strlen(both[k])) == 0)
                p->can_put = p->can_get = 1;
    }
}

int kvu_peer_connect(kvu_session *s, kvu_peer *p, const unsigned char *cookie,
                     const unsigned char *address, size_t address_size, int pid, int pid_fd,
                     size_t count, const uint64_t *handles, const uint64_t *bases,
                     const uint64_t *lengths, const unsigned char *keys,
                     const uint64_t *key_sizes, const uint64_t *key_kinds)
{
    unsigned char *copy = padded(address, address_size);
    int answer = PEER_BLOB;
    if (copy == NULL)
        return SESSION_FAILED;
    lock_engine(s);
    if (p->stop != RUNS || p->dead) {
        answer = PEER_FAILED;
        goto out;
    }
    ucp_ep_params_t params = {
        .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE
                    | UCP_EP_PARAM_FIELD_ERR_HANDLER,
        .address = (ucp_address_t *)copy,
        .err_mode = UCP_ERR_HANDLING_MODE_PEER,
        .err_handler = {on_error, p},
    };
    ucs_status_t status = ucx.ucp_ep_create(p->worker, &params, &p->ep);
    if (status != UCS_OK) {
        p->ep = NULL;
    } else if (take_regions(p, count, handles, bases, lengths) != 0) {
        status = UCS_ERR_NO_MEMORY;
    } else {
        status = unpack_keys(p, count, keys, key_sizes, key_kinds);
    }
    if (status != UCS_OK) {
        say(s, "peer %llu: %s", (unsigned long long)p->handle, ucx.ucs_status_string(status));
        drop_regions(p);
        uint64_t until = now_ns() + CLOSE_NS;
        for (close_endpoint(p); p->ep != NULL && !p->closed && now_ns() < until; look_at_close(p))
            ucx.ucp_worker_progress(p->worker);
        p->ep = NULL;
        p->close_request = NULL;
        p->closing = p->closed = 0;
        p->stop = RUNS; /* what went wrong was the blob, not the link */
        goto out;
    }
    memcpy(p->theirs, cookie, KVU_COOKIE);
    look_at_transports(p, pid);
    p->connected = 1;
    if (pid_fd >= 0) {
        struct epoll_event event = {.events = EPOLLIN, .data.u64 = p->handle};
        if (epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, pid_fd, &event) == 0)
            p->pid_fd = pid_fd;
    }
    /* The first message sets the connection up, so that a death is noticed from now on. */
    send_control(p, MSG_HELLO, 0);
    answer = OK;
out:
    if (pid_fd >= 0 && p->pid_fd != pid_fd)
        close(pid_fd);
    unlock_engine(s);
    free(copy);
    write_event(s->kick_fd);
    return answer;
}

int kvu_peer_flags(kvu_session *s, kvu_peer *p)
{
    lock_engine(s);
    int flags = (p->stop != RUNS ? KVU_STOPPED : 0) | (p->quiet ? KVU_QUIET : 0)
              | (p->gone ? KVU_GONE : 0) | (p->dead ? KVU_DEAD : 0)
              | (p->connected ? KVU_CONNECTED : 0);
    unlock_engine(s);
    return flags;
}

int kvu_cookie_is_alive(const unsigned char *cookie)
{
    int alive = 0;
    pthread_mutex_lock(&all_lock);
    for (kvu_peer *p = all_peers; p != NULL && !alive; p = p->all_next)
        alive = memcmp(p->own, cookie, KVU_COOKIE) == 0;
    pthread_mutex_unlock(&all_lock);
    return alive;
}
