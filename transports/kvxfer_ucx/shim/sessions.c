/* A session: its memory, its engine thread, and what the owner calls.
 *
 * The engine thread takes no lock of Python's. It turns every worker, spins a little when there
 * is nothing, then sleeps on the workers' descriptors. While the owner itself polls without
 * pause, and has not asked for the descriptor to sleep on, the thread keeps out of its way. */

static void take_in(kvu_session *s)
{
    pthread_mutex_lock(&s->ring);
    op *list = s->submitted;
    s->submitted = NULL;
    s->submitted_end = &s->submitted;
    pthread_mutex_unlock(&s->ring);
    while (list != NULL) {
        op *o = list;
        kvu_peer *p = o->peer;
        list = o->next;
        o->next = NULL;
        open_list_add(p, o);
        if (p->stop != RUNS || p->dead) {
            o->dropped = 1;
            op_end(o, OP_FAILED);
        } else if (o->count == 0) {
            o->flushed = 1;
            op_is_ready(o);
        } else {
            o->in_queue = 1;
            *p->queue_end = o;
            p->queue_end = &o->next;
        }
    }
}

static void free_peer(kvu_peer *p)
{
    spans_free(&p->spans);
    free(p->region_handles);
    free(p->region_ends);
    free(p->keys);
    free(p->withdrawn);
    free(p->is_host);
    free(p);
}

/* One round over everything; gives how much happened. */
static unsigned turn(kvu_session *s, int progress_max)
{
    unsigned events = 0;
    take_in(s);
    for (kvu_peer **at = &s->peers; *at != NULL;) {
        kvu_peer *p = *at;
        if (p->worker != NULL) {
            for (int i = 0; i < progress_max && ucx.ucp_worker_progress(p->worker) != 0; i++)
                events++;
            events += peer_advance(p);
        }
        if (p->dead && p->dropped && p->open == NULL) {
            pthread_mutex_lock(&s->ring); /* `kvu_take` walks the list under it */
            *at = p->next;
            pthread_mutex_unlock(&s->ring);
            free_peer(p);
        } else {
            at = &p->next;
        }
    }
    return events;
}

/* Work that goes on without an event of any descriptor. */
static int is_busy(const kvu_session *s)
{
    for (const kvu_peer *p = s->peers; p != NULL; p = p->next)
        if (p->open != NULL
            || (p->stop != RUNS && !p->dead
                && (p->stop == LEAVING || (p->ep != NULL && !p->closed))))
            return 1;
    return 0;
}

/* Wake the thread where there is work. An owner that polls without pause does the work itself:
 * the thread is to look only if it has stopped, and not to fight it for the processor. */
static void turned_by_owner(kvu_session *s)
{
    if (!s->asleep || !is_busy(s))
        return;
    if (atomic_load_explicit(&s->fd_used, memory_order_relaxed)) {
        write_event(s->kick_fd);
    } else if (!s->timer_runs) {
        struct itimerspec after = {.it_value = {0, TAKE_OVER_NS}};
        s->timer_runs = timerfd_settime(s->timer_fd, 0, &after, NULL) == 0;
    }
}

static int arm_all(kvu_session *s)
{
    for (kvu_peer *p = s->peers; p != NULL; p = p->next)
        if (p->worker != NULL && ucx.ucp_worker_arm(p->worker) != UCS_OK)
            return 0;
    return 1;
}

static void process_ended(kvu_session *s, uint64_t handle)
{
    for (kvu_peer *p = s->peers; p != NULL; p = p->next)
        if (p->handle == handle) {
            stop_watching(p, &p->pid_fd);
            p->gone = 1;
            peer_stop(p, FAILED, "its process runs no more");
        }
}

static void look_at_descriptors(kvu_session *s, int timeout_ms)
{
    struct epoll_event events[64];
    int count = epoll_wait(s->epoll_fd, events, 64, timeout_ms);
    lock_engine(s);
    s->asleep = s->timer_runs = 0;
    for (int i = 0; i < count; i++)
        if (events[i].data.u64 == UINT64_MAX)
            read_event(s->kick_fd);
        else if (events[i].data.u64 == TIMER_EVENT)
            read_event(s->timer_fd);
        else if (events[i].data.u64 != 0)
            process_ended(s, events[i].data.u64);
    unlock_engine(s);
}

