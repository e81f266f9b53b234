/* How an operation goes through UCX: ranges, flush, notification, end.
 *
 * Everything here runs under `engine`. Callbacks of UCX only count and mark; what follows from
 * them is done afterwards, by `peer_advance`, never inside UCX. Invariants: an operation ends
 * once; nothing is handed to UCX for a peer that has stopped; a notification leaves only after
 * the flush of its operation has ended well. */

static void peer_stop(kvu_peer *p, int why, const char *text);

static void request_free(void *request)
{
    ucx.ucp_request_free(request);
}

static void op_is_ready(op *o)
{
    if (o->is_ready)
        return;
    o->is_ready = 1;
    o->ready_next = NULL;
    *o->peer->ready_end = o;
    o->peer->ready_end = &o->ready_next;
}

static void op_came_back(op *o, ucs_status_t status)
{
    o->pending--;
    if (status != UCS_OK) {
        o->failed = 1;
        peer_stop(o->peer, FAILED, ucx.ucs_status_string(status));
    }
    if (o->pending == 0 && !o->in_queue)
        op_is_ready(o);
}

/* A range. The request's own memory holds how many bytes it was. */
static void on_range(void *request, ucs_status_t status, void *user)
{
    op *o = user;
    o->peer->window_count--;
    o->peer->window_bytes -= *(uint64_t *)request;
    request_free(request);
    op_came_back(o, status);
}

static void on_step(void *request, ucs_status_t status, void *user)
{
    request_free(request);
    op_came_back(user, status);
}

static void on_control(void *request, ucs_status_t status, void *user)
{
    (void)status; /* a link that broke is told by its error handler */
    request_free(request);
    free(user);
}

static void open_list_add(kvu_peer *p, op *o)
{
    o->open_next = p->open;
    o->open_prev = NULL;
    if (p->open != NULL)
        p->open->open_prev = o;
    p->open = o;
}

static void open_list_remove(kvu_peer *p, op *o)
{
    if (o->open_prev != NULL)
        o->open_prev->open_next = o->open_next;
    else
        p->open = o->open_next;
    if (o->open_next != NULL)
        o->open_next->open_prev = o->open_prev;
}

static void regions_leave(kvu_session *s);

static void op_end(op *o, int status)
{
    kvu_session *s = o->peer->s;
    open_list_remove(o->peer, o);
    o->status = status;
    if (o->internal) {
        atomic_fetch_sub(&s->silent, 1);
        free(o);
    } else {
        o->next = NULL;
        o->peer = NULL;
        pthread_mutex_lock(&s->ring);
        *s->ended_end = o;
        s->ended_end = &o->next;
        signal_owner_locked(s);
        pthread_mutex_unlock(&s->ring);
    }
    if (s->leaving != NULL)
        regions_leave(s);
}

/* How an operation ends that did not go well. */
static int op_bad_end(const op *o)
{
    if (!o->posted || o->peer->gone || o->quiet)
        return OP_FAILED;
    return o->failed || !o->flushed ? OP_UNKNOWN : OP_FAILED;
}

/* Memory of the other side that holds the range: its index, or a status. */
static long remote_find(const kvu_peer *p, uint64_t start, uint64_t length, size_t *hint)
{
    long at = spans_find(&p->spans, start, length, hint);
    if (at < 0)
        return p->region_count == 0 ? REGION_UNKNOWN : REGION_BOUNDS;
    uint32_t region = p->spans.owner[at];
    if (!__atomic_load_n(&p->withdrawn[region], __ATOMIC_RELAXED))
        return (long)region;
    for (size_t i = 0; i < p->region_count; i++) {
        uint64_t base = p->region_ends[2 * i], end = p->region_ends[2 * i + 1];
        if (!p->withdrawn[i] && base <= start && start <= end && length <= end - start)
            return (long)i;
    }
    return REGION_STALE;
}

/* Take the op out of the queue: no more of it is posted. */
static void op_leaves_queue(op *o)
{
    kvu_peer *p = o->peer;
    for (op **at = &p->queue; *at != NULL; at = &(*at)->next)
        if (*at == o) {
            *at = o->next;
            if (p->queue_end == &o->next)
                p->queue_end = at;
            break;
        }
    o->in_queue = 0;
}

