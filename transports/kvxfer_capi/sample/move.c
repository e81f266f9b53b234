/* Requests of the sample: checks before a post, windows of system calls, ends. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

#include "cma.h"

static void append(requests *list, request *r)
{
    r->next = NULL;
    if (list->last != NULL)
        list->last->next = r;
    else
        list->first = r;
    list->last = r;
}

static void take_first(requests *list)
{
    list->first = list->first->next;
    if (list->first == NULL)
        list->last = NULL;
}

/* It is out of the list of active ones; nothing of it touches memory any more. */
static void end(session *s, request *r, int32_t status)
{
    if (r->notify != NULL) {
        r->peer->reserved--;
        free(r->notify);
        r->notify = NULL;
    }
    r->peer = NULL;
    r->status = status;
    append(&s->ended, r);
}

void end_requests_of(session *s, peer *p)
{
    requests kept = {NULL, NULL};
    while (s->active.first != NULL) {
        request *r = s->active.first;
        take_first(&s->active);
        if (r->peer == p)
            end(s, r, KVXFER_OP_FAILED);
        else
            append(&kept, r);
    }
    s->active = kept;
}

void drop_requests(session *s)
{
    requests *lists[] = {&s->active, &s->ended};
    for (size_t i = 0; i < 2; i++)
        while (lists[i]->first != NULL) {
            request *r = lists[i]->first;
            take_first(lists[i]);
            free(r->notify);
            free(r);
        }
}

static bool holds(uint64_t base, uint64_t size, uint64_t start, uint64_t length)
{
    return start >= base && start - base <= size && length <= size - (start - base);
}

static const blob_region *find_there(const peer *p, const live_table *live, uint64_t start,
                                     uint64_t length)
{
    for (uint32_t i = 0; i < p->there.region_count; i++) {
        const blob_region *r = &p->regions[i];
        if (holds(r->base, r->length, start, length) &&
            (live == NULL || live->region[r->handle % REGIONS_MAX] == r->handle))
            return r;
    }
    return NULL;
}

/* Why a piece of memory on both sides may not be touched now; OK where it may. */
static int32_t piece_status(session *s, peer *p, const live_table *live, uint64_t local,
                            uint64_t remote, uint64_t length)
{
    if (find_region(s, local, length) == NULL)
        return fail(s, has_regions(s) ? KVXFER_REGION_BOUNDS : KVXFER_REGION_UNKNOWN,
                    "%llu bytes at local %llu: not inside one registered region",
                    (unsigned long long)length, (unsigned long long)local);
    if (find_there(p, live, remote, length) != NULL)
        return KVXFER_OK;
    if (find_there(p, NULL, remote, length) != NULL)
        return fail(s, KVXFER_REGION_STALE, "%llu bytes at remote %llu: dropped by the peer",
                    (unsigned long long)length, (unsigned long long)remote);
    return fail(s, p->there.region_count ? KVXFER_REGION_BOUNDS : KVXFER_REGION_UNKNOWN,
                "%llu bytes at remote %llu: not inside one region of the peer's blob",
                (unsigned long long)length, (unsigned long long)remote);
}

static bool wraps(uint64_t start, uint64_t stride, uint64_t steps)
{
    return steps > 0 && stride > (UINT64_MAX - start) / steps;
}

static int32_t entry_status(session *s, peer *p, const live_table *live,
                            const kvxfer_strided *columns, uint64_t i)
{
    uint64_t local = columns->local[i], remote = columns->remote[i];
    uint64_t length = columns->length[i];
    uint64_t count = columns->count == NULL ? 1 : columns->count[i];
    if (length == 0 || count == 0)
        return fail(s, KVXFER_OP_INVALID, "entry %llu moves nothing", (unsigned long long)i);
    if (count == 1)
        return piece_status(s, p, live, local, remote, length);
    uint64_t apart = columns->local_stride[i], apart_there = columns->remote_stride[i];
    if (wraps(local, apart, count - 1) || wraps(remote, apart_there, count - 1))
        return fail(s, KVXFER_REGION_BOUNDS, "entry %llu: its last range starts above 2^64",
                    (unsigned long long)i);
    for (uint64_t k = 0; k < count; k++) {
        int32_t status =
            piece_status(s, p, live, local + k * apart, remote + k * apart_there, length);
        if (status != KVXFER_OK)
            return status;
    }
    return KVXFER_OK;
}

