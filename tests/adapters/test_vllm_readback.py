"""Read-back: P's second turn takes from D what D kept of the first. Two engines, the loopback."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import attrs
import numpy as np
import pytest
from vllm_loopback_pair import Engine, Status, T, request

from kvxfer.driver import Role
from kvxfer.errors import BadValue
from kvxfer_vllm.metadata import Decline, Expect, Send
from kvxfer_vllm.params import TOKENS_DIGEST_KEY
from kvxfer_vllm.readback import check_readback

PROMPT = list(range(500, 600))
ANSWERED = [7, 8, 9, 10, 11]
FOLLOW_UP = list(range(300, 340))
KEPT_TOKENS = len(PROMPT) + len(ANSWERED) - 1
"""Of the last token that was sampled there is no KV."""
D_BLOCKS = [8, 6, 7, 10, 12, 13, 14]
P_BLOCKS = [3, 1, 4, 11, 5, 9, 2, 15, 16, 17]
D_ID, P_ID = "cmpl-x-0-12345678", "cmpl-y-0-0badcafe"
PRODUCE = {"do_remote_decode": True, "do_remote_prefill": False}

Start = Callable[..., tuple[Engine, Engine]]

both_modes = pytest.mark.parametrize("mode", ["push", "pull"])


@pytest.fixture
def start() -> Iterator[Start]:
    engines: list[Engine] = []

    def pair(mode: str = "pull", **changes: Any) -> tuple[Engine, Engine]:
        settings = {"mode": mode, "bidirectional": True} | changes
        engines.extend(Engine.start(name, Role.BOTH, **settings) for name in ("P", "D"))
        return engines[-2], engines[-1]

    yield pair
    for engine in engines:
        assert len(engine.worker.ledger) == 0
        assert not engine.scheduler._consumers
        engine.close()


def first_turn(p: Engine, d: Engine) -> Any:
    """A decode request whose KV never came from P, computed at D to its end; gives D's answer."""
    leg = request(p.place, D_ID, PROMPT)
    d.scheduler.on_new_request(leg)
    d.scheduler.after_alloc(leg, (D_BLOCKS,), 0)
    d.compute(D_BLOCKS, 0, KEPT_TOKENS, seed=1)
    leg.all_token_ids = PROMPT + ANSWERED
    leg.num_computed_tokens = KEPT_TOKENS
    held, answer = d.finish(leg, D_BLOCKS, Status.FINISHED_LENGTH_CAPPED)
    assert held
    d.step()
    return answer


def second_turn(p: Engine, params: dict[str, Any], prompt: list[int]) -> tuple[Any, int]:
    """P's leg of the next prompt: the request, and how many tokens P wants to load."""
    leg = request(PRODUCE | params, P_ID, prompt)
    p.scheduler.on_new_request(leg)
    return leg, p.scheduler.matched_tokens(leg, 0)[0]


def admit(p: Engine, leg: Any, wanted: int) -> None:
    p.scheduler.after_alloc(leg, (P_BLOCKS,), wanted)
    p.step()


def end(p: Engine, leg: Any) -> Any:
    """P's leg ends; nobody comes for it."""
    leg.num_computed_tokens = leg.num_prompt_tokens
    _, answer = p.finish(leg, P_BLOCKS, Status.FINISHED_LENGTH_CAPPED)
    p.step()
    p.until(lambda: P_ID in p.sent)
    return answer


@both_modes
def test_the_next_turn_loads_what_the_decode_engine_kept(start: Start, mode: str) -> None:
    p, d = start(mode, offer_lease_ms=200)
    told = first_turn(p, d)
    assert (told["do_remote_decode"], told["do_remote_prefill"]) == (True, False)
    assert told["remote_num_tokens"] == KEPT_TOKENS
    assert told["remote_block_ids"] == [D_BLOCKS]
    leg, wanted = second_turn(p, told, PROMPT + ANSWERED + FOLLOW_UP)
    assert wanted == KEPT_TOKENS
    admit(p, leg, wanted)
    p.until(lambda: P_ID in p.received)
    d.until(lambda: D_ID in d.sent)
    assert p.failed == set()
    np.testing.assert_array_equal(p.tokens(P_BLOCKS, wanted), d.tokens(D_BLOCKS, wanted))
    moved = KEPT_TOKENS * 2 * 8 * 2
    assert (p.counter("bytes_read"), d.counter("bytes_written")) == (
        (moved, 0) if mode == "pull" else (0, moved)
    )
    # The load is over: its leg goes on as any other, and is handed over to D.
    assert p.scheduler.matched_tokens(leg, 0) == (0, False)
    assert end(p, leg)["do_remote_prefill"] is True


