/* The sample transport 'cma': what its files share.
 *
 * Owns the records. Bytes move with process_vm_writev and process_vm_readv, so both
 * ends are processes of one host whose owner may trace the other; notifications
 * travel through a Unix datagram socket. Invariants: the target's table of live
 * regions is read before every window, so a region that was dropped is written no
 * more from the next window on; a system call has ended when it returns, so a
 * request that has ended is quiet.
 */
#ifndef KVXFER_SAMPLE_CMA_H
#define KVXFER_SAMPLE_CMA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>

#include "kvxfer_transport.h"

enum {
    SESSIONS_MAX = 1024,
    REGIONS_MAX = 500,        /* live at a time, in one session; the table is one page */
    PEERS_MAX = 1024,         /* live at a time, in one session */
    REQUESTS_MAX = 65536,     /* given and not polled yet, in one session */
    INBOX_MAX = 1024,         /* notifications that wait in one session */
    OUTBOX_MAX = 1024,        /* notifications that wait for one peer to take them */
    NOTIFICATION_MAX = 65536, /* bytes */
    WINDOW_BYTES = 4 << 20,   /* moved between two looks at the target's table */
    WINDOW_RANGES = 512,      /* ranges in one system call */
    WINDOWS_PER_POLL = 8,
    TOKEN_BYTES = 16,
    STRIDED_RANGES_MAX = 1 << 20
};

#define HANDLE_END ((uint64_t)1 << 63)

/* The page that peers read: who we are, and which regions are live. */
typedef struct live_table {
    uint8_t token[TOKEN_BYTES];   /* drawn when the session was opened */
    uint64_t region[REGIONS_MAX]; /* the handle in each slot, or 0 */
} live_table;

typedef struct region {
    uint64_t handle; /* 0: the slot is free. Its slot is handle % REGIONS_MAX. */
    uint64_t base;
    uint64_t length;
    void *owned; /* what allocate_region mapped */
} region;

/* What travels in a blob, followed by region_count entries. */
typedef struct blob_head {
    char magic[8];
    uint32_t version;
    uint32_t region_count;
    uint8_t host[TOKEN_BYTES]; /* the kernel's boot id */
    uint64_t pid_namespace;    /* inode */
    uint64_t pid;
    uint64_t start_ticks; /* of the process, since boot: tells it from a later one of its pid */
    uint64_t table;       /* address of its live_table */
    uint8_t token[TOKEN_BYTES];
    uint64_t peer;      /* handle over there */
    uint64_t link_word; /* what a datagram to that peer must carry */
    uint32_t address_size;
    uint32_t reserved;
    char address[108]; /* abstract name of its socket */
    uint32_t reserved2;
} blob_head;

typedef struct blob_region {
    uint64_t handle;
    uint64_t base;
    uint64_t length;
} blob_region;

typedef struct note {
    struct note *next;
    uint64_t peer; /* in the inbox: whose; in an outbox: unused */
    uint32_t kind;
    uint32_t size;
    uint8_t bytes[];
} note;

typedef struct notes {
    note *first;
    note *last;
    uint32_t count;
} notes;

struct session;

typedef struct peer {
    struct session *session;
    uint64_t handle; /* slot is handle % PEERS_MAX */
    uint64_t link_word;
    void *blob; /* what we export */
    bool connected;
    bool failed; /* the other end is gone; how is in `why` */
    bool fence_tried;
    bool fence_sent;
    bool quiet;     /* proven: it writes here no more */
    bool shut_out;  /* the other end has fenced us */
    bool unmapped;  /* its session is closed: its table is not there any more */
    const char *why;
    blob_head there;
    blob_region *regions;
    int out;   /* socket to the other end */
    int pidfd; /* readable when its process is gone */
    bool out_watched;
    uint32_t reserved; /* notifications of posts that have not been sent */
    notes outbox;
} peer;

typedef struct request {
    struct request *next;
    uint64_t handle;
    peer *peer; /* NULL once it is over */
    uint64_t peer_handle;
    int32_t direction;
    int32_t status;
    kvxfer_strided columns; /* count and strides are NULL for a plain post */
    uint64_t entry;         /* what comes next: this entry, */
    uint64_t repeat;        /* this range of it, */
    uint64_t offset;        /* from this byte on */
    note *notify;
} request;

