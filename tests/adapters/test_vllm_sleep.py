"""An engine that sleeps: no peer knows its memory meanwhile, and it goes on afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from test_vllm_worker_side import worker
from vllm_loopback_pair import Engine, Status, request

from kvxfer.driver import Role
from kvxfer.errors import LocalFault

PROMPT = list(range(500, 600))
P_BLOCKS = [3, 1, 4, 11, 5, 9, 2]
D_BLOCKS = [8, 6, 7, 10, 12, 13, 14]
PRODUCE = {"do_remote_decode": True, "do_remote_prefill": False}

both_modes = pytest.mark.parametrize("mode", ["push", "pull"])


@pytest.fixture
def pair(mode: str) -> Iterator[tuple[Engine, Engine]]:
    roles = {"P": Role.PRODUCER, "D": Role.CONSUMER}
    engines = [Engine.start(name, role, mode=mode) for name, role in roles.items()]
    yield engines[0], engines[1]
    for engine in engines:
        assert len(engine.worker.ledger) == 0
        engine.close()


def prefilled(p: Engine, name: str, seed: int) -> Any:
    """A prefill that is offered; P's answer."""
    leg = request(PRODUCE, f"cmpl-{name}-0-0badcafe", PROMPT)
    p.scheduler.on_new_request(leg)
    p.step()
    p.compute(P_BLOCKS, 0, len(PROMPT), seed=seed)
    leg.num_computed_tokens = len(PROMPT)
    held, answer = p.finish(leg, P_BLOCKS, Status.FINISHED_LENGTH_CAPPED)
    assert held
    p.step()
    return answer


def handed_over(p: Engine, d: Engine, name: str, seed: int) -> None:
    """One request from P to D, and the bytes at D are P's of this request."""
    answer = prefilled(p, name, seed)
    decode = request(answer, f"cmpl-{name}-0-12345678", PROMPT)
    d.park(decode, D_BLOCKS)
    d.until(lambda: decode.request_id in d.received)
    p.until(lambda: f"cmpl-{name}-0-0badcafe" in p.sent)
    assert d.failed == set()
    wanted = p.tokens(P_BLOCKS, len(PROMPT))
    assert wanted.any()
    assert (d.tokens(D_BLOCKS, len(PROMPT)) == wanted).all()


@both_modes
@pytest.mark.parametrize("sleeper", [0, 1], ids=["P", "D"])
def test_it_goes_on_after_a_sleep(pair: tuple[Engine, Engine], sleeper: int) -> None:
    handed_over(*pair, "x", 1)
    side = pair[sleeper].worker
    address = side.agent.address
    for name, seed in (("y", 2), ("z", 3)):
        side.sleep()
        side.wake()
        handed_over(*pair, name, seed)
    assert side.agent.address == address


@both_modes
def test_nothing_is_offered_from_memory_that_goes(pair: tuple[Engine, Engine]) -> None:
    """What nobody had come for is over, and vLLM hears of it once."""
    p, d = pair
    answer = prefilled(p, "x", 1)
    p.worker.sleep()
    assert "cmpl-x-0-0badcafe" in p.worker.take_report().sent
    p.worker.wake()
    late = request(answer, "cmpl-x-0-12345678", PROMPT)
    d.park(late, D_BLOCKS)
    d.scheduler.request_finished(late, (D_BLOCKS,))
    d.until(lambda: late.request_id in d.failed)
    assert p.worker.take_report().sent == set()


def test_each_sleep_and_each_wake_counts_once() -> None:
    side, agent = worker()
    side.wake()
    assert agent.calls == []
    for _ in range(2):
        side.sleep()
    for _ in range(2):
        side.wake()
    assert [name for name, _ in agent.calls] == ["quiesce", "resume"]


def test_memory_that_a_peer_may_still_reach_is_not_given_back() -> None:
    side, agent = worker()
    agent.left = ("quarantined x of eng-P/0",)
    with pytest.raises(LocalFault, match=r"still reached .* 1 transfers.*quarantined x"):
        side.sleep()
    side.wake()
    agent.left = ()
    side.sleep()
    side.wake()
    assert [name for name, _ in agent.calls] == ["quiesce", "quiesce", "resume"]
