"""What the machine itself gives: memcpy, process_vm_writev, a plain socket.

Owns three ways to move the same bytes with nothing of a transport around them: the
upper bounds that a transport is to be read against. Invariant: each returns when the
bytes have landed.
"""

from __future__ import annotations

import ctypes
import os
import socket

import numpy as np

from kvxfer.transport.ops import U64

_IOV_MAX = 1024
"""Ranges that the kernel takes in one call."""


def memcpy(source: np.ndarray, target: np.ndarray, places: U64) -> None:
    """Blocks of `source` in order to the blocks `places` of `target`, in this process."""
    if len(places) == 1:
        np.copyto(target, source)
    else:
        target.reshape(len(places), -1)[places] = source.reshape(len(places), -1)


class VmWriter:
    """process_vm_writev into another process. Raises OSError where the kernel refuses."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._call = ctypes.CDLL(None, use_errno=True).process_vm_writev
        self._call.restype = ctypes.c_ssize_t

    def write(self, local: U64, remote: U64, length: U64) -> None:
        """All ranges, 1,024 at a time; a range that is cut short is continued."""
        ours, theirs = (np.stack([column, length], axis=1) for column in (local, remote))
        for at in range(0, len(length), _IOV_MAX):
            self._write_some(ours[at : at + _IOV_MAX], theirs[at : at + _IOV_MAX])

    def _write_some(self, ours: U64, theirs: U64) -> None:
        wanted = int(ours[:, 1].sum())
        count = len(ours)
        while wanted > 0:
            moved = self._call(
                self._pid,
                ctypes.c_void_p(ours.ctypes.data),
                ctypes.c_ulong(count),
                ctypes.c_void_p(theirs.ctypes.data),
                ctypes.c_ulong(count),
                ctypes.c_ulong(0),
            )
            if moved < 0 or (moved < wanted and count > 1):
                error = ctypes.get_errno()
                raise OSError(error, f"process_vm_writev: {os.strerror(error)}")
            wanted -= moved
            ours, theirs = ours.copy(), theirs.copy()
            ours[0, 0] += np.uint64(moved)
            theirs[0, 0] += np.uint64(moved)
            ours[0, 1] -= np.uint64(min(moved, int(ours[0, 1])))
            theirs[0, 1] = ours[0, 1]


class Stream:
    """A TCP connection over loopback whose other end receives into its memory."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, source: np.ndarray) -> None:
        """All of `source`, and wait for the other side's word that it has come."""
        self._socket.sendall(len(source).to_bytes(8, "big"))
        self._socket.sendall(source.data)
        if self._socket.recv(1) != b"k":
            raise OSError("the other side has closed the stream")

    def close(self) -> None:
        self._socket.close()


def serve_stream(listener: socket.socket, memory: np.ndarray) -> None:
    """The other end: receive into `memory` and answer, until the connection ends."""
    link = listener.accept()[0]
    with link, listener:
        while len(head := link.recv(8, socket.MSG_WAITALL)) == 8:
            view = memory.data[: int.from_bytes(head, "big")]
            while len(view) > 0:
                count = link.recv_into(view)
                if count == 0:
                    return
                view = view[count:]
            link.sendall(b"k")
