"""Capability flags: what a transport says is true of itself.

Owns the flags and which table slots each requires. The core asks flags, never
names of libraries. A flag that is set and not true is a conformance failure.
"""

from __future__ import annotations

from enum import IntFlag


class Caps(IntFlag):
    """Numbers stand in spec/registries.md."""

    WRITE = 1 << 0
    READ = 1 << 1
    NOTIFY_AFTER_VISIBLE = 1 << 2
    """A notification given with a write arrives only after that write's data is visible."""
    NEEDS_FLUSH = 1 << 3
    """Host-visible completion does not make data visible to the memory's device (Q-03)."""
    FENCE_PEER = 1 << 4
    """`fence_peer` may succeed: there are cases in which the peer is provably shut out."""
    REVOKE_REGION = 1 << 5
    """`revoke_region` stops remote operations on the region, posted ones included."""
    STRIDED = 1 << 6
    """`post_strided` takes runs of evenly spaced ranges as one entry."""
    WAKEUP_FD = 1 << 7
    """`wakeup_fd` gives a descriptor that turns readable when `poll` has something."""
    TARGET_MUST_PROGRESS = 1 << 8
    """Incoming writes need calls into this table on the target's side."""
    MEM_DRAM = 1 << 9
    MEM_CUDA = 1 << 10
    MEM_NEURON = 1 << 11
    THREAD_ONE_OWNER = 1 << 12
    """All calls must come from one thread (K3)."""
    CROSS_PROCESS = 1 << 13
    """Peers may live in other processes."""
    CANCEL = 1 << 14
    """`cancel` takes back what has not left yet; a post is handed over in bounded windows."""
    ALLOCATE = 1 << 15
    """`allocate_region` gives registered memory of the transport's own."""
    CLOSE_FENCES = 1 << 16
    """After `close` has said OK no peer writes into memory of the session, not even late."""
