"""The last chunk by layers, both sides of the connector on two engines, over the loopback."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from vllm_loopback_pair import DEADLINE_S, Engine, Status, T, request

from kvxfer.driver import Role

PROMPT = list(range(500, 600))
P_BLOCKS = [3, 1, 4, 11, 5, 9, 2]
D_BLOCKS = [8, 6, 7, 10, 12, 13, 14]
OTHER_BLOCKS = list(range(16, 23))
P_ID, D_ID, OTHER_ID = "cmpl-x-0-0badcafe", "cmpl-x-0-12345678", "cmpl-x-0-00000000"
PRODUCE = {"do_remote_decode": True, "do_remote_prefill": False}
PART = 2 * T
LAYERS, SLICES = 6, 3
BLOCK_BYTES = 2 * T * 8 * 2
"""Of one layer."""
TOKEN_BYTES = 2 * 8 * 2

Start = Callable[..., tuple[Engine, Engine]]
both_modes = pytest.mark.parametrize("mode", ["push", "pull"])


@pytest.fixture
def start() -> Iterator[Start]:
    engines: list[Engine] = []

    def pair(mode: str, **changes: Any) -> tuple[Engine, Engine]:
        changes = {"stream_tokens": PART, "layer_slices": SLICES} | changes
        for name, role in (("P", Role.PRODUCER), ("D", Role.CONSUMER)):
            engines.append(Engine.start(name, role, layers=LAYERS, mode=mode, **changes))
        return engines[0], engines[1]

    yield pair
    for engine in engines:
        assert len(engine.worker.ledger) == 0
        engine.close()


def legs(p: Engine) -> tuple[Any, Any]:
    prefill, decode = request(PRODUCE, P_ID, PROMPT), request(p.place, D_ID, PROMPT)
    p.scheduler.on_new_request(prefill)
    p.step()
    return prefill, decode


def chunk(p: Engine, prefill: Any, start: int, stop: int, layers: range = range(LAYERS)) -> None:
    """One step of the prefill; of the forward pass behind it, these layers."""
    p.step(prefill, stop - start, P_BLOCKS)
    forward(p, start, stop, layers)


def forward(p: Engine, start: int, stop: int, layers: range) -> None:
    for layer in layers:
        p.compute_layer(layer, P_BLOCKS, start, stop, seed=1 + layer)


def seal(p: Engine, prefill: Any) -> None:
    held, answer = p.finish(prefill, P_BLOCKS, Status.FINISHED_LENGTH_CAPPED)
    assert held
    assert answer is not None
    p.step()


def until_moved(engine: Engine, mode: str, wanted: int) -> None:
    """Wait until the agent has moved so many bytes. Nobody makes a step meanwhile."""
    name = "bytes_written" if mode == "push" else "bytes_read"
    end = time.monotonic() + DEADLINE_S
    while engine.counter(name) < wanted:
        assert time.monotonic() < end, f"{name} = {engine.counter(name)}, {wanted} wanted"
        time.sleep(0.002)
    assert engine.counter(name) == wanted


def same(p: Engine, d: Engine, blocks: list[int] = D_BLOCKS, start: int = 0) -> bool:
    here, there = p.tokens(P_BLOCKS, len(PROMPT)), d.tokens(blocks, len(PROMPT))
    return bool(here.all() and (here[start:] == there[start:]).all())


@both_modes
def test_slices_of_the_last_chunk_leave_while_it_is_computed(start: Start, mode: str) -> None:
    p, d = start(mode)
    mover = p if mode == "push" else d
    prefill, decode = legs(p)
    d.park(decode, D_BLOCKS)
    for begin in (0, 32, 64):
        chunk(p, prefill, begin, begin + PART)
    chunk(p, prefill, 96, 100, range(2))
    moved = 96 * TOKEN_BYTES * LAYERS
    for number in range(SLICES - 1):
        moved += 4 * TOKEN_BYTES * 2
        until_moved(mover, mode, moved)
        forward(p, 96, 100, range(2 + 2 * number, 4 + 2 * number))
    # P's scheduler has not said anything yet: the last layer was the end.
    d.until(lambda: D_ID in d.received)
    assert d.failed == set()
    assert same(p, d)
    p.until(lambda: len(p.worker.ledger) == 1)
    assert P_ID not in p.sent
    seal(p, prefill)
    p.until(lambda: P_ID in p.sent)
    data = p.worker.take_stats()
    assert data is not None
    assert (data["kvxfer_streamed"], data["kvxfer_sliced"]) == ([1], [1])
    # What the worker had said already was not said again.
    assert p.counter("late_offers") == 0


@both_modes
def test_a_prompt_of_one_chunk_leaves_by_layers_too(start: Start, mode: str) -> None:
    p, d = start(mode, stream_tokens=8 * T)
    mover = p if mode == "push" else d
    prefill, decode = legs(p)
    d.park(decode, D_BLOCKS)
    chunk(p, prefill, 0, 100, range(3))
    until_moved(mover, mode, 100 * TOKEN_BYTES * 2)
    forward(p, 0, 100, range(3, LAYERS))
    seal(p, prefill)
    d.until(lambda: D_ID in d.received)
    p.until(lambda: P_ID in p.sent)
    assert same(p, d)


@both_modes
def test_what_the_decode_engine_has_is_not_moved(start: Start, mode: str) -> None:
    p, d = start(mode, stream_tokens=8 * T)
    prefill, decode = legs(p)
    d.scheduler.on_new_request(decode)
    wanted, _ = d.scheduler.matched_tokens(decode, 3 * T)
    d.scheduler.after_alloc(decode, (D_BLOCKS,), wanted)
    d.step()
    chunk(p, prefill, 0, 100)
    seal(p, prefill)
    d.until(lambda: D_ID in d.received)
    p.until(lambda: P_ID in p.sent)
    assert not d.memory[D_BLOCKS[:3]].any()
    assert same(p, d, start=3 * T)


@both_modes
def test_a_prefix_that_another_request_computes_in_the_same_step_waits_for_its_layers(
    start: Start, mode: str
) -> None:
    """Its tokens count as computed, but are written layer by layer in this very step."""
    p, d = start(mode)
    prefill, decode = legs(p)
    d.park(decode, D_BLOCKS)
    prefill.num_computed_tokens = 80
    p.step(prefill, 20, P_BLOCKS)
    forward(p, 0, 100, range(2))
    # Of the tokens before the last line of the grid no part is cut by layers.
    until_moved(p if mode == "push" else d, mode, 4 * TOKEN_BYTES * 2)
    forward(p, 0, 100, range(2, LAYERS))
    seal(p, prefill)
    d.until(lambda: D_ID in d.received)
    p.until(lambda: P_ID in p.sent)
    assert same(p, d)


@both_modes
def test_a_decode_leg_that_comes_between_two_layers(start: Start, mode: str) -> None:
    p, d = start(mode)
    prefill, decode = legs(p)
    for begin in (0, 32, 64):
        chunk(p, prefill, begin, begin + PART)
    chunk(p, prefill, 96, 100, range(3))
    d.park(decode, D_BLOCKS)
    until_moved(p if mode == "push" else d, mode, TOKEN_BYTES * (96 * LAYERS + 4 * 2))
    forward(p, 96, 100, range(3, LAYERS))
    seal(p, prefill)
    d.until(lambda: D_ID in d.received)
    p.until(lambda: P_ID in p.sent)
    assert same(p, d)


@both_modes
def test_a_decode_leg_that_comes_after_the_end(start: Start, mode: str) -> None:
    p, d = start(mode)
    prefill, decode = legs(p)
    chunk(p, prefill, 0, 100)
    seal(p, prefill)
    d.park(decode, D_BLOCKS)
    d.until(lambda: D_ID in d.received)
    p.until(lambda: P_ID in p.sent)
    assert same(p, d)


@both_modes
def test_a_prefill_that_is_aborted_between_its_last_layers_and_its_end(
    start: Start, mode: str
) -> None:
    """D has it all and is served; P's blocks are held until it is known."""
    p, d = start(mode)
    prefill, decode = legs(p)
    d.park(decode, D_BLOCKS)
    chunk(p, prefill, 0, 100)
    d.until(lambda: D_ID in d.received)
    held, answer = p.finish(prefill, P_BLOCKS, Status.FINISHED_ABORTED)
    assert (held, answer) == (True, None)
    p.step()
    p.until(lambda: P_ID in p.sent)
    assert d.failed == set()
    assert same(p, d)


