"""Memory of a GPU for the kit: torch tensors, in this process and in another one.

Owns `CudaBuffer`, which the kit takes as a memory factory, and `CudaLink`, two
processes with a tensor each. Refuses to know a network: the far end loads the
descriptor of the plug-in that it is told. torch is imported by who makes a buffer.

The far end is this module run as a script: FD PLUGIN OPTIONS_JSON LENGTH DEVICE BUFFER. It
speaks pickled tuples over the inherited socket to its parent and to nobody else.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import os
import socket
import subprocess
import sys
import time
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from kvxfer.status import Status
from kvxfer.transport.ops import COMPLETION, Memory, TransportOps

DEADLINE_S = 60.0


class CudaBuffer:
    """`length` zero bytes on a GPU. Looks into them by a copy to the host."""

    def __init__(self, length: int, device: int = 0) -> None:
        import torch

        self._torch: Any = torch
        self.tensor = torch.zeros(length, dtype=torch.uint8, device=f"cuda:{device}")
        torch.cuda.synchronize()
        self.memory = Memory(
            base=self.tensor.data_ptr(),
            length=length,
            kind="cuda",
            device=device,
            keepalive=self.tensor,
        )

    def read(self, offset: int, length: int) -> bytes:
        self._torch.cuda.synchronize()
        return bytes(self.tensor[offset : offset + length].cpu().numpy().tobytes())

    def write(self, offset: int, data: bytes) -> None:
        piece = self._torch.frombuffer(bytearray(data), dtype=self._torch.uint8)
        self.tensor[offset : offset + len(data)].copy_(piece)
        self._torch.cuda.synchronize()


def cuda_count() -> int:
    """How many GPUs torch sees."""
    import torch

    return int(torch.cuda.device_count())


def cuda_is_here() -> str:
    """Empty where a GPU can be used, else why not."""
    try:
        import torch
    except ImportError:
        return "torch is not installed"
    return "" if torch.cuda.is_available() else "torch sees no CUDA device"


class CudaLink:
    """Two processes with a tensor of `length` bytes each, connected over one transport."""

    def __init__(
        self,
        plugin: str,
        ops: TransportOps,
        options: dict[str, Any],
        length: int,
        devices: tuple[int, int] = (0, 0),
        buffer: str = "kvxfer.conformance.cuda:CudaBuffer",
    ) -> None:
        """`buffer` names the class of the memory on both ends, as module:name."""
        ours, theirs = socket.socketpair()
        with theirs:
            far_options = options | ({"device": devices[1]} if "device" in options else {})
            words = [str(theirs.fileno()), plugin, json.dumps(far_options), str(length)]
            self.process = subprocess.Popen(
                [sys.executable, "-m", __name__, *words, str(devices[1]), buffer],
                pass_fds=[theirs.fileno()],
                process_group=0,  # Ctrl-C is for the kit, which ends this process
                env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
            )
        self._link = Connection(ours.detach())
        self.records = np.zeros(16, dtype=COMPLETION)
        self.ops = ops
        status, self.session = ops.open(options)
        assert status == Status.OK, ops.last_error(self.session)
        self.buffer = _class_of(buffer)(length, devices[0])
        assert ops.register_region(self.session, self.buffer.memory)[0] == Status.OK
        status, self.peer, blob = ops.peer_create(self.session)
        assert status == Status.OK, ops.last_error(self.session)
        self.remote, their_blob = self.hear()
        assert ops.peer_connect(self.session, self.peer, their_blob) == Status.OK
        self._link.send(blob)
        assert self.hear() == "connected"

    def hear(self) -> Any:
        """The next thing the other process says; this end's table turns meanwhile."""
        end = time.monotonic() + DEADLINE_S
        while not self._link.poll(0.0001):
            assert time.monotonic() < end, "the other process does not answer"
            self.ops.poll(self.session, self.records)
        return self._link.recv()

    def fill_far(self, data: bytes) -> None:
        self._link.send(("fill", data))
        assert self.hear() == "written"

    def move(self, slot: str, local: Any, remote: Any, length: Any, notify: bytes | None) -> Status:
        """Post and turn until it has ended."""
        columns = [np.asarray(column, dtype=np.uint64) for column in (local, remote, length)]
        columns[0] = columns[0] + np.uint64(self.buffer.memory.base)
        columns[1] = columns[1] + np.uint64(self.remote)
        status, request = getattr(self.ops, slot)(self.session, self.peer, *columns, notify)
        assert status == Status.OK, self.ops.last_error(self.session)
        end = time.monotonic() + DEADLINE_S
        while time.monotonic() < end:
            _, count = self.ops.poll(self.session, self.records)
            for record in self.records[:count]:
                if int(record["request"]) == request:
                    return Status(int(record["status"]))
        raise AssertionError("the request did not end")

    def close(self) -> None:
        self._link.send(("end", b""))
        self.process.wait(DEADLINE_S)
        self.ops.close(self.session)


def _class_of(name: str) -> Any:
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


def main() -> None:
    """The far end, for as long as the near one is there."""
    with contextlib.suppress(EOFError, ConnectionError):
        _lend(Connection(int(sys.argv[1])))


def _lend(link: Connection) -> None:
    """Lend one tensor, and tell what is in it when a notice comes."""
    ops = importlib.import_module(sys.argv[2]).DESCRIPTOR.load()
    length = int(sys.argv[4])
    status, session = ops.open(json.loads(sys.argv[3]))
    assert status == Status.OK, ops.last_error(session)
    buffer = _class_of(sys.argv[6])(length, int(sys.argv[5]))
    status, _ = ops.register_region(session, buffer.memory)
    assert status == Status.OK, ops.last_error(session)
    status, peer, blob = ops.peer_create(session)
    assert status == Status.OK, ops.last_error(session)
    link.send((buffer.memory.base, blob))
    status = ops.peer_connect(session, peer, link.recv())
    assert status == Status.OK, ops.last_error(session)
    link.send("connected")
    while True:
        for _, payload in ops.poll_notifications(session, 16)[1]:
            link.send((payload, hashlib.sha256(buffer.read(0, length)).hexdigest()))
        if link.poll(0.0005):
            command, data = link.recv()
            if command == "end":
                break
            buffer.write(0, data)
            link.send("written")
    ops.close(session)


if __name__ == "__main__":
    main()
