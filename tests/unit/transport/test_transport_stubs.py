"""The dummy table, and that flags and slots of a table agree."""

from __future__ import annotations

import attrs
import numpy as np

from kvxfer.status import Status
from kvxfer.transport.caps import Caps
from kvxfer.transport.loopback import OPS
from kvxfer.transport.ops import COMPLETION, Direction, Memory, Strided, TransportOps
from kvxfer.transport.stubs import (
    SLOT_OF_CAP,
    SLOTS,
    is_stub,
    missing_slots,
    overlay,
    replaced_slots,
    stub_ops,
)

_COLUMN = np.array([1], dtype=np.uint64)
_STRIDED = Strided(
    local=_COLUMN,
    remote=_COLUMN,
    length=_COLUMN,
    count=_COLUMN,
    local_stride=_COLUMN,
    remote_stride=_COLUMN,
)
_ARGS = {
    "open": ({},),
    "close": (1,),
    "register_region": (1, Memory(base=1, length=1)),
    "allocate_region": (1, 1, "dram", 0),
    "deregister_region": (1, 1),
    "revoke_region": (1, 1),
    "peer_create": (1,),
    "peer_connect": (1, 1, b""),
    "peer_destroy": (1, 1),
    "fence_peer": (1, 1),
    "post_write": (1, 1, _COLUMN, _COLUMN, _COLUMN, None),
    "post_read": (1, 1, _COLUMN, _COLUMN, _COLUMN, None),
    "post_strided": (1, 1, Direction.WRITE, _STRIDED, None),
    "cancel": (1, 1),
    "poll": (1, np.zeros(1, dtype=COMPLETION)),
    "send_notification": (1, 1, b"x"),
    "poll_notifications": (1, 1),
    "wakeup_fd": (1,),
}


def test_every_slot_of_the_dummy_table_is_there_and_unsupported() -> None:
    ops = stub_ops("nothing")
    assert ops.name == "nothing"
    assert set(_ARGS) | {"caps", "last_error"} == set(SLOTS)
    for slot, args in _ARGS.items():
        answer = getattr(ops, slot)(*args)
        status = answer[0] if isinstance(answer, tuple) else answer
        assert status == Status.UNSUPPORTED, slot
    assert ops.caps(1) == Caps(0)
    assert ops.last_error(1)
    assert replaced_slots(ops) == frozenset()


def test_slots_are_all_fields_of_the_table_but_its_name() -> None:
    assert set(SLOTS) == {field.name for field in attrs.fields(TransportOps)} - {"name"}
    assert set(SLOT_OF_CAP.values()) <= set(SLOTS)


def test_the_loopback_fills_exactly_what_its_flags_promise() -> None:
    _, session = OPS.open({})
    caps = OPS.caps(session)
    OPS.close(session)
    promised = {slot for cap, slot in SLOT_OF_CAP.items() if cap in caps}
    assert replaced_slots(OPS) == frozenset(SLOTS) - (set(SLOT_OF_CAP.values()) - promised)
    assert missing_slots(OPS, caps) == frozenset()


def test_a_promised_slot_that_is_a_stub_is_named() -> None:
    ops = attrs.evolve(OPS, fence_peer=stub_ops("x").fence_peer)
    assert missing_slots(ops, Caps.WRITE | Caps.FENCE_PEER) == {"fence_peer"}
    assert missing_slots(ops, Caps.WRITE) == frozenset()


def test_overlay_leaves_stubs_in_place() -> None:
    inner = attrs.evolve(stub_ops("x"), close=lambda session: Status.OK)
    outer = overlay(
        inner,
        {"close": lambda session: Status.CLOSED, "fence_peer": lambda session, peer: Status.OK},
    )
    assert outer.close(1) == Status.CLOSED
    assert is_stub(outer.fence_peer)
