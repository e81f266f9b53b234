"""The other process of a test of NIXL or UCX: carries out table calls that its parent asks for.

Run as a script with the number of an inherited socket and the name of the transport. Between
two commands it turns its own table as long as `turning` is set, as the writer thread does.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
import time
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from kvxfer.status import Status
from kvxfer.transport.ops import COMPLETION, Memory
from kvxfer.transport.registry import open_transport


class FarEnd:
    """One session with one region and one peer."""

    def __init__(self, options: dict[str, Any], length: int) -> None:
        self.ops = open_transport(sys.argv[2])
        status, self.session = self.ops.open(options)
        assert status == Status.OK, self.ops.last_error(self.session)
        self.memory = np.zeros(length, dtype=np.uint8)
        self.base = self.memory.ctypes.data
        status, _ = self.ops.register_region(self.session, Memory(base=self.base, length=length))
        assert status == Status.OK, self.ops.last_error(self.session)
        self.peer = 0
        self.turning = True
        self.slot = self.ops.post_write
        self.stream: tuple[int, int] | None = None
        self.records = np.zeros(64, dtype=COMPLETION)
        self.ends: list[int] = []
        self.notices: list[bytes] = []
        self.refused: list[int] = []

    def create(self) -> tuple[int, bytes]:
        status, self.peer, blob = self.ops.peer_create(self.session)
        assert status == Status.OK, self.ops.last_error(self.session)
        return self.base, blob

    def create_allocated(self, length: int) -> tuple[int, bytes]:
        """Another peer, in whose blob there is memory of the transport's own."""
        status, _, base = self.ops.allocate_region(self.session, length, "dram", 0)
        assert status == Status.OK, self.ops.last_error(self.session)
        return base, self.create()[1]

    def peek(self, base: int, length: int) -> bytes:
        return ctypes.string_at(base, length)

    def connect(self, blob: bytes) -> Status:
        return self.ops.peer_connect(self.session, self.peer, blob)

    def fill(self, data: bytes) -> None:
        self.memory[: len(data)] = np.frombuffer(data, dtype=np.uint8)

    def content(self) -> bytes:
        return self.memory.tobytes()

    def set_turning(self, on: bool) -> None:
        self.turning = on

    def start_stream(self, remote: int, value: int) -> None:
        """Write the whole region, full of `value`, to `remote` again and again, until refused."""
        self.memory[:] = value
        self.stream = (remote, value)

    def start_reading(self, remote: int) -> None:
        """Read the whole remote region again and again, until refused."""
        self.slot = self.ops.post_read
        self.stream = (remote, 0)

    def stop_stream(self) -> None:
        self.stream = None

    def state(self) -> tuple[list[int], list[bytes], list[int]]:
        return self.ends, self.notices, self.refused

    def leave(self) -> None:
        """Return from the script with everything still open."""
        raise SystemExit(0)

    def turn(self) -> None:
        if self.stream is not None and not self.refused:
            at = np.arange(0, len(self.memory), 1 << 16, dtype=np.uint64)
            length = np.full(len(at), 1 << 16, dtype=np.uint64)
            status, _ = self.slot(
                self.session, self.peer, self.base + at, self.stream[0] + at, length, None
            )
            if status != Status.OK:
                self.refused.append(int(status))
        status, count = self.ops.poll(self.session, self.records)
        self.ends += [int(end) for end in self.records["status"][:count]]
        self.notices += [data for _, data in self.ops.poll_notifications(self.session, 64)[1]]


def main() -> None:
    link = Connection(int(sys.argv[1]))
    far = FarEnd(*link.recv())
    link.send("ready")
    with contextlib.suppress(EOFError):
        while True:
            if link.poll(0):
                name, args = link.recv()
                link.send(getattr(far, name)(*args))
            elif far.turning and far.peer:
                far.turn()
            else:
                time.sleep(0.001)
    far.ops.close(far.session)


if __name__ == "__main__":
    main()