static int owner_drives(kvu_session *s)
{
    return !atomic_load(&s->fd_used)
        && (atomic_load(&s->owner_inside)
            || now_ns() - atomic_load(&s->owner_ns) < OWNER_DRIVES_NS);
}

static void *engine_thread(void *arg)
{
    kvu_session *s = arg;
    uint64_t idle_since = 0;
    while (!atomic_load(&s->stopping)) {
        int sleeps = 0, timeout = 0;
        for (int i = 0; i < 100 && atomic_load(&s->waiters) > 0; i++)
            sched_yield();
        if (owner_drives(s)) {
            struct timespec nap = {0, NAP_NS};
            nanosleep(&nap, NULL);
            continue;
        }
        lock_engine(s);
        if (turn(s, PROGRESS_MAX) > 0) {
            idle_since = 0;
        } else if (idle_since == 0) {
            idle_since = now_ns();
        } else if (now_ns() - idle_since > SPIN_NS && arm_all(s)) {
            s->asleep = sleeps = 1;
            timeout = is_busy(s) ? BUSY_SLEEP_MS : IDLE_SLEEP_MS;
            idle_since = 0;
        }
        unlock_engine(s);
        if (sleeps)
            look_at_descriptors(s, timeout);
    }
    return NULL;
}

/* The owner drives as well, where the thread is not in the middle of it. */
static void drive(kvu_session *s, int progress_max)
{
    if (pthread_mutex_trylock(&s->engine) == 0) {
        atomic_store_explicit(&s->owner_inside, 1, memory_order_relaxed);
        turn(s, progress_max);
        turned_by_owner(s);
        atomic_store_explicit(&s->owner_inside, 0, memory_order_relaxed);
        pthread_mutex_unlock(&s->engine);
    }
    atomic_store_explicit(&s->owner_ns, now_ns(), memory_order_relaxed);
}

static int configure(ucp_config_t *config, const char **names, const char **values, size_t count,
                     char *err, size_t err_size)
{
    for (size_t i = 0; i < count; i++) {
        ucs_status_t status = ucx.ucp_config_modify(config, names[i], values[i]);
        if (status != UCS_OK) {
            snprintf(err, err_size, "setting %s=%s: %s", names[i], values[i],
                     ucx.ucs_status_string(status));
            return -1;
        }
    }
    return 0;
}

static int make_context(kvu_session *s, const char **names, const char **values, size_t count,
                        char *err, size_t err_size)
{
    ucp_config_t *config;
    ucp_params_t params = {
        .field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_REQUEST_SIZE
                    | UCP_PARAM_FIELD_NAME,
        .features = UCP_FEATURE_RMA | UCP_FEATURE_AM | UCP_FEATURE_WAKEUP,
        .request_size = sizeof(uint64_t),
        .name = "kvxfer",
    };
    ucp_context_attr_t attr = {.field_mask = UCP_ATTR_FIELD_MEMORY_TYPES};
    ucs_status_t status = ucx.ucp_config_read(NULL, NULL, &config);
    if (status == UCS_OK) {
        int bad = configure(config, names, values, count, err, err_size);
        if (!bad)
            status = ucx.ucp_init_version(KVU_API_MAJOR, KVU_API_MINOR, &params, config,
                                          &s->context);
        ucx.ucp_config_release(config);
        if (bad)
            return -1;
    }
    if (status != UCS_OK) {
        text_to(err, err_size, "no context: %s", ucx.ucs_status_string(status));
        return -1;
    }
    if (ucx.ucp_context_query(s->context, &attr) == UCS_OK)
        s->has_cuda = (attr.memory_types >> UCS_MEMORY_TYPE_CUDA) & 1;
    return 0;
}

