"""One open session: its regions, its peers, and what must stay alive for the shim.

Owns the tables of handles and the checks that need Python's view of the
arguments. Refuses to judge proofs (`kvxfer_ucx.fence`) and to parse blobs
(`kvxfer_ucx.blob`). Invariants: handles count up and are never given again; a
refused call changes nothing; columns and memory that the shim was given live as
long as their request.
"""

from __future__ import annotations

import os
import secrets
import struct
from collections.abc import Mapping
from operator import index
from typing import Any, Final

import attrs
import numpy as np
import numpy.typing as npt

from kvxfer.errors import BadValue, RemoteFault
from kvxfer.status import Status
from kvxfer.transport.blobs import BLOB_BYTES_MAX
from kvxfer.transport.caps import Caps
from kvxfer.transport.liveness import Whereabouts, own_identity, process_is_gone, whereabouts
from kvxfer.transport.ops import COMPLETION, U64, Direction, Memory, Strided
from kvxfer.transport.ranges import column_fault, expand_strided, strided_fault
from kvxfer.transport.sessions import Refused
from kvxfer_ucx.binding import TEXT_BYTES, Shim, load_shim
from kvxfer_ucx.blob import (
    ADDRESS_BYTES_MAX,
    COOKIE_BYTES,
    KEY_BYTES_MAX,
    REGIONS_MAX,
    PeerBlob,
)
from kvxfer_ucx.fence import Facts, is_driven_by_target, worker_is_proof
from kvxfer_ucx.room import allocatable_bytes
from kvxfer_ucx.settings import Settings

NOTIFICATION_BYTES_MAX: Final = 65536
FENCE_WAIT_NS: Final = 50_000_000
"""How long one `fence_peer` looks for the proof: an answer takes less than a millisecond."""

CAPS: Final = (
    Caps.WRITE
    | Caps.READ
    | Caps.NOTIFY_AFTER_VISIBLE
    | Caps.FENCE_PEER
    | Caps.WAKEUP_FD
    | Caps.CANCEL
    | Caps.STRIDED
    | Caps.ALLOCATE
    | Caps.MEM_DRAM
    | Caps.THREAD_ONE_OWNER
    | Caps.CROSS_PROCESS
)
"""Not TARGET_MUST_PROGRESS: the shim's own thread carries out what the target must do."""

INBOX_BYTES: Final = 256 << 10
"""Room for the notifications that one call of the shim takes out."""

_U64: Final = np.dtype(np.uint64)
_NOTE: Final = struct.Struct("=QQ")
_ADDRESS_STOP: Final = 1 << 64


@attrs.define(kw_only=True, eq=False)
class Peer:
    """One end of a link. `pointer` is the shim's; it is valid until the peer is destroyed."""

    handle: int
    pointer: Any
    cookie: bytes
    blob: bytes = b""
    """The other side's, once accepted."""
    theirs: PeerBlob | None = None


