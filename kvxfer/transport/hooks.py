"""Wrappers around any transport table: trace, take capabilities away, check, break.

Owns the pattern 'a table in, a table out' and the two smallest wrappers; gives
the public names of the others. Refuses to know what is below the table it wraps.
Invariant: a slot that is a stub stays that very stub, so that a wrapped table
shows the same capabilities as the one inside.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import attrs

from kvxfer.transport.caps import Caps
from kvxfer.transport.checker import ContractBroken, checked
from kvxfer.transport.faults import (
    Action,
    Drop,
    Duplicate,
    Fail,
    FaultPlan,
    Held,
    Hold,
    Posted,
    Refuse,
    Stage,
)
from kvxfer.transport.faulty import faulty
from kvxfer.transport.ops import TransportOps
from kvxfer.transport.stubs import SLOT_OF_CAP, SLOTS, overlay, stub_ops

__all__ = [
    "Action",
    "Call",
    "ContractBroken",
    "Drop",
    "Duplicate",
    "Fail",
    "FaultPlan",
    "Held",
    "Hold",
    "Posted",
    "Refuse",
    "Stage",
    "checked",
    "faulty",
    "traced",
    "without",
]


@attrs.frozen
class Call:
    """One call that went through a traced table, with what came back."""

    slot: str
    args: tuple[Any, ...]
    result: Any


def traced(ops: TransportOps, record: Callable[[Call], None]) -> TransportOps:
    """`ops`, with `record` told of each call after it returned.

    Arguments are passed on as they are: arrays are not copied, so a record that
    keeps a `Call` sees what the caller does to its columns later.
    """

    def call(slot: str, function: Callable[..., Any], *args: Any) -> Any:
        result = function(*args)
        record(Call(slot, args, result))
        return result

    return overlay(ops, {slot: partial(call, slot, getattr(ops, slot)) for slot in SLOTS})


def without(ops: TransportOps, caps: Caps) -> TransportOps:
    """`ops` as a transport that cannot do `caps`: flags gone, their slots stubs again."""
    stubs = stub_ops(ops.name)
    taken: dict[str, Any] = {
        slot: getattr(stubs, slot) for cap, slot in SLOT_OF_CAP.items() if cap in caps
    }
    return attrs.evolve(ops, caps=lambda session: ops.caps(session) & ~caps, **taken)
