/* The records: sessions, regions, peers, operations.
 *
 * Two locks. `engine` is held while UCX is called and while a peer's queues change; the owner
 * only tries for it where it must not wait. `ring` guards what the owner takes out and what it
 * puts in, and is held for a few instructions. */

enum {
    OK = 0,
    NO_RESOURCE = -100,
    OP_INVALID = -101,
    OP_FAILED = -102,
    OP_UNKNOWN = -103,
    REGION_UNKNOWN = -200,
    REGION_STALE = -201,
    REGION_BOUNDS = -202,
    PEER_FAILED = -301,
    PEER_NOT_CONNECTED = -302,
    PEER_BLOB = -303,
    SESSION_FAILED = -403
};

#define WINDOW_COUNT 256
#define WINDOW_BYTES (16ull << 20)
#define PIECE_BYTES (4ull << 20)
#define COPY_COUNT 512
#define COPY_BYTES (2ull << 20)
#define SMALL_COUNT 16
#define SMALL_BYTES (256ull << 10)
#define INBOX_COUNT_MAX 65536
#define INBOX_BYTES_MAX (64ull << 20)
#define PROGRESS_MAX 8
#define TIMER_EVENT (UINT64_MAX - 1)
#define SPIN_NS 50000ull
#define OWNER_DRIVES_NS 200000ull
#define TAKE_OVER_NS 200000
#define NAP_NS 500000
#define BUSY_SLEEP_MS 10
#define IDLE_SLEEP_MS 1000
#define GRACE_NS 200000000ull
#define BYE_NS 1000000ull
#define POLITE_NS 20000000ull
#define DROP_NS 10000000ull
#define CLOSE_NS 300000000ull
#define AM_ID 7
#define AM_MAGIC 0x4b565531u
#define PAD_BYTES 4096
#define TRANSPORTS_MAX 64

typedef struct op op;

typedef struct kvu_note {
    struct kvu_note *next;
    uint64_t peer, length;
    unsigned char data[];
} kvu_note;

struct kvu_region {
    kvu_region *next;
    uint64_t handle, base, length;
    ucp_mem_h memh;
    ucs_memory_type_t type;
    kvu_region *source; /* memory of UCX's own that this one is a piece of */
    unsigned pieces;
    char allocated, left;
    uint64_t leaves_after; /* operations up to this number may use it still */
};

/* Sorted ranges; `reach[i]` is the largest end among 0..i and `owner[i]` whose end that is. */
typedef struct {
    size_t count;
    uint64_t *base, *reach;
    uint32_t *owner;
} span_table;

struct op {
    op *next;        /* in `submitted`, in a peer's queue, or among the ended */
    op *ready_next;
    op *open_next, *open_prev;
    kvu_peer *peer;
    uint64_t peer_handle, request, number;
    const uint64_t *local, *remote, *length;
    size_t count, at;
    uint64_t offset; /* bytes of range `at` that have been posted */
    unsigned pending;
    int status;
    char quiet; /* failed, and nothing of it is under way */
    char copied; /* by the kernel, not by UCX: it needs no flush */
    char write, posted, dropped, failed, flushed, noted, in_queue, is_ready, internal;
    struct { uint32_t magic, type; unsigned char cookie[KVU_COOKIE]; uint64_t arg; } header;
    size_t note_size;
    char note[];
};

enum { MSG_NOTE = 1, MSG_HELLO, MSG_WITHDRAWN, MSG_FENCE, MSG_BYE };

enum { RUNS = 0, FAILED, FENCED_BY_PEER, FENCING, LEAVING };

struct kvu_peer {
    kvu_session *s;
    kvu_peer *next;
    kvu_peer *all_next; /* in the list of the process */
    uint64_t handle;
    unsigned char own[KVU_COOKIE], theirs[KVU_COOKIE];
    ucp_worker_h worker;
    ucp_ep_h ep;
    int worker_fd, pid_fd;
    size_t region_count;
    uint64_t *region_handles, *region_ends;
    ucp_rkey_h *keys;
    unsigned char *withdrawn, *is_host;
    span_table spans;
    int copy_pid; /* its process, where the kernel copies for us; else 0 */
    op *open;
    op *queue, **queue_end;
    op *ready, **ready_end;
    unsigned window_count;
    uint64_t window_bytes, inbox_count, inbox_bytes;
    int stop;
    char can_put, can_get; /* without UCX's emulation by messages */
    char connected, quiet, gone, dead, closing, closed, asked, bye_sent, worker_is_proof, dropped;
    char reason[96]; /* why it has stopped */
    uint64_t close_at;
    void *close_request;
};

