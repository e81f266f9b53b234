/* The owner's hot calls: post, notify, cancel, poll; and the two ways to end a link.
 *
 * Invariants: a post is checked whole before anything of it is queued; none of these waits for
 * a peer. */

static int check_ranges(kvu_session *s, kvu_peer *p, size_t count, const uint64_t *local,
                        const uint64_t *remote, const uint64_t *length, uint64_t *bytes)
{
    size_t local_hint = 0, remote_hint = 0;
    for (size_t i = 0; i < count; i++) {
        if (length[i] == 0) {
            say(s, "length[%zu] = 0: a range has at least one byte", i);
            return OP_INVALID;
        }
        if (spans_find(&s->spans, local[i], length[i], &local_hint) < 0) {
            say(s, "local[%zu] = %llu, %llu bytes: not inside one registered region", i,
                (unsigned long long)local[i], (unsigned long long)length[i]);
            return s->spans.count == 0 ? REGION_UNKNOWN : REGION_BOUNDS;
        }
        long found = remote_find(p, remote[i], length[i], &remote_hint);
        if (found < 0) {
            say(s, "remote[%zu] = %llu, %llu bytes: %s", i, (unsigned long long)remote[i],
                (unsigned long long)length[i],
                found == REGION_STALE ? "its owner has dropped the region"
                                      : "not inside one region of the peer's blob");
            return (int)found;
        }
        *bytes += length[i]; /* may wrap; it only says whether the post is a small one */
    }
    return OK;
}

/* Hear first what the other side has said already: that a region is gone, or the link. */
static void listen_to(kvu_session *s, kvu_peer *p)
{
    if (pthread_mutex_trylock(&s->engine) != 0)
        return;
    if (p->worker != NULL && p->window_count == 0)
        ucx.ucp_worker_progress(p->worker);
    pthread_mutex_unlock(&s->engine);
}

static int may_post(kvu_session *s, kvu_peer *p)
{
    /* Read without the lock: the engine looks again before it hands anything to UCX. */
    if (__atomic_load_n(&p->stop, __ATOMIC_ACQUIRE) != RUNS) {
        say(s, "peer %llu: the link has ended: %s", (unsigned long long)p->handle, p->reason);
        return PEER_FAILED;
    }
    if (!p->connected) {
        say(s, "no blob of this peer was accepted");
        return PEER_NOT_CONNECTED;
    }
    if (atomic_load(&s->unpolled) + atomic_load(&s->silent) >= KVU_REQUESTS_MAX) {
        say(s, "%d requests have not been polled", KVU_REQUESTS_MAX);
        return NO_RESOURCE;
    }
    return OK;
}

static void submit(kvu_session *s, op *o, int is_small)
{
    kvu_peer *p = o->peer;
    o->number = ++s->op_number;
    o->next = NULL;
    pthread_mutex_lock(&s->ring);
    *s->submitted_end = o;
    s->submitted_end = &o->next;
    pthread_mutex_unlock(&s->ring);
    if (pthread_mutex_trylock(&s->engine) == 0) {
        take_in(s);
        if (is_small) /* a long one would be posted, or even copied, in the owner's time */
            peer_advance(p);
        turned_by_owner(s);
        pthread_mutex_unlock(&s->engine);
    } else {
        /* Whoever holds the lock may have looked already, and may be about to sleep. */
        write_event(s->kick_fd);
    }
}

static op *op_new(kvu_peer *p, uint64_t request, const char *note, size_t note_size)
{
    op *o = calloc(1, sizeof *o + note_size);
    if (o == NULL)
        return NULL;
    o->peer = p;
    o->peer_handle = p->handle;
    o->request = request;
    o->note_size = note_size;
    if (note_size > 0)
        memcpy(o->note, note, note_size);
    return o;
}

