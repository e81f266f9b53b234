"""The other process of a NIXL test: carries out table calls that its parent asks for.

Run as a script with the number of an inherited socket. Between two commands it
turns its own table as long as `turning` is set, as the writer thread does.
"""

from __future__ import annotations

import contextlib
import sys
import time
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from kvxfer.status import Status
from kvxfer.transport.ops import COMPLETION, Memory
from kvxfer_nixl import DESCRIPTOR


class FarEnd:
    """One session with one region and one peer."""

    def __init__(self, options: dict[str, Any], length: int) -> None:
        self.ops = DESCRIPTOR.load()
        status, self.session = self.ops.open(options)
        assert status == Status.OK, self.ops.last_error(self.session)
        self.memory = np.zeros(length, dtype=np.uint8)
        self.base = self.memory.ctypes.data
        status, _ = self.ops.register_region(self.session, Memory(base=self.base, length=length))
        assert status == Status.OK, self.ops.last_error(self.session)
        self.peer = 0
        self.turning = True
        self.stream: tuple[int, int] | None = None
        self.records = np.zeros(64, dtype=COMPLETION)
        self.ends: list[int] = []
        self.notices: list[bytes] = []
        self.refused: list[int] = []

    def create(self) -> tuple[int, bytes]:
        status, self.peer, blob = self.ops.peer_create(self.session)
        assert status == Status.OK, self.ops.last_error(self.session)
        return self.base, blob

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
            status, _ = self.ops.post_write(
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
