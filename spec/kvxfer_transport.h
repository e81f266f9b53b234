/* kvxfer_transport.h: the transport table of kvxfer in C, version 1.0.
 *
 * A network is brought to kvxfer as a shared library that exports one function,
 * kvxfer_transport_table, which gives a table of functions. It is the same table
 * as kvxfer/transport/ops.py: slots, numbers and rules are compared with it by a
 * test. docs/write-a-transport.md is the walk-through; transports/kvxfer_capi
 * loads such a library and holds a complete sample.
 *
 * Words: a session is one instance of the transport, owned by one thread; a region
 * is registered memory; a peer is one end of a link to another session; a request
 * is one posted operation; a blob is what one end tells the other to be reached.
 *
 * Rules
 *
 *  1. No exception, signal or abort crosses the table. Every call returns a status
 *     that stands in the list of its slot ("Answers"). Out-parameters are written
 *     with OK only; poll functions write their count in any case.
 *  2. Nothing blocks. open and peer_create may take time for set-up, not for a peer.
 *  3. All calls for a session come from one thread, its owner. Sessions of several
 *     threads may be used at the same time.
 *  4. Handles are not 0, below 2^63, opaque, never reused in one session.
 *  5. A post either returns OK and a request, which then ends exactly once in poll,
 *     or returns an error that says 'never posted': NO_RESOURCE, OP_INVALID, or one
 *     of the region, peer or session band.
 *  6. A notification given with a write arrives only after the write's bytes are
 *     visible to the owner of the memory. A notification sent alone has no order.
 *  7. A completion says how the request ended: OK, OP_FAILED (quiet) or OP_UNKNOWN
 *     (not proven quiet). After fence_peer was called on the initiator, each of its
 *     own requests towards that peer ends, OP_FAILED or OP_UNKNOWN, and none reads
 *     the source any more; bytes on the wire may still arrive at the target.
 *  8. fence_peer returns OK only with proof that the peer can write into our memory
 *     no more, not even with operations that it has posted already; else NOT_FENCED,
 *     and it may be tried again. After the first try nothing can be posted to the peer.
 *  9. Columns have equal length; the caller keeps them and the memory alive until the
 *     request has ended. All ranges of an accepted post are moved, exactly, and nothing
 *     beside them. Columns without an entry are either a notification with no bytes, or
 *     OP_INVALID; a range of no bytes is OP_INVALID or moves none.
 * 10. A blob that cannot be used is refused with PEER_BLOB and changes nothing: a good
 *     one may follow. Handles that this session never gave, or that have ended, get
 *     PEER_UNKNOWN, REGION_UNKNOWN or REGION_STALE.
 * 11. An operation touches registered memory only: a range outside the session's own
 *     regions, or outside those in the peer's blob, makes the whole post refused with a
 *     region or operation status, and no byte of it moves. A region that the peer has
 *     dropped since may be noticed later, in the completion; REVOKE_REGION promises it.
 * 12. A notification holds any bytes, 1 to at least 65536 of them. What is too long,
 *     or empty, is refused where it cannot be delivered, never cut.
 * 13. cancel takes back what has not been handed to the network yet, and nothing else:
 *     the request still ends exactly once in poll, OK where everything had left, else
 *     OP_FAILED (or OP_UNKNOWN) once what had left is over. Its notification is then not
 *     sent. A request that is unknown or has ended gets OP_INVALID and changes nothing.
 * 14. Memory from allocate_region belongs to the transport: it is zeroed, registered, and
 *     valid until deregister_region or close, whichever comes first.
 * 15. A strided post moves, for each entry i, count[i] ranges of length[i] bytes: range k
 *     at local[i] + k * local_stride[i] and remote[i] + k * remote_stride[i]. All rules of
 *     a post hold.
 *
 * Whoever calls a session handle that is not open gets CLOSED.
 */
#ifndef KVXFER_TRANSPORT_H
#define KVXFER_TRANSPORT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A change that breaks libraries raises MAJOR; new slots at the end raise MINOR. */
#define KVXFER_TRANSPORT_MAJOR 1
#define KVXFER_TRANSPORT_MINOR 0

/* How a call or a request ended. The band says what died: -100 to -199 the operation,
 * -200 to -299 a region, -300 to -399 everything towards a peer, -400 to -499 the session. */
