"""Which answers a slot may give, and the checker that watches them."""

from __future__ import annotations

import attrs
import pytest

from kvxfer.status import Status, is_never_posted
from kvxfer.transport.answers import ENDS, STATUSES, answer_fault
from kvxfer.transport.caps import Caps
from kvxfer.transport.hooks import ContractBroken, checked
from kvxfer.transport.loopback import make_ops
from kvxfer.transport.loopback_hub import Hub
from kvxfer.transport.stubs import SLOT_OF_CAP, SLOTS

POSTS = ("post_write", "post_read", "post_strided")


def test_every_slot_has_its_statuses_but_those_that_answer_without_one() -> None:
    assert set(SLOTS) - set(STATUSES) == {"caps", "last_error"}


@pytest.mark.parametrize("slot", POSTS)
def test_a_post_is_ok_or_never_posted(slot: str) -> None:
    assert all(status == Status.OK or is_never_posted(status) for status in STATUSES[slot])


def test_only_what_has_a_flag_may_be_unsupported() -> None:
    unsupported = {slot for slot, allowed in STATUSES.items() if Status.UNSUPPORTED in allowed}
    assert unsupported == set(SLOT_OF_CAP.values()) | {"open"}


def test_no_call_is_in_progress_and_no_end_is_a_refusal() -> None:
    assert all(Status.IN_PROGRESS not in allowed for allowed in STATUSES.values())
    assert not any(is_never_posted(status) for status in ENDS)


@pytest.mark.parametrize(
    ("slot", "answer", "words"),
    [
        ("close", Status.OK, ""),
        ("close", 0, "must be Status"),
        ("close", Status.NOT_FENCED, "no such answer"),
        ("fence_peer", Status.NOT_FENCED, ""),
        ("post_write", (Status.OP_FAILED, 0), "no such answer"),
        ("post_write", (Status.OK,), "must be (Status, int)"),
        ("caps", Caps.WRITE, ""),
        ("last_error", b"x", "must be str"),
        ("poll_notifications", (Status.OK, []), ""),
    ],
)
def test_what_is_wrong_with_an_answer(slot: str, answer: object, words: str) -> None:
    fault = answer_fault(slot, answer)
    assert words in fault
    assert bool(fault) == bool(words)


def test_a_status_that_the_slot_does_not_have_is_broken_rule_1(make_link) -> None:
    ops = attrs.evolve(make_ops(Hub()), peer_destroy=lambda *args: Status.REGION_STALE)
    link = make_link(checked(ops))
    with pytest.raises(ContractBroken, match="REGION_STALE") as caught:
        link.ops.peer_destroy(link.a.session, link.a.peer)
    assert caught.value.rule == 1