int kvu_post(kvu_session *s, kvu_peer *p, uint64_t request, int write, size_t count,
             const uint64_t *local, const uint64_t *remote, const uint64_t *length,
             const char *note, size_t note_size)
{
    uint64_t bytes = 0;
    listen_to(s, p);
    int status = may_post(s, p);
    if (status == OK && count > 0 && !(write ? p->can_put : p->can_get)) {
        say(s, "peer %llu: no transport of this link can %s without the other side's messages",
            (unsigned long long)p->handle, write ? "write" : "read");
        status = OP_INVALID;
    }
    if (status == OK)
        status = check_ranges(s, p, count, local, remote, length, &bytes);
    if (status != OK)
        return status;
    op *o = op_new(p, request, note, note_size);
    if (o == NULL)
        return NO_RESOURCE;
    o->write = (char)write;
    o->count = count;
    o->local = local;
    o->remote = remote;
    o->length = length;
    atomic_fetch_add(&s->unpolled, 1);
    submit(s, o, count <= SMALL_COUNT && bytes <= SMALL_BYTES);
    return OK;
}

int kvu_notify(kvu_session *s, kvu_peer *p, const char *note, size_t note_size)
{
    int status = may_post(s, p);
    if (status != OK)
        return status;
    op *o = op_new(p, 0, note, note_size);
    if (o == NULL)
        return NO_RESOURCE;
    o->internal = 1;
    atomic_fetch_add(&s->silent, 1);
    submit(s, o, 1);
    return OK;
}

int kvu_cancel(kvu_session *s, uint64_t request)
{
    int status = OP_INVALID;
    lock_engine(s);
    take_in(s);
    for (kvu_peer *p = s->peers; p != NULL && status != OK; p = p->next)
        for (op *o = p->open; o != NULL; o = o->open_next)
            if (o->request == request && !o->internal) {
                op_drop_tail(o);
                status = OK;
                peer_advance(p);
                break;
            }
    turned_by_owner(s);
    unlock_engine(s);
    return status;
}

typedef struct { uint64_t request, peer; int32_t status; } completion;

int64_t kvu_poll(kvu_session *s, char *records, size_t count_max)
{
    size_t count = 0;
    op *taken = NULL;
    drive(s, PROGRESS_MAX);
    pthread_mutex_lock(&s->ring);
    while (count < count_max && s->ended != NULL) {
        op *o = s->ended;
        completion record;
        memset(&record, 0, sizeof record); /* its padding too */
        record.request = o->request;
        record.peer = o->peer_handle;
        record.status = o->status;
        memcpy(records + count * sizeof record, &record, sizeof record);
        count++;
        if ((s->ended = o->next) == NULL)
            s->ended_end = &s->ended;
        o->next = taken;
        taken = o;
    }
    if (count > 0)
        signal_owner_locked(s);
    pthread_mutex_unlock(&s->ring);
    atomic_fetch_sub(&s->unpolled, count);
    while (taken != NULL) {
        op *o = taken;
        taken = o->next;
        free(o);
    }
    return (int64_t)count;
}


static kvu_peer *peer_of(kvu_session *s, uint64_t handle)
{
    for (kvu_peer *p = s->peers; p != NULL; p = p->next)
        if (p->handle == handle)
            return p;
    return NULL;
}

static kvu_note *take_first(kvu_session *s)
{
    pthread_mutex_lock(&s->ring);
    kvu_note *note = s->notes;
    if (note != NULL) {
        if ((s->notes = note->next) == NULL)
            s->notes_end = &s->notes;
        s->note_count--;
        kvu_peer *p = peer_of(s, note->peer);
        if (p != NULL) {
            p->inbox_count--;
            p->inbox_bytes -= note->length;
        }
        signal_owner_locked(s);
    }
    pthread_mutex_unlock(&s->ring);
    return note;
}

