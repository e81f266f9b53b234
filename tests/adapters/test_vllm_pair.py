"""Both sides of the connector on two engines, over the loopback: push, pull, streams."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from vllm_loopback_pair import BLOCKS, DEADLINE_S, Engine, Status, T, request

from kvxfer.driver import Role
from kvxfer_vllm.ledger import Ledger

PROMPT = list(range(500, 600))
P_BLOCKS = [3, 1, 4, 11, 5, 9, 2]
D_BLOCKS = [8, 6, 7, 10, 12, 13, 14]
OTHER_BLOCKS = list(range(BLOCKS - 7, BLOCKS))
P_ID, D_ID, OTHER_ID = "cmpl-x-0-0badcafe", "cmpl-x-0-12345678", "cmpl-x-0-00000000"
PRODUCE = {"do_remote_decode": True, "do_remote_prefill": False}
PART = 2 * T

Start = Callable[..., tuple[Engine, Engine]]


@pytest.fixture
def start() -> Iterator[Start]:
    engines: list[Engine] = []

    def pair(mode: str, *, stream: bool = False, **changes: Any) -> tuple[Engine, Engine]:
        tokens = PART if stream else 0
        for name, role in (("P", Role.PRODUCER), ("D", Role.CONSUMER)):
            engines.append(Engine.start(name, role, mode=mode, stream_tokens=tokens, **changes))
        return engines[0], engines[1]

    yield pair
    for engine in engines:
        assert len(engine.worker.ledger) == 0
        engine.close()


both_modes = pytest.mark.parametrize("mode", ["push", "pull"])


def legs(p: Engine) -> tuple[Any, Any]:
    """The two legs of one request as a router sends them at once; P has queued its own."""
    prefill, decode = request(PRODUCE, P_ID, PROMPT), request(p.place, D_ID, PROMPT)
    p.scheduler.on_new_request(prefill)
    p.step()
    return prefill, decode


def computed(p: Engine, prefill: Any, status: Status = Status.FINISHED_LENGTH_CAPPED) -> Any:
    """The whole prefill in one step; gives P's answer."""
    p.compute(P_BLOCKS, 0, len(PROMPT), seed=1)
    prefill.num_computed_tokens = len(PROMPT)
    held, answer = p.finish(prefill, P_BLOCKS, status)
    assert held
    p.step()
    return answer


def until_posted(p: Engine, engine: Engine, name: str, least: int) -> None:
    """Wait until the agent of `engine` has moved so many bytes. No step is made meanwhile."""
    end = time.monotonic() + DEADLINE_S
    while engine.counter(name) < least:
        assert time.monotonic() < end, f"{name} = {engine.counter(name)}, {least} wanted"
        time.sleep(0.002)


def same(p: Engine, d: Engine) -> bool:
    here, there = p.tokens(P_BLOCKS, len(PROMPT)), d.tokens(D_BLOCKS, len(PROMPT))
    return bool(here.any() and (here == there).all())


@both_modes
def test_legs_in_series(start: Start, mode: str) -> None:
    p, d = start(mode)
    prefill, _ = legs(p)
    answer = computed(p, prefill)
    d.park(request(answer, D_ID, PROMPT), D_BLOCKS)
    d.until(lambda: D_ID in d.received)
    p.until(lambda: P_ID in p.sent)
    assert d.failed == set()
    assert same(p, d)
    # Whose agent moved the bytes is what the mode is about.
    moved = len(PROMPT) * 2 * 8 * 2
    assert (p.counter("bytes_written"), d.counter("bytes_read")) == (
        (moved, 0) if mode == "push" else (0, moved)
    )


@both_modes
def test_legs_at_once(start: Start, mode: str) -> None:
    p, d = start(mode)
    prefill, decode = legs(p)
    d.park(decode, D_BLOCKS)
    computed(p, prefill)
    d.until(lambda: D_ID in d.received)
    p.until(lambda: P_ID in p.sent)
    assert d.failed == set()
    assert same(p, d)


@pytest.mark.parametrize(("p_mode", "d_mode"), [("push", "pull"), ("pull", "push")])
def test_the_decode_engines_mode_counts(start: Start, p_mode: str, d_mode: str) -> None:
    p, _ = start(p_mode)
    _, d = start(d_mode)[0], Engine.start("D2", Role.CONSUMER, mode=d_mode)
    prefill, _ = legs(p)
    d.park(request(computed(p, prefill), D_ID, PROMPT), D_BLOCKS)
    d.until(lambda: D_ID in d.received)
    p.until(lambda: P_ID in p.sent)
    assert same(p, d)
    assert (d.counter("bytes_read") > 0) == (d_mode == "pull")
    d.close()