@attrs.define(kw_only=True, eq=False)
class Session:
    """State between `open` and `close`. Methods raise `Refused` for every other answer than OK."""

    shim: Shim
    caps: Caps
    driven_by_target: bool
    shared_only: bool
    """True where only memory that UCX allocated can be lent."""
    error: str = ""
    _lib: Any
    _pointer: Any
    _inbox: Any
    _inbox_bytes: Any
    """The same memory, as Python's slices see it."""
    _handles_given: int = 0
    _regions: dict[int, tuple[Memory, Any]] = attrs.field(factory=dict)
    _memories: tuple[Memory, ...] = ()
    """Memory of `_regions`; made anew at each change, so that a request can hold one."""
    _peers: dict[int, Peer] = attrs.field(factory=dict)
    _kept: dict[int, Any] = attrs.field(factory=dict)
    """By request: what the shim reads until it has ended."""

    @classmethod
    def open(cls, options: Mapping[str, Any]) -> Session:
        """Check the options, load UCX and make its context and the engine thread."""
        try:
            settings = Settings.of(options)
        except BadValue as error:
            raise Refused(Status.OP_INVALID, str(error)) from error
        try:
            shim = load_shim()
        except ImportError as error:
            raise Refused(Status.LIBRARY_MISSING, str(error)) from error
        ffi, lib = shim.ffi, shim.lib
        pairs = settings.for_ucx()
        names = [ffi.new("char[]", name.encode()) for name in pairs]
        values = [ffi.new("char[]", value.encode()) for value in pairs.values()]
        text = ffi.new("char[]", TEXT_BYTES)
        pointer = lib.kvu_open(
            ffi.new("const char *[]", names),
            ffi.new("const char *[]", values),
            len(pairs),
            settings.shared_only,
            text,
            TEXT_BYTES,
        )
        if pointer == ffi.NULL:
            raise Refused(Status.SESSION_FAILED, shim.string(text))
        caps = CAPS if settings.can_read else CAPS & ~Caps.READ
        driven_by_target = is_driven_by_target(settings.effective_tls())
        if driven_by_target:
            caps |= Caps.CLOSE_FENCES
        if lib.kvu_memory_is_cuda(pointer):
            caps |= Caps.MEM_CUDA
        inbox = ffi.new("char[]", INBOX_BYTES)
        session = cls(
            shim=shim,
            caps=caps,
            shared_only=settings.shared_only,
            driven_by_target=driven_by_target,
            lib=lib,
            pointer=pointer,
            inbox=inbox,
            inbox_bytes=ffi.buffer(inbox),
        )
        session._check_transports()
        return session

    def _check_transports(self) -> None:
        """UCX takes any name of a transport and tells only when a worker is made."""
        try:
            self.peer_destroy(self.peer_create()[0])
        except Refused:
            self.close()
            raise

    def close(self) -> None:
        """Drop everything; memory that UCX allocated is gone after it."""
        self._lib.kvu_close(self._pointer)
        self._peers.clear()
        self._regions.clear()
        self._memories = ()
        self._kept.clear()

    # Regions.

    def register_region(self, memory: Memory) -> int:
        base, length = index(memory.base), index(memory.length)
        kinds = {"dram": False} | ({"cuda": True} if Caps.MEM_CUDA in self.caps else {})
        if memory.kind not in kinds:
            text = f"memory kind = {memory.kind!r}: here this UCX reaches {sorted(kinds)}"
            raise Refused(Status.OP_INVALID, text)
        if not (base > 0 and length > 0 and base + length < _ADDRESS_STOP):
            text = f"memory = {length} bytes at {base}: both above 0, the end below 2**64"
            raise Refused(Status.OP_INVALID, text)
        return self._add_region(memory, kinds[memory.kind])[0]

    def allocate_region(self, length: int, kind: str, device: int) -> tuple[int, int]:
        size = index(length)
        if kind != "dram" or index(device) != 0:
            raise Refused(Status.OP_INVALID, f"{kind!r} of device {device}: 'dram' of device 0")
        if not 0 < size < _ADDRESS_STOP:
            raise Refused(Status.OP_INVALID, f"length = {size}: from 1 to 2**64 - 1 bytes")
        room = allocatable_bytes()
        if size > room:
            raise Refused(Status.NO_RESOURCE, f"length = {size} bytes: {room} are free here")
        return self._add_region(Memory(base=0, length=size), False)

    def _add_region(self, memory: Memory, is_cuda: bool) -> tuple[int, int]:
        if len(self._regions) >= REGIONS_MAX:
            raise Refused(Status.NO_RESOURCE, f"{REGIONS_MAX} regions are registered")
        handle = self._new_handle()
        base = self.shim.ffi.new("uint64_t *", memory.base)
        region = self._lib.kvu_region_add(self._pointer, handle, base, memory.length, is_cuda)
        if region == self.shim.ffi.NULL:
            raise Refused(Status.NO_RESOURCE, self._words())
        placed = attrs.evolve(memory, base=int(base[0]))
        self._regions[handle] = (placed, region)
        self._memories = tuple(memory for memory, _ in self._regions.values())
        return handle, placed.base

    def deregister_region(self, region: int) -> None:
        _, pointer = self._regions.pop(region, (None, None))
        if pointer is None:
            given = 0 < index(region) <= self._handles_given
            status = Status.REGION_STALE if given else Status.REGION_UNKNOWN
            raise Refused(status, f"region = {region}: not registered")
        self._memories = tuple(memory for memory, _ in self._regions.values())
        self._lib.kvu_region_drop(self._pointer, pointer)

    # Peers.

    def peer_create(self) -> tuple[int, bytes]:
        ffi = self.shim.ffi
        cookie = secrets.token_bytes(COOKIE_BYTES)
        address = ffi.new("unsigned char[]", ADDRESS_BYTES_MAX)
        size = ffi.new("size_t *", ADDRESS_BYTES_MAX)
        handle = self._new_handle()
        pointer = self._lib.kvu_peer_new(self._pointer, handle, cookie, address, size)
        if pointer == ffi.NULL:
            raise Refused(Status.SESSION_FAILED, self._words())
        try:
            blob = self._blob(cookie, bytes(ffi.buffer(address, size[0])))
        except Refused:
            self._lib.kvu_peer_drop(self._pointer, pointer)
            raise
        self._peers[handle] = Peer(handle=handle, pointer=pointer, cookie=cookie)
        return handle, blob

    def _blob(self, cookie: bytes, address: bytes) -> bytes:
        lent = {handle: found for handle, found in self._regions.items() if self._is_lent(found[1])}
        memories = [memory for memory, _ in lent.values()]
        blob = PeerBlob(
            process=own_identity(),
            cookie=cookie,
            address=address,
            handles=np.fromiter(lent, dtype=np.uint64),
            bases=np.fromiter((m.base for m in memories), dtype=np.uint64),
            lengths=np.fromiter((m.length for m in memories), dtype=np.uint64),
            keys=tuple(self._key(pointer) for _, pointer in lent.values()),
        ).encode()
        if len(blob) > BLOB_BYTES_MAX:
            text = f"blob of {len(blob)} bytes for {len(memories)} regions: at most"
            raise Refused(Status.SESSION_FAILED, f"{text} {BLOB_BYTES_MAX}")
        return blob

    def _is_lent(self, region: Any) -> bool:
        return not self.shared_only or bool(self._lib.kvu_region_is_shared(region))

    def _key(self, region: Any) -> bytes:
        key = self.shim.ffi.new("unsigned char[]", KEY_BYTES_MAX)
        size = self._lib.kvu_region_pack(self._pointer, region, key, KEY_BYTES_MAX)
        if size <= 0:
            raise Refused(Status.SESSION_FAILED, self._words())
        return bytes(self.shim.ffi.buffer(key, size))

    def peer_connect(self, peer: int, blob: bytes) -> None:
        found = self._peer(peer)
        try:
            theirs = PeerBlob.decode(blob)
        except RemoteFault as fault:
            raise Refused(Status.PEER_BLOB, f"peer {peer}: {fault}") from fault
        if theirs.cookie == found.cookie:
            raise Refused(Status.PEER_BLOB, f"peer {peer}: the blob is this peer's own")
        if found.theirs is not None:
            if found.blob == blob:
                return
            raise Refused(Status.OP_INVALID, f"peer {peer} is connected to another one already")
        status = Status(self._connect(found, theirs))
        if status != Status.OK:
            raise Refused(status, self._words())
        found.theirs, found.blob = theirs, blob

    def _connect(self, peer: Peer, theirs: PeerBlob) -> int:
        ffi = self.shim.ffi
        sizes = np.array([len(key) for key in theirs.keys], dtype=np.uint64)
        columns = (theirs.handles, theirs.bases, theirs.lengths)
        return int(
            self._lib.kvu_peer_connect(
                self._pointer,
                peer.pointer,
                theirs.cookie,
                theirs.address,
                len(theirs.address),
                *_watch(theirs),
                len(sizes),
                *(ffi.from_buffer("uint64_t[]", column) for column in columns),
                b"".join(theirs.keys),
                ffi.from_buffer("uint64_t[]", sizes),
                ffi.from_buffer("uint64_t[]", theirs.kinds()),
            )
        )

    def peer_destroy(self, peer: int) -> None:
        found = self._peer(peer)
        del self._peers[peer]
        self._lib.kvu_peer_drop(self._pointer, found.pointer)

    def fence_peer(self, peer: int) -> None:
        found = self._peer(peer)
        theirs = found.theirs
        facts = Facts(
            own=own_identity(),
            theirs=theirs.process if theirs else None,
            cookie=theirs.cookie if theirs else b"",
            driven_by_target=self.driven_by_target,
        )
        proof, text = worker_is_proof(facts, self._lib.kvu_cookie_is_alive)
        flags = self._lib.kvu_peer_fence(self._pointer, found.pointer, proof, FENCE_WAIT_NS)
        if not flags & self._lib.KVU_DEAD:
            if proof:
                text = "our worker for it could not be destroyed yet"
            raise Refused(Status.NOT_FENCED, f"peer {peer}: {text}")

    # Operations.

    def post(
        self, write: bool, peer: int, columns: tuple[U64, U64, U64], notify: bytes | None
    ) -> int:
        if not write and Caps.READ not in self.caps:
            raise Refused(Status.UNSUPPORTED, "none of the transports allowed here can read")
        fault = "" if _are_plain(columns) else column_fault(*columns)
        fault = fault or _notification_fault(notify)
        count = 0 if fault else len(columns[0])
        if not fault and count == 0 and notify is None:
            fault = "neither ranges nor a notification to post"
        if fault:
            raise Refused(Status.OP_INVALID, fault)
        found = self._peer(peer)
        kept = [self._pointer_to(column) for column in columns]
        request = self._new_handle()
        status = self._lib.kvu_post(
            self._pointer,
            found.pointer,
            request,
            write,
            count,
            *kept,
            notify or b"",
            len(notify or b""),
        )
        if status != 0:
            raise Refused(Status(status), self._words())
        self._kept[request] = (kept, self._memories)
        return request

    def _pointer_to(self, column: U64) -> Any:
        from_buffer = self.shim.ffi.from_buffer
        try:
            return from_buffer("uint64_t[]", column)
        except (BufferError, ValueError):  # not in one piece
            return from_buffer("uint64_t[]", np.ascontiguousarray(column))

    def post_strided(
        self, peer: int, direction: Direction, columns: Strided, notify: bytes | None
    ) -> int:
        fault = strided_fault(columns)
        if fault:
            raise Refused(Status.OP_INVALID, fault)
        write = Direction(direction) is Direction.WRITE
        return self.post(write, peer, expand_strided(columns), notify)

    def send_notification(self, peer: int, payload: bytes) -> None:
        fault = "payload is None" if payload is None else _notification_fault(payload)
        if fault:
            raise Refused(Status.OP_INVALID, fault)
        found = self._peer(peer)
        status = self._lib.kvu_notify(self._pointer, found.pointer, payload, len(payload))
        if status != 0:
            raise Refused(Status(status), self._words())

    def cancel(self, request: int) -> None:
        if index(request) not in self._kept:
            raise Refused(Status.OP_INVALID, f"request = {request}: unknown, or has ended")
        # One that has ended and was not polled yet is past cancelling, and still open.
        self._lib.kvu_cancel(self._pointer, request)

    # Progress.

    def poll(self, records: npt.NDArray[Any]) -> int:
        if not isinstance(records, np.ndarray) or records.dtype != COMPLETION or records.ndim != 1:
            raise Refused(Status.OP_INVALID, f"records: must be a column of {COMPLETION}")
        if not records.flags.c_contiguous:
            straight = np.empty(len(records), dtype=COMPLETION)
            count = self.poll(straight)
            records[:count] = straight[:count]
            return count
        into = self.shim.ffi.from_buffer("char[]", records, require_writable=True)
        count = int(self._lib.kvu_poll(self._pointer, into, len(records)))
        if count:
            for request in records["request"][:count].tolist():
                self._kept.pop(request, None)
        return count

    def poll_notifications(self, count_max: int) -> list[tuple[int, bytes]]:
        wanted = index(count_max)
        if wanted < 0:
            raise Refused(Status.OP_INVALID, f"count_max = {wanted}: at least 0")
        taken: list[tuple[int, bytes]] = []
        while True:
            left = wanted - len(taken)
            count = self._lib.kvu_notes(self._pointer, left, self._inbox, INBOX_BYTES)
            at = 0
            for _ in range(count):
                peer, length = _NOTE.unpack_from(self._inbox_bytes, at)
                at += _NOTE.size + length
                taken.append((peer, self._inbox_bytes[at - length : at]))
            if count == 0 or len(taken) == wanted:
                return taken

    def pointers(self, peer: int) -> tuple[Any, Any]:
        """The shim's own session and peer, for `kvxfer_ucx.raw` alone."""
        return self._pointer, self._peer(peer).pointer

    def wakeup_fd(self) -> int:
        return int(self._lib.kvu_wakeup_fd(self._pointer))

    def _peer(self, peer: int) -> Peer:
        found = self._peers.get(peer)
        if found is None:
            raise Refused(Status.PEER_UNKNOWN, f"peer = {peer}: not a live peer")
        return found

    def _new_handle(self) -> int:
        self._handles_given += 1
        return self._handles_given

    def _words(self) -> str:
        text = self.shim.ffi.new("char[]", TEXT_BYTES)
        self._lib.kvu_error(self._pointer, text, TEXT_BYTES)
        return self.shim.string(text)