def test_a_router_that_drops_our_own_fields_is_enough(start: Start) -> None:
    p, d = start(offer_lease_ms=200)
    told = {k: v for k, v in first_turn(p, d).items() if not k.startswith("kvx_")}
    leg, wanted = second_turn(p, told, PROMPT + ANSWERED + FOLLOW_UP)
    admit(p, leg, wanted)
    p.until(lambda: P_ID in p.received)
    d.until(lambda: D_ID in d.sent)
    assert p.failed == set()
    end(p, leg)


def test_another_prompt_is_not_filled_with_it_even_without_our_fields(start: Start) -> None:
    """The digests are compared on the wire; D holds on, the right one may come yet."""
    p, d = start(offer_lease_ms=200, kept_ms=2_000)
    told = {k: v for k, v in first_turn(p, d).items() if not k.startswith("kvx_")}
    leg, wanted = second_turn(p, told, FOLLOW_UP * 4)
    admit(p, leg, wanted)
    p.until(lambda: P_ID in p.received)
    assert p.failed == {P_ID}
    d.until(lambda: D_ID in d.sent)
    end(p, leg)


@pytest.mark.parametrize(
    "prompt",
    [FOLLOW_UP * 4, PROMPT, [1, *PROMPT[1:], *ANSWERED, *FOLLOW_UP]],
    ids=["another", "only its beginning", "one token differs"],
)
def test_what_is_no_beginning_of_the_prompt_is_computed_and_let_go(
    start: Start, prompt: list[int]
) -> None:
    p, d = start(offer_lease_ms=200)
    leg, wanted = second_turn(p, first_turn(p, d), prompt)
    assert wanted == 0
    p.step()
    d.until(lambda: D_ID in d.sent)
    end(p, leg)


def test_too_few_tokens_are_not_worth_a_load(start: Start) -> None:
    p, d = start(offer_lease_ms=200, load_tokens_min=KEPT_TOKENS + 1)
    leg, wanted = second_turn(p, first_turn(p, d), PROMPT + ANSWERED + FOLLOW_UP)
    assert wanted == 0
    admit(p, leg, 0)
    d.until(lambda: D_ID in d.sent)
    end(p, leg)


def test_a_local_hit_is_not_loaded(start: Start) -> None:
    p, d = start(offer_lease_ms=200)
    leg = request(PRODUCE | first_turn(p, d), P_ID, PROMPT + ANSWERED + FOLLOW_UP)
    p.scheduler.on_new_request(leg)
    assert p.scheduler.matched_tokens(leg, 2 * T) == (KEPT_TOKENS - 2 * T, True)
    admit(p, leg, KEPT_TOKENS - 2 * T)
    p.until(lambda: P_ID in p.received)
    d.until(lambda: D_ID in d.sent)
    np.testing.assert_array_equal(
        p.tokens(P_BLOCKS, KEPT_TOKENS)[2 * T :], d.tokens(D_BLOCKS, KEPT_TOKENS)[2 * T :]
    )
    assert not p.tokens(P_BLOCKS, 2 * T).any()
    end(p, leg)


def test_what_nobody_comes_for_is_let_go(start: Start) -> None:
    p, d = start(kept_ms=100)
    first_turn(p, d)
    d.until(lambda: D_ID in d.sent)


def test_an_abort_while_it_loads(start: Start) -> None:
    p, d = start()
    leg, wanted = second_turn(p, first_turn(p, d), PROMPT + ANSWERED + FOLLOW_UP)
    p.scheduler.after_alloc(leg, (P_BLOCKS,), wanted)
    held, answer = p.finish(leg, P_BLOCKS, Status.FINISHED_ABORTED)
    assert (held, answer) == (False, None)
    p.until(lambda: P_ID in p.received)
    d.until(lambda: D_ID in d.sent)