@both_modes
def test_a_local_hit_is_not_moved(start: Start, mode: str) -> None:
    p, d = start(mode)
    prefill, _ = legs(p)
    decode = request(computed(p, prefill), D_ID, PROMPT)
    d.scheduler.on_new_request(decode)
    wanted, _ = d.scheduler.matched_tokens(decode, 3 * T)
    d.scheduler.after_alloc(decode, (D_BLOCKS,), wanted)
    d.until(lambda: D_ID in d.received)
    p.until(lambda: P_ID in p.sent)
    assert not d.memory[D_BLOCKS[:3]].any()
    assert (d.memory[D_BLOCKS[3:6]] == p.memory[P_BLOCKS[3:6]]).all()


@both_modes
def test_a_full_local_hit_lets_the_producer_go(start: Start, mode: str) -> None:
    p, d = start(mode)
    prefill, _ = legs(p)
    decode = request(computed(p, prefill), D_ID, PROMPT)
    d.scheduler.on_new_request(decode)
    d.scheduler.after_alloc(decode, (D_BLOCKS,), 0)
    d.step()
    p.until(lambda: P_ID in p.sent)
    assert not d.memory.any()


@both_modes
def test_an_abort_at_the_decode_engine(start: Start, mode: str) -> None:
    p, d = start(mode)
    prefill, decode = legs(p)
    d.park(decode, D_BLOCKS)
    held, _ = d.finish(decode, D_BLOCKS, Status.FINISHED_ABORTED)
    assert not held
    d.until(lambda: D_ID in d.received)
    assert D_ID in d.failed
    computed(p, prefill)
    p.until(lambda: P_ID in p.sent)
    assert not d.memory.any()


@both_modes
def test_an_abort_at_the_prefill_engine_fails_the_load_at_once(start: Start, mode: str) -> None:
    p, d = start(mode)
    prefill, decode = legs(p)
    d.park(decode, D_BLOCKS)
    held, answer = p.finish(prefill, P_BLOCKS, Status.FINISHED_ABORTED)
    assert (held, answer) == (False, None)
    p.step()
    d.until(lambda: D_ID in d.received)
    assert D_ID in d.failed


@both_modes
def test_a_decode_leg_that_never_comes(start: Start, mode: str) -> None:
    p, d = start(mode, offer_lease_ms=50)
    prefill, _ = legs(p)
    answer = computed(p, prefill)
    p.until(lambda: P_ID in p.sent)
    # And one that comes too late is told so.
    d.park(request(answer, D_ID, PROMPT), D_BLOCKS)
    d.until(lambda: D_ID in d.received)
    assert D_ID in d.failed


@both_modes
def test_a_prefill_that_never_comes(start: Start, mode: str) -> None:
    p, d = start(mode, deadline_ms=100)
    d.park(request(p.place, D_ID, PROMPT), D_BLOCKS)
    d.until(lambda: D_ID in d.received)
    assert D_ID in d.failed


@both_modes
def test_legs_of_two_prompts_are_refused(start: Start, mode: str) -> None:
    # The offer stands for the right leg until its lease is over.
    p, d = start(mode, offer_lease_ms=200)
    prefill, _ = legs(p)
    d.park(request(p.place, D_ID, PROMPT[::-1]), D_BLOCKS)
    computed(p, prefill)
    d.until(lambda: D_ID in d.received)
    p.until(lambda: P_ID in p.sent)
    assert D_ID in d.failed
    assert not d.memory.any()


@both_modes
def test_a_prefill_engine_that_goes_fails_the_waiting_load(start: Start, mode: str) -> None:
    p, d = start(mode)
    _, decode = legs(p)
    d.park(decode, D_BLOCKS)
    p.close()
    d.until(lambda: D_ID in d.received)
    assert D_ID in d.failed


@both_modes
def test_a_decode_engine_that_goes_gives_the_blocks_back(start: Start, mode: str) -> None:
    p, d = start(mode, offer_lease_ms=500)
    prefill, decode = legs(p)
    d.park(decode, D_BLOCKS)
    d.worker.close()
    computed(p, prefill)
    p.until(lambda: P_ID in p.sent)
    # Its ledger dies with the process; here it only has to be empty for the next check.
    d.worker.ledger = Ledger()