def _are_plain(columns: tuple[U64, U64, U64]) -> bool:
    """True for what callers give; the rest gets `column_fault`'s words. The shim checks lengths."""
    count = len(columns[2])
    return all(
        type(column) is np.ndarray
        and column.dtype is _U64
        and column.ndim == 1
        and len(column) == count
        for column in columns
    )


def _watch(theirs: PeerBlob) -> tuple[int, int]:
    """The peer's process where it is of this host, and a descriptor that tells its end.

    The process is 0 and the descriptor -1 where there is none. The own process
    has no descriptor: it outlives nobody who could look.
    """
    process = theirs.process
    where = whereabouts(own_identity(), process)
    if where is Whereabouts.THIS_PROCESS:
        return process.pid, -1
    if where is not Whereabouts.THIS_HOST:
        return 0, -1
    try:
        descriptor = os.pidfd_open(process.pid)
    except OSError:
        return 0, -1
    # Asked after the descriptor was made: it is of this process, not of a later one of its pid.
    if process_is_gone(process.pid, process.start_ticks):
        os.close(descriptor)
        return 0, -1
    return process.pid, descriptor


def _notification_fault(notify: object) -> str:
    if notify is None:
        return ""
    if not isinstance(notify, bytes):
        return f"notification is {type(notify).__name__}: must be bytes"
    if not 1 <= len(notify) <= NOTIFICATION_BYTES_MAX:
        return f"notification of {len(notify)} bytes: from 1 to {NOTIFICATION_BYTES_MAX}"
    return ""