static void free_session(kvu_session *s)
{
    if (s->timer_fd >= 0)
        close(s->timer_fd);
    if (s->kick_fd >= 0)
        close(s->kick_fd);
    if (s->wake_fd >= 0)
        close(s->wake_fd);
    if (s->epoll_fd >= 0)
        close(s->epoll_fd);
    spans_free(&s->spans);
    free(s->region_list);
    free(s);
}

kvu_session *kvu_open(const char **names, const char **values, size_t count, int shared_only,
                      char *err, size_t err_size)
{
    struct epoll_event kick = {.events = EPOLLIN, .data.u64 = UINT64_MAX};
    struct epoll_event timer = {.events = EPOLLIN, .data.u64 = TIMER_EVENT};
    sigset_t all, before;
    kvu_session *s = calloc(1, sizeof *s);
    if (s == NULL || ucx.handle == NULL) {
        free(s);
        text_to(err, err_size, "%s", "no memory, or no library loaded");
        return NULL;
    }
    pthread_mutex_init(&s->engine, NULL);
    pthread_mutex_init(&s->ring, NULL);
    s->shared_only = shared_only;
    s->submitted_end = &s->submitted;
    s->ended_end = &s->ended;
    s->notes_end = &s->notes;
    s->kick_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    s->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    s->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    s->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (s->kick_fd < 0 || s->wake_fd < 0 || s->epoll_fd < 0 || s->timer_fd < 0
        || epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, s->timer_fd, &timer) != 0
        || epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, s->kick_fd, &kick) != 0) {
        text_to(err, err_size, "descriptors: %s", strerror(errno));
        free_session(s);
        return NULL;
    }
    if (make_context(s, names, values, count, err, err_size) != 0) {
        free_session(s);
        return NULL;
    }
    /* Signals are the main thread's business. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&s->thread, NULL, engine_thread, s);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed) {
        text_to(err, err_size, "thread: %s", strerror(failed));
        ucx.ucp_cleanup(s->context);
        free_session(s);
        return NULL;
    }
    return s;
}

int kvu_memory_is_cuda(kvu_session *s)
{
    return s->has_cuda;
}

int kvu_wakeup_fd(kvu_session *s)
{
    pthread_mutex_lock(&s->ring);
    atomic_store(&s->fd_used, 1);
    signal_owner_locked(s);
    pthread_mutex_unlock(&s->ring);
    write_event(s->kick_fd);
    return s->wake_fd;
}

/* Memory. */

static int regions_changed(kvu_session *s)
{
    size_t count = 0;
    for (kvu_region *r = s->regions; r != NULL; r = r->next)
        count++;
    kvu_region **list = calloc(count + 1, sizeof *list);
    uint64_t *bases = calloc(2 * count + 1, sizeof *bases);
    int made = -1;
    if (list != NULL && bases != NULL) {
        size_t at = 0;
        for (kvu_region *r = s->regions; r != NULL; r = r->next, at++) {
            list[at] = r;
            bases[at] = r->base;
            bases[count + at] = r->base + r->length;
        }
        made = spans_build(&s->spans, count, bases, bases + count);
    }
    free(bases);
    if (made != 0) {
        free(list);
        return -1;
    }
    free(s->region_list);
    s->region_list = list;
    return 0;
}

/* Memory that UCX allocated is reached best through its own handle, by pieces of it too. */
static kvu_region *allocated_around(kvu_session *s, uint64_t base, uint64_t length)
{
    for (kvu_region *r = s->regions; r != NULL; r = r->next)
        if (r->allocated && r->base <= base && base - r->base <= r->length
            && length <= r->length - (base - r->base))
            return r;
    return NULL;
}

/* Unmapped once neither it nor a piece of it is registered. */
static void region_free(kvu_session *s, kvu_region *r)
{
    kvu_region *source = r->source;
    r->left = 1;
    if (source != NULL) {
        free(r);
        source->pieces--;
        r = source;
    }
    if (r->left && r->pieces == 0) {
        if (r->memh != NULL)
            ucx.ucp_mem_unmap(s->context, r->memh);
        free(r);
    }
}