static void op_flush(op *o)
{
    if (!o->write || !o->posted || o->copied) {
        o->flushed = 1;
        return;
    }
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
        .cb.send = on_step,
        .user_data = o,
    };
    void *request = ucx.ucp_ep_flush_nbx(o->peer->ep, &param);
    if (UCS_PTR_IS_ERR(request)) {
        o->failed = 1;
        peer_stop(o->peer, FAILED, ucx.ucs_status_string(UCS_PTR_STATUS(request)));
        return;
    }
    if (request != NULL)
        o->pending++;
    o->flushed = 1; /* counts once `pending` is zero */
}

/* Everything that will be posted of it has been. */
static void op_posted_whole(op *o)
{
    op_leaves_queue(o);
    op_flush(o);
    if (o->pending == 0)
        op_is_ready(o);
}

static void op_drop_tail(op *o)
{
    if (!o->in_queue)
        return;
    o->dropped = 1;
    op_leaves_queue(o);
    if (o->copied || o->peer->stop == RUNS || o->peer->stop == FENCED_BY_PEER)
        op_flush(o);
    if (o->pending == 0)
        op_is_ready(o);
}

/* Post one piece of `o`; 0, or -1 where the operation cannot go on. */
static int op_post_piece(op *o, size_t *local_hint, size_t *remote_hint, uint64_t *copied)
{
    kvu_peer *p = o->peer;
    kvu_session *s = p->s;
    uint64_t local = o->local[o->at] + o->offset, remote = o->remote[o->at] + o->offset;
    uint64_t bytes = o->length[o->at] - o->offset;
    /* Checked again: a region may have gone since the post. */
    long ours = spans_find(&s->spans, local, bytes, local_hint);
    long theirs = remote_find(p, remote, bytes, remote_hint);
    if (ours < 0 || theirs < 0)
        return -1;
    kvu_region *region = s->region_list[s->spans.owner[ours]];
    uint64_t local_room = s->spans.reach[ours] - local;
    uint64_t remote_room = p->region_ends[2 * theirs + 1] - remote;
    size_t at = o->at;
    uint64_t offset = 0;
    if (bytes > PIECE_BYTES) {
        offset = o->offset + PIECE_BYTES;
        bytes = PIECE_BYTES;
    } else {
        for (at++; at < o->count; at++) {
            uint64_t more = o->length[at];
            if (o->local[at] != local + bytes || o->remote[at] != remote + bytes
                || more > PIECE_BYTES - bytes || more > local_room - bytes
                || more > remote_room - bytes)
                break;
            bytes += more;
        }
    }
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA
                      | UCP_OP_ATTR_FIELD_MEMORY_TYPE | UCP_OP_ATTR_FIELD_MEMH,
        .cb.send = on_range,
        .user_data = o,
        .memory_type = region->type,
        .memh = region->memh,
    };
    void *request = o->write
        ? ucx.ucp_put_nbx(p->ep, (void *)local, bytes, remote, p->keys[theirs], &param)
        : ucx.ucp_get_nbx(p->ep, (void *)local, bytes, remote, p->keys[theirs], &param);
    o->posted = 1;
    if (UCS_PTR_IS_ERR(request)) {
        o->failed = 1;
        peer_stop(p, FAILED, ucx.ucs_status_string(UCS_PTR_STATUS(request)));
        return 0;
    }
    if (request != NULL) {
        *(uint64_t *)request = bytes;
        o->pending++;
        p->window_count++;
        p->window_bytes += bytes;
    } else {
        *copied += bytes;
    }
    o->at = at;
    o->offset = offset;
    return 0;
}

/* A process of this host: the kernel copies lists of ranges in one call, where UCX would make a
 * call for each. What has been copied when it returns is there; nothing is left under way.
 * 0, or -1 where the range has to go through UCX or cannot go at all. */