@both_modes
def test_a_prefill_that_is_aborted_with_layers_missing(start: Start, mode: str) -> None:
    """As where a forward pass fails: the layers that were computed are no prompt."""
    p, d = start(mode)
    prefill, decode = legs(p)
    d.park(decode, D_BLOCKS)
    chunk(p, prefill, 0, 100, range(LAYERS - 1))
    held, answer = p.finish(prefill, P_BLOCKS, Status.FINISHED_ABORTED)
    assert (held, answer) == (True, None)
    p.step()
    d.until(lambda: D_ID in d.received)
    p.until(lambda: P_ID in p.sent)
    assert D_ID in d.failed


@both_modes
def test_a_decode_leg_that_leaves_between_two_layers(start: Start, mode: str) -> None:
    p, d = start(mode)
    prefill, decode = legs(p)
    d.park(decode, D_BLOCKS)
    chunk(p, prefill, 0, 100, range(2))
    d.finish(decode, D_BLOCKS, Status.FINISHED_ABORTED)
    d.until(lambda: D_ID in d.received)
    forward(p, 0, 100, range(2, LAYERS))
    p.step()
    assert P_ID not in p.sent
    seal(p, prefill)
    p.until(lambda: P_ID in p.sent)


@both_modes
def test_layers_that_never_call_leave_with_the_end(start: Start, mode: str) -> None:
    p, d = start(mode)
    prefill, decode = legs(p)
    d.park(decode, D_BLOCKS)
    p.step(prefill, 100, P_BLOCKS)
    p.compute(P_BLOCKS, 0, 100, seed=1)
    p.step()
    assert D_ID not in d.received
    seal(p, prefill)
    d.until(lambda: D_ID in d.received)
    p.until(lambda: P_ID in p.sent)
    assert same(p, d)


