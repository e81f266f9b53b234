"""Streams at the scheduler side: what is offered while a prefill runs, and when it must stop."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from enum import Enum, auto
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
from vllm_settings import settings_for

from kvxfer.driver import Initiator
from kvxfer_vllm.config import Settings
from kvxfer_vllm.metadata import (
    Abort,
    Expect,
    Extend,
    Halt,
    LastChunk,
    Order,
    Receive,
    Seal,
    Send,
    Stream,
)
from kvxfer_vllm.params import STREAM_KEY
from kvxfer_vllm.scheduler_side import SchedulerSide
from kvxfer_vllm.tables import GroupBlocks, Tables

T, PART = 16, 32
TABLES = Tables(groups=(GroupBlocks(tokens_per_block=T),))
PROMPT = list(range(100))
BLOCKS = [3, 1, 4, 11, 5, 9, 2]
PRODUCE = {"do_remote_decode": True, "do_remote_prefill": False}
CONSUME = {
    "do_remote_prefill": True,
    "remote_engine_id": "eng-P",
    "remote_host": "127.0.0.1",
    "remote_port": 5610,
}
ID = "cmpl-x-0-0badcafe"


class Status(Enum):
    """Names of vLLM's request states."""

    RUNNING = auto()
    PREEMPTED = auto()
    FINISHED_LENGTH_CAPPED = auto()
    FINISHED_ABORTED = auto()


def settings(**changes: Any) -> Settings:
    values = settings_for(stream_tokens=PART)
    return attrs.evolve(values, **changes)


@attrs.define
class Engine:
    """vLLM's scheduler as far as one prefill sees it; `depth` steps are in flight at once."""

    depth: int = 1
    found: int = 0
    params: dict[str, object] = attrs.field(factory=lambda: PRODUCE)
    max_tokens: int = 1
    scheduler: SchedulerSide = attrs.field(
        factory=lambda: SchedulerSide(settings(), attrs.evolve(TABLES, grain=T))
    )
    asks_prompt_logprobs: bool = False
    request: Any = None
    in_flight: list[int] = attrs.field(factory=list)

    def __attrs_post_init__(self) -> None:
        self.request = SimpleNamespace(
            request_id=ID,
            kv_transfer_params=self.params,
            prompt_token_ids=PROMPT,
            num_prompt_tokens=len(PROMPT),
            num_computed_tokens=0,
            num_in_flight_tokens=0,
            max_tokens=self.max_tokens,
            status=Status.RUNNING,
            get_skip_reading_prefix_cache=lambda: self.asks_prompt_logprobs,
        )
        self.scheduler.on_new_request(self.request)
        self.orders()
        self.request.num_computed_tokens = self.found

    def orders(self) -> list[Order]:
        return list(pickle.loads(pickle.dumps(self.scheduler.take_orders())).orders)

    def step(self, tokens: int) -> list[Order]:
        """Plan one more step of `tokens`; before it, the oldest step's output is processed."""
        if len(self.in_flight) >= self.depth:
            self.request.num_in_flight_tokens -= self.in_flight.pop(0)
        planned = {ID: tokens} if tokens else {}
        self.scheduler.follow_step(planned, (), lambda _: (BLOCKS,))
        orders = self.orders()
        self.request.num_computed_tokens += tokens
        self.request.num_in_flight_tokens += tokens
        self.in_flight.append(tokens)
        return orders

    def preempt(self) -> None:
        self.request.num_computed_tokens = 0
        self.request.status = Status.PREEMPTED

    def finish(self, status: Status = Status.FINISHED_LENGTH_CAPPED) -> tuple[bool, list[Order]]:
        self.request.num_in_flight_tokens = 0
        self.request.status = status
        held, _ = self.scheduler.request_finished(self.request, (BLOCKS,))
        return held, self.orders()


def offered(orders: Sequence[Order]) -> list[tuple[type, int, int]]:
    """Kind of order, tokens, and blocks of each offer."""
    found = []
    for order in orders:
        assert isinstance(order, Stream | Extend | Seal | Send)
        said = order.grow if isinstance(order, Extend | Seal) else order.offer
        assert said.sealed == isinstance(order, Seal | Send)
        found.append((type(order), said.token_count, len(said.tables[0].blocks)))
    return found


def test_a_prefill_of_three_chunks_leaves_by_chunks() -> None:
    engine = Engine()
    assert engine.step(32) == []
    assert offered(engine.step(32)) == [(Stream, 32, 2)]
    assert offered(engine.step(36)) == [(Extend, 64, 4)]
    held, orders = engine.finish()
    assert held
    assert offered(orders) == [(Seal, 100, 7)]
    assert not engine.scheduler._prefills


def test_a_request_may_keep_its_prefill_in_one_piece() -> None:
    engine = Engine(params=PRODUCE | {STREAM_KEY: False})
    assert [engine.step(32), engine.step(32), engine.step(36)] == [[], [], []]
    assert offered(engine.finish()[1]) == [(Send, 100, 7)]