typedef enum kvxfer_status {
    KVXFER_OK = 0, /* done */
    KVXFER_IN_PROGRESS = 1, /* not ended yet */
    KVXFER_NO_RESOURCE = -100, /* not posted, the queue is full; post again after progress */
    KVXFER_OP_INVALID = -101, /* not posted, an argument is wrong */
    KVXFER_OP_FAILED = -102, /* posted, failed, quiet */
    KVXFER_OP_UNKNOWN = -103, /* posted, failed, not proven quiet */
    KVXFER_REGION_UNKNOWN = -200, /* no such region */
    KVXFER_REGION_STALE = -201, /* the region was dropped */
    KVXFER_REGION_BOUNDS = -202, /* outside the registered memory */
    KVXFER_PEER_UNKNOWN = -300, /* no such peer handle */
    KVXFER_PEER_FAILED = -301, /* the connection to the peer failed */
    KVXFER_PEER_NOT_CONNECTED = -302, /* the peer's blob has not been given yet */
    KVXFER_PEER_BLOB = -303, /* the peer's blob cannot be used */
    KVXFER_NOT_FENCED = -304, /* no proof that the peer can no longer reach our memory */
    KVXFER_UNSUPPORTED = -400, /* the transport cannot do this */
    KVXFER_CLOSED = -401, /* the session is closed */
    KVXFER_LIBRARY_MISSING = -402, /* a library that the transport needs is not there */
    KVXFER_SESSION_FAILED = -403 /* the session as a whole failed */
} kvxfer_status;

/* What a transport says is true of itself: bits of the 64-bit mask that caps gives. */
typedef enum kvxfer_cap {
    KVXFER_CAP_WRITE = 1 << 0, /* one-sided writes */
    KVXFER_CAP_READ = 1 << 1, /* one-sided reads */
    KVXFER_CAP_NOTIFY_AFTER_VISIBLE = 1 << 2, /* rule 6 holds */
    KVXFER_CAP_NEEDS_FLUSH = 1 << 3, /* after a completion the device does not see the bytes yet */
    KVXFER_CAP_FENCE_PEER = 1 << 4, /* a fence may succeed: there are cases with a proof */
    KVXFER_CAP_REVOKE_REGION = 1 << 5, /* a region can be taken back, from posted operations too */
    KVXFER_CAP_STRIDED = 1 << 6, /* strided descriptors */
    KVXFER_CAP_WAKEUP_FD = 1 << 7, /* a descriptor turns readable when there is something to poll */
    KVXFER_CAP_TARGET_MUST_PROGRESS = 1 << 8, /* incoming writes need calls at the target */
    KVXFER_CAP_MEM_DRAM = 1 << 9, /* host memory */
    KVXFER_CAP_MEM_CUDA = 1 << 10, /* CUDA device memory */
    KVXFER_CAP_MEM_NEURON = 1 << 11, /* Neuron device memory */
    KVXFER_CAP_THREAD_ONE_OWNER = 1 << 12, /* all calls come from one thread */
    KVXFER_CAP_CROSS_PROCESS = 1 << 13, /* peers may live in other processes */
    KVXFER_CAP_CANCEL = 1 << 14, /* cancel takes back what has not left yet */
    KVXFER_CAP_ALLOCATE = 1 << 15, /* the transport gives registered memory of its own */
    KVXFER_CAP_CLOSE_FENCES = 1 << 16 /* after close no peer writes into the session's memory */
} kvxfer_cap;

/* Where memory lives. */
typedef enum kvxfer_memory_kind {
    KVXFER_MEMORY_DRAM = 1,
    KVXFER_MEMORY_CUDA = 2,
    KVXFER_MEMORY_NEURON = 3
} kvxfer_memory_kind;

/* Which way a strided post moves bytes. */
typedef enum kvxfer_direction {
    KVXFER_DIRECTION_WRITE = 1,
    KVXFER_DIRECTION_READ = 2
} kvxfer_direction;

/* One option of open: two texts, UTF-8, ended by a zero byte. */
typedef struct kvxfer_option {
    const char *name;
    const char *value;
} kvxfer_option;

/* One contiguous piece of memory to register. */
typedef struct kvxfer_memory {
    uint64_t base;   /* address of the first byte */
    uint64_t length; /* bytes, above 0 */
    int32_t kind;    /* kvxfer_memory_kind */
    int32_t device;  /* index of the device; 0 for DRAM */
} kvxfer_memory;

/* Columns of a post: entry_count ranges of length[i] bytes. */
typedef struct kvxfer_columns {
    const uint64_t *local;
    const uint64_t *remote;
    const uint64_t *length;
    uint64_t entry_count;
} kvxfer_columns;

