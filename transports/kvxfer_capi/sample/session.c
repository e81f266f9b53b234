/* Sessions of the sample: the one table that threads share, handles, the wake-up
 * descriptor, errors in words. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <unistd.h>

#include "cma.h"

static pthread_mutex_t sessions_lock = PTHREAD_MUTEX_INITIALIZER;
static session *sessions[SESSIONS_MAX];
static uint64_t sessions_opened;
static _Thread_local char open_error[256] = "no session of this thread was refused";

session *find_session(uint64_t handle)
{
    pthread_mutex_lock(&sessions_lock);
    session *s = sessions[handle % SESSIONS_MAX];
    pthread_mutex_unlock(&sessions_lock);
    return s != NULL && s->handle == handle ? s : NULL;
}

int32_t fail(session *s, int32_t status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    if (s != NULL)
        vsnprintf(s->error, sizeof s->error, format, arguments);
    else
        vsnprintf(open_error, sizeof open_error, format, arguments);
    va_end(arguments);
    return status;
}

void random_bytes(void *into, size_t size)
{
    /* Below 256 bytes this neither fails nor comes short once the kernel has started. */
    if (getrandom(into, size, 0) != (ssize_t)size)
        abort();
}

uint64_t new_handle(session *s, uint64_t slots, uint64_t slot)
{
    s->next++;
    return s->next * slots + slot;
}

void refresh_wake(session *s)
{
    bool due = s->active.first != NULL || s->ended.first != NULL || s->inbox.first != NULL;
    uint64_t one = 1;
    if (due != s->awake) {
        ssize_t done = due ? write(s->wake, &one, sizeof one) : read(s->wake, &one, sizeof one);
        (void)done; /* an eventfd that holds 0 or 1 takes and gives at once */
        s->awake = due;
    }
}

static int32_t take_options(const kvxfer_option *options, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        const char *name = options[i].name, *value = options[i].value;
        if (strcmp(name, "ptracer") == 0 && strcmp(value, "any") == 0)
            prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
        else
            return fail(NULL, KVXFER_OP_INVALID,
                        "option %.60s = %.60s: known is ptracer = any", name, value);
    }
    return KVXFER_OK;
}

static bool open_socket(session *s)
{
    s->socket = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (s->socket < 0)
        return false;
    uint64_t name[2];
    random_bytes(name, sizeof name);
    s->address.sun_family = AF_UNIX;
    /* An abstract name: it starts with a zero byte and goes with the socket. */
    int length = snprintf(s->address.sun_path + 1, sizeof s->address.sun_path - 1,
                          "kvxfer-cma-%016llx%016llx", (unsigned long long)name[0],
                          (unsigned long long)name[1]);
    s->address_size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
    return bind(s->socket, (struct sockaddr *)&s->address, s->address_size) == 0;
}

static bool watch(session *s, int fd)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    return fd >= 0 && epoll_ctl(s->epoll, EPOLL_CTL_ADD, fd, &event) == 0;
}

static void free_session(session *s)
{
    drop_requests(s);
    for (size_t i = 0; i < PEERS_MAX; i++)
        if (s->peers[i] != NULL)
            free_peer(s->peers[i]);
    free_notes(&s->inbox);
    free_notes(&s->shown);
    drop_regions(s);
    /* Peers that look at the table from here on learn that the session is closed. */
    if (s->table != NULL && s->table != MAP_FAILED)
        munmap(s->table, sizeof *s->table);
    int fds[] = {s->socket, s->epoll, s->wake};
    for (size_t i = 0; i < sizeof fds / sizeof *fds; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    free(s);
}

int32_t cma_open(const kvxfer_option *options, uint64_t option_count, uint64_t *handle)
{
    int32_t status = take_options(options, option_count);
    if (status != KVXFER_OK)
        return status;
    session *s = calloc(1, sizeof *s);
    if (s == NULL)
        return fail(NULL, KVXFER_NO_RESOURCE, "no memory for a session");
    s->socket = s->wake = -1;
    s->epoll = epoll_create1(EPOLL_CLOEXEC);
    s->wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    s->table = mmap(NULL, sizeof *s->table, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (s->table == MAP_FAILED || !open_socket(s) || !watch(s, s->socket) ||
        !watch(s, s->wake)) {
        free_session(s);
        return fail(NULL, KVXFER_NO_RESOURCE, "no socket, descriptor or page for a session");
    }
    random_bytes(s->table->token, TOKEN_BYTES);

    pthread_mutex_lock(&sessions_lock);
    for (size_t slot = 0; slot < SESSIONS_MAX && s->handle == 0; slot++)
        if (sessions[slot] == NULL) {
            sessions_opened++;
            s->handle = sessions_opened * SESSIONS_MAX + slot;
            sessions[slot] = s;
        }
    pthread_mutex_unlock(&sessions_lock);
    if (s->handle == 0) {
        free_session(s);
        return fail(NULL, KVXFER_NO_RESOURCE, "%d sessions are open", SESSIONS_MAX);
    }
    *handle = s->handle;
    return KVXFER_OK;
}

int32_t cma_close(uint64_t handle)
{
    session *s = find_session(handle);
    if (s == NULL)
        return KVXFER_CLOSED;
    pthread_mutex_lock(&sessions_lock);
    sessions[handle % SESSIONS_MAX] = NULL;
    pthread_mutex_unlock(&sessions_lock);
    free_session(s);
    return KVXFER_OK;
}

int32_t cma_wakeup_fd(uint64_t handle, int32_t *fd)
{
    session *s = find_session(handle);
    if (s == NULL)
        return KVXFER_CLOSED;
    *fd = s->epoll;
    return KVXFER_OK;
}

uint64_t cma_caps(uint64_t handle)
{
    if (find_session(handle) == NULL)
        return 0;
    return KVXFER_CAP_WRITE | KVXFER_CAP_READ | KVXFER_CAP_NOTIFY_AFTER_VISIBLE |
           KVXFER_CAP_FENCE_PEER | KVXFER_CAP_STRIDED | KVXFER_CAP_WAKEUP_FD |
           KVXFER_CAP_MEM_DRAM | KVXFER_CAP_THREAD_ONE_OWNER | KVXFER_CAP_CROSS_PROCESS |
           KVXFER_CAP_CANCEL | KVXFER_CAP_ALLOCATE;
}

const char *cma_last_error(uint64_t handle)
{
    session *s = find_session(handle);
    return s == NULL ? open_error : s->error;
}
