/* Notifications of the sample: datagrams with the receiver's own word for the link.
 *
 * What a peer's socket does not take waits in the peer's outbox; both boxes are bounded,
 * and the kernel bounds what is between them. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "cma.h"

enum { EVENTS = 64, DATAGRAMS_PER_TURN = 4096 };
static const uint32_t note_magic = 0x6b76636d;

typedef struct note_head {
    uint32_t magic;
    uint32_t kind;
    uint64_t peer;
    uint64_t link_word;
} note_head;

note *new_note(uint32_t kind, const void *bytes, size_t size)
{
    note *one = malloc(sizeof *one + size);
    if (one != NULL) {
        *one = (note){.kind = kind, .size = (uint32_t)size};
        memcpy(one->bytes, bytes, size);
    }
    return one;
}

void append_note(notes *list, note *one)
{
    one->next = NULL;
    if (list->last != NULL)
        list->last->next = one;
    else
        list->first = one;
    list->last = one;
    list->count++;
}

static note *take_note(notes *list)
{
    note *one = list->first;
    list->first = one->next;
    if (list->first == NULL)
        list->last = NULL;
    list->count--;
    return one;
}

void free_notes(notes *list)
{
    while (list->first != NULL)
        free(take_note(list));
}

/* Ask to be woken when the peer's socket takes more, or no longer. */
static void watch_out(peer *p, bool wanted)
{
    if (wanted == p->out_watched)
        return;
    struct epoll_event event = {.events = EPOLLOUT, .data.u64 = p->handle << 1 | 1};
    epoll_ctl(p->session->epoll, wanted ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, p->out, &event);
    p->out_watched = wanted;
}

static void flush(peer *p)
{
    while (p->outbox.first != NULL) {
        note *one = p->outbox.first;
        note_head head = {note_magic, one->kind, p->there.peer, p->there.link_word};
        struct iovec parts[2] = {{&head, sizeof head}, {one->bytes, one->size}};
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
        if (sendmsg(p->out, &message, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
            if (errno == EAGAIN || errno == ENOBUFS || errno == ENOMEM || errno == EINTR) {
                watch_out(p, true);
                return;
            }
            peer_is_gone(p, "its socket is gone");
            break;
        }
        free(take_note(&p->outbox));
    }
    watch_out(p, false);
}

bool send_note(peer *p, note *one)
{
    append_note(&p->outbox, one);
    flush(p);
    return !p->failed;
}

static void receive(session *s, peer *p, uint32_t kind, const uint8_t *bytes, size_t size)
{
    note *answer;
    switch (kind) {
    case NOTE_NOTIFICATION:
        if (size > 0 && !p->quiet && (answer = new_note(kind, bytes, size)) != NULL) {
            answer->peer = p->handle;
            append_note(&s->inbox, answer);
        }
        break;
    case NOTE_FENCE:
        /* Nothing of ours is in flight once the requests have ended, and none is taken. */
        p->shut_out = true;
        end_requests_of(s, p);
        if (p->connected && !p->failed && (answer = new_note(NOTE_FENCED, "", 0)) != NULL)
            send_note(p, answer);
        break;
    case NOTE_FENCED:
        p->quiet = p->quiet || p->fence_sent;
        break;
    default:
        break;
    }
}

static void drain(session *s)
{
    static _Thread_local uint8_t buffer[sizeof(note_head) + NOTIFICATION_MAX];
    for (int turn = 0; turn < DATAGRAMS_PER_TURN && s->inbox.count < INBOX_MAX; turn++) {
        ssize_t got = recv(s->socket, buffer, sizeof buffer, MSG_DONTWAIT | MSG_TRUNC);
        if (got < 0)
            return;
        note_head head;
        if ((size_t)got < sizeof head || (size_t)got > sizeof buffer)
            continue;
        memcpy(&head, buffer, sizeof head);
        peer *p = find_peer(s, head.peer);
        /* Anybody on the host can send here; only the link's other end knows the word. */
        if (head.magic == note_magic && p != NULL && p->link_word == head.link_word)
            receive(s, p, head.kind, buffer + sizeof head, (size_t)got - sizeof head);
    }
}

void drive_mail(session *s)
{
    struct epoll_event events[EVENTS];
    int count = epoll_wait(s->epoll, events, EVENTS, 0);
    for (int i = 0; i < count; i++) {
        uint64_t word = events[i].data.u64;
        peer *p = word == 0 ? NULL : find_peer(s, word >> 1);
        if (word == 0)
            drain(s);
        else if (p != NULL && (word & 1) != 0)
            flush(p);
        else if (p != NULL) {
            /* The pidfd stays readable for ever: it is looked at no more. */
            epoll_ctl(s->epoll, EPOLL_CTL_DEL, p->pidfd, NULL);
            peer_is_gone(p, "its process is gone");
        }
    }
}

int32_t cma_send_notification(uint64_t handle, uint64_t peer_handle, kvxfer_bytes payload)
{
    session *s = find_session(handle);
    if (s == NULL)
        return KVXFER_CLOSED;
    if (payload.data == NULL || payload.size == 0 || payload.size > NOTIFICATION_MAX)
        return fail(s, KVXFER_OP_INVALID, "a notification of %llu bytes: from 1 to %d",
                    (unsigned long long)payload.size, NOTIFICATION_MAX);
    peer *p = find_peer(s, peer_handle);
    int32_t status = peer_status(s, p);
    if (status != KVXFER_OK)
        return status;
    if (p->outbox.count + p->reserved >= OUTBOX_MAX)
        return fail(s, KVXFER_NO_RESOURCE, "%d notifications wait for the peer", OUTBOX_MAX);
    note *one = new_note(NOTE_NOTIFICATION, payload.data, (size_t)payload.size);
    if (one == NULL)
        return fail(s, KVXFER_NO_RESOURCE, "no memory for a notification");
    bool sent = send_note(p, one);
    refresh_wake(s);
    return sent ? KVXFER_OK : fail(s, KVXFER_PEER_FAILED, "peer: %s", p->why);
}

int32_t cma_poll_notifications(uint64_t handle, kvxfer_notification *records, uint64_t capacity,
                               uint64_t *count)
{
    session *s = find_session(handle);
    *count = 0;
    if (s == NULL)
        return KVXFER_CLOSED;
    free_notes(&s->shown);
    drive_mail(s);
    while (*count < capacity && s->inbox.first != NULL) {
        note *one = take_note(&s->inbox);
        append_note(&s->shown, one);
        records[*count] = (kvxfer_notification){one->peer, {one->bytes, one->size}};
        (*count)++;
    }
    refresh_wake(s);
    return KVXFER_OK;
}