/* Columns of a strided post (rule 15). Strides are bytes from range to range. */
typedef struct kvxfer_strided {
    const uint64_t *local;
    const uint64_t *remote;
    const uint64_t *length;
    const uint64_t *count;
    const uint64_t *local_stride;
    const uint64_t *remote_stride;
    uint64_t entry_count;
} kvxfer_strided;

/* Bytes: a notification or a blob. A pointer of NULL means that there is none. */
typedef struct kvxfer_bytes {
    const void *data;
    uint64_t size;
} kvxfer_bytes;

/* One record of poll. */
typedef struct kvxfer_completion {
    uint64_t request;
    uint64_t peer;
    int32_t status; /* OK, OP_FAILED or OP_UNKNOWN */
} kvxfer_completion;

/* One record of poll_notifications. The bytes stay until the session's next call of it. */
typedef struct kvxfer_notification {
    uint64_t peer;
    kvxfer_bytes payload;
} kvxfer_notification;

/* The table. A slot that the library cannot do is NULL and counts as UNSUPPORTED; the slots
 * of WRITE, READ, FENCE_PEER, REVOKE_REGION, WAKEUP_FD, STRIDED, CANCEL and ALLOCATE may be,
 * if the flag is not declared. The table is constant and lives as long as the library. */
typedef struct kvxfer_transport {
    uint32_t struct_size; /* sizeof(kvxfer_transport) where the library was built */
    uint16_t major;       /* KVXFER_TRANSPORT_MAJOR where the library was built */
    uint16_t minor;       /* KVXFER_TRANSPORT_MINOR where the library was built */
    const char *name;     /* short, for people */

    /* Opens a session. Unknown options are OP_INVALID.
     * Answers: OK, NO_RESOURCE, OP_INVALID, UNSUPPORTED, LIBRARY_MISSING, SESSION_FAILED. */
    int32_t (*open)(const kvxfer_option *options, uint64_t option_count, uint64_t *session);

    /* Drops everything. Requests in flight end nowhere any more. Whether a peer may still write
     * late says CLOSE_FENCES; without it the memory counts as reachable.
     * Answers: OK, OP_INVALID, CLOSED, SESSION_FAILED. */
    int32_t (*close)(uint64_t session);

    /* Flags of kvxfer_cap; 0 for a session that is not open. */
    uint64_t (*caps)(uint64_t session);

    /* Registers memory of the caller. The same memory may be registered twice.
     * Answers: OK, NO_RESOURCE, OP_INVALID, CLOSED, SESSION_FAILED. */
    int32_t (*register_region)(uint64_t session, const kvxfer_memory *memory, uint64_t *region);

    /* Registered memory of the transport's own (rule 14).
     * Answers: OK, NO_RESOURCE, OP_INVALID, UNSUPPORTED, CLOSED, SESSION_FAILED. */
    int32_t (*allocate_region)(uint64_t session, uint64_t length, int32_t kind, int32_t device,
                               uint64_t *region, uint64_t *base);

    /* Refuses new use of the region at once; the caller has drained before.
     * Answers: OK, OP_INVALID, REGION_UNKNOWN, REGION_STALE, CLOSED, SESSION_FAILED. */
    int32_t (*deregister_region)(uint64_t session, uint64_t region);

    /* After OK nothing lands in the region, not even what was posted before. NOT_FENCED: not
     * yet, try again.
     * Answers: OK, OP_INVALID, REGION_UNKNOWN, REGION_STALE, NOT_FENCED, UNSUPPORTED, CLOSED,
     * SESSION_FAILED. */
    int32_t (*revoke_region)(uint64_t session, uint64_t region);

    /* Makes our end of a link. The blob is for the other side; it belongs to the library and
     * stays until the peer is destroyed. Regions registered before are in it.
     * Answers: OK, NO_RESOURCE, OP_INVALID, CLOSED, SESSION_FAILED. */
    int32_t (*peer_create)(uint64_t session, uint64_t *peer, kvxfer_bytes *blob);

    /* Takes the other side's blob (rule 10).
     * Answers: OK, NO_RESOURCE, OP_INVALID, PEER_UNKNOWN, PEER_FAILED, PEER_BLOB, CLOSED,
     * SESSION_FAILED. */
    int32_t (*peer_connect)(uint64_t session, uint64_t peer, kvxfer_bytes blob);

    /* Ends use of the peer handle. Not a fence.
     * Answers: OK, OP_INVALID, PEER_UNKNOWN, CLOSED, SESSION_FAILED. */
    int32_t (*peer_destroy)(uint64_t session, uint64_t peer);

    /* Proof that the peer writes into our memory no more (rules 7 and 8).
     * Answers: OK, OP_INVALID, PEER_UNKNOWN, NOT_FENCED, UNSUPPORTED, CLOSED, SESSION_FAILED. */
    int32_t (*fence_peer)(uint64_t session, uint64_t peer);

    /* Writes local ranges into the peer's memory.
     * Answers: OK, NO_RESOURCE, OP_INVALID, REGION_UNKNOWN, REGION_STALE, REGION_BOUNDS,
     * PEER_UNKNOWN, PEER_FAILED, PEER_NOT_CONNECTED, UNSUPPORTED, CLOSED, SESSION_FAILED. */
    int32_t (*post_write)(uint64_t session, uint64_t peer, const kvxfer_columns *columns,
                          kvxfer_bytes notify, uint64_t *request);

    /* Reads the peer's ranges into local memory. The notification tells the owner of the memory.
     * Answers: OK, NO_RESOURCE, OP_INVALID, REGION_UNKNOWN, REGION_STALE, REGION_BOUNDS,
     * PEER_UNKNOWN, PEER_FAILED, PEER_NOT_CONNECTED, UNSUPPORTED, CLOSED, SESSION_FAILED. */
    int32_t (*post_read)(uint64_t session, uint64_t peer, const kvxfer_columns *columns,
                         kvxfer_bytes notify, uint64_t *request);

    /* Either direction, evenly spaced ranges (rule 15).
     * Answers: OK, NO_RESOURCE, OP_INVALID, REGION_UNKNOWN, REGION_STALE, REGION_BOUNDS,
     * PEER_UNKNOWN, PEER_FAILED, PEER_NOT_CONNECTED, UNSUPPORTED, CLOSED, SESSION_FAILED. */
    int32_t (*post_strided)(uint64_t session, uint64_t peer, int32_t direction,
                            const kvxfer_strided *columns, kvxfer_bytes notify,
                            uint64_t *request);

    /* Hands nothing more of the request to the network (rule 13).
     * Answers: OK, OP_INVALID, UNSUPPORTED, CLOSED, SESSION_FAILED. */
    int32_t (*cancel)(uint64_t session, uint64_t request);

    /* Fills at most capacity records. Drives progress.
     * Answers: OK, OP_INVALID, CLOSED, SESSION_FAILED. */
    int32_t (*poll)(uint64_t session, kvxfer_completion *records, uint64_t capacity,
                    uint64_t *count);

    /* A notification alone. OK: taken, not delivered. The bytes are the caller's again.
     * Answers: OK, NO_RESOURCE, OP_INVALID, OP_FAILED, OP_UNKNOWN, PEER_UNKNOWN, PEER_FAILED,
     * PEER_NOT_CONNECTED, CLOSED, SESSION_FAILED. */
    int32_t (*send_notification)(uint64_t session, uint64_t peer, kvxfer_bytes payload);

    /* Gives at most capacity notifications. Drives progress.
     * Answers: OK, OP_INVALID, CLOSED, SESSION_FAILED. */
    int32_t (*poll_notifications)(uint64_t session, kvxfer_notification *records, uint64_t capacity,
                                  uint64_t *count);

    /* A descriptor that is readable while a poll of either kind would give or do something.
     * It belongs to the library.
     * Answers: OK, OP_INVALID, UNSUPPORTED, CLOSED, SESSION_FAILED. */
    int32_t (*wakeup_fd)(uint64_t session, int32_t *fd);

    /* Text of the latest error of the session, UTF-8, for people, never parsed and never NULL;
     * stays until the session's next call. Any handle is allowed. */
    const char *(*last_error)(uint64_t session);
} kvxfer_transport;

/* The one function that a library exports. major is the caller's KVXFER_TRANSPORT_MAJOR; a
 * library that does not speak it gives NULL. A caller reads no further than struct_size. */
#if defined(_WIN32)
#define KVXFER_EXPORT __declspec(dllexport)
#else
#define KVXFER_EXPORT __attribute__((visibility("default")))
#endif
KVXFER_EXPORT const kvxfer_transport *kvxfer_transport_table(uint32_t major);

#ifdef __cplusplus
}
#endif

#endif /* KVXFER_TRANSPORT_H */
