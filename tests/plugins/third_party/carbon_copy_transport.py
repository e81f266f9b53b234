"""A transport of somebody else: what a plug-in needs, and nothing more.

It has a hub of its own, counts its open sessions, and leaves two slots as stubs
with the flags to match. It imports the transport room and statuses only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from kvxfer.status import Status
from kvxfer.transport.caps import Caps
from kvxfer.transport.loopback import make_ops
from kvxfer.transport.loopback_hub import Hub
from kvxfer.transport.ops import TransportDescriptor, TransportOps
from kvxfer.transport.stubs import stub_ops

sessions_open: set[int] = set()


def load() -> TransportOps:
    inner = make_ops(Hub())
    stubs = stub_ops("carbon_copy")

    def open_(options: Mapping[str, Any]) -> tuple[Status, int]:
        status, session = inner.open(options)
        if status == Status.OK:
            sessions_open.add(session)
        return status, session

    def close(session: int) -> Status:
        status = inner.close(session)
        if status == Status.OK:
            sessions_open.discard(session)
        return status

    return attrs.evolve(
        inner,
        name="carbon_copy",
        open=open_,
        close=close,
        caps=lambda session: inner.caps(session) & ~(Caps.READ | Caps.WAKEUP_FD),
        post_read=stubs.post_read,
        wakeup_fd=stubs.wakeup_fd,
    )


DESCRIPTOR = TransportDescriptor(
    name="carbon_copy",
    summary="the loopback under another name",
    probe=lambda: (Status.OK, "carbon_copy 0.3.0"),
    load=load,
)