static int32_t columns_status(session *s, peer *p, const kvxfer_strided *columns)
{
    uint64_t ranges = 0;
    for (uint64_t i = 0; i < columns->entry_count && columns->count != NULL; i++) {
        if (columns->count[i] > STRIDED_RANGES_MAX - ranges)
            return fail(s, KVXFER_OP_INVALID, "more than %d ranges", STRIDED_RANGES_MAX);
        ranges += columns->count[i];
    }
    live_table live;
    if (!read_table(p, &live))
        return fail(s, KVXFER_PEER_FAILED, "peer: %s", p->why);
    for (uint64_t i = 0; i < columns->entry_count; i++) {
        int32_t status = entry_status(s, p, &live, columns, i);
        if (status != KVXFER_OK)
            return status;
    }
    return KVXFER_OK;
}

static int32_t post(uint64_t handle, uint64_t peer_handle, int32_t direction,
                    const kvxfer_strided *columns, kvxfer_bytes notify, uint64_t *out)
{
    session *s = find_session(handle);
    if (s == NULL)
        return KVXFER_CLOSED;
    if (direction != KVXFER_DIRECTION_WRITE && direction != KVXFER_DIRECTION_READ)
        return fail(s, KVXFER_OP_INVALID, "direction = %d", direction);
    if (notify.data != NULL && (notify.size == 0 || notify.size > NOTIFICATION_MAX))
        return fail(s, KVXFER_OP_INVALID, "a notification of %llu bytes: from 1 to %d",
                    (unsigned long long)notify.size, NOTIFICATION_MAX);
    if (columns->entry_count == 0 && notify.data == NULL)
        return fail(s, KVXFER_OP_INVALID, "neither a range nor a notification");
    peer *p = find_peer(s, peer_handle);
    int32_t status = peer_status(s, p);
    if (status != KVXFER_OK)
        return status;
    if (s->request_count >= REQUESTS_MAX)
        return fail(s, KVXFER_NO_RESOURCE, "%d requests have not been polled", REQUESTS_MAX);
    if (notify.data != NULL && p->outbox.count + p->reserved >= OUTBOX_MAX)
        return fail(s, KVXFER_NO_RESOURCE, "%d notifications wait for the peer", OUTBOX_MAX);
    status = columns_status(s, p, columns);
    if (status != KVXFER_OK)
        return status;
    request *r = calloc(1, sizeof *r);
    note *one = notify.data == NULL
                    ? NULL
                    : new_note(NOTE_NOTIFICATION, notify.data, (size_t)notify.size);
    if (r == NULL || (notify.data != NULL && one == NULL)) {
        free(r);
        free(one);
        return fail(s, KVXFER_NO_RESOURCE, "no memory for a request");
    }
    r->handle = ++s->request_next;
    r->peer = p;
    r->peer_handle = peer_handle;
    r->direction = direction;
    r->columns = *columns;
    r->notify = one;
    p->reserved += one != NULL;
    s->request_count++;
    append(&s->active, r);
    refresh_wake(s);
    *out = r->handle;
    return KVXFER_OK;
}

int32_t cma_post_write(uint64_t handle, uint64_t peer_handle, const kvxfer_columns *columns,
                       kvxfer_bytes notify, uint64_t *out)
{
    kvxfer_strided plain = {columns->local, columns->remote, columns->length, NULL,
                            NULL,           NULL,            columns->entry_count};
    return post(handle, peer_handle, KVXFER_DIRECTION_WRITE, &plain, notify, out);
}

int32_t cma_post_read(uint64_t handle, uint64_t peer_handle, const kvxfer_columns *columns,
                      kvxfer_bytes notify, uint64_t *out)
{
    kvxfer_strided plain = {columns->local, columns->remote, columns->length, NULL,
                            NULL,           NULL,            columns->entry_count};
    return post(handle, peer_handle, KVXFER_DIRECTION_READ, &plain, notify, out);
}

int32_t cma_post_strided(uint64_t handle, uint64_t peer_handle, int32_t direction,
                         const kvxfer_strided *columns, kvxfer_bytes notify, uint64_t *out)
{
    return post(handle, peer_handle, direction, columns, notify, out);
}

/* One window being filled. */
typedef struct window {
    struct iovec here[WINDOW_RANGES];
    struct iovec there[WINDOW_RANGES];
    size_t ranges;
    uint64_t bytes;
} window;