struct kvu_session {
    pthread_mutex_t engine, ring;
    pthread_t thread;
    atomic_int waiters, stopping, fd_used, owner_inside;
    atomic_uint_fast64_t owner_ns;
    int timer_runs;
    int asleep; /* the thread waits on its descriptors; under `engine` */
    int kick_fd, timer_fd, wake_fd, epoll_fd;
    ucp_context_h context;
    int has_cuda, shared_only;
    kvu_region *regions, *leaving;
    kvu_region **region_list;
    span_table spans;
    kvu_peer *peers;
    uint64_t op_number;
    /* under `ring` */
    op *submitted, **submitted_end;
    op *ended, **ended_end;
    kvu_note *notes, **notes_end;
    uint64_t note_count;
    int signalled;
    atomic_uint_fast64_t unpolled, silent;
    char error[512];
};

static pthread_mutex_t all_lock = PTHREAD_MUTEX_INITIALIZER;
static kvu_peer *all_peers;

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

__attribute__((format(printf, 2, 3)))
static void say(kvu_session *s, const char *form, ...)
{
    va_list args;
    va_start(args, form);
    pthread_mutex_lock(&s->ring);
    vsnprintf(s->error, sizeof s->error, form, args);
    pthread_mutex_unlock(&s->ring);
    va_end(args);
}

void kvu_error(kvu_session *s, char *text, size_t size)
{
    pthread_mutex_lock(&s->ring);
    snprintf(text, size, "%s", s->error);
    pthread_mutex_unlock(&s->ring);
}

static void lock_engine(kvu_session *s)
{
    atomic_fetch_add(&s->waiters, 1);
    pthread_mutex_lock(&s->engine);
    atomic_fetch_sub(&s->waiters, 1);
}

static void unlock_engine(kvu_session *s)
{
    pthread_mutex_unlock(&s->engine);
}

static void write_event(int fd)
{
    uint64_t one = 1;
    ssize_t done = write(fd, &one, sizeof one);
    (void)done; /* a full counter is readable, which is all that is wanted */
}

static void read_event(int fd)
{
    uint64_t value;
    ssize_t done = read(fd, &value, sizeof value);
    (void)done;
}

/* The descriptor is readable exactly while something waits to be taken out. */
static void signal_owner_locked(kvu_session *s)
{
    int wanted = s->ended != NULL || s->notes != NULL;
    if (!atomic_load_explicit(&s->fd_used, memory_order_relaxed) || wanted == s->signalled)
        return;
    s->signalled = wanted;
    if (wanted)
        write_event(s->wake_fd);
    else
        read_event(s->wake_fd);
}

static void spans_free(span_table *t)
{
    free(t->base);
    free(t->reach);
    free(t->owner);
    memset(t, 0, sizeof *t);
}

typedef struct { uint64_t base, end; uint32_t index; } span;

static int span_order(const void *left, const void *right)
{
    const span *a = left, *b = right;
    return a->base < b->base ? -1 : a->base > b->base;
}

static int spans_build(span_table *t, size_t count, const uint64_t *bases, const uint64_t *ends)
{
    span *sorted = malloc((count + 1) * sizeof *sorted);
    span_table made = {count, malloc((count + 1) * sizeof(uint64_t)),
                       malloc((count + 1) * sizeof(uint64_t)),
                       malloc((count + 1) * sizeof(uint32_t))};
    if (sorted == NULL || made.base == NULL || made.reach == NULL || made.owner == NULL) {
        free(sorted);
        spans_free(&made);
        return -1;
    }
    for (size_t i = 0; i < count; i++)
        sorted[i] = (span){bases[i], ends[i], (uint32_t)i};
    qsort(sorted, count, sizeof *sorted, span_order);
    for (size_t i = 0; i < count; i++) {
        made.base[i] = sorted[i].base;
        made.reach[i] = sorted[i].end;
        made.owner[i] = sorted[i].index;
        if (i > 0 && made.reach[i - 1] >= made.reach[i]) {
            made.reach[i] = made.reach[i - 1];
            made.owner[i] = made.owner[i - 1];
        }
    }
    free(sorted);
    spans_free(t);
    *t = made;
    return 0;
}

/* Index into the table of the entry that holds the range, or -1. `hint` is where to look first. */
static long spans_find(const span_table *t, uint64_t start, uint64_t length, size_t *hint)
{
    size_t at = *hint;
    if (t->count == 0)
        return -1;
    if (at >= t->count || t->base[at] > start
        || (at + 1 < t->count && t->base[at + 1] <= start)) {
        size_t low = 0, high = t->count;
        while (low < high) {
            size_t middle = (low + high) / 2;
            if (t->base[middle] <= start)
                low = middle + 1;
            else
                high = middle;
        }
        if (low == 0)
            return -1;
        at = low - 1;
        *hint = at;
    }
    /* No sum that could wrap: start <= reach is asked before reach - start is used. */
    if (start > t->reach[at] || length > t->reach[at] - start)
        return -1;
    return (long)at;
}