typedef struct requests {
    request *first;
    request *last;
} requests;

typedef struct session {
    uint64_t handle; /* slot is handle % SESSIONS_MAX */
    uint64_t next;   /* counts handles of every kind */
    live_table *table;
    region regions[REGIONS_MAX];
    peer *peers[PEERS_MAX];
    requests active; /* in the order of posting */
    requests ended;
    uint32_t request_count;
    uint64_t request_next;
    notes inbox;
    notes shown; /* payloads that the latest poll_notifications gave */
    int socket;
    struct sockaddr_un address;
    socklen_t address_size;
    int epoll;
    int wake; /* eventfd: readable while something waits in a list above */
    bool awake;
    char error[256];
} session;

/* session.c */
session *find_session(uint64_t handle);
int32_t fail(session *s, int32_t status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void refresh_wake(session *s);
void random_bytes(void *into, size_t size);
uint64_t new_handle(session *s, uint64_t slots, uint64_t slot);
int32_t cma_open(const kvxfer_option *options, uint64_t option_count, uint64_t *handle);
int32_t cma_close(uint64_t handle);
int32_t cma_wakeup_fd(uint64_t handle, int32_t *fd);
uint64_t cma_caps(uint64_t handle);
const char *cma_last_error(uint64_t handle);

/* region.c */
const region *find_region(const session *s, uint64_t base, uint64_t length);
bool has_regions(const session *s);
void drop_regions(session *s);
int32_t cma_register_region(uint64_t handle, const kvxfer_memory *memory, uint64_t *out);
int32_t cma_allocate_region(uint64_t handle, uint64_t length, int32_t kind, int32_t device,
                            uint64_t *out, uint64_t *base);
int32_t cma_deregister_region(uint64_t handle, uint64_t region_handle);

/* link.c */
peer *find_peer(session *s, uint64_t handle);
int32_t peer_status(session *s, peer *p);
bool read_table(peer *p, live_table *into);
void peer_is_gone(peer *p, const char *why);
void free_peer(peer *p);
int32_t cma_peer_create(uint64_t handle, uint64_t *out, kvxfer_bytes *blob);
int32_t cma_peer_connect(uint64_t handle, uint64_t peer_handle, kvxfer_bytes blob);
int32_t cma_peer_destroy(uint64_t handle, uint64_t peer_handle);
int32_t cma_fence_peer(uint64_t handle, uint64_t peer_handle);

/* mail.c */
enum { NOTE_NOTIFICATION = 1, NOTE_FENCE = 2, NOTE_FENCED = 3 };
note *new_note(uint32_t kind, const void *bytes, size_t size);
void append_note(notes *list, note *one);
void free_notes(notes *list);
bool send_note(peer *p, note *one);
void drive_mail(session *s);
int32_t cma_send_notification(uint64_t handle, uint64_t peer_handle, kvxfer_bytes payload);
int32_t cma_poll_notifications(uint64_t handle, kvxfer_notification *records, uint64_t capacity,
                               uint64_t *count);

/* move.c */
void end_requests_of(session *s, peer *p);
void drop_requests(session *s);
int32_t cma_post_write(uint64_t handle, uint64_t peer_handle, const kvxfer_columns *columns,
                       kvxfer_bytes notify, uint64_t *out);
int32_t cma_post_read(uint64_t handle, uint64_t peer_handle, const kvxfer_columns *columns,
                      kvxfer_bytes notify, uint64_t *out);
int32_t cma_post_strided(uint64_t handle, uint64_t peer_handle, int32_t direction,
                         const kvxfer_strided *columns, kvxfer_bytes notify, uint64_t *out);
int32_t cma_cancel(uint64_t handle, uint64_t request_handle);
int32_t cma_poll(uint64_t handle, kvxfer_completion *records, uint64_t capacity,
                 uint64_t *count);

#endif /* KVXFER_SAMPLE_CMA_H */