def test_a_decode_engine_that_is_gone_fails_the_load(start: Start) -> None:
    p, d = start(offer_lease_ms=200, kept_ms=100)
    told = first_turn(p, d)
    d.until(lambda: D_ID in d.sent)
    d.close()
    leg, wanted = second_turn(p, told, PROMPT + ANSWERED + FOLLOW_UP)
    admit(p, leg, wanted)
    p.until(lambda: P_ID in p.received)
    assert p.failed == {P_ID}
    end(p, leg)


@pytest.mark.parametrize(
    "wrong",
    [
        {"remote_port": None},
        {"remote_num_tokens": "many"},
        {"remote_request_id": 7},
        {TOKENS_DIGEST_KEY: "no hex"},
        {"tp_size": "3"},
    ],
)
def test_parameters_of_no_use_leave_the_leg_as_it_is(start: Start, wrong: dict[str, Any]) -> None:
    p, d = start(offer_lease_ms=200, kept_ms=100)
    leg, wanted = second_turn(p, first_turn(p, d) | wrong, PROMPT + ANSWERED + FOLLOW_UP)
    assert wanted == 0
    assert [type(order) for order in p.scheduler._orders] == [Expect]
    d.until(lambda: D_ID in d.sent)
    p.step()
    end(p, leg)


def test_without_the_option_nothing_is_kept_and_nothing_asked_for(start: Start) -> None:
    p, d = start(kept_ms=100)
    told = first_turn(p, d)
    d.until(lambda: D_ID in d.sent)
    plain_p, plain_d = start(bidirectional=False, offer_lease_ms=200)
    leg = request(p.place, D_ID, PROMPT)
    plain_d.scheduler.on_new_request(leg)
    plain_d.scheduler.after_alloc(leg, (D_BLOCKS,), 0)
    assert plain_d.finish(leg, D_BLOCKS, Status.FINISHED_LENGTH_CAPPED) == (False, None)
    leg, wanted = second_turn(plain_p, told, PROMPT + ANSWERED + FOLLOW_UP)
    assert wanted == 0
    plain_p.step()
    end(plain_p, leg)
    plain_d.step()


def test_what_a_step_in_flight_counted_is_left_out(start: Start) -> None:
    _, d = start(kept_ms=100)
    leg = request(d.place, D_ID, PROMPT)
    d.scheduler.on_new_request(leg)
    d.scheduler.after_alloc(leg, (D_BLOCKS,), 0)
    leg.all_token_ids = PROMPT + ANSWERED
    leg.num_computed_tokens = KEPT_TOKENS + 1
    _, told = d.finish(leg, D_BLOCKS, Status.FINISHED_LENGTH_CAPPED)
    (send,) = [o for o in d.scheduler._orders if isinstance(o, Send)]
    assert (send.offer.token_count, told["remote_num_tokens"]) == (KEPT_TOKENS, KEPT_TOKENS)
    d.step()
    d.until(lambda: D_ID in d.sent)


def test_models_with_windows_or_states_are_refused(start: Start) -> None:
    p, _ = start()
    settings, tables = p.scheduler.settings, p.scheduler.tables
    check_readback(settings, tables)
    check_readback(attrs.evolve(settings, bidirectional=False), attrs.evolve(tables, left_out=1))
    with pytest.raises(BadValue, match="bidirectional_kv_xfer"):
        check_readback(settings, attrs.evolve(tables, left_out=1))


def test_what_did_not_end_well_is_not_kept(start: Start) -> None:
    p, d = start()
    leg = request(p.place, D_ID, PROMPT)
    d.scheduler.on_new_request(leg)
    d.scheduler.after_alloc(leg, (D_BLOCKS,), 0)
    assert d.finish(leg, D_BLOCKS, Status.FINISHED_ABORTED) == (False, None)
    assert [type(order) for order in d.scheduler.take_orders().orders] == [Decline]