static int op_copy(op *o, uint64_t *copied)
{
    struct iovec ours[COPY_COUNT], theirs[COPY_COUNT];
    kvu_peer *p = o->peer;
    kvu_session *s = p->s;
    size_t local_hint = 0, remote_hint = 0, at = o->at, count = 0;
    uint64_t offset = o->offset, bytes = 0;
    for (; at < o->count && count < COPY_COUNT && bytes < COPY_BYTES; count++) {
        uint64_t local = o->local[at] + offset, remote = o->remote[at] + offset;
        uint64_t length = o->length[at] - offset;
        long mine = spans_find(&s->spans, local, length, &local_hint);
        long region = remote_find(p, remote, length, &remote_hint);
        if (mine < 0 || region < 0 || !p->is_host[region]
            || s->region_list[s->spans.owner[mine]]->type != UCS_MEMORY_TYPE_HOST)
            break;
        if (length > COPY_BYTES - bytes)
            length = COPY_BYTES - bytes;
        ours[count] = (struct iovec){(void *)local, length};
        theirs[count] = (struct iovec){(void *)remote, length};
        bytes += length;
        offset += length;
        if (offset == o->length[at]) {
            at++;
            offset = 0;
        }
    }
    if (count == 0)
        return -1;
    struct pollfd ended = {p->pid_fd, POLLIN, 0};
    if (p->pid_fd >= 0 && poll(&ended, 1, 0) > 0) {
        /* Its number may be another process's soon. */
        peer_stop(p, FAILED, "its process runs no more");
        return 0;
    }
    ssize_t moved = o->write ? process_vm_writev(p->copy_pid, ours, count, theirs, count, 0)
                             : process_vm_readv(p->copy_pid, ours, count, theirs, count, 0);
    if (moved < 0 && (errno == EPERM || errno == ENOSYS)) {
        p->copy_pid = 0; /* the kernel does not let us; UCX knows other ways */
        return -1;
    }
    o->posted = o->copied = 1;
    if (moved != (ssize_t)bytes) {
        const char *why = moved < 0 ? strerror(errno) : "memory that is not there";
        o->failed = o->quiet = 1;
        say(s, "request %llu: %s", (unsigned long long)o->request, why);
        if (moved < 0 && errno == ESRCH)
            peer_stop(p, FAILED, "its process runs no more");
        op_drop_tail(o);
        return 0;
    }
    *copied += bytes;
    o->at = at;
    o->offset = offset;
    return 0;
}

/* Fill the window; gives how many pieces were posted or copied. */
static int peer_refill(kvu_peer *p)
{
    int count = 0;
    uint64_t copied = 0; /* what is done at once fills no window, but takes time too */
    size_t local_hint = 0, remote_hint = 0;
    while (p->queue != NULL && p->stop == RUNS && p->window_count < WINDOW_COUNT
           && p->window_bytes < WINDOW_BYTES && copied < COPY_BYTES) {
        op *o = p->queue;
        if (o->at < o->count && p->copy_pid != 0 && op_copy(o, &copied) == 0) {
            count++;
        } else if (o->at < o->count) {
            if (op_post_piece(o, &local_hint, &remote_hint, &copied) != 0) {
                say(p->s, "request %llu: a region of it has gone", (unsigned long long)o->request);
                op_drop_tail(o);
                continue;
            }
            count++;
        }
        if (o->in_queue && o->at == o->count)
            op_posted_whole(o);
    }
    return count;
}

static void op_notify(op *o)
{
    kvu_peer *p = o->peer;
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA
                      | UCP_OP_ATTR_FIELD_FLAGS,
        .cb.send = on_step,
        .user_data = o,
        .flags = UCP_AM_SEND_FLAG_EAGER,
    };
    memcpy(o->header.cookie, p->theirs, KVU_COOKIE);
    o->header.magic = AM_MAGIC;
    o->header.type = MSG_NOTE;
    o->noted = 1;
    void *request = ucx.ucp_am_send_nbx(p->ep, AM_ID, &o->header, sizeof o->header, o->note,
                                        o->note_size, &param);
    if (UCS_PTR_IS_ERR(request)) {
        o->failed = 1;
        peer_stop(p, FAILED, ucx.ucs_status_string(UCS_PTR_STATUS(request)));
    } else if (request != NULL) {
        o->pending++;
    }
}