def test_a_prefill_of_one_chunk_is_offered_whole() -> None:
    engine = Engine()
    assert engine.step(100) == []
    held, orders = engine.finish()
    assert held
    assert offered(orders) == [(Send, 100, 7)]


def test_what_a_step_in_flight_computes_is_not_offered() -> None:
    engine = Engine(depth=2)
    assert [offered(engine.step(32)) for _ in range(2)] == [[], []]
    # Two steps were planned, the first one has been processed.
    assert offered(engine.step(32)) == [(Stream, 32, 2)]


def test_only_full_parts_are_offered() -> None:
    engine = Engine()
    engine.step(20)
    assert engine.step(20) == []
    assert offered(engine.step(20)) == [(Stream, 32, 2)]
    assert engine.step(1) == []
    assert engine.step(4) == []
    assert offered(engine.step(20)) == [(Extend, 64, 4)]


def test_a_cache_hit_is_offered_only_after_a_step_of_its_own() -> None:
    """Another request may compute the blocks of the hit in the step that admits this one."""
    engine = Engine(found=64)
    assert engine.step(16) == []
    assert offered(engine.step(16)) == [(Stream, 64, 4)]


def test_the_block_of_the_last_token_waits_for_the_end() -> None:
    engine = Engine()
    engine.request.num_prompt_tokens = 96
    engine.step(32)
    engine.step(64)
    # All is computed, and decoding goes on in the last block.
    assert offered(engine.step(1)) == [(Extend, 64, 4)]
    assert engine.step(1) == []
    assert offered(engine.finish()[1]) == [(Seal, 96, 6)]


def test_a_step_without_the_request_moves_nothing() -> None:
    engine = Engine()
    engine.step(32)
    assert engine.step(0) == []
    assert offered(engine.step(32)) == [(Stream, 32, 2)]


def test_a_preempted_stream_is_halted_and_the_prefill_offered_whole_later() -> None:
    engine = Engine()
    engine.step(32)
    engine.step(32)
    engine.preempt()
    engine.scheduler.follow_step({}, {ID}, lambda _: None)
    (halt,) = engine.orders()
    assert isinstance(halt, Halt)
    assert (halt.request_id, halt.tag) == (ID, ID)
    # A decode leg that comes from here on waits for the new offer.
    assert engine.step(32) == [Expect(request_id=ID, transfer_id=halt.transfer_id)]
    for tokens in (32, 36):
        assert engine.step(tokens) == []
    held, orders = engine.finish()
    assert held
    assert offered(orders) == [(Send, 100, 7)]
    (send,) = orders
    assert isinstance(send, Send)
    # The stream's end may still be on its way: it must not pass for the end of this offer.
    assert (send.request_id, send.offer.tag != ID) == (ID, True)


def test_a_preemption_before_anything_was_offered_only_begins_anew() -> None:
    engine = Engine()
    engine.step(32)
    engine.preempt()
    engine.scheduler.follow_step({}, {ID}, lambda _: None)
    assert engine.orders() == []
    engine.step(32)
    assert offered(engine.step(32)) == [(Stream, 32, 2)]


def test_an_aborted_stream_holds_its_blocks() -> None:
    engine = Engine()
    engine.step(32)
    engine.step(32)
    held, (abort,) = engine.finish(Status.FINISHED_ABORTED)
    assert held
    assert isinstance(abort, Abort)
    assert abort.held


def test_an_abort_before_the_stream_holds_nothing() -> None:
    engine = Engine()
    engine.step(32)
    held, (abort,) = engine.finish(Status.FINISHED_ABORTED)
    assert not held
    assert isinstance(abort, Abort)
    assert not abort.held


def test_an_abort_of_a_preempted_stream_that_no_step_told_halts_it() -> None:
    """Its blocks are free already, so the next step may give them away."""
    engine = Engine()
    engine.step(32)
    engine.step(32)
    engine.preempt()
    held, (halt,) = engine.finish(Status.FINISHED_ABORTED)
    assert not held
    assert isinstance(halt, Halt)


def test_a_prompt_without_digest_is_not_streamed() -> None:
    engine = Engine()
    engine.request.prompt_token_ids = None
    assert [engine.step(32) for _ in range(3)] == [[], [], []]


def test_a_prompt_that_cannot_be_shortened_is_not_streamed() -> None:
    """Nothing of it is handed over: its last step writes the state that a stream would show."""
    tables = attrs.evolve(TABLES, left_out=1)
    engine = Engine(scheduler=SchedulerSide(settings(), tables), asks_prompt_logprobs=True)
    assert [engine.step(32) for _ in range(3)] == [[], [], []]
    held, (abort,) = engine.finish()
    assert (held, type(abort)) == (False, Abort)


def test_without_the_option_nothing_is_streamed() -> None:
    engine = Engine(scheduler=SchedulerSide(settings(stream_tokens=0), TABLES))
    assert [engine.step(32) for _ in range(3)] == [[], [], []]
    assert isinstance(engine.finish()[1][0], Send)


