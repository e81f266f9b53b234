/* An example that is not Python: two processes move memory through any library that
 * implements kvxfer_transport.h.
 *
 *     cc -std=c11 -I spec transports/kvxfer_capi/sample/push.c -o push -ldl
 *     ./push ./libcma.so
 *
 * The child is the consumer: it registers memory and waits for a notification. The
 * parent is the producer: it writes 256 scattered pieces and notifies. A socket pair
 * carries the blobs, as the control connection of a real pair does. Exit status 0:
 * every byte arrived before its notification. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kvxfer_transport.h"

enum { PIECES = 256, PIECE_BYTES = 4096, SIZE = PIECES * PIECE_BYTES };

static const kvxfer_transport *t;

/* Every call answers a status; here anything but OK ends the program. */
static void must(int32_t status, const char *what, uint64_t session)
{
    if (status != KVXFER_OK) {
        fprintf(stderr, "%s: %d (%s)\n", what, status, t->last_error(session));
        exit(1);
    }
}

static void load(const char *path)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        exit(2);
    }
    const kvxfer_transport *(*entry)(uint32_t);
    /* ISO C has no cast from an object pointer to a function; POSIX promises this one. */
    *(void **)&entry = dlsym(library, "kvxfer_transport_table");
    t = entry == NULL ? NULL : entry(KVXFER_TRANSPORT_MAJOR);
    if (t == NULL || t->struct_size < sizeof *t) {
        fprintf(stderr, "%s: no table of version %d\n", path, KVXFER_TRANSPORT_MAJOR);
        exit(2);
    }
}

static void put(int fd, const void *bytes, size_t size)
{
    if (write(fd, bytes, size) != (ssize_t)size)
        exit(3);
}

static void get(int fd, void *bytes, size_t size)
{
    for (size_t done = 0; done < size;) {
        ssize_t got = read(fd, (char *)bytes + done, size - done);
        if (got <= 0)
            exit(3);
        done += (size_t)got;
    }
}

/* One end: session, memory, link. Gives where the other end's memory starts. */
static uint64_t set_up(int link, uint64_t *session, uint64_t *peer, uint8_t *memory)
{
    must(t->open(NULL, 0, session), "open", 0);
    uint64_t region, base = (uint64_t)(uintptr_t)memory, other_base, size;
    kvxfer_memory described = {base, SIZE, KVXFER_MEMORY_DRAM, 0};
    must(t->register_region(*session, &described, &region), "register_region", *session);
    kvxfer_bytes blob;
    must(t->peer_create(*session, peer, &blob), "peer_create", *session);
    put(link, &base, sizeof base);
    put(link, &blob.size, sizeof blob.size);
    put(link, blob.data, (size_t)blob.size);
    get(link, &other_base, sizeof other_base);
    get(link, &size, sizeof size);
    if (size == 0 || size > 1 << 20)
        exit(3);
    void *other = malloc((size_t)size);
    get(link, other, (size_t)size);
    must(t->peer_connect(*session, *peer, (kvxfer_bytes){other, size}), "peer_connect", *session);
    free(other);
    return other_base;
}

static uint8_t value_at(size_t at)
{
    return (uint8_t)(at * 131 + at / PIECE_BYTES * 7 + 1);
}

static int consume(int link)
{
    uint64_t session, peer, count = 0;
    uint8_t *memory = calloc(1, SIZE);
    set_up(link, &session, &peer, memory);
    kvxfer_notification note;
    int32_t fd = -1;
    must(t->wakeup_fd(session, &fd), "wakeup_fd", session);
    while (count == 0) {
        struct pollfd wait = {.fd = fd, .events = POLLIN};
        poll(&wait, 1, 1000);
        must(t->poll_notifications(session, &note, 1, &count), "poll_notifications", session);
    }
    size_t wrong = 0;
    for (size_t at = 0; at < SIZE; at++) {
        /* Pieces come in the opposite order. */
        size_t from = (PIECES - 1 - at / PIECE_BYTES) * PIECE_BYTES + at % PIECE_BYTES;
        wrong += memory[at] != value_at(from);
    }
    printf("consumer: '%.*s' arrived, %zu of %d bytes are wrong\n", (int)note.payload.size,
           (const char *)note.payload.data, wrong, SIZE);
    must(t->close(session), "close", session);
    free(memory);
    return wrong == 0 ? 0 : 1;
}

static void produce(int link)
{
    static uint64_t local[PIECES], remote[PIECES], length[PIECES];
    uint64_t session, peer, request, count = 0;
    uint8_t *memory = malloc(SIZE);
    for (size_t at = 0; at < SIZE; at++)
        memory[at] = value_at(at);
    uint64_t target = set_up(link, &session, &peer, memory);
    for (size_t i = 0; i < PIECES; i++) {
        local[i] = (uint64_t)(uintptr_t)memory + i * PIECE_BYTES;
        remote[i] = target + (PIECES - 1 - i) * PIECE_BYTES;
        length[i] = PIECE_BYTES;
    }
    kvxfer_columns columns = {local, remote, length, PIECES};
    must(t->post_write(session, peer, &columns, (kvxfer_bytes){"all of it", 9}, &request),
         "post_write", session);
    kvxfer_completion record;
    while (count == 0)
        must(t->poll(session, &record, 1, &count), "poll", session);
    printf("producer: request %llu ended with %d\n", (unsigned long long)record.request,
           record.status);
    /* The session stays until the consumer has seen it all. */
    char done;
    if (read(link, &done, 1) != 0)
        exit(3);
    must(t->close(session), "close", session);
    free(memory);
}

int main(int argc, char **argv)
{
    int link[2], status = 0;
    if (argc != 2 || socketpair(AF_UNIX, SOCK_STREAM, 0, link) != 0) {
        fprintf(stderr, "usage: push LIBRARY\n");
        return 2;
    }
    load(argv[1]);
    pid_t child = fork();
    if (child == 0) {
        close(link[0]);
        exit(consume(link[1]));
    }
    close(link[1]);
    produce(link[0]);
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