/* Take the next ranges of `r` into the window; OK, or why one of them may not be touched. */
static int32_t fill(session *s, request *r, const live_table *live, window *w)
{
    const kvxfer_strided *c = &r->columns;
    while (r->entry < c->entry_count && w->ranges < WINDOW_RANGES && w->bytes < WINDOW_BYTES) {
        uint64_t i = r->entry, count = c->count == NULL ? 1 : c->count[i];
        uint64_t local = c->local[i] + r->offset, remote = c->remote[i] + r->offset;
        if (c->count != NULL) {
            local += r->repeat * c->local_stride[i];
            remote += r->repeat * c->remote_stride[i];
        }
        uint64_t length = c->length[i] - r->offset, room = WINDOW_BYTES - w->bytes;
        if (length > room)
            length = room;
        int32_t status = piece_status(s, r->peer, live, local, remote, length);
        if (status != KVXFER_OK)
            return status;
        w->here[w->ranges] = (struct iovec){(void *)(uintptr_t)local, (size_t)length};
        w->there[w->ranges] = (struct iovec){(void *)(uintptr_t)remote, (size_t)length};
        w->ranges++;
        w->bytes += length;
        r->offset += length;
        if (r->offset == c->length[i]) {
            r->offset = 0;
            if (++r->repeat == count) {
                r->repeat = 0;
                r->entry++;
            }
        }
    }
    return KVXFER_OK;
}

/* Move one window of `r`: IN_PROGRESS where more is left, else how it has ended. */
static int32_t move_window(session *s, request *r)
{
    window w = {.ranges = 0, .bytes = 0};
    live_table live;
    /* An end that is found gone has ended this request too, with all others to it. */
    if (!read_table(r->peer, &live))
        return KVXFER_OP_FAILED;
    if (fill(s, r, &live, &w) != KVXFER_OK)
        return KVXFER_OP_FAILED;
    if (w.ranges > 0) {
        pid_t pid = (pid_t)r->peer->there.pid;
        ssize_t moved = r->direction == KVXFER_DIRECTION_WRITE
                            ? process_vm_writev(pid, w.here, w.ranges, w.there, w.ranges, 0)
                            : process_vm_readv(pid, w.here, w.ranges, w.there, w.ranges, 0);
        if (moved < 0 || (uint64_t)moved != w.bytes) {
            fail(s, KVXFER_OP_FAILED, "%lld of %llu bytes moved: %s", (long long)moved,
                 (unsigned long long)w.bytes, moved < 0 ? strerror(errno) : "pages are missing");
            return KVXFER_OP_FAILED;
        }
    }
    return r->entry < r->columns.entry_count ? KVXFER_IN_PROGRESS : KVXFER_OK;
}

/* The bytes are there, so the notification may go. */
static int32_t notify_end(request *r)
{
    note *one = r->notify;
    if (one == NULL)
        return KVXFER_OK;
    r->notify = NULL;
    r->peer->reserved--;
    return send_note(r->peer, one) ? KVXFER_OK : KVXFER_OP_FAILED;
}

static void drive_requests(session *s)
{
    for (int turn = 0; turn < WINDOWS_PER_POLL && s->active.first != NULL; turn++) {
        request *r = s->active.first;
        /* Out of the list first: what follows may end all requests to this peer. */
        take_first(&s->active);
        int32_t status = move_window(s, r);
        if (status == KVXFER_IN_PROGRESS)
            append(&s->active, r); /* behind the others: a long one delays nobody */
        else
            end(s, r, status == KVXFER_OK ? notify_end(r) : status);
    }
}

int32_t cma_cancel(uint64_t handle, uint64_t request_handle)
{
    session *s = find_session(handle);
    if (s == NULL)
        return KVXFER_CLOSED;
    requests kept = {NULL, NULL};
    bool found = false;
    while (s->active.first != NULL) {
        request *r = s->active.first;
        take_first(&s->active);
        if (r->handle == request_handle) {
            found = true;
            end(s, r, KVXFER_OP_FAILED);
        } else
            append(&kept, r);
    }
    s->active = kept;
    for (request *r = s->ended.first; r != NULL && !found; r = r->next)
        found = r->handle == request_handle;
    refresh_wake(s);
    return found ? KVXFER_OK
                 : fail(s, KVXFER_OP_INVALID, "request = %llu: not open",
                        (unsigned long long)request_handle);
}

int32_t cma_poll(uint64_t handle, kvxfer_completion *records, uint64_t capacity, uint64_t *count)
{
    session *s = find_session(handle);
    *count = 0;
    if (s == NULL)
        return KVXFER_CLOSED;
    drive_mail(s);
    drive_requests(s);
    while (*count < capacity && s->ended.first != NULL) {
        request *r = s->ended.first;
        take_first(&s->ended);
        records[*count].request = r->handle;
        records[*count].peer = r->peer_handle;
        records[*count].status = r->status;
        (*count)++;
        s->request_count--;
        free(r);
    }
    refresh_wake(s);
    return KVXFER_OK;
}
