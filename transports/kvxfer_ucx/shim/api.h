/* What Python sees of the shim. Parsed by cffi, so: plain declarations only.
 *
 * Numbers named `status` are those of kvxfer.status. All calls but kvu_load may come
 * from one thread (the owner); the engine thread of a session lives inside it.
 */

typedef struct kvu_session kvu_session;
typedef struct kvu_peer kvu_peer;
typedef struct kvu_region kvu_region;

enum {
    KVU_STOPPED = 1,  /* nothing can be posted any more */
    KVU_QUIET = 2,    /* the other side said: nothing of mine is under way, nothing will be */
    KVU_GONE = 4,     /* its process runs no more */
    KVU_DEAD = 8,     /* our worker for this peer is destroyed */
    KVU_CONNECTED = 16
};

enum { KVU_COOKIE = 16, KVU_NOTE_MAX = 65536, KVU_REQUESTS_MAX = 65536 };

/* The library. `err` gets a text where the answer is not 0. */
int kvu_load(const char *path, char *err, size_t err_size);
const char *kvu_version(void);

/* Sessions. `names` and `values` are UCX settings. NULL with a text where it fails. */
kvu_session *kvu_open(const char **names, const char **values, size_t count, int shared_only,
                      char *err, size_t err_size);
int kvu_close(kvu_session *s);
int kvu_memory_is_cuda(kvu_session *s);
int kvu_wakeup_fd(kvu_session *s);
void kvu_error(kvu_session *s, char *text, size_t size);

/* Memory. `*base` is where the memory is; 0 there asks for memory of UCX's own. */
kvu_region *kvu_region_add(kvu_session *s, uint64_t handle, uint64_t *base, uint64_t length,
                           int cuda);
int kvu_region_is_shared(kvu_region *r);
int kvu_region_pack(kvu_session *s, kvu_region *r, unsigned char *key, size_t size);
void kvu_region_drop(kvu_session *s, kvu_region *r);
int kvu_regions_leaving(kvu_session *s);

/* Links. */
kvu_peer *kvu_peer_new(kvu_session *s, uint64_t handle, const unsigned char *cookie,
                       unsigned char *address, size_t *address_size);
int kvu_peer_connect(kvu_session *s, kvu_peer *p, const unsigned char *cookie,
                     const unsigned char *address, size_t address_size, int pid, int pid_fd,
                     size_t count, const uint64_t *handles, const uint64_t *bases,
                     const uint64_t *lengths, const unsigned char *keys,
                     const uint64_t *key_sizes, const uint64_t *key_kinds);
int kvu_peer_flags(kvu_session *s, kvu_peer *p);
int kvu_peer_fence(kvu_session *s, kvu_peer *p, int worker_is_proof, uint64_t wait_ns);
void kvu_peer_drop(kvu_session *s, kvu_peer *p);
int kvu_cookie_is_alive(const unsigned char *cookie);

/* Operations. The columns must stay as they are until the request has ended. */
int kvu_post(kvu_session *s, kvu_peer *p, uint64_t request, int write, size_t count,
             const uint64_t *local, const uint64_t *remote, const uint64_t *length,
             const char *note, size_t note_size);
int kvu_notify(kvu_session *s, kvu_peer *p, const char *note, size_t note_size);
/* 0, or OP_INVALID where no such request is under way any more. */
int kvu_cancel(kvu_session *s, uint64_t request);

/* What came. Both drive progress. `records` are kvxfer.transport.ops.COMPLETION. */
int64_t kvu_poll(kvu_session *s, char *records, size_t count_max);
int64_t kvu_notes(kvu_session *s, size_t count_max, char *into, size_t size);

/* For the benchmark: the library called with the same columns and none of our rules.
 * Posts all, flushes, notifies and waits; gives the nanoseconds of the posting alone. */
int64_t kvu_raw_transfer(kvu_session *s, kvu_peer *p, int write, size_t count,
                         const uint64_t *local, const uint64_t *remote, const uint64_t *length,
                         const char *note, size_t note_size);
int64_t kvu_raw_wait(kvu_session *s, kvu_peer *p, uint64_t timeout_ns);
