/* Peers of the sample: blobs, what is known of the other process, and fences.
 *
 * A fence has three proofs: the other process is gone (its pidfd says so), its session
 * is closed (the token is no longer where it was; a closed session has no system call
 * in flight and makes none), or it has answered FENCED after it ended its requests. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "cma.h"

static const char magic[8] = "kvxcma\0";
enum { BLOB_VERSION = 1 };

peer *find_peer(session *s, uint64_t handle)
{
    peer *p = s->peers[handle % PEERS_MAX];
    return p != NULL && p->handle == handle ? p : NULL;
}

int32_t peer_status(session *s, peer *p)
{
    if (p == NULL)
        return fail(s, KVXFER_PEER_UNKNOWN, "peer: not a live peer of this session");
    if (p->fence_tried)
        return fail(s, KVXFER_PEER_FAILED, "peer %llu has been fenced",
                    (unsigned long long)p->handle);
    if (!p->connected)
        return fail(s, KVXFER_PEER_NOT_CONNECTED, "peer %llu is not connected",
                    (unsigned long long)p->handle);
    if (p->failed || p->shut_out)
        return fail(s, KVXFER_PEER_FAILED, "peer %llu: %s", (unsigned long long)p->handle,
                    p->shut_out ? "the other end has fenced us" : p->why);
    return KVXFER_OK;
}

/* What tells this host, kernel and process from others. */
static void read_host(uint8_t host[TOKEN_BYTES], uint64_t *pid_namespace)
{
    char text[64] = {0};
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        ssize_t got = read(fd, text, sizeof text - 1);
        (void)got; /* what is not there stays zero, at both ends alike */
        close(fd);
    }
    memset(host, 0, TOKEN_BYTES);
    size_t digits = 0;
    for (const char *c = text; *c != '\0' && digits < 2 * TOKEN_BYTES; c++) {
        const char *found = strchr("0123456789abcdef", *c);
        if (found != NULL) {
            host[digits / 2] |= (uint8_t)((found - "0123456789abcdef") << (digits % 2 ? 0 : 4));
            digits++;
        }
    }
    struct stat status;
    *pid_namespace = stat("/proc/self/ns/pid", &status) == 0 ? status.st_ino : 0;
}

/* Field 22 of /proc/PID/stat; 0 where there is no such process. */
static uint64_t start_ticks(uint64_t pid)
{
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%llu/stat", (unsigned long long)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    ssize_t got = read(fd, text, sizeof text - 1);
    close(fd);
    if (got <= 0)
        return 0;
    text[got] = '\0';
    /* The name of the program may hold anything; behind its last bracket fields are plain. */
    char *at = strrchr(text, ')');
    for (int field = 2; at != NULL && field < 22; field++) {
        at = strchr(at, ' ');
        if (at != NULL)
            at++;
    }
    return at == NULL ? 0 : strtoull(at, NULL, 10);
}

void peer_is_gone(peer *p, const char *why)
{
    if (!p->failed) {
        p->failed = true;
        p->why = why;
        free_notes(&p->outbox);
        end_requests_of(p->session, p);
    }
}

static bool process_is_gone(const peer *p)
{
    struct pollfd watched = {.fd = p->pidfd, .events = POLLIN};
    return p->pidfd >= 0 && poll(&watched, 1, 0) == 1;
}

bool read_table(peer *p, live_table *into)
{
    struct iovec here = {into, sizeof *into};
    struct iovec there = {(void *)(uintptr_t)p->there.table, sizeof *into};
    ssize_t got = process_vm_readv((pid_t)p->there.pid, &here, 1, &there, 1, 0);
    int error = got < 0 ? errno : 0;
    bool named = got >= TOKEN_BYTES;
    bool same = named && memcmp(into->token, p->there.token, TOKEN_BYTES) == 0;
    if (same && got == (ssize_t)sizeof *into)
        return true;
    if (error == EFAULT || (named && !same)) {
        /* Whoever owns the pages now: the session that we knew is closed. */
        p->unmapped = true;
        peer_is_gone(p, "its session is closed");
    } else if (error == EPERM)
        peer_is_gone(p, "this process may not trace it (see the option ptracer)");
    else
        peer_is_gone(p, error == ESRCH ? "its process is gone" : "its memory cannot be read");
    return false;
}

