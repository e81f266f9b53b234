"""One open session: its regions, its peers, and what waits to be polled.

Owns the tables of handles and the checks before a post. Refuses to call nixl
(`kvxfer_nixl.peer` and `agent` do). Invariants: handles count up and are never
given again; a refused post changes nothing; what waits is bounded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from operator import index
from typing import Any, Final

import attrs
import numpy as np
import numpy.typing as npt

from kvxfer.status import Status
from kvxfer.transport.blobs import BLOB_BYTES_MAX
from kvxfer.transport.caps import Caps
from kvxfer.transport.liveness import own_identity
from kvxfer.transport.ops import COMPLETION, U64, Memory
from kvxfer.transport.ranges import column_fault
from kvxfer.transport.sessions import Refused, text_of
from kvxfer_nixl.agent import (
    LIBFABRIC,
    UCX,
    NixlAgent,
    build_of,
    effective_tls,
    is_driven_by_target,
    library_version,
    load_library,
)
from kvxfer_nixl.blob import DEVICE_MAX, REGIONS_MAX, PeerBlob
from kvxfer_nixl.fabric import load_fabric
from kvxfer_nixl.hand import Hand
from kvxfer_nixl.peer import End, Peer
from kvxfer_nixl.regions import Place, Regions
from kvxfer_nixl.settings import Settings

NOTIFICATION_BYTES_MAX: Final = 1 << 20
REQUESTS_MAX: Final = 1 << 16
"""Requests of one session that have not been polled; a further post gets NO_RESOURCE."""
INBOX_MAX: Final = 1 << 16
"""Notifications that wait here; beyond it they are left in the library until some are taken."""

_ADDRESS_STOP: Final = 1 << 64
_CAPS: Final = (
    Caps.WRITE
    | Caps.READ
    | Caps.NOTIFY_AFTER_VISIBLE
    | Caps.FENCE_PEER
    | Caps.MEM_DRAM
    | Caps.THREAD_ONE_OWNER
    | Caps.CROSS_PROCESS
)


@attrs.define(kw_only=True, eq=False)
class Session:
    """State between `open` and `close`. Methods raise `Refused` for every other answer than OK."""

    settings: Settings
    nixl_version: str
    kinds: frozenset[str]
    no_neuron: str = ""
    error: str = ""
    _handles_given: int = 0
    _regions: dict[int, Memory] = attrs.field(factory=dict)
    _index: Regions = attrs.field(factory=lambda: Regions.of(()))
    _peers: dict[int, Peer] = attrs.field(factory=dict)
    _request_count: int = 0
    _completed: deque[tuple[int, int, Status]] = attrs.field(factory=deque)
    _inbox: deque[tuple[int, bytes]] = attrs.field(factory=deque)

    @classmethod
    def open(cls, options: Mapping[str, Any]) -> Session:
        """Check the options and that an agent can be made with them."""
        settings = Settings.of(options)
        try:
            api = load_library()
            if settings.backend == LIBFABRIC:
                load_fabric(build_of(api), settings.preload)
        except ImportError as error:
            raise Refused(Status.LIBRARY_MISSING, text_of(error)) from error
        try:
            trial = NixlAgent.create(settings.tls, settings.backend)
        except Exception as error:
            raise Refused(Status.SESSION_FAILED, f"no agent: {text_of(error)}") from error
        trial.destroy()
        return cls(
            settings=settings,
            nixl_version=library_version(api),
            kinds=trial.kinds,
            no_neuron=trial.no_neuron,
        )

    @property
    def caps(self) -> Caps:
        """TARGET_MUST_PROGRESS: over TCP nothing lands until the target polls.

        On one host UCX prefers process_vm_writev, which needs no polling, but that is its
        choice, not a promise. Agents on threads of their own need nobody.
        """
        caps = _CAPS
        if self.settings.backend == UCX:
            caps |= Caps.TARGET_MUST_PROGRESS
        if "cuda" in self.kinds:
            caps |= Caps.MEM_CUDA
        if "neuron" in self.kinds:
            caps |= Caps.MEM_NEURON
        return caps

    def close(self) -> None:
        """Drop everything."""
        for peer in self._peers.values():
            peer.destroy()
        self._peers.clear()
        self._regions.clear()

    # Regions.

    def register_region(self, memory: Memory) -> int:
        base, length = index(memory.base), index(memory.length)
        if memory.kind not in self.kinds:
            known = ", ".join(sorted(self.kinds))
            text = f"memory kind = {memory.kind!r}: {self.settings.backend} reaches {known} here"
            if memory.kind == "neuron":
                text = f"memory kind = 'neuron': {self.no_neuron}"
            raise Refused(Status.OP_INVALID, text)
        if not 0 <= index(memory.device) <= DEVICE_MAX:
            text = f"memory device = {memory.device}: from 0 to {DEVICE_MAX}"
            raise Refused(Status.OP_INVALID, text)
        self._check_base(base, length)
        if not (base > 0 and length > 0 and base + length <= _ADDRESS_STOP):
            text = f"memory = {length} bytes at {base}: both above 0, the end at most 2**64"
            raise Refused(Status.OP_INVALID, text)
        if len(self._regions) >= REGIONS_MAX:
            raise Refused(Status.NO_RESOURCE, f"{REGIONS_MAX} regions are registered")
        handle = self._new_handle()
        self._regions[handle] = memory
        self._index = Regions.of(self._regions.values())
        for peer in self._peers.values():
            peer.register(base, length, _place(memory))
        return handle

    def _check_base(self, base: int, length: int) -> None:
        """libfabric's tcp provider names memory by its base alone."""
        for known in self._regions.values():
            if self.settings.backend != UCX and known.base == base and known.length != length:
                text = f"memory at {base} is registered with {known.length} bytes, now {length}"
                raise Refused(Status.OP_INVALID, f"{text}: LIBFABRIC takes a base once")

    def deregister_region(self, region: int) -> None:
        memory = self._regions.pop(region, None)
        if memory is None:
            given = 0 < index(region) <= self._handles_given
            status = Status.REGION_STALE if given else Status.REGION_UNKNOWN
            raise Refused(status, f"region = {region}: not registered")
        self._index = Regions.of(self._regions.values())
        for peer in self._peers.values():
            peer.deregister(memory.base, memory.length, _place(memory))

    # Peers.

    def peer_create(self) -> tuple[int, bytes]:
        try:
            agent = self._agent()
        except Exception as error:
            raise Refused(Status.SESSION_FAILED, f"no agent: {text_of(error)}") from error
        try:
            for memory in self._regions.values():
                agent.register(memory.base, memory.length, _place(memory))
            blob = self._blob(agent)
        except Exception as error:
            agent.destroy()
            raise Refused(Status.SESSION_FAILED, f"no blob: {text_of(error)}") from error
        if isinstance(agent, Hand):
            agent.start()
        backend = self.settings.backend
        peer = Peer(
            handle=self._new_handle(),
            agent=agent,
            nixl_version=self.nixl_version,
            backend=backend,
            driven_by_target=is_driven_by_target(backend, effective_tls(self.settings.tls)),
        )
        self._peers[peer.handle] = peer
        return peer.handle, blob

    def _agent(self) -> NixlAgent | Hand:
        agent = NixlAgent.create(self.settings.tls, self.settings.backend)
        # UCX is the one backend of which it was shown that no call waits for a peer.
        return agent if self.settings.backend == UCX else Hand(agent)

    def _blob(self, agent: NixlAgent | Hand) -> bytes:
        blob = PeerBlob(
            nixl_version=self.nixl_version,
            agent=agent.name,
            backend=self.settings.backend,
            process=own_identity(),
            regions=tuple(self._regions.values()),
            metadata=agent.metadata(),
        ).encode()
        if len(blob) > BLOB_BYTES_MAX:
            raise ValueError(f"blob of {len(blob)} bytes: at most {BLOB_BYTES_MAX}")
        return blob

    def peer_connect(self, peer: int, blob: bytes) -> None:
        found = self._peer(peer)
        _refuse_unless_ok(found, found.connect(blob))

    def peer_destroy(self, peer: int) -> None:
        found = self._peer(peer)
        self._finish(peer, found.destroy())
        del self._peers[peer]

    def fence_peer(self, peer: int) -> None:
        found = self._peer(peer)
        status, ends = found.fence()
        self._finish(peer, ends)
        _refuse_unless_ok(found, status)

    # Operations.

    def post(
        self, operation: str, peer: int, columns: tuple[U64, U64, U64], notify: bytes | None
    ) -> int:
        fault = column_fault(*columns) or _notification_fault(notify)
        if fault:
            raise Refused(Status.OP_INVALID, fault)
        found = self._peer(peer)
        if self._request_count >= REQUESTS_MAX:
            raise Refused(Status.NO_RESOURCE, f"{REQUESTS_MAX} requests have not been polled")
        if len(columns[0]) == 0:
            return self._post_nothing(found, notify)
        place, at = self._index.find(columns[0], columns[2])
        if place is None:
            _refuse_unless_ok(found, found.post_status())
            text = f"local range {at} is outside the session's regions"
            raise Refused(Status.REGION_BOUNDS, text)
        request = self._new_handle()
        status, ends = found.post(request, operation, columns, place, notify or b"")
        _refuse_unless_ok(found, status)
        self._request_count += 1
        self._finish(peer, ends)
        return request

    def _post_nothing(self, peer: Peer, notify: bytes | None) -> int:
        if notify is None:
            raise Refused(Status.OP_INVALID, "neither ranges nor a notification to post")
        _refuse_unless_ok(peer, peer.notify(notify))
        request = self._new_handle()
        self._request_count += 1
        self._finish(peer.handle, [(request, Status.OK)])
        return request

    def send_notification(self, peer: int, payload: bytes) -> None:
        fault = _notification_fault(payload) or ("payload is None" if payload is None else "")
        if fault:
            raise Refused(Status.OP_INVALID, fault)
        found = self._peer(peer)
        _refuse_unless_ok(found, found.notify(payload))

    # Progress.

    def poll(self, records: npt.NDArray[Any]) -> int:
        if not isinstance(records, np.ndarray) or records.dtype != COMPLETION or records.ndim != 1:
            raise Refused(Status.OP_INVALID, f"records: must be a column of {COMPLETION}")
        for handle, peer in self._peers.items():
            self._finish(handle, peer.check())
            self._take_in(peer)
        count = min(len(records), len(self._completed))
        for at in range(count):
            records[at] = self._completed.popleft()
        self._request_count -= count
        return count

    def poll_notifications(self, count_max: int) -> list[tuple[int, bytes]]:
        wanted = index(count_max)
        if wanted < 0:
            raise Refused(Status.OP_INVALID, f"count_max = {wanted}: at least 0")
        for peer in self._peers.values():
            self._take_in(peer)
        return [self._inbox.popleft() for _ in range(min(wanted, len(self._inbox)))]

    def _take_in(self, peer: Peer) -> None:
        if len(self._inbox) < INBOX_MAX:
            self._inbox.extend((peer.handle, payload) for payload in peer.collect())

    def _finish(self, peer: int, ends: list[End]) -> None:
        self._completed.extend((request, peer, status) for request, status in ends)

    def _peer(self, peer: int) -> Peer:
        found = self._peers.get(peer)
        if found is None:
            raise Refused(Status.PEER_UNKNOWN, f"peer = {peer}: not a live peer")
        return found

    def _new_handle(self) -> int:
        self._handles_given += 1
        return self._handles_given


def _refuse_unless_ok(peer: Peer, status: Status) -> None:
    if status != Status.OK:
        raise Refused(status, peer.error)


def _notification_fault(notify: object) -> str:
    if notify is None:
        return ""
    if not isinstance(notify, bytes):
        return f"notification is {type(notify).__name__}: must be bytes"
    if not 1 <= len(notify) <= NOTIFICATION_BYTES_MAX:
        return f"notification of {len(notify)} bytes: from 1 to {NOTIFICATION_BYTES_MAX}"
    return ""


def _place(memory: Memory) -> Place:
    return Place(memory.kind, memory.device)