# --- the last chunk by layers ---


def layered(**changes: Any) -> Engine:
    side = SchedulerSide(settings(layer_slices=4), attrs.evolve(TABLES, grain=T))
    return Engine(scheduler=side, **changes)


def last(orders: Sequence[Order]) -> tuple[int, int, int]:
    """Of the last order, which tells of the last chunk: tokens before, at its end, blocks."""
    chunk = orders[-1]
    assert isinstance(chunk, LastChunk)
    assert chunk.grow.sealed
    return chunk.tokens_before, chunk.grow.token_count, len(chunk.grow.tables[0].blocks)


def test_the_step_that_computes_the_end_of_a_prompt_is_told() -> None:
    engine = layered()
    assert engine.step(32) == []
    assert offered(engine.step(32)) == [(Stream, 32, 2)]
    orders = engine.step(36)
    assert offered(orders[:-1]) == [(Extend, 64, 4)]
    assert last(orders) == (64, 100, 7)
    held, orders = engine.finish()
    assert held
    assert offered(orders) == [(Seal, 100, 7)]
    assert not engine.scheduler._prefills


def test_a_prompt_of_one_chunk_is_streamed_by_its_layers() -> None:
    """Nothing of it is final when its stream begins, but all its blocks are named."""
    engine = layered()
    stream, _ = orders = engine.step(100)
    assert offered([stream]) == [(Stream, 0, 7)]
    assert last(orders) == (0, 100, 7)
    held, orders = engine.finish()
    assert held
    assert offered(orders) == [(Seal, 100, 7)]


def test_what_a_step_in_flight_computes_is_there_when_the_next_one_computes() -> None:
    engine = layered(depth=2)
    engine.step(32)
    engine.step(32)
    assert last(engine.step(36)) == (64, 100, 7)


def test_before_a_chunk_that_begins_inside_a_part_the_full_parts_are_there() -> None:
    engine = layered()
    engine.step(40)
    assert last(engine.step(60)) == (32, 100, 7)


def test_a_cache_hit_may_be_computed_by_another_request_of_the_same_step() -> None:
    engine = layered(found=64)
    assert last(engine.step(36)) == (0, 100, 7)
    engine = layered(found=48)
    engine.step(32)
    assert last(engine.step(20)) == (64, 100, 7)


@pytest.mark.parametrize(
    "engine",
    [
        Engine(),
        layered(params=PRODUCE | {STREAM_KEY: False}),
        # What it decodes goes into the block of the prompt's end.
        layered(max_tokens=2),
    ],
    ids=["not asked for", "not streamed", "decodes on"],
)
def test_else_the_end_waits_for_the_prefill(engine: Engine) -> None:
    assert engine.step(100) == []
    assert offered(engine.finish()[1]) == [(Send, 100, 7)]


def test_an_abort_behind_the_last_chunk_holds_its_blocks() -> None:
    engine = layered()
    engine.step(100)
    held, orders = engine.finish(Status.FINISHED_ABORTED)
    assert held
    assert isinstance(orders[0], Abort)
    assert orders[0].held


def test_a_preemption_behind_the_last_chunk_halts_it_whoever_tells() -> None:
    engine = layered()
    engine.step(100)
    engine.preempt()
    engine.scheduler.follow_step({}, {ID}, lambda _: None)
    (halt,) = engine.orders()
    assert isinstance(halt, Halt)
    # Its next life is offered whole.
    engine.in_flight.clear()
    engine.request.num_in_flight_tokens = 0
    assert [type(order) for order in engine.step(100)] == [Expect]
    (send,) = engine.finish()[1]
    assert isinstance(send, Send)
    assert send.offer.tag != halt.tag

    engine = layered()
    engine.step(100)
    engine.preempt()
    held, orders = engine.finish(Status.FINISHED_ABORTED)
    assert not held
    assert isinstance(orders[0], Halt)


@pytest.mark.parametrize(
    ("mode", "initiator"), [("push", Initiator.PRODUCER), ("pull", Initiator.CONSUMER)]
)
def test_the_mode_says_who_moves_the_data(mode: str, initiator: Initiator) -> None:
    scheduler = SchedulerSide(settings(mode=mode, stream_tokens=0), TABLES)
    request = Engine(scheduler=scheduler).request
    request.num_computed_tokens, request.status = 100, Status.FINISHED_LENGTH_CAPPED
    _, answer = scheduler.request_finished(request, (BLOCKS,))
    assert answer is not None
    assert answer["transfer_mode"] == mode
    request.kv_transfer_params = answer
    scheduler.take_orders()
    scheduler.on_new_request(request)
    scheduler.after_alloc(request, (BLOCKS,), 100)
    (receive,) = scheduler.take_orders().orders
    assert isinstance(receive, Receive)
    assert receive.register.initiator is initiator
    assert CONSUME.items() <= answer.items()