/* Nothing of it is with UCX now: the next step, or the end. */
static void op_next_step(op *o)
{
    kvu_peer *p = o->peer;
    o->is_ready = 0;
    if (!o->failed && !o->dropped && o->note_size > 0 && !o->noted && p->stop == RUNS) {
        op_notify(o);
        if (o->pending > 0)
            return;
    }
    if (o->noted)
        /* The bytes are quiet, whatever became of the message. */
        op_end(o, o->failed ? OP_FAILED : OK);
    else if (o->failed || o->dropped || o->note_size > 0)
        op_end(o, op_bad_end(o));
    else
        op_end(o, OK);
}

/* A message of the shim's own; best effort. */
static void send_control(kvu_peer *p, uint32_t type, uint64_t arg)
{
    struct { uint32_t magic, type; unsigned char cookie[KVU_COOKIE]; uint64_t arg; } *header;
    if (p->ep == NULL || p->closing || (header = calloc(1, sizeof *header)) == NULL)
        return;
    header->magic = AM_MAGIC;
    header->type = type;
    header->arg = arg;
    memcpy(header->cookie, p->theirs, KVU_COOKIE);
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA
                      | UCP_OP_ATTR_FIELD_FLAGS,
        .cb.send = on_control,
        .user_data = header,
        .flags = UCP_AM_SEND_FLAG_EAGER,
    };
    void *request = ucx.ucp_am_send_nbx(p->ep, AM_ID, header, sizeof *header, NULL, 0, &param);
    if (request == NULL || UCS_PTR_IS_ERR(request))
        free(header);
    if (UCS_PTR_IS_ERR(request))
        peer_stop(p, FAILED, ucx.ucs_status_string(UCS_PTR_STATUS(request)));
}

static void take_note(kvu_peer *p, const void *data, size_t length)
{
    kvu_session *s = p->s;
    kvu_note *note;
    if (length == 0 || length > KVU_NOTE_MAX || p->stop >= FENCING || p->dropped)
        return;
    if (p->inbox_count >= INBOX_COUNT_MAX || p->inbox_bytes + length > INBOX_BYTES_MAX) {
        peer_stop(p, FAILED, "it sends notifications faster than they are taken");
        return;
    }
    if ((note = malloc(sizeof *note + length)) == NULL)
        return;
    note->next = NULL;
    note->peer = p->handle;
    note->length = length;
    memcpy(note->data, data, length);
    pthread_mutex_lock(&s->ring);
    p->inbox_count++;
    p->inbox_bytes += length;
    *s->notes_end = note;
    s->notes_end = &note->next;
    s->note_count++;
    signal_owner_locked(s);
    pthread_mutex_unlock(&s->ring);
}

/* Any bytes may come: whoever knows our address can send. Only the link's cookie counts. */
static ucs_status_t on_message(void *arg, const void *header, size_t header_length, void *data,
                               size_t length, const ucp_am_recv_param_t *param)
{
    kvu_peer *p = arg;
    struct { uint32_t magic, type; unsigned char cookie[KVU_COOKIE]; uint64_t arg; } got;
    if (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV)
        return UCS_ERR_UNSUPPORTED;
    if (header_length != sizeof got)
        return UCS_OK;
    memcpy(&got, header, sizeof got);
    if (got.magic != AM_MAGIC || memcmp(got.cookie, p->own, KVU_COOKIE) != 0)
        return UCS_OK;
    switch (got.type) {
    case MSG_NOTE:
        take_note(p, data, length);
        break;
    case MSG_WITHDRAWN:
        for (size_t i = 0; i < p->region_count; i++)
            if (p->region_handles[i] == got.arg)
                __atomic_store_n(&p->withdrawn[i], 1, __ATOMIC_RELAXED);
        break;
    case MSG_FENCE:
        peer_stop(p, FENCED_BY_PEER, "the other side has fenced us");
        break;
    case MSG_BYE:
        p->quiet = p->quiet || got.arg == 1;
        peer_stop(p, FAILED, "the other side has ended the link");
        break;
    }
    return UCS_OK;
}
