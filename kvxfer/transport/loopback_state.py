"""Records of the loopback: sessions, peers, operations, the wake-up descriptor.

Owns the data and the questions that can be answered from it alone. Refuses to
lock or to copy bytes: `loopback` does both. Invariant: a handle is never given
twice by one session, so an old handle can always be told from a live one.
"""

from __future__ import annotations

import socket
import struct
from collections import deque
from enum import Enum
from typing import Final

import attrs
import numpy as np

from kvxfer.status import Status
from kvxfer.transport.faults import Action, FaultPlan, Kind, Posted
from kvxfer.transport.ops import U64, Memory
from kvxfer.transport.ranges import RegionIndex

_BLOB: Final = struct.Struct("<8sHH16sQQ")
_BLOB_MAGIC: Final = b"kvxloop\x00"
_BLOB_VERSION: Final = 1
TOKEN_BYTES: Final = 16
"""Length of the token that names one hub of one process."""


@attrs.frozen(kw_only=True)
class Blob:
    """What a loopback blob says: where the other end of a link is found."""

    token: bytes
    session: int
    peer: int

    def encode(self) -> bytes:
        """The bytes that travel; little-endian, fixed length."""
        return _BLOB.pack(_BLOB_MAGIC, _BLOB_VERSION, 0, self.token, self.session, self.peer)

    @classmethod
    def decode(cls, data: object) -> tuple[Blob | None, str]:
        """The blob, or None and what is wrong with the bytes."""
        if not isinstance(data, bytes):
            return None, f"blob is {type(data).__name__}: must be bytes"
        if len(data) != _BLOB.size:
            return None, f"blob has {len(data)} bytes: a loopback blob has {_BLOB.size}"
        magic, version, reserved, token, session, peer = _BLOB.unpack(data)
        if magic != _BLOB_MAGIC:
            return None, f"blob starts with {magic!r}: not a loopback blob"
        if version != _BLOB_VERSION or reserved != 0:
            return None, f"blob version = {version}.{reserved}: this build reads {_BLOB_VERSION}.0"
        return cls(token=token, session=session, peer=peer), ""


class Wakeup:
    """A descriptor that is readable exactly while `set(True)` was the latest word."""

    def __init__(self) -> None:
        self._pair: tuple[socket.socket, socket.socket] | None = None
        self._signalled = False

    def fileno(self, ready: bool) -> int:
        """The descriptor; made on the first call, in the state `ready`."""
        if self._pair is None:
            self._pair = socket.socketpair()
            self._signalled = False
            self.set(ready)
        return self._pair[0].fileno()

    def set(self, ready: bool) -> None:
        """Make it readable or not. At most one byte is ever in the pair, so nothing blocks."""
        if self._pair is None or ready == self._signalled:
            return
        if ready:
            self._pair[1].send(b"\x01")
        else:
            self._pair[0].recv(1)
        self._signalled = ready

    def close(self) -> None:
        """Give the descriptor back to the system."""
        if self._pair is not None:
            for end in self._pair:
                end.close()
            self._pair = None


@attrs.define(eq=False)
class Session:
    """One open session. `closed` ends everything but held writes that were posted before."""

    handle: int
    plan: FaultPlan | None
    regions: dict[int, Memory] = attrs.field(factory=dict)
    region_version: int = 0
    """Counts removals of regions; a check made under another number must be made again."""
    peers: dict[int, Peer] = attrs.field(factory=dict)
    runnable: deque[Operation] = attrs.field(factory=deque)
    requests: dict[int, Operation] = attrs.field(factory=dict)
    """Requests that have not ended in `poll` yet."""
    completed: deque[tuple[int, int, Status]] = attrs.field(factory=deque)
    inbox: deque[tuple[int, bytes]] = attrs.field(factory=deque)
    wakeup: Wakeup = attrs.field(factory=Wakeup)
    error: str = ""
    closed: bool = False
    _handles: int = 0
    _index: RegionIndex | None = None

    def new_handle(self) -> int:
        """A handle that this session has not given before."""
        self._handles += 1
        return self._handles

    def was_given(self, handle: int) -> bool:
        """True for a handle of any kind that this session has given at some time."""
        return 0 < handle <= self._handles

    def index(self) -> RegionIndex:
        """Live regions, ready for checks."""
        if self._index is None:
            self._index = RegionIndex.of(self.regions.values())
        return self._index

    def add_region(self, memory: Memory) -> int:
        """Register; gives the handle."""
        handle = self.new_handle()
        self.regions[handle] = memory
        self._index = None
        return handle

    def remove_region(self, handle: int) -> None:
        """Forget a live region; checks made before count no more."""
        del self.regions[handle]
        self._index = None
        self.region_version += 1

    @property
    def ready(self) -> bool:
        """True while a poll of either kind would give or do something."""
        return bool(self.runnable or self.completed or self.inbox)

    def refresh_wakeup(self) -> None:
        """Make the descriptor say what `ready` says."""
        self.wakeup.set(self.ready)

    def refuse(self, status: Status, text: str) -> Status:
        """Remember `text` for `last_error`; gives `status` back."""
        self.error = text
        return status