# --- streams ---


def chunk(p: Engine, prefill: Any, start: int, stop: int) -> None:
    """One step of the prefill, and the forward pass behind it."""
    p.step(prefill, stop - start, P_BLOCKS)
    p.compute(P_BLOCKS, start, stop, seed=1)


def seal(p: Engine, prefill: Any) -> None:
    held, answer = p.finish(prefill, P_BLOCKS, Status.FINISHED_LENGTH_CAPPED)
    assert held
    assert answer is not None
    p.step()


TOKEN_BYTES = 2 * 8 * 2


@both_modes
def test_chunks_leave_while_the_prefill_runs(start: Start, mode: str) -> None:
    p, d = start(mode, stream=True)
    prefill, decode = legs(p)
    d.park(decode, D_BLOCKS)
    mover, moved = (p, "bytes_written") if mode == "push" else (d, "bytes_read")
    for number, begin in enumerate(range(0, 96, PART)):
        chunk(p, prefill, begin, begin + PART)
        until_posted(p, mover, moved, number * PART * TOKEN_BYTES)
    chunk(p, prefill, 96, 100)
    assert D_ID not in d.received
    seal(p, prefill)
    d.until(lambda: D_ID in d.received)
    p.until(lambda: P_ID in p.sent)
    assert d.failed == set()
    assert same(p, d)
    assert p.worker.stats.streamed == 1


@both_modes
def test_a_stream_serves_a_decode_leg_that_comes_after_it(start: Start, mode: str) -> None:
    p, d = start(mode, stream=True)
    prefill, decode = legs(p)
    for begin in range(0, 100, PART):
        chunk(p, prefill, begin, min(begin + PART, 100))
    seal(p, prefill)
    d.park(decode, D_BLOCKS)
    d.until(lambda: D_ID in d.received)
    p.until(lambda: P_ID in p.sent)
    assert same(p, d)


@both_modes
def test_a_decode_leg_that_leaves_in_mid_stream(start: Start, mode: str) -> None:
    p, d = start(mode, stream=True)
    prefill, decode = legs(p)
    d.park(decode, D_BLOCKS)
    chunk(p, prefill, 0, 32)
    chunk(p, prefill, 32, 64)
    d.finish(decode, D_BLOCKS, Status.FINISHED_ABORTED)
    d.until(lambda: D_ID in d.received)
    chunk(p, prefill, 64, 100)
    assert P_ID not in p.sent
    seal(p, prefill)
    p.until(lambda: P_ID in p.sent)


@both_modes
def test_a_prefill_that_is_aborted_in_mid_stream(start: Start, mode: str) -> None:
    p, d = start(mode, stream=True)
    prefill, decode = legs(p)
    d.park(decode, D_BLOCKS)
    chunk(p, prefill, 0, 32)
    chunk(p, prefill, 32, 64)
    held, answer = p.finish(prefill, P_BLOCKS, Status.FINISHED_ABORTED)
    # Until nothing reads them, the blocks must not be given to anybody.
    assert (held, answer) == (True, None)
    p.step()
    d.until(lambda: D_ID in d.received)
    p.until(lambda: P_ID in p.sent)
    assert D_ID in d.failed


@both_modes
def test_a_preemption_in_mid_stream(
    start: Start, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The waiting decode leg fails; nothing reads the blocks when the step goes on."""
    p, d = start(mode, stream=True)
    prefill, decode = legs(p)
    d.park(decode, D_BLOCKS)
    chunk(p, prefill, 0, 32)
    chunk(p, prefill, 32, 64)
    prefill.num_computed_tokens = 0
    p.step(preempted={P_ID})
    assert len(p.worker.ledger) == 0
    assert "still read" not in caplog.text
    p.compute(P_BLOCKS, 0, 64, seed=7)
    d.until(lambda: D_ID in d.received)
    assert D_ID in d.failed
    # Computed again, it is offered whole, to whoever asks from here on.
    chunk(p, prefill, 0, 32)
    d.park(request(p.place, OTHER_ID, PROMPT), OTHER_BLOCKS)
    computed(p, prefill)
    d.until(lambda: OTHER_ID in d.received)
    p.until(lambda: P_ID in p.sent)
    assert OTHER_ID not in d.failed
    moved = d.tokens(OTHER_BLOCKS, len(PROMPT))
    assert (moved == p.tokens(P_BLOCKS, len(PROMPT))).all()