def test_a_preemption_behind_the_last_chunk_reads_its_blocks_no_more(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    """As with steps in flight: the next plan takes the blocks of a prefill that is not known
    to have ended. Its last layer is missing, so nothing can have landed."""
    p, d = start("push")
    prefill, decode = legs(p)
    d.park(decode, D_BLOCKS)
    chunk(p, prefill, 0, 100, range(LAYERS - 1))
    prefill.num_computed_tokens = 0
    p.step(preempted={P_ID})
    assert len(p.worker.ledger) == 0
    assert "still read" not in caplog.text
    p.compute(P_BLOCKS, 0, 64, seed=7)
    d.until(lambda: D_ID in d.received)
    assert D_ID in d.failed
    # Computed again, it is offered whole, to whoever asks from here on.
    p.step(prefill, 100, P_BLOCKS)
    d.park(request(p.place, OTHER_ID, PROMPT), OTHER_BLOCKS)
    forward(p, 0, 100, range(LAYERS))
    seal(p, prefill)
    d.until(lambda: OTHER_ID in d.received)
    p.until(lambda: P_ID in p.sent)
    assert OTHER_ID not in d.failed
    assert same(p, d, OTHER_BLOCKS)


def test_two_last_chunks_of_one_step(start: Start) -> None:
    p, d = start("push")
    first, decode = legs(p)
    other = request(PRODUCE, "cmpl-y-0-0badcafe", PROMPT[::-1])
    p.scheduler.on_new_request(other)
    p.step()
    d.park(decode, D_BLOCKS)
    d.park(request(p.place, "cmpl-y-0-12345678", PROMPT[::-1]), OTHER_BLOCKS)
    both = {first.request_id: P_BLOCKS, other.request_id: OTHER_BLOCKS}
    p.scheduler.follow_step(dict.fromkeys(both, 100), (), lambda name: (both[name],))
    p.step()
    for leg in (first, other):
        leg.num_computed_tokens = 100
    for layer in range(LAYERS):
        for seed, blocks in enumerate(both.values()):
            for token in range(100):
                p.memory[blocks[token // T], layer, :, token % T] = 1 + seed + 7 * token + layer
        p.worker.layer_saved(f"l{layer}")
    d.until(lambda: len(d.received) == 2)
    for leg, blocks in ((first, P_BLOCKS), (other, OTHER_BLOCKS)):
        assert p.finish(leg, blocks, Status.FINISHED_LENGTH_CAPPED)[0]
    p.until(lambda: len(p.sent) == 2)
    assert d.failed == set()
    assert same(p, d)
    here, there = p.tokens(OTHER_BLOCKS, 100), d.tokens(OTHER_BLOCKS, 100)
    assert (here == there).all()
