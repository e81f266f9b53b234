"""The ops table: the contract between kvxfer and a network.

Owns the slots, their signatures and the rules below; spec/kvxfer_transport.h is
the same table in C, and `kvxfer.transport.answers` says which statuses each slot
may give. Knows no network. A transport fills every slot; what it cannot do
points to a stub of `kvxfer.transport.stubs`.

Rules
-----
1. No exception crosses the table. Every call returns a `Status`, most beside a value.
2. Nothing blocks. `open` and `peer_create` may take time for set-up, not for a peer.
3. All calls come from one thread, the owner (K3).
4. Handles are positive integers, opaque, never reused in one session.
5. A post either returns OK and a request, which then ends exactly once in `poll`,
   or returns an error of the never-posted kind (`status.is_never_posted`).
6. A notification given with a write arrives only after the write's bytes are
   visible to the owner of the memory. A notification sent alone has no order.
7. A completion says how the request ended: OK, OP_FAILED (quiet) or OP_UNKNOWN
   (not proven quiet). After `fence_peer` was called on the initiator, each of its own
   requests towards that peer ends, OP_FAILED or OP_UNKNOWN, and none reads the
   source any more; bytes on the wire may still arrive at the target.
8. `fence_peer` returns OK only with proof that the peer can write into our memory
   no more, not even with operations that it has posted already; else NOT_FENCED,
   and it may be tried again. After the first try nothing can be posted to the peer.
9. Columns are numpy uint64 arrays of equal length; the caller keeps them and the
   memory alive until the request has ended. All ranges of an accepted post are
   moved, exactly, and nothing beside them. Columns without an entry are either a
   notification with no bytes, or OP_INVALID; a range of no bytes is OP_INVALID or moves none.
10. A blob that cannot be used is refused with PEER_BLOB and changes nothing: a good
    one may follow. Handles that this session never gave, or that have ended, get
    PEER_UNKNOWN, REGION_UNKNOWN or REGION_STALE.
11. An operation touches registered memory only: a range outside the session's own
    regions, or outside those in the peer's blob, makes the whole post refused with a
    region or operation status, and no byte of it moves. A region that the peer has
    dropped since may be noticed later, in the completion; REVOKE_REGION promises it.
12. A notification holds any bytes, 1 to at least 65536 of them. What is too long,
    or empty, is refused where it cannot be delivered, never cut.
13. `cancel` takes back what has not been handed to the network yet, and nothing else:
    the request still ends exactly once in `poll`, OK where everything had left, else
    OP_FAILED (or OP_UNKNOWN) once what had left is over. Its notification is then not
    sent. A request that is unknown or has ended gets OP_INVALID and changes nothing.
14. Memory from `allocate_region` belongs to the transport: it is zeroed, registered, and
    valid until `deregister_region` or `close`, whichever comes first.
15. A strided post moves, for each entry i, `count[i]` ranges of `length[i]` bytes: range k at
    local[i] + k * local_stride[i] and remote[i] + k * remote_stride[i]. All rules of a post hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from kvxfer.status import Status
from kvxfer.transport.caps import Caps
from kvxfer.transport.finding import Finding

U64 = npt.NDArray[np.uint64]


class Direction(IntEnum):
    """Which way a strided post moves bytes."""

    WRITE = 1
    READ = 2


@attrs.frozen(kw_only=True, eq=False)
class Strided:
    """Columns of a strided post, numpy uint64 of equal length; bytes and bytes apart (rule 15)."""

    local: U64
    remote: U64
    length: U64
    count: U64
    local_stride: U64
    remote_stride: U64


COMPLETION = np.dtype([("request", "<u8"), ("peer", "<u8"), ("status", "<i4")], align=True)
"""One record of `poll`; laid out as C lays out kvxfer_completion, 24 bytes."""


@attrs.frozen(kw_only=True)
class Memory:
    """One contiguous piece of memory to register: `length` bytes at `base`."""

    base: int
    length: int
    kind: str = "dram"
    device: int = 0
    keepalive: Any = attrs.field(default=None, eq=False, repr=False)
    """Whatever must stay referenced for the memory to stay valid."""


@attrs.frozen(kw_only=True)
class TransportOps:
    """The table. All functions take the session handle that `open` gave."""

    name: str
    open: Callable[[Mapping[str, Any]], tuple[Status, int]]
    """open(options) -> session. LIBRARY_MISSING where the library is not there."""
    close: Callable[[int], Status]
    """close(session): drops everything. Requests in flight end nowhere any more. Whether a peer
    may still write late says CLOSE_FENCES; without it the memory counts as reachable."""
    caps: Callable[[int], Caps]
    register_region: Callable[[int, Memory], tuple[Status, int]]
    """-> region handle. The same memory may be registered twice."""
    allocate_region: Callable[[int, int, str, int], tuple[Status, int, int]]
    """allocate_region(session, length, kind, device) -> (region handle, base address)."""
    deregister_region: Callable[[int, int], Status]
    """Refuses new use of the region at once; the caller has drained before."""
    revoke_region: Callable[[int, int], Status]
    peer_create: Callable[[int], tuple[Status, int, bytes]]
    """-> (peer handle, blob to be sent to the other side). Regions registered before are in it."""
    peer_connect: Callable[[int, int, bytes], Status]
    """peer_connect(session, peer, the other side's blob). PEER_BLOB where it is unusable."""
    peer_destroy: Callable[[int, int], Status]
    """Ends use of the peer handle. Not a fence."""
    fence_peer: Callable[[int, int], Status]
    post_write: Callable[[int, int, U64, U64, U64, bytes | None], tuple[Status, int]]
    """post_write(session, peer, local_addr, remote_addr, length, notify) -> request."""
    post_read: Callable[[int, int, U64, U64, U64, bytes | None], tuple[Status, int]]
    post_strided: Callable[[int, int, Direction, Strided, bytes | None], tuple[Status, int]]
    """post_strided(session, peer, direction, columns, notify) -> request."""
    cancel: Callable[[int, int], Status]
    """cancel(session, request): hand nothing more of it to the network (rule 13)."""
    poll: Callable[[int, npt.NDArray[Any]], tuple[Status, int]]
    """poll(session, records of COMPLETION) -> how many were filled. Drives progress."""
    send_notification: Callable[[int, int, bytes], Status]
    poll_notifications: Callable[[int, int], tuple[Status, list[tuple[int, bytes]]]]
    """poll_notifications(session, max) -> [(peer handle, bytes)]. Drives progress."""
    wakeup_fd: Callable[[int], tuple[Status, int]]
    last_error: Callable[[int], str]
    """Text of the latest error of the session, for people; never parsed."""


@attrs.frozen(kw_only=True)
class TransportDescriptor:
    """What an entry point of group `kvxfer.transports` loads: light, imports no foreign library."""

    name: str
    summary: str
    probe: Callable[[], tuple[Status, str]]
    """-> (OK or LIBRARY_MISSING, text for people: version found, or what to install)."""
    load: Callable[[], TransportOps]
    """Imports the foreign library. Called only after `probe` said OK."""
    diagnose: Callable[[], Iterable[Finding]] = tuple
    """What else a person should know, for `kvxfer doctor`. Called after a session was tried."""
    one_host: bool = False
    """True where it reaches processes of this host only."""
