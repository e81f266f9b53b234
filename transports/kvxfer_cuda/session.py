"""One open session: regions, peers, requests, and what waits to be polled.

Owns the tables of handles and all checks before a post. Invariants: handles count up and
are never given again; a refused post changes nothing; a peer's memory is unmapped only
when no copy runs; what waits is bounded.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Mapping
from operator import index
from pathlib import Path
from typing import Any, Final

import attrs
import numpy as np
import numpy.typing as npt

from kvxfer.errors import RemoteFault
from kvxfer.status import Status
from kvxfer.transport.liveness import Whereabouts, own_identity, process_is_gone, whereabouts
from kvxfer.transport.ops import COMPLETION, U64, Memory
from kvxfer.transport.ranges import RegionIndex, column_fault
from kvxfer.transport.sessions import Refused
from kvxfer_cuda.blob import REGIONS_MAX, TOKEN_BYTES, Lent, PeerBlob
from kvxfer_cuda.driver import CudaError, CudaMissing, Driver
from kvxfer_cuda.mail import Full, Gone, Kind, Post
from kvxfer_cuda.mapping import Window
from kvxfer_cuda.nvrtc import compile_source
from kvxfer_cuda.work import Copier, Job

NOTIFICATION_BYTES_MAX: Final = 1 << 17
REQUESTS_MAX: Final = 1 << 16
INBOX_MAX: Final = 1 << 16
BLOCKS: Final = 32
"""Thread blocks of a copy. Fewer disturb other kernels longer (docs/design/cuda.md)."""
_BLOCKS_MAX: Final = 1024
_ADDRESS_STOP: Final = 1 << 64
_OPTIONS: Final = ("device", "thread_blocks")


@attrs.define(kw_only=True, eq=False)
class Peer:
    """State of one peer handle."""

    token: bytes
    """What the other side shows to us."""
    theirs: PeerBlob | None = None
    window: Window | None = None
    failed: str = ""
    """Why nothing can be posted any more."""
    shut_asked: bool = False
    shut_done: bool = False
    fence_tried: bool = False


class Session:
    """State between `open` and `close`. Methods raise `Refused` for every other answer than OK."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        device, blocks = _checked(options)
        self.error = ""
        try:
            self._driver = Driver.open(device)
            source = Path(__file__).with_name("copy.cu").read_text(encoding="ascii")
            image = compile_source(source, self._driver.capability())
            kernel = self._driver.function(image, "kvxfer_copy")
            self._mail = Post()
            self._copier = Copier(self._driver, kernel, blocks, self._mail.wake)
        except CudaMissing as error:
            raise Refused(Status.LIBRARY_MISSING, str(error)) from error
        except (CudaError, OSError) as error:
            raise Refused(Status.SESSION_FAILED, str(error)) from error
        self._handles_given = 0
        self._regions: dict[int, Memory] = {}
        self._lent: dict[int, Lent] = {}
        self._index = RegionIndex.of(())
        self._peers: dict[int, Peer] = {}
        self._by_token: dict[bytes, int] = {}
        self._jobs: dict[int, tuple[Job, bytes | None]] = {}
        self._request_count = 0
        self._completed: deque[tuple[int, int, Status]] = deque()
        self._inbox: deque[tuple[int, bytes]] = deque()

    def close(self) -> None:
        """Drop everything, and tell each peer that nothing of ours touches its memory any more."""
        self._copier.close()
        for peer in self._peers.values():
            self._unmap(peer)
            self._tell_shut(peer)
        self._mail.close()
        self._driver.close()

    def wakeup_fd(self) -> int:
        self._copier.watch()
        return self._mail.fileno()

    # Regions.

    def register_region(self, memory: Memory) -> int:
        base, length = index(memory.base), index(memory.length)
        if memory.kind != "cuda" or memory.device != self._driver.device:
            text = (
                f"memory = {memory.kind!r} of device {memory.device}: this session reaches 'cuda'"
            )
            raise Refused(Status.OP_INVALID, f"{text} of device {self._driver.device}")
        if not (base > 0 and length > 0 and base + length <= _ADDRESS_STOP):
            text = f"memory = {length} bytes at {base}: both above 0, the end at most 2**64"
            raise Refused(Status.OP_INVALID, text)
        if len(self._regions) >= REGIONS_MAX:
            raise Refused(Status.NO_RESOURCE, f"{REGIONS_MAX} regions are registered")
        try:
            allocation, size = self._driver.extent(base)
            name = self._driver.name_for_others(allocation)
        except CudaError as error:
            text = f"memory at {base} cannot be lent to other processes ({error})"
            hint = "torch: unset expandable_segments in PYTORCH_CUDA_ALLOC_CONF"
            raise Refused(Status.OP_INVALID, f"{text}: {hint}") from error
        if base + length > allocation + size:
            text = f"memory = {length} bytes at {base}: its allocation ends at {allocation + size}"
            raise Refused(Status.OP_INVALID, text)
        handle = self._new_handle()
        self._regions[handle] = memory
        self._lent[handle] = Lent(
            base=base, length=length, allocation=allocation, allocation_bytes=size, name=name
        )
        self._index = RegionIndex.of(self._regions.values())
        return handle

    def deregister_region(self, region: int) -> None:
        if self._regions.pop(region, None) is None:
            given = 0 < index(region) <= self._handles_given
            status = Status.REGION_STALE if given else Status.REGION_UNKNOWN
            raise Refused(status, f"region = {region}: not registered")
        del self._lent[region]
        self._index = RegionIndex.of(self._regions.values())

    # Peers.

    def peer_create(self) -> tuple[int, bytes]:
        token = secrets.token_bytes(TOKEN_BYTES)
        handle = self._new_handle()
        self._peers[handle] = Peer(token=token)
        self._by_token[token] = handle
        blob = PeerBlob(
            mail=self._mail.address,
            process=own_identity(),
            token=token,
            regions=tuple(self._lent.values()),
        )
        return handle, blob.encode()

    def peer_connect(self, peer: int, blob: bytes) -> None:
        found = self._peer(peer)
        try:
            theirs = PeerBlob.decode(blob)
        except RemoteFault as fault:
            raise Refused(Status.PEER_BLOB, str(fault)) from fault
        if self._by_token.get(theirs.token) == peer:
            raise Refused(Status.PEER_BLOB, "this is the peer handle's own blob")
        if found.failed or found.fence_tried:
            raise Refused(Status.PEER_FAILED, found.failed or "the peer was fenced")
        if found.theirs is not None:
            if found.theirs == theirs:
                return
            raise Refused(Status.OP_INVALID, "the peer is connected already")
        if whereabouts(own_identity(), theirs.process) in (
            Whereabouts.OTHER_HOST,
            Whereabouts.UNKNOWN,
        ):
            text = "it does not run on this host, in these namespaces"
            raise Refused(Status.PEER_BLOB, f"the peer's GPU cannot be mapped: {text}")
        self._join(found, theirs)

    def _join(self, peer: Peer, theirs: PeerBlob) -> None:
        try:
            window = Window.open(self._driver, theirs)
        except CudaError as error:
            text = f"the peer's memory cannot be mapped: {error}"
            raise Refused(Status.PEER_BLOB, text) from error
        try:
            self._mail.connect(theirs.mail, theirs.token)
        except OSError as error:
            window.close()
            raise Refused(Status.PEER_BLOB, f"the peer takes no mail: {error}") from error
        peer.window, peer.theirs = window, theirs

    def peer_destroy(self, peer: int) -> None:
        found = self._peer(peer)
        self._end_jobs(peer)
        self._unmap(found)
        self._tell_shut(found)
        self._mail.forget(found.token)
        if found.theirs is not None:
            self._mail.disconnect(found.theirs.token)
        del self._by_token[found.token], self._peers[peer]

    def fence_peer(self, peer: int) -> None:
        """Proof is that the peer's process has gone, or that it says it has unmapped."""
        found = self._peer(peer)
        found.fence_tried = True
        self._end_jobs(peer)
        theirs = found.theirs
        if theirs is None:
            raise Refused(Status.NOT_FENCED, "no blob of this peer was accepted")
        self._unmap(found)
        self._take_mail()
        gone = process_is_gone(theirs.process.pid, theirs.process.start_ticks)
        if found.shut_done or gone:
            return
        if not found.shut_asked:
            try:
                self._mail.send(theirs.token, Kind.SHUT)
                found.shut_asked = True
            except (Gone, Full) as error:
                found.failed = found.failed or str(error)
        raise Refused(Status.NOT_FENCED, "the peer is alive and has not said that it has unmapped")

    def _unmap(self, peer: Peer) -> None:
        if peer.window is not None:
            peer.window.close()
            peer.window = None

    def _end_jobs(self, peer: int) -> None:
        """Nothing of ours touches the peer any more; its requests end as failed and quiet."""
        doomed = [job for job, _ in self._jobs.values() if job.peer == peer]
        for job in doomed:
            self._copier.stop(job)
        self._copier.settle()
        self._harvest()
        for job in doomed:
            self._finish(job.request, peer, Status.OP_FAILED)

    # Operations.

    def post(
        self, reads: bool, peer: int, columns: tuple[U64, U64, U64], notify: bytes | None
    ) -> int:
        fault = column_fault(*columns) or _notification_fault(notify)
        if fault:
            raise Refused(Status.OP_INVALID, fault)
        found = self._ready(peer)
        if self._request_count >= REQUESTS_MAX:
            raise Refused(Status.NO_RESOURCE, f"{REQUESTS_MAX} requests have not been polled")
        local, remote, length = columns
        if len(local) == 0:
            if notify is None:
                raise Refused(Status.OP_INVALID, "neither ranges nor a notification to post")
            self.send_notification(peer, notify)
            request = self._new_handle()
            self._request_count += 1
            self._finish(request, peer, Status.OK)
            return request
        window = found.window
        assert window is not None
        for name, regions, column in (
            ("local", self._index, local),
            ("remote", window.regions, remote),
        ):
            at = regions.first_outside(column, length)
            if at >= 0:
                raise Refused(Status.REGION_BOUNDS, f"{name} range {at} is in no region")
        request = self._new_handle()
        there = window.here(remote)
        src, dst = (there, local) if reads else (local, there)
        job = self._copier.add(request, peer, src, dst, length)
        self._jobs[request] = (job, notify)
        self._request_count += 1
        self._start(found)
        return request

    def cancel(self, request: int) -> None:
        job, _ = self._jobs.get(request, (None, None))
        if job is None and any(request == ended for ended, _, _ in self._completed):
            return
        if job is None:
            raise Refused(Status.OP_INVALID, f"request = {request}: unknown, or has ended")
        if job.left and self._copier.stop(job):
            self._finish(request, job.peer, Status.OP_FAILED)

    def _ready(self, peer: int) -> Peer:
        found = self._peer(peer)
        if found.failed or found.fence_tried:
            raise Refused(Status.PEER_FAILED, found.failed or "the peer was fenced")
        if found.window is None:
            raise Refused(Status.PEER_NOT_CONNECTED, "no blob of this peer was accepted")
        return found

    def send_notification(self, peer: int, payload: bytes) -> None:
        fault = _notification_fault(payload) or ("payload is None" if payload is None else "")
        if fault:
            raise Refused(Status.OP_INVALID, fault)
        found = self._ready(peer)
        assert found.theirs is not None
        try:
            self._mail.send(found.theirs.token, Kind.NOTIFY, payload)
        except Gone as error:
            found.failed = f"the peer takes no mail: {error}"
            raise Refused(Status.PEER_FAILED, found.failed) from error
        except Full as error:
            raise Refused(Status.NO_RESOURCE, str(error)) from error

    # Progress.

    def poll(self, records: npt.NDArray[Any]) -> int:
        if not isinstance(records, np.ndarray) or records.dtype != COMPLETION or records.ndim != 1:
            raise Refused(Status.OP_INVALID, f"records: must be a column of {COMPLETION}")
        self._turn()
        count = min(len(records), len(self._completed))
        for at in range(count):
            records[at] = self._completed.popleft()
        self._request_count -= count
        self._stay_awake()
        return count

    def poll_notifications(self, count_max: int) -> list[tuple[int, bytes]]:
        wanted = index(count_max)
        if wanted < 0:
            raise Refused(Status.OP_INVALID, f"count_max = {wanted}: at least 0")
        self._turn()
        taken = [self._inbox.popleft() for _ in range(min(wanted, len(self._inbox)))]
        self._stay_awake()
        return taken

    def _stay_awake(self) -> None:
        """Whatever could not be taken in one call keeps the descriptor readable."""
        if self._completed or self._inbox:
            self._mail.wake()

    def _turn(self) -> None:
        self._mail.sleep()
        self._harvest()
        self._start(None)
        self._take_mail()
        for key in self._mail.flush():
            for peer in self._peers.values():
                if peer.theirs is not None and peer.theirs.token == key:
                    peer.failed = peer.failed or "the peer takes no mail"

    def _start(self, peer: Peer | None) -> None:
        try:
            self._copier.start()
        except CudaError as error:
            # The context is beyond use: nothing that was launched can be proven quiet.
            self._break(str(error))
            if peer is not None:
                peer.failed = str(error)

    def _harvest(self) -> None:
        try:
            over = self._copier.finished()
        except CudaError as error:
            self._break(str(error))
            return
        for job in over:
            _, notify = self._jobs[job.request]
            self._finish(job.request, job.peer, self._close_job(job, notify))

    def _close_job(self, job: Job, notify: bytes | None) -> Status:
        """All bytes are there: send what was to follow them."""
        peer = self._peers.get(job.peer)
        if job.stopped or peer is None or peer.failed or peer.fence_tried:
            return Status.OP_FAILED
        if notify is None:
            return Status.OK
        try:
            self.send_notification(job.peer, notify)
        except Refused as refused:
            self.error = str(refused)
            peer.failed = peer.failed or str(refused)
            return Status.OP_FAILED
        return Status.OK

    def _break(self, text: str) -> None:
        self.error = text
        for request, (job, _) in list(self._jobs.items()):
            self._finish(request, job.peer, Status.OP_UNKNOWN)
        for peer in self._peers.values():
            peer.failed = peer.failed or text

    def _finish(self, request: int, peer: int, status: Status) -> None:
        self._jobs.pop(request, None)
        self._completed.append((request, peer, status))
        self._mail.wake()

    def _take_mail(self) -> None:
        if len(self._inbox) >= INBOX_MAX:
            return
        for token, kind, payload in self._mail.receive(frozenset(self._by_token)):
            handle = self._by_token.get(token)
            if handle is not None:
                self._letter(handle, self._peers[handle], kind, payload)

    def _letter(self, handle: int, peer: Peer, kind: Kind | None, payload: bytes) -> None:
        if kind is Kind.NOTIFY:
            self._inbox.append((handle, payload))
        elif kind is Kind.SHUT_DONE:
            peer.shut_done = True
            peer.failed = peer.failed or "the peer has closed"
        elif kind is Kind.SHUT:
            self._shut(handle, peer)
        else:
            peer.failed = peer.failed or "the peer's end of the mail is closed"

    def _shut(self, handle: int, peer: Peer) -> None:
        peer.failed = peer.failed or "the peer has shut us out"
        self._end_jobs(handle)
        self._unmap(peer)
        self._tell_shut(peer)

    def _tell_shut(self, peer: Peer) -> None:
        if peer.theirs is not None:
            try:
                self._mail.send(peer.theirs.token, Kind.SHUT_DONE)
            except (Gone, Full) as error:
                self.error = str(error)

    def _peer(self, peer: int) -> Peer:
        found = self._peers.get(peer)
        if found is None:
            raise Refused(Status.PEER_UNKNOWN, f"peer = {peer}: not a live peer")
        return found

    def _new_handle(self) -> int:
        self._handles_given += 1
        return self._handles_given


def _notification_fault(notify: object) -> str:
    if notify is None:
        return ""
    if not isinstance(notify, bytes):
        return f"notification is {type(notify).__name__}: must be bytes"
    if not 1 <= len(notify) <= NOTIFICATION_BYTES_MAX:
        return f"notification of {len(notify)} bytes: from 1 to {NOTIFICATION_BYTES_MAX}"
    return ""


def _checked(options: Mapping[str, Any]) -> tuple[int, int]:
    """(device, thread blocks)."""
    unknown = sorted(str(key) for key in options if key not in _OPTIONS)
    if unknown:
        raise Refused(Status.OP_INVALID, f"options {unknown}: known are {list(_OPTIONS)}")
    device, blocks = options.get("device", 0), options.get("thread_blocks", BLOCKS)
    if type(device) is not int or device < 0:
        raise Refused(Status.OP_INVALID, f"device = {device!r}: a number from 0")
    if type(blocks) is not int or not 1 <= blocks <= _BLOCKS_MAX:
        raise Refused(Status.OP_INVALID, f"thread_blocks = {blocks!r}: from 1 to {_BLOCKS_MAX}")
    return device, blocks
