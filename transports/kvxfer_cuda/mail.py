"""Notifications and control between sessions of one host, over Unix sockets.

Owns the sockets of one session: a listener, one connection out for each peer, the
connections in. Refuses to know memory and requests. Invariants: nothing blocks; packets
of one sender arrive in order and whole; a connection in counts for a peer only once it
has shown the token of that peer's handle; what waits to leave is bounded.

The kernel ends a connection when its process dies, so a death is known at the next look.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import socket
from collections import deque
from enum import IntEnum
from typing import Final

import attrs

from kvxfer_cuda.blob import TOKEN_BYTES

PACKET_BYTES_MAX: Final = (1 << 17) + 1
OUTBOX_MAX: Final = 4096
"""Packets that wait for one receiver; a further one is refused."""
_STRANGERS_MAX: Final = 64
"""Connections that have not shown a token yet."""


class Kind(IntEnum):
    """First byte of a packet."""

    NOTIFY = 1
    SHUT = 2
    """Touch my memory no more, and say when that is so."""
    SHUT_DONE = 3


class Gone(Exception):
    """The receiver's end is closed."""


class Full(Exception):
    """Too many packets wait for this receiver."""


@attrs.define(eq=False)
class Outgoing:
    """Our connection to one peer."""

    link: socket.socket
    waiting: deque[bytes] = attrs.field(factory=deque)


class Post:
    """All mail of one session."""

    def __init__(self) -> None:
        self.address = f"kvxfer-cuda-{secrets.token_hex(16)}"
        self._listener = _socket()
        self._listener.bind("\0" + self.address)
        self._listener.listen(1024)
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll = select.epoll()
        self._epoll.register(self._listener, select.EPOLLIN)
        self._epoll.register(self._wake, select.EPOLLIN)
        self._strangers: dict[int, socket.socket] = {}
        self._known: dict[int, tuple[socket.socket, bytes]] = {}
        self._out: dict[bytes, Outgoing] = {}

    def fileno(self) -> int:
        """Readable while something waits for `receive`, or after `wake`."""
        return self._epoll.fileno()

    def wake(self) -> None:
        """Make `fileno` readable; from any thread."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_write(self._wake, 1)

    def sleep(self) -> None:
        """Take `wake` back."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)

    # Sending. `key` is the token that the receiver gave us.

    def connect(self, address: str, key: bytes) -> None:
        """Raises OSError where nobody listens."""
        link = _socket()
        try:
            link.connect("\0" + address)
            link.send(key)
        except OSError:
            link.close()
            raise
        self._out[key] = Outgoing(link)

    def send(self, key: bytes, kind: Kind, payload: bytes = b"") -> None:
        """Send now or as soon as there is room. Raises Gone, Full."""
        out = self._out.get(key)
        if out is None:
            raise Gone("no connection")
        if len(out.waiting) >= OUTBOX_MAX:
            raise Full(f"{OUTBOX_MAX} packets wait for this peer")
        out.waiting.append(bytes([kind]) + payload)
        self._flush(key, out)

    def _flush(self, key: bytes, out: Outgoing) -> None:
        try:
            while out.waiting:
                out.link.send(out.waiting[0])
                out.waiting.popleft()
        except BlockingIOError:
            pass
        except OSError as error:
            self.disconnect(key)
            raise Gone(str(error)) from error
        with contextlib.suppress(OSError):
            # Registered only while something waits: else it would always be ready.
            if out.waiting:
                self._epoll.register(out.link, select.EPOLLOUT)
            else:
                self._epoll.unregister(out.link)

    def flush(self) -> list[bytes]:
        """Send what waits; keys of receivers that turned out to be gone."""
        gone = []
        for key, out in list(self._out.items()):
            if out.waiting:
                try:
                    self._flush(key, out)
                except Gone:
                    gone.append(key)
        return gone

    def disconnect(self, key: bytes) -> None:
        out = self._out.pop(key, None)
        if out is not None:
            out.link.close()

    # Receiving. `token` is what we gave to the sender.

    def receive(self, tokens: frozenset[bytes]) -> list[tuple[bytes, Kind | None, bytes]]:
        """Everything that has come: (token, kind, payload); kind None where a sender is gone."""
        came: list[tuple[bytes, Kind | None, bytes]] = []
        for fd, _ in self._epoll.poll(0):
            if fd == self._listener.fileno():
                self._accept()
            elif fd in self._strangers:
                self._meet(fd, tokens)
            if fd in self._known:
                came += self._read(fd)
        return came

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                link, _ = self._listener.accept()
                if len(self._strangers) >= _STRANGERS_MAX:
                    link.close()
                    continue
                link.setblocking(False)
                self._strangers[link.fileno()] = link
                self._epoll.register(link, select.EPOLLIN)

    def _meet(self, fd: int, tokens: frozenset[bytes]) -> None:
        link = self._strangers.pop(fd)
        try:
            token = link.recv(TOKEN_BYTES + 1)
        except OSError:
            token = b""
        if token in tokens:
            self._known[fd] = (link, token)
        else:
            link.close()

    def _read(self, fd: int) -> list[tuple[bytes, Kind | None, bytes]]:
        link, token = self._known[fd]
        came: list[tuple[bytes, Kind | None, bytes]] = []
        while True:
            try:
                packet = link.recv(PACKET_BYTES_MAX)
            except BlockingIOError:
                return came
            except OSError:
                packet = b""
            if not packet or packet[0] not in Kind.__members__.values():
                # Its process has died, it has closed, or it does not speak our language.
                del self._known[fd]
                link.close()
                came.append((token, None, b""))
                return came
            came.append((token, Kind(packet[0]), packet[1:]))

    def forget(self, token: bytes) -> None:
        """End what came in for a peer handle that is no more."""
        for fd, (link, known) in list(self._known.items()):
            if known == token:
                del self._known[fd]
                link.close()

    def close(self) -> None:
        links = [link for link, _ in self._known.values()]
        links += [*self._strangers.values(), *(out.link for out in self._out.values())]
        for link in [*links, self._listener]:
            link.close()
        self._epoll.close()
        os.close(self._wake)


def _socket() -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    made.setblocking(False)
    return made
