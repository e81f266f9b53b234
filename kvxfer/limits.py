"""Every bound of the system, named, with its unit.

Owns the numbers that keep tables, messages and queues finite (INV M2). A peer
can make nothing grow past them.
"""

from __future__ import annotations

import attrs


@attrs.frozen(kw_only=True)
class Limits:
    """Bounds of one agent. Durations are in milliseconds, sizes in bytes."""

    message_bytes_max: int = 16 << 20
    hello_bytes_max: int = 4096
    """A message of a link before anybody has said, or where keys are in use proven, who he is."""
    describe_bytes_max: int = (2 << 20) + 4096
    """Later messages of a link before both sides have described themselves."""
    transfer_id_bytes_max: int = 512
    engine_id_bytes_max: int = 256
    reason_bytes_max: int = 1024
    blocks_per_grant_max: int = 1 << 20
    groups_max: int = 64
    layers_max: int = 4096
    parts_per_edge_max: int = 1024
    """A finer grid is widened until the parts of a grant fit (spec section 6.4)."""
    parts_parked_max: int = 1 << 20
    """Parts of all grants that a producer holds."""
    ranks_per_engine_max: int = 4096
    blob_bytes_max: int = 1 << 20

    links_max: int = 4096
    half_open_max: int = 256
    """Accepted connections whose handshake is not over; a further one ends the oldest of the
    address that has most of them."""
    messages_per_s_max: int = 10_000
    """Messages of one link; what is more waits unread, in the peer's own buffers."""
    messages_burst_max: int = 10_000
    """So many at once are taken without a pause."""
    notices_per_turn_max: int = 1024
    """Notifications that are taken in before anything else gets its turn."""
    notices_at_loss_max: int = 65536
    """Notifications that are taken in before the loss of a link is acted on."""
    transfers_max: int = 65536
    """Live transfers of one role at one agent; a further one is refused."""
    grants_parked_max: int = 65536
    """Grants at a producer whose prefill has not come yet."""
    tombstones_max: int = 65536
    """Finished attempts that are remembered so that a late message revives nothing."""

    post_window_descriptors_max: int = 4096
    """Descriptors handed to the transport in one post; bounds the time of a cancel."""
    post_window_bytes_max: int = 64 << 20
    windows_per_peer_max: int = 2
    """Windows in flight towards one peer at a time."""


@attrs.frozen(kw_only=True)
class Timings:
    """Durations of one agent, in milliseconds. Each is measured on its own side's clock (J1)."""

    handshake_ms: int = 10_000
    """From dialling a peer to a link that is up, else the peer counts as unreachable."""
    transfer_deadline_ms: int = 120_000
    """Consumer: from registration to all parts landed, else the request fails."""
    offer_lease_ms: int = 30_000
    """Producer: how long a finished prefill waits for a registration."""
    renew_ms: int = 2_000
    """Consumer: how often a live grant is renewed towards its producer."""
    renew_misses_max: int = 5
    """Consumer: unanswered renewals after which the producer counts as silent."""
    grant_lease_ms: int = 30_000
    """Producer: how long a parked grant is kept without renewal."""
    lease_margin_ms: int = 1_000
    """Consumer that reads: how much earlier than its producer it takes a lease for over; more
    than two clocks drift apart in one lease."""
    drain_ms: int = 5_000
    """Consumer: how long a CANCEL may stay unanswered before the fence is tried."""
    fence_retry_ms: int = 1_000
    """Consumer: pause between two tries to fence a peer that could not be fenced."""
    tombstone_ms: int = 600_000
    """How long a finished attempt is remembered."""