kvu_region *kvu_region_add(kvu_session *s, uint64_t handle, uint64_t *base, uint64_t length,
                           int cuda)
{
    kvu_region *r = calloc(1, sizeof *r);
    int allocate = *base == 0;
    ucp_mem_attr_t attr = {.field_mask = UCP_MEM_ATTR_FIELD_ADDRESS};
    if (r == NULL)
        return NULL;
    r->handle = handle;
    r->base = *base;
    r->length = length;
    r->type = cuda ? UCS_MEMORY_TYPE_CUDA : UCS_MEMORY_TYPE_HOST;
    ucp_mem_map_params_t params = {
        .field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH
                    | UCP_MEM_MAP_PARAM_FIELD_FLAGS | UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE,
        .address = (void *)*base,
        .length = length,
        .flags = allocate ? UCP_MEM_MAP_ALLOCATE : 0,
        .memory_type = r->type,
    };
    lock_engine(s);
    ucs_status_t status = UCS_OK;
    r->allocated = allocate;
    r->source = allocate ? NULL : allocated_around(s, *base, length);
    if (r->source != NULL) {
        r->source->pieces++;
        r->memh = r->source->memh;
    } else {
        status = ucx.ucp_mem_map(s->context, &params, &r->memh);
    }
    if (status == UCS_OK && allocate && (status = ucx.ucp_mem_query(r->memh, &attr)) == UCS_OK) {
        *base = r->base = (uint64_t)attr.address;
        memset(attr.address, 0, length);
    }
    if (status == UCS_OK) {
        r->next = s->regions;
        s->regions = r;
        if (regions_changed(s) != 0) {
            s->regions = r->next;
            status = UCS_ERR_NO_MEMORY;
        }
    }
    if (status != UCS_OK)
        region_free(s, r);
    unlock_engine(s);
    if (status == UCS_OK)
        return r;
    say(s, "region of %llu bytes: %s", (unsigned long long)length, ucx.ucs_status_string(status));
    return NULL;
}

/* True for memory that other processes of this host can map. */
int kvu_region_is_shared(kvu_region *r)
{
    return r->allocated || r->source != NULL;
}

int kvu_region_pack(kvu_session *s, kvu_region *r, unsigned char *key, size_t size)
{
    void *packed;
    size_t length;
    lock_engine(s);
    ucs_status_t status = ucx.ucp_rkey_pack(s->context, r->memh, &packed, &length);
    if (status == UCS_OK) {
        if (length <= size)
            memcpy(key, packed, length);
        ucx.ucp_rkey_buffer_release(packed);
    }
    unlock_engine(s);
    if (status == UCS_OK && length <= size)
        return (int)length;
    say(s, "no key of a region: %s", ucx.ucs_status_string(status));
    return -1;
}

/* Unmap what no operation can use any more: one posted before the region left may. */
static void regions_leave(kvu_session *s)
{
    uint64_t oldest = UINT64_MAX;
    for (kvu_peer *p = s->peers; p != NULL; p = p->next)
        for (op *o = p->open; o != NULL; o = o->open_next)
            if (o->number < oldest)
                oldest = o->number;
    for (kvu_region **at = &s->leaving; *at != NULL;) {
        kvu_region *r = *at;
        if (r->leaves_after < oldest) {
            *at = r->next;
            region_free(s, r);
        } else {
            at = &r->next;
        }
    }
}

void kvu_region_drop(kvu_session *s, kvu_region *r)
{
    lock_engine(s);
    take_in(s);
    for (kvu_region **at = &s->regions; *at != NULL; at = &(*at)->next)
        if (*at == r) {
            *at = r->next;
            break;
        }
    r->leaves_after = s->op_number;
    r->next = s->leaving;
    s->leaving = r;
    regions_changed(s);
    for (kvu_peer *p = s->peers; p != NULL; p = p->next)
        if (p->stop == RUNS && p->connected)
            send_control(p, MSG_WITHDRAWN, r->handle);
    turn(s, PROGRESS_MAX);
    regions_leave(s);
    turned_by_owner(s);
    unlock_engine(s);
}

int kvu_regions_leaving(kvu_session *s)
{
    lock_engine(s);
    int any = s->leaving != NULL;
    unlock_engine(s);
    return any;
}