/* Takes out what fits: for each its peer, its length, its bytes. Gives how many they are. */
int64_t kvu_notes(kvu_session *s, size_t count_max, char *into, size_t size)
{
    size_t count = 0, at = 0;
    /* Once: who waits for a notification calls again, and does not wait for a second look. */
    drive(s, 1);
    while (count < count_max && s->notes != NULL) {
        uint64_t head[2] = {s->notes->peer, s->notes->length};
        if (sizeof head + head[1] > size - at)
            break;
        kvu_note *note = take_first(s);
        memcpy(into + at, head, sizeof head);
        memcpy(into + at + sizeof head, note->data, head[1]);
        at += sizeof head + head[1];
        count++;
        free(note);
    }
    return (int64_t)count;
}

/* Ends. */

static void drop_notes(kvu_session *s, uint64_t handle)
{
    pthread_mutex_lock(&s->ring);
    s->notes_end = &s->notes;
    for (kvu_note **at = &s->notes; *at != NULL;) {
        kvu_note *note = *at;
        if (note->peer == handle) {
            *at = note->next;
            s->note_count--;
            free(note);
        } else {
            at = &note->next;
            s->notes_end = at;
        }
    }
    signal_owner_locked(s);
    pthread_mutex_unlock(&s->ring);
}

int kvu_peer_fence(kvu_session *s, kvu_peer *p, int worker_is_proof, uint64_t wait_ns)
{
    uint64_t until = now_ns() + wait_ns;
    int first = 1;
    for (;;) {
        lock_engine(s);
        take_in(s);
        if (first) {
            first = 0;
            peer_stop(p, FENCING, "is being fenced");
            if (worker_is_proof && !p->worker_is_proof) {
                p->worker_is_proof = 1;
                p->close_at = now_ns() + POLITE_NS;
            }
        }
        turn(s, PROGRESS_MAX);
        int dead = p->dead;
        unlock_engine(s);
        if (dead || now_ns() > until)
            break;
        sched_yield();
    }
    write_event(s->kick_fd);
    return kvu_peer_flags(s, p);
}

void kvu_peer_drop(kvu_session *s, kvu_peer *p)
{
    uint64_t handle = p->handle;
    uint64_t until = now_ns() + DROP_NS;
    lock_engine(s);
    take_in(s);
    peer_stop(p, LEAVING, "destroyed by its owner");
    /* Mostly over at once; where the other side is slow the engine goes on with it alone. */
    while (turn(s, PROGRESS_MAX), !p->dead && now_ns() < until)
        sched_yield();
    p->dropped = 1;
    drop_notes(s, handle);
    turn(s, PROGRESS_MAX);
    turned_by_owner(s);
    unlock_engine(s);
    write_event(s->kick_fd);
}

static int all_dead(const kvu_session *s)
{
    for (const kvu_peer *p = s->peers; p != NULL; p = p->next)
        if (!p->dead)
            return 0;
    return 1;
}

/* 0, or -1 where something could not be ended in time and is left to the process's end. */
int kvu_close(kvu_session *s)
{
    uint64_t until = now_ns() + CLOSE_NS;
    atomic_store(&s->stopping, 1);
    write_event(s->kick_fd);
    pthread_join(s->thread, NULL);
    lock_engine(s);
    take_in(s);
    for (kvu_peer *p = s->peers; p != NULL; p = p->next)
        peer_stop(p, LEAVING, "the session is closed");
    while (turn(s, PROGRESS_MAX), !all_dead(s) && now_ns() < until)
        sched_yield();
    int clean = all_dead(s);
    for (kvu_region *r = s->regions, *next; clean && r != NULL; r = next) {
        next = r->next;
        region_free(s, r);
    }
    if (clean)
        regions_leave(s);
    unlock_engine(s);
    if (!clean)
        return -1;
    while (s->peers != NULL) {
        kvu_peer *p = s->peers;
        s->peers = p->next;
        free_peer(p);
    }
    while (s->notes != NULL)
        free(take_first(s));
    while (s->ended != NULL) {
        op *o = s->ended;
        s->ended = o->next;
        free(o);
    }
    ucx.ucp_cleanup(s->context);
    free_session(s);
    return 0;
}
