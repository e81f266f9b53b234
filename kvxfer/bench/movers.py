"""One way to move bytes between two processes, whatever is below.

Owns the interface that the benchmark times, and the two movers that need no
plug-in: a transport's table and NIXL's own Python API. Knows no case and no clock
but that of a post. Invariant: a write returns when its bytes have been
reported as landed and its notification has been handed to the network.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from kvxfer.errors import TransportFault
from kvxfer.status import Status
from kvxfer.transport.ops import COMPLETION, U64, Memory, TransportOps
from kvxfer.transport.registry import open_transport

TIMEOUT_S = 60.0


class Mover(Protocol):
    """One end of a link whose memory starts at `base`."""

    blob: bytes
    base: int

    def connect(self, blob: bytes) -> None: ...

    def write(self, local: U64, remote: U64, length: U64, note: bytes) -> float:
        """Write and notify; gives the seconds that the post alone took."""

    def notify(self, note: bytes) -> None: ...

    def take_note(self) -> bool:
        """Drive progress a little; True where one notification was taken out."""

    def close(self) -> None: ...


class TableMover:
    """A transport as the driver uses it: through its table, polled from Python."""

    def __init__(
        self, transport: str, options: Mapping[str, Any], base: int, length: int, allocate: bool
    ) -> None:
        self.ops: TransportOps = open_transport(transport)
        self.session = self._must("open", self.ops.open(options))
        if allocate:
            answer = self.ops.allocate_region(self.session, length, "dram", 0)
            self._must("allocate_region", answer[:2])
            base = answer[2]
        else:
            memory = Memory(base=base, length=length)
            self._must("register_region", self.ops.register_region(self.session, memory))
        self.base = base
        status, self.peer, self.blob = self.ops.peer_create(self.session)
        self._must("peer_create", (status, 0))
        self.records = np.zeros(64, dtype=COMPLETION)

    def connect(self, blob: bytes) -> None:
        self._must("peer_connect", (self.ops.peer_connect(self.session, self.peer, blob), 0))

    def write(self, local: U64, remote: U64, length: U64, note: bytes) -> float:
        start = time.perf_counter()
        answer = self.ops.post_write(self.session, self.peer, local, remote, length, note)
        posted = time.perf_counter() - start
        self._must("post_write", answer)
        end = start + TIMEOUT_S
        while True:
            status, count = self.ops.poll(self.session, self.records)
            if count:
                break
            if status != Status.OK or time.perf_counter() > end:
                raise TransportFault("poll", Status(status), "the write did not end")
        self._must("completion", (int(self.records["status"][0]), 0))
        return posted

    def notify(self, note: bytes) -> None:
        self._must("notify", (self.ops.send_notification(self.session, self.peer, note), 0))

    def take_note(self) -> bool:
        return bool(self.ops.poll_notifications(self.session, 1)[1])

    def close(self) -> None:
        self.ops.close(self.session)

    def _must(self, call: str, answer: tuple[int, int]) -> int:
        if answer[0] != Status.OK:
            session = getattr(self, "session", 0)
            raise TransportFault(call, Status(answer[0]), self.ops.last_error(session))
        return answer[1]


class RawNixl:
    """NIXL's Python API called with the same ranges: no checks, one transfer at a time."""

    def __init__(self, base: int, length: int) -> None:
        api = importlib.import_module("nixl._api")
        config = api.nixl_agent_config(enable_prog_thread=False, backends=["UCX"])
        self.base = base
        self._name = f"raw-{time.monotonic_ns()}"
        self._agent = api.nixl_agent(self._name, config)
        self._registered = self._agent.register_memory([(base, length, 0, "")], "DRAM")
        self.blob = bytes(self._agent.get_agent_metadata())
        self._remote = ""

    def connect(self, blob: bytes) -> None:
        told = self._agent.add_remote_agent(blob)
        self._remote = told.decode() if isinstance(told, bytes) else str(told)

    def write(self, local: U64, remote: U64, length: U64, note: bytes) -> float:
        start = time.perf_counter()
        handle = self._agent.initialize_xfer(
            "WRITE", self._list(local, length), self._list(remote, length), self._remote, note
        )
        state = self._agent.transfer(handle)
        posted = time.perf_counter() - start
        end = start + TIMEOUT_S
        while state == "PROC" and time.perf_counter() < end:
            state = self._agent.check_xfer_state(handle)
        handle.release()
        if state != "DONE":
            raise TransportFault("nixl", Status.OP_UNKNOWN, f"a transfer ended with {state}")
        return posted

    def _list(self, address: U64, length: U64) -> Any:
        table = np.zeros((len(address), 3), dtype=np.uint64)
        table[:, 0] = address
        table[:, 1] = length
        return self._agent.get_xfer_descs(table, "DRAM")

    def notify(self, note: bytes) -> None:
        self._agent.send_notif(self._remote, note)

    def take_note(self) -> bool:
        return bool(self._agent.get_new_notifs())

    def close(self) -> None:
        self._agent.deregister_memory(self._registered)
        self._agent = None


def make_mover(kind: str, options: Mapping[str, Any], base: int, length: int) -> Mover:
    """`kind` is 'raw ucx', 'raw nixl', the name of a transport, or one with ' allocated'.

    Raises KvxferError or ImportError where it cannot be used here.
    """
    if kind == "raw ucx":
        raw: Mover = importlib.import_module("kvxfer_ucx.raw").RawUcx(options, base, length)
        return raw
    if kind == "raw nixl":
        return RawNixl(base, length)
    name, _, extra = kind.partition(" ")
    return TableMover(name, options, base, length, allocate=extra == "allocated")