@attrs.define(eq=False)
class Peer:
    """One end of a link, owned by `session`; `remote` is the other end once connected."""

    handle: int
    session: Session
    exported: dict[int, Memory]
    """Regions that the other side may name: those that were registered before."""
    remote: Peer | None = None
    claimed_by: Peer | None = None
    """The end that has connected to this one's blob: a blob serves one link."""
    fence_tried: bool = False
    fenced: bool = False
    destroyed: bool = False
    operations: set[Operation] = attrs.field(factory=set)
    """Operations of either direction that are not over."""
    _exports: tuple[int, RegionIndex] | None = None

    def export_index(self) -> RegionIndex:
        """Exported regions that are still live."""
        version = self.session.region_version
        if self._exports is None or self._exports[0] != version:
            live = [m for handle, m in self.session.regions.items() if handle in self.exported]
            self._exports = (version, RegionIndex.of(live))
        return self._exports[1]

    def refusal(self, start: U64, length: U64) -> tuple[Status, int]:
        """Why the other side may not name these ranges, and the index of the first bad one."""
        live = self.export_index()
        at = live.first_outside(start, length)
        if at < 0:
            return Status.OK, at
        if RegionIndex.of(self.exported.values()).first_outside(start, length) < 0:
            return Status.REGION_STALE, at
        return (Status.REGION_BOUNDS if self.exported else Status.REGION_UNKNOWN), at

    def in_post_order(self) -> list[Operation]:
        """Operations of the link that are not over; a fixed order, so that runs repeat."""
        return sorted(self.operations, key=lambda op: (op.peer.session.handle, op.request))

    def deliver(self, payload: bytes, copies: int = 1) -> None:
        """Put a notification from the other end into this end's queue, if it still takes any."""
        if not (self.session.closed or self.destroyed or self.fenced):
            self.session.inbox.extend([(self.handle, payload)] * copies)
            self.session.refresh_wakeup()

    def post_status(self) -> tuple[Status, str]:
        """Whether anything may be posted towards the other end."""
        if self.fence_tried:
            return Status.PEER_FAILED, f"peer {self.handle} has been fenced"
        if self.remote is None:
            return Status.PEER_NOT_CONNECTED, f"peer {self.handle} is not connected"
        if self.remote.session.closed or self.remote.destroyed:
            return Status.PEER_FAILED, f"the other end of peer {self.handle} is gone"
        if self.remote.fence_tried:
            return Status.PEER_FAILED, f"the other end of peer {self.handle} has fenced us"
        return Status.OK, ""


class Progress(Enum):
    """Where an operation stands."""

    WAITING = "waiting"
    OVER = "over"
    """It can touch memory no more. Its notification or completion may still be held."""


@attrs.define(eq=False)
class Operation:
    """One posted operation. `sources`, `targets` and `lengths` are its ranges, in order."""

    request: int
    kind: Kind
    peer: Peer
    target: Peer
    columns: tuple[U64, U64, U64]
    """local address, remote address, length."""
    notification: bytes | None
    posted: Posted | None
    action: Action | None
    progress: Progress = Progress.WAITING
    held: bool = False
    reported: bool = False
    cancelled: bool = False
    next_range: int = 0
    next_byte: int = 0
    checked: tuple[int, int] = (-1, -1)
    """Region versions (local, remote) under which `allowed` last checked the columns."""
    sources: list[int] = attrs.field(factory=list)
    targets: list[int] = attrs.field(factory=list)
    lengths: list[int] = attrs.field(factory=list)
    ends: list[int] = attrs.field(factory=list)
    """ends[i] is how many bytes the ranges 0..i have together."""

    def __attrs_post_init__(self) -> None:
        local, remote, length = (column.tolist() for column in self.columns)
        self.sources, self.targets = (local, remote) if self.kind == "write" else (remote, local)
        self.lengths = length
        self.ends = np.cumsum(self.columns[2], dtype=np.uint64).tolist()

    @property
    def copied(self) -> bool:
        """True when all bytes have been moved."""
        return self.next_range == len(self.lengths)

    def memories(self) -> list[Memory]:
        """All memory it may touch; who holds the list keeps the bytes valid."""
        return [*self.peer.session.regions.values(), *self.target.session.regions.values()]

    def forget(self) -> None:
        """It can touch memory no more."""
        self.progress = Progress.OVER
        self.peer.operations.discard(self)
        self.target.operations.discard(self)

    def allowed(self) -> bool:
        """True while both ends and all regions still stand as when it was posted."""
        if self.cancelled or self.target.session.closed:
            return False
        versions = (self.peer.session.region_version, self.target.session.region_version)
        if versions != self.checked:
            local, remote, length = self.columns
            if self.peer.session.index().first_outside(local, length) >= 0:
                return False
            if self.target.export_index().first_outside(remote, length) >= 0:
                return False
            self.checked = versions
        return True
