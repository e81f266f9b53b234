"""Which facts prove that a peer is shut out, and which do not."""

from __future__ import annotations

import attrs
import pytest

from kvxfer.transport.liveness import ProcessIdentity, own_identity
from kvxfer_nixl.agent import LIBFABRIC, UCX, effective_tls, is_driven_by_target
from kvxfer_nixl.fence import Facts, Proof, prove

_OWN = own_identity()
_ELSEWHERE = attrs.evolve(_OWN, boot_id="another boot")
_HIDDEN = attrs.evolve(_OWN, namespaces="pid:[0] time:[0]")
_DEAD = attrs.evolve(_OWN, start_ticks=_OWN.start_ticks + 1)
"""This pid with another start time: a process that cannot exist now."""
_PARENT = ProcessIdentity(
    boot_id=_OWN.boot_id, namespaces=_OWN.namespaces, pid=1, start_ticks=_OWN.start_ticks
)


def _prove(
    theirs: ProcessIdentity | None,
    *,
    driven_by_target: bool = False,
    agent_destroyed: bool = True,
    alive: bool = False,
) -> Proof:
    facts = Facts(
        own=_OWN,
        theirs=theirs,
        remote_agent="theirs",
        driven_by_target=driven_by_target,
        agent_destroyed=agent_destroyed,
    )
    return prove(facts, lambda name: alive and name == "theirs")[0]


@pytest.mark.parametrize("theirs", [_OWN, _ELSEWHERE, _HIDDEN, _DEAD, None])
@pytest.mark.parametrize("driven", [False, True])
def test_nothing_is_proven_while_our_agent_exists(
    theirs: ProcessIdentity | None, driven: bool
) -> None:
    assert _prove(theirs, driven_by_target=driven, agent_destroyed=False) is Proof.NONE


def test_a_dead_process_of_this_host_is_gone() -> None:
    assert _prove(_DEAD) is Proof.GONE


def test_an_agent_of_this_process_is_gone_once_it_is_destroyed() -> None:
    assert _prove(_OWN, alive=True) is Proof.NONE
    assert _prove(_OWN, alive=False) is Proof.GONE


def test_another_host_is_shut_out_by_our_own_end() -> None:
    assert _prove(_ELSEWHERE) is Proof.SHUT_OUT


@pytest.mark.parametrize("theirs", [_HIDDEN, None])
def test_who_cannot_be_seen_is_not_fenced(theirs: ProcessIdentity | None) -> None:
    assert _prove(theirs) is Proof.NONE


@pytest.mark.parametrize("theirs", [_OWN, _HIDDEN, None])
def test_where_our_worker_carries_out_all_writes_its_end_is_proof(
    theirs: ProcessIdentity | None,
) -> None:
    assert _prove(theirs, driven_by_target=True, alive=True) is Proof.SHUT_OUT


def test_the_stronger_proof_is_given() -> None:
    assert _prove(_DEAD, driven_by_target=True) is Proof.GONE


@pytest.mark.parametrize(
    ("tls", "driven"),
    [
        ("tcp", True),
        ("tcp,self", True),
        ("", False),
        ("all", False),
        ("tcp,cma", False),
        ("tcp,sm", False),
        ("^cma", False),
        ("rc", False),
        ("posix,tcp", False),
    ],
)
def test_only_sockets_count_as_driven_by_the_target(tls: str, driven: bool) -> None:
    assert is_driven_by_target(UCX, tls) is driven
    assert not is_driven_by_target("OTHER", tls)


@pytest.mark.parametrize(("provider", "driven"), [("tcp", True), ("efa", False), ("", False)])
def test_a_provider_counts_only_where_it_is_named(
    monkeypatch: pytest.MonkeyPatch, provider: str, driven: bool
) -> None:
    monkeypatch.setenv("FI_PROVIDER", provider)
    assert is_driven_by_target(LIBFABRIC, "") is driven


def test_the_environment_goes_before_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UCX_TLS", raising=False)
    assert effective_tls(None) == ""
    assert effective_tls("tcp") == "tcp"
    monkeypatch.setenv("UCX_TLS", "all")
    assert effective_tls("tcp") == "all"
