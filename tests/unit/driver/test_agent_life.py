"""An agent's graceful life: drain, eviction, sleep, and an end that cannot hang."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
from driver_rig import Side, Start, config, new_memory, offer, register, until

from kvxfer.core.ids import Reason, Role
from kvxfer.driver import (
    Agent,
    AgentFailed,
    Closed,
    Held,
    Landed,
    Leftover,
    LetGo,
    Lost,
    Sent,
    Timings,
    TransferId,
    Unsent,
)
from kvxfer.driver import agent as agent_module
from kvxfer.errors import BadValue, KvxferError, LocalFault
from kvxfer.transport import registry
from kvxfer.transport.ops import TransportOps

Pair = tuple[Side, Side]
LONG = Timings(transfer_deadline_ms=600_000, offer_lease_ms=600_000)


@pytest.fixture
def patient(start: Start) -> Pair:
    """A pair in which nothing ends by time."""
    return start("P", Role.PRODUCER, 1, timings=LONG), start("D", Role.CONSUMER, timings=LONG)


def move(p: Side, d: Side, tid: str) -> None:
    """One transfer from end to end, and the bytes of it."""
    d.block(2)[:] = 0
    register(d, p, tid, 2)
    offer(p, tid, 3)
    landed, let_go = d.collect(2)
    assert isinstance(landed, Landed), landed
    assert isinstance(let_go, LetGo)
    assert isinstance(p.collect(1)[0], Sent)
    np.testing.assert_array_equal(d.block(2), p.block(3))


# --- drain and leftovers ---


def test_what_a_drain_waits_for_is_named(patient: Pair) -> None:
    p, d = patient
    register(d, p, "granted", 2)
    until(lambda: p.agent.counters().get("links") == 1)
    until(lambda: any(left.held is Held.SERVED for left in p.agent.leftovers()))
    offer(p, "waiting", 5)
    until(lambda: len(p.agent.leftovers()) == 2)
    assert set(map(str, p.agent.leftovers())) == {
        "offered waiting for waiting",
        "served granted with D/0",
    }
    (wanted,) = d.agent.leftovers()
    assert wanted == Leftover(held=Held.WANTED, transfer_id=TransferId("granted"), tag="granted")
    p.agent.drain()
    until(lambda: len(p.agent.leftovers()) == 1)
    assert not p.agent.drained()
    offer(p, "granted", 3)
    assert p.agent.drained(20)
    assert p.agent.leftovers() == ()
    assert {type(result) for result in p.collect(2)} == {Sent, Unsent}
    assert p.agent.close() == Closed(ended=True, leftovers=())


def test_an_end_in_the_middle_says_what_was_cut_off(patient: Pair) -> None:
    p, d = patient
    register(d, p, "t", 2)
    until(lambda: bool(p.agent.leftovers()))
    freeze = threading.Event()
    # Nobody at P answers the cancel that D sends at its end.
    assert p.agent._token is not None
    p.agent._token.run_sync_soon(freeze.wait, 20)
    closed = d.agent.close(timeout_s=0.0)
    freeze.set()
    assert closed.ended
    assert [left.held for left in closed.leftovers] == [Held.QUARANTINED]
    assert not closed.clean


# --- eviction ---


def test_a_peer_that_is_evicted_ends_with_all_it_was_in(patient: Pair) -> None:
    p, d = patient
    move(p, d, "before")
    register(d, p, "t", 4)
    until(lambda: bool(p.agent.leftovers()))
    d.agent.evict("another engine")
    d.agent.evict("P", rank=1)
    d.agent.evict("P")
    lost, let_go = d.collect(2)
    assert isinstance(lost, Lost)
    assert lost.reason is Reason.PEER_LOST
    assert isinstance(let_go, LetGo)
    until(lambda: not p.agent.leftovers())
    move(p, d, "after")


def test_a_producer_evicts_a_consumer_and_keeps_what_others_may_want(patient: Pair) -> None:
    p, d = patient
    register(d, p, "t", 4)
    until(lambda: bool(p.agent.leftovers()))
    p.agent.evict("D")
    assert isinstance(d.collect(2)[0], Lost)
    until(lambda: not p.agent.leftovers())
    move(p, d, "after")


def test_who_waits_for_a_peer_that_does_not_answer_is_ended_by_its_eviction(
    patient: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    p, d = patient

    async def never(*_: object) -> None:
        return None

    monkeypatch.setattr("kvxfer.driver.loop.Loop._dial", never)
    register(d, p, "t", 4)
    until(lambda: bool(d.agent.leftovers()))
    d.agent.evict("P")
    lost, _ = d.collect(2)
    assert (lost.reason, lost.detail) == (Reason.PEER_LOST, "evicted")


# --- sleep ---


@pytest.mark.parametrize("sleeper", ["P", "D"])
def test_an_agent_sleeps_and_goes_on_as_a_new_incarnation(patient: Pair, sleeper: str) -> None:
    p, d = patient
    side = p if sleeper == "P" else d
    move(p, d, "before")
    before, address = side.agent.incarnation, side.agent.address
    counted = side.agent.counters()
    assert side.agent.quiesce() == ()
    assert side.agent.quiesce() == ()
    with pytest.raises(LocalFault, match="asleep"):
        register(side, p, "t", 2)
    side.agent.resume()
    assert side.agent.incarnation != before
    assert side.agent.address == address
    move(p, d, "after")
    now = side.agent.counters()
    outcome = "sent" if sleeper == "P" else "landed"
    assert now[outcome] == counted[outcome] + 1 == 2
    assert now["links"] == 1


def test_the_memory_may_lie_elsewhere_after_a_sleep(patient: Pair) -> None:
    p, d = patient
    move(p, d, "before")
    assert d.agent.quiesce() == ()
    memory = new_memory()
    d.agent.resume(config("D", Role.CONSUMER, memory, timings=LONG))
    d.memory, old = memory, d.memory
    old[:] = 7
    move(p, d, "after")
    assert (old == 7).all()


def test_transfers_end_before_a_sleep(patient: Pair) -> None:
    p, d = patient
    register(d, p, "t", 2)
    offer(p, "other", 5)
    until(lambda: len(p.agent.leftovers()) == 2)
    assert p.agent.quiesce() == ()
    (unsent,) = p.collect(1)
    assert isinstance(unsent, Unsent)
    lost, let_go = d.collect(2)
    assert isinstance(lost, Lost)
    assert isinstance(let_go, LetGo)
    p.agent.resume()
    move(p, d, "t")


def test_what_may_still_be_written_keeps_the_memory(patient: Pair) -> None:
    p, d = patient
    move(p, d, "before")
    register(d, p, "t", 2)
    until(lambda: bool(p.agent.leftovers()))
    freeze = threading.Event()
    assert p.agent._token is not None
    p.agent._token.run_sync_soon(freeze.wait, 20)
    (left,) = d.agent.quiesce(timeout_s=0.05)
    assert (left.held, left.tag) == (Held.QUARANTINED, "t")
    # It is not asleep: still there for the peer's answer, and takes nothing new.
    with pytest.raises(LocalFault, match="only an agent that sleeps"):
        d.agent.resume()
    register(d, p, "new", 3)
    freeze.set()
    results = d.collect(4)
    assert [r.reason for r in results if isinstance(r, Lost)][1:] == [Reason.SHUTDOWN]
    assert d.agent.quiesce() == ()
    d.agent.resume()
    move(p, d, "after")


def test_a_resume_that_fails_leaves_the_agent_asleep(patient: Pair) -> None:
    p, d = patient
    assert d.agent.quiesce() == ()
    good = d.agent.config
    with pytest.raises(BadValue, match="same peer"):
        d.agent.resume(attrs.evolve(good, engine_id="other"))
    with pytest.raises(KvxferError, match="transport"):
        d.agent.resume(attrs.evolve(good, transport="no such"))
    d.agent.resume()
    move(p, d, "after")


def test_a_dead_agent_does_not_claim_to_sleep(
    patient: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    p, d = patient

    def die(*_: object) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr("kvxfer.driver.desk.Desk.event_of", die)
    register(d, p, "t", 2)
    until(lambda: not d.agent._thread.is_alive())
    with pytest.raises(AgentFailed, match="planted"):
        d.agent.quiesce()


# --- an end that cannot hang ---


@attrs.define
class Stuck:
    """A loopback of which some slots do not come back until they are let go."""

    held: threading.Event = attrs.field(factory=threading.Event)
    inside: threading.Event = attrs.field(factory=threading.Event)

    def table(self, ops: TransportOps, slot: str) -> TransportOps:
        call: Callable[..., Any] = getattr(ops, slot)

        def stuck(*args: Any) -> Any:
            self.inside.set()
            self.held.wait(60)
            return call(*args)

        return attrs.evolve(ops, **{slot: stuck})


@pytest.fixture
def stuck() -> Iterator[Stuck]:
    """Lets go at the end, so that no thread is left behind."""
    one = Stuck()
    yield one
    one.held.set()


def start_stuck(monkeypatch: pytest.MonkeyPatch, stuck: Stuck, slot: str) -> Agent:
    open_it = registry.open_transport
    monkeypatch.setattr(agent_module, "open_transport", lambda n: stuck.table(open_it(n), slot))
    monkeypatch.setattr(agent_module, "STOP_S", 0.3)
    memory = new_memory()
    return Agent.start(config("S", Role.CONSUMER, memory))


@pytest.mark.parametrize("slot", ["close", "deregister_region"])
def test_a_transport_that_does_not_come_back_holds_nobody_up(
    monkeypatch: pytest.MonkeyPatch, stuck: Stuck, slot: str, caplog: pytest.LogCaptureFixture
) -> None:
    agent = start_stuck(monkeypatch, stuck, slot)
    begun_s = time.monotonic()
    closed = agent.close(timeout_s=0.1)
    assert time.monotonic() - begun_s < 20
    assert stuck.inside.is_set()
    assert not closed.ended
    assert not closed.clean
    assert "hangs in loopback" in caplog.text
    stuck.held.set()
    assert agent.close().clean


def test_a_thread_that_hangs_is_told_apart_from_one_that_sleeps(
    monkeypatch: pytest.MonkeyPatch, stuck: Stuck
) -> None:
    agent = start_stuck(monkeypatch, stuck, "close")
    with pytest.raises(LocalFault, match="hangs in loopback"):
        agent.quiesce(timeout_s=0.1)
    with pytest.raises(LocalFault, match="only an agent that sleeps"):
        agent.resume()
    with pytest.raises(LocalFault, match="did not answer"):
        agent.leftovers(timeout_s=0.1)
    stuck.held.set()
    assert agent.quiesce() == ()


SCRIPT = """
import sys, time
sys.path.insert(0, sys.argv[1])
import attrs
from driver_rig import config, new_memory
from kvxfer.core.ids import Role
from kvxfer.driver import Agent, agent as agent_module
from kvxfer.transport.registry import open_transport

def never(*_):
    time.sleep(3600)

agent_module.STOP_S = 0.3
agent_module.open_transport = lambda name: attrs.evolve(open_transport(name), close=never)
memory = new_memory()
agent = Agent.start(config("S", Role.CONSUMER, memory))
sys.exit(7 if not agent.close(timeout_s=0.1).ended else 8)
"""


def test_a_process_ends_beside_a_transport_that_does_not() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(Path(__file__).parent)],
        timeout=60,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 7, done.stderr
