"""Which facts prove that destroying our worker shuts a peer out, and which do not."""

from __future__ import annotations

import attrs
import pytest

from kvxfer.transport.liveness import ProcessIdentity, own_identity
from kvxfer_ucx.fence import Facts, is_driven_by_target, worker_is_proof

_OWN = own_identity()
_ELSEWHERE = attrs.evolve(_OWN, boot_id="another boot")
_HIDDEN = attrs.evolve(_OWN, namespaces="pid:[0] time:[0]")
_DEAD = attrs.evolve(_OWN, start_ticks=_OWN.start_ticks + 1)
"""This pid with another start time: a process that cannot exist now."""


def _proof(
    theirs: ProcessIdentity | None, *, driven: bool = False, alive: bool = False
) -> tuple[bool, str]:
    facts = Facts(own=_OWN, theirs=theirs, cookie=b"theirs", driven_by_target=driven)
    return worker_is_proof(facts, lambda cookie: alive and cookie == b"theirs")


@pytest.mark.parametrize("theirs", [_OWN, _ELSEWHERE, _HIDDEN, _DEAD, None])
def test_what_our_worker_alone_carries_out_ends_with_it(theirs: ProcessIdentity | None) -> None:
    assert _proof(theirs, driven=True, alive=True)[0]


@pytest.mark.parametrize(
    ("theirs", "alive", "proven", "words"),
    [
        (_DEAD, False, True, "runs no more"),
        (_ELSEWHERE, True, True, "another host"),
        (_HIDDEN, True, False, "cannot be seen"),
        (None, False, False, "no blob"),
        (_OWN, True, False, "alive in this process"),
        (_OWN, False, True, "destroyed"),
    ],
)
def test_without_that_it_depends_on_the_other_side(
    theirs: ProcessIdentity | None, alive: bool, proven: bool, words: str
) -> None:
    proof, text = _proof(theirs, alive=alive)
    assert proof is proven
    assert words in text


def test_a_live_process_of_this_host_has_to_answer() -> None:
    init = attrs.evolve(_OWN, pid=1, start_ticks=_start_of_init())
    proof, text = _proof(init)
    assert not proof
    assert "has not answered" in text


def _start_of_init() -> int:
    with open("/proc/1/stat", encoding="ascii", errors="replace") as file:
        return int(file.read().rpartition(")")[2].split()[19])


@pytest.mark.parametrize(
    ("tls", "driven"),
    [
        ("tcp", True),
        ("tcp,self", True),
        ("", False),
        ("tcp,cma", False),
        ("posix,self", False),
        ("all", False),
    ],
)
def test_sockets_alone_are_driven_by_the_target(tls: str, driven: bool) -> None:
    assert is_driven_by_target(tls) is driven