static bool export_blob(session *s, peer *p, size_t *size)
{
    uint32_t count = 0;
    for (size_t i = 0; i < REGIONS_MAX; i++)
        count += s->regions[i].handle != 0;
    *size = sizeof(blob_head) + count * sizeof(blob_region);
    p->blob = calloc(1, *size);
    if (p->blob == NULL)
        return false;
    blob_head *head = p->blob;
    memcpy(head->magic, magic, sizeof magic);
    head->version = BLOB_VERSION;
    head->region_count = count;
    read_host(head->host, &head->pid_namespace);
    head->pid = (uint64_t)getpid();
    head->start_ticks = start_ticks(head->pid);
    head->table = (uint64_t)(uintptr_t)s->table;
    memcpy(head->token, s->table->token, TOKEN_BYTES);
    head->peer = p->handle;
    head->link_word = p->link_word;
    head->address_size = s->address_size;
    memcpy(head->address, s->address.sun_path,
           s->address_size - offsetof(struct sockaddr_un, sun_path));
    blob_region *to = (blob_region *)(head + 1);
    for (size_t i = 0; i < REGIONS_MAX; i++)
        if (s->regions[i].handle != 0)
            *to++ = (blob_region){s->regions[i].handle, s->regions[i].base, s->regions[i].length};
    return true;
}

int32_t cma_peer_create(uint64_t handle, uint64_t *out, kvxfer_bytes *blob)
{
    session *s = find_session(handle);
    if (s == NULL)
        return KVXFER_CLOSED;
    size_t slot = 0, size = 0;
    while (slot < PEERS_MAX && s->peers[slot] != NULL)
        slot++;
    if (slot == PEERS_MAX)
        return fail(s, KVXFER_NO_RESOURCE, "%d peers are there", PEERS_MAX);
    peer *p = calloc(1, sizeof *p);
    if (p == NULL)
        return fail(s, KVXFER_NO_RESOURCE, "no memory for a peer");
    p->session = s;
    p->out = p->pidfd = -1;
    p->handle = new_handle(s, PEERS_MAX, slot);
    random_bytes(&p->link_word, sizeof p->link_word);
    if (!export_blob(s, p, &size)) {
        free(p);
        return fail(s, KVXFER_NO_RESOURCE, "no memory for a blob");
    }
    s->peers[slot] = p;
    *out = p->handle;
    *blob = (kvxfer_bytes){p->blob, size};
    return KVXFER_OK;
}

static const char *blob_fault(const blob_head *head, uint64_t size)
{
    uint8_t host[TOKEN_BYTES];
    uint64_t pid_namespace;
    if (memcmp(head->magic, magic, sizeof magic) != 0)
        return "it is no blob of this transport";
    if (head->version != BLOB_VERSION)
        return "another version made it";
    if (head->region_count > REGIONS_MAX ||
        size != sizeof *head + head->region_count * sizeof(blob_region))
        return "its size is not that of its regions";
    if (head->address_size <= offsetof(struct sockaddr_un, sun_path) ||
        head->address_size > sizeof(struct sockaddr_un))
        return "its address has an impossible size";
    if (head->pid == 0 || head->pid > INT32_MAX || head->table == 0)
        return "it names no process";
    read_host(host, &pid_namespace);
    if (memcmp(host, head->host, TOKEN_BYTES) != 0 || pid_namespace != head->pid_namespace)
        return "it comes from another host or process namespace";
    return NULL;
}

/* Opens what leads to the other end; gives why it cannot, or NULL. */
static const char *reach(session *s, peer *p)
{
    /* The pidfd first: whatever process it names, the start time read after it is its own. */
    p->pidfd = (int)syscall(SYS_pidfd_open, (pid_t)p->there.pid, 0);
    if (p->pidfd < 0 || start_ticks(p->there.pid) != p->there.start_ticks)
        return "its process is gone";
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    memcpy(to.sun_path, p->there.address,
           p->there.address_size - offsetof(struct sockaddr_un, sun_path));
    p->out = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (p->out < 0 || connect(p->out, (struct sockaddr *)&to, p->there.address_size) != 0)
        return "its socket is gone";
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = p->handle << 1};
    if (epoll_ctl(s->epoll, EPOLL_CTL_ADD, p->pidfd, &event) != 0)
        return "it cannot be watched";
    return NULL;
}

