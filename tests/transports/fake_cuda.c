/* A CUDA driver and run-time compiler of host memory, for tests without a GPU.
 *
 * Device memory is a memfd, so that another process can map it by the name that
 * cuIpcGetMemHandle gives. A stream is a queue: what is put there happens when somebody waits
 * for an event or the stream, or asks for the event a third time, never at the call itself. One device, one process-wide lock. Every function has the driver's name and
 * answers 0 or one of the driver's numbers. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { INVALID = 1, NOT_FOUND = 500, NOT_READY = 600 };
enum { PIECES_MAX = 4096, WORK_MAX = 1 << 16 };
typedef uint64_t u64;

struct piece { u64 base, length; int fd, mapped; };
struct work { u64 dst, src, length, count; int copies; };
struct name { uint32_t magic; int pid, fd; u64 length; };
struct event { u64 after; int asked; };
struct handle { char bytes[64]; };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct piece pieces[PIECES_MAX];
static struct work queue[WORK_MAX];
static u64 queued, finished;

static void carry_out(u64 until) {
    for (; finished < until; finished++) {
        struct work *w = &queue[finished % WORK_MAX];
        if (!w->copies) {
            memcpy((void *)w->dst, (void *)w->src, w->length);
            continue;
        }
        const u64 *src = (u64 *)w->src, *dst = (u64 *)w->dst, *length = (u64 *)w->length;
        for (u64 i = 0; i < w->count; i++) memmove((void *)dst[i], (void *)src[i], length[i]);
    }
}

static int put(struct work w) {
    pthread_mutex_lock(&lock);
    if (queued - finished == WORK_MAX) carry_out(queued);
    queue[queued++ % WORK_MAX] = w;
    pthread_mutex_unlock(&lock);
    return 0;
}

static struct piece *piece_of(u64 address) {
    for (int i = 0; i < PIECES_MAX; i++)
        if (pieces[i].base && address - pieces[i].base < pieces[i].length) return &pieces[i];
    return NULL;
}

static int keep(u64 base, u64 length, int fd, int mapped) {
    for (int i = 0; i < PIECES_MAX; i++)
        if (!pieces[i].base) {
            pieces[i] = (struct piece){base, length, fd, mapped};
            return 0;
        }
    return INVALID;
}

static int drop(u64 base, int mapped) {
    struct piece *p = piece_of(base);
    if (!p || p->base != base || p->mapped != mapped) return INVALID;
    munmap((void *)p->base, p->length);
    close(p->fd);
    p->base = 0;
    return 0;
}

int cuInit(unsigned flags) { return flags ? INVALID : 0; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return ordinal ? 101 : 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = &pieces; return device; }
int cuDevicePrimaryCtxRelease_v2(int device) { return device; }
int cuCtxSetCurrent(void *context) { return context ? 0 : INVALID; }
int cuDeviceGetAttribute(int *value, int which, int device) { *value = which == 75 ? 9 : 0; return device; }
int cuGetErrorName(int code, const char **name) { *name = code == NOT_READY ? "NOT_READY" : "FAKE"; return 0; }
int cuCtxGetStreamPriorityRange(int *low, int *high) { *low = 0; *high = -5; return 0; }
int cuStreamCreateWithPriority(void **stream, unsigned flags, int priority) { (void)flags, (void)priority; *stream = &queue; return 0; }
int cuStreamDestroy_v2(void *stream) { return stream ? 0 : INVALID; }

int cuMemAlloc_v2(u64 *base, size_t length) {
    int fd = memfd_create("fake_cuda", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, length)) return 2;
    void *at = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    *base = (u64)at;
    pthread_mutex_lock(&lock);
    int code = at == MAP_FAILED ? 2 : keep((u64)at, length, fd, 0);
    pthread_mutex_unlock(&lock);
    return code;
}

int cuMemFree_v2(u64 base) {
    pthread_mutex_lock(&lock);
    carry_out(queued);
    int code = drop(base, 0);
    pthread_mutex_unlock(&lock);
    return code;
}

int cuMemsetD8_v2(u64 base, unsigned char value, size_t length) { memset((void *)base, value, length); return 0; }
int cuMemHostAlloc(void **base, size_t length, unsigned flags) { (void)flags; *base = calloc(1, length); return *base ? 0 : 2; }
int cuMemFreeHost(void *base) { free(base); return 0; }
int cuMemcpyHtoD_v2(u64 to, const void *from, size_t length) { memcpy((void *)to, from, length); return 0; }
int cuMemcpyDtoH_v2(void *to, u64 from, size_t length) { memcpy(to, (void *)from, length); return 0; }

int cuMemGetAddressRange_v2(u64 *base, size_t *length, u64 address) {
    pthread_mutex_lock(&lock);
    struct piece *p = piece_of(address);
    if (p) *base = p->base, *length = p->length;
    pthread_mutex_unlock(&lock);
    return p ? 0 : NOT_FOUND;
}

int cuIpcGetMemHandle(struct name *name, u64 base) {
    pthread_mutex_lock(&lock);
    struct piece *p = piece_of(base);
    memset(name, 0, 64);
    if (p) *name = (struct name){0xC0DA, getpid(), p->fd, p->length};
    pthread_mutex_unlock(&lock);
    return p ? 0 : INVALID;
}

int cuIpcOpenMemHandle_v2(u64 *base, struct handle handle, unsigned flags) {
    struct name name;
    char path[64];
    (void)flags;
    memcpy(&name, handle.bytes, sizeof name);
    if (name.magic != 0xC0DA || name.pid == getpid()) return INVALID;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", name.pid, name.fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return INVALID;
    void *at = mmap(NULL, name.length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    *base = (u64)at;
    pthread_mutex_lock(&lock);
    int code = at == MAP_FAILED ? INVALID : keep((u64)at, name.length, fd, 1);
    pthread_mutex_unlock(&lock);
    return code;
}

int cuIpcCloseMemHandle(u64 base) {
    pthread_mutex_lock(&lock);
    carry_out(queued);
    int code = drop(base, 1);
    pthread_mutex_unlock(&lock);
    return code;
}

int cuEventCreate(struct event **event, unsigned flags) { (void)flags; *event = calloc(1, sizeof **event); return 0; }
int cuEventDestroy_v2(struct event *event) { free(event); return 0; }

int cuEventRecord(struct event *event, void *stream) {
    (void)stream;
    pthread_mutex_lock(&lock);
    event->after = queued;
    event->asked = 0;
    pthread_mutex_unlock(&lock);
    return 0;
}

int cuEventQuery(struct event *event) {
    pthread_mutex_lock(&lock);
    if (++event->asked > 2) carry_out(event->after);
    int code = finished >= event->after ? 0 : NOT_READY;
    pthread_mutex_unlock(&lock);
    return code;
}

int cuEventSynchronize(struct event *event) {
    pthread_mutex_lock(&lock);
    carry_out(event->after);
    pthread_mutex_unlock(&lock);
    return 0;
}

int cuStreamSynchronize(void *stream) {
    (void)stream;
    pthread_mutex_lock(&lock);
    carry_out(queued);
    pthread_mutex_unlock(&lock);
    return 0;
}

int cuCtxSynchronize(void) { return cuStreamSynchronize(NULL); }

int cuMemcpyHtoDAsync_v2(u64 to, const void *from, size_t length, void *stream) {
    (void)stream;
    return put((struct work){to, (u64)from, length, 0, 0});
}

int cuModuleLoadData(void **module, const void *image) { *module = (void *)image; return image ? 0 : INVALID; }
int cuModuleGetFunction(void **function, void *module, const char *name) {
    *function = module;
    return strcmp(name, "kvxfer_copy") ? NOT_FOUND : 0;
}

int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                   unsigned bz, unsigned shared, void *stream, void **params, void **extra) {
    (void)function, (void)gy, (void)gz, (void)by, (void)bz, (void)shared, (void)stream, (void)extra;
    if (!gx || !bx) return INVALID;
    u64 src = *(u64 *)params[0], dst = *(u64 *)params[1], length = *(u64 *)params[2];
    return put((struct work){dst, src, length, *(u64 *)params[3], 1});
}

int nvrtcCreateProgram(void **program, const char *source, const char *name, int n, void *a, void *b) {
    (void)name, (void)n, (void)a, (void)b;
    *program = (void *)source;
    return strstr(source, "kvxfer_copy") ? 0 : 1;
}
int nvrtcCompileProgram(void *program, int count, const char **options) { (void)program, (void)options; return count == 1 ? 0 : 1; }
int nvrtcGetCUBINSize(void *program, size_t *size) { (void)program; *size = 8; return 0; }
int nvrtcGetCUBIN(void *program, char *image) { (void)program; memcpy(image, "fakecode", 8); return 0; }
int nvrtcDestroyProgram(void **program) { *program = NULL; return 0; }