static void forget_other_end(peer *p)
{
    if (p->out >= 0)
        close(p->out);
    if (p->pidfd >= 0)
        close(p->pidfd);
    p->out = p->pidfd = -1;
    free(p->regions);
    p->regions = NULL;
}

int32_t cma_peer_connect(uint64_t handle, uint64_t peer_handle, kvxfer_bytes blob)
{
    session *s = find_session(handle);
    if (s == NULL)
        return KVXFER_CLOSED;
    peer *p = find_peer(s, peer_handle);
    if (p == NULL)
        return fail(s, KVXFER_PEER_UNKNOWN, "peer: not a live peer of this session");
    if (blob.data == NULL || blob.size < sizeof(blob_head))
        return fail(s, KVXFER_PEER_BLOB, "a blob of %llu bytes", (unsigned long long)blob.size);
    blob_head head;
    memcpy(&head, blob.data, sizeof head);
    const char *fault = blob_fault(&head, blob.size);
    if (fault != NULL)
        return fail(s, KVXFER_PEER_BLOB, "blob: %s", fault);
    if (p->connected)
        return memcmp(&head, &p->there, sizeof head) == 0
                   ? KVXFER_OK
                   : fail(s, KVXFER_OP_INVALID, "the peer is connected to another one");
    size_t size = head.region_count * sizeof(blob_region);
    p->regions = malloc(size + 1);
    if (p->regions == NULL)
        return fail(s, KVXFER_NO_RESOURCE, "no memory for the peer's regions");
    memcpy(p->regions, (const char *)blob.data + sizeof head, size);
    p->there = head;
    fault = reach(s, p);
    live_table table;
    if (fault == NULL && !read_table(p, &table)) {
        fault = p->why;
        p->failed = p->unmapped = false;
    }
    if (fault != NULL) {
        forget_other_end(p);
        return fail(s, KVXFER_PEER_BLOB, "blob: %s", fault);
    }
    p->connected = true;
    return KVXFER_OK;
}

void free_peer(peer *p)
{
    forget_other_end(p);
    free_notes(&p->outbox);
    free(p->blob);
    free(p);
}

int32_t cma_peer_destroy(uint64_t handle, uint64_t peer_handle)
{
    session *s = find_session(handle);
    if (s == NULL)
        return KVXFER_CLOSED;
    peer *p = find_peer(s, peer_handle);
    if (p == NULL)
        return fail(s, KVXFER_PEER_UNKNOWN, "peer: not a live peer of this session");
    end_requests_of(s, p);
    s->peers[peer_handle % PEERS_MAX] = NULL;
    free_peer(p);
    refresh_wake(s);
    return KVXFER_OK;
}

int32_t cma_fence_peer(uint64_t handle, uint64_t peer_handle)
{
    session *s = find_session(handle);
    if (s == NULL)
        return KVXFER_CLOSED;
    peer *p = find_peer(s, peer_handle);
    if (p == NULL)
        return fail(s, KVXFER_PEER_UNKNOWN, "peer: not a live peer of this session");
    p->fence_tried = true;
    end_requests_of(s, p);
    drive_mail(s);
    refresh_wake(s);
    if (p->quiet)
        return KVXFER_OK;
    if (!p->connected)
        return fail(s, KVXFER_NOT_FENCED, "no blob of this peer was given: nobody knows who it is");
    live_table table;
    if (process_is_gone(p) || (!read_table(p, &table) && p->unmapped)) {
        p->quiet = true;
        return KVXFER_OK;
    }
    if (!p->fence_sent) {
        note *one = new_note(NOTE_FENCE, "", 0);
        p->fence_sent = one != NULL && send_note(p, one);
    }
    return fail(s, KVXFER_NOT_FENCED, "peer %llu has not said yet that it is quiet",
                (unsigned long long)p->handle);
}
