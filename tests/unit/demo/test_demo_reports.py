"""Reports cross the pipe unchanged; workload and options keep their bounds."""

from __future__ import annotations

import pytest

from kvxfer.demo.reports import (
    EngineDied,
    EngineState,
    Failed,
    Finished,
    Prefilled,
    Ready,
    Released,
    Report,
    Step,
    from_line,
    to_line,
)
from kvxfer.demo.sequence import Prompt
from kvxfer.demo.threads import VARIABLES, use_one_matrix_thread
from kvxfer.demo.workload import DemoOptions
from kvxfer.errors import BadValue

STEP = Step(t_ms=1.5, transfer_id="t", rank=1, step="posted")


@pytest.mark.parametrize(
    "report",
    [
        Ready(addresses=(("P", 0, "127.0.0.1", 4000), ("P", 1, "127.0.0.1", 4001))),
        Prefilled(transfer_id="t", start_ms=1.25, stop_ms=3.5),
        Released(transfer_id="t", bytes_written=7, descriptors=2, reason="rank 0: DEADLINE"),
        Finished(
            transfer_id="t",
            tokens=(1, 2),
            admitted_ms=0.1,
            landed_ms=0.2,
            first_token_ms=0.3,
            last_token_ms=0.4,
        ),
        Failed(transfer_id="t", reason="why"),
        EngineDied(engine="P", error="line\nbreak", usage=True),
        EngineState(blocks_held=3, live=1, quarantined=0, steps=(STEP,)),
    ],
    ids=lambda report: type(report).__name__,
)
def test_a_report_comes_out_of_its_line_equal(report: Report) -> None:
    line = to_line(report)
    assert "\n" not in line
    assert from_line(line) == report


@pytest.mark.parametrize("line", ["{}", '{"kind": "Nothing"}', '{"kind": "Report"}'])
def test_a_line_that_is_no_report_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="not a report"):
        from_line(line)


def test_the_same_options_give_the_same_prompts() -> None:
    options = DemoOptions(requests=20, prompt_min=3, prompt_max=9, seed=4)
    prompts = options.prompts()
    assert prompts == options.prompts()
    assert prompts != DemoOptions(requests=20, prompt_min=3, prompt_max=9, seed=5).prompts()
    assert {len(p.tokens) for p in prompts} == set(range(3, 10))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("requests", 0),
        ("prompt_min", 1),
        ("prompt_max", 63),
        ("answer_tokens", 0),
        ("concurrency", 0),
        ("seed", -1),
        ("modes", ()),
    ],
)
def test_an_option_out_of_its_bound_is_named(field: str, value: object) -> None:
    with pytest.raises(BadValue) as caught:
        DemoOptions(**{field: value}).check()  # type: ignore[arg-type]
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("prefill_ranks", 9, "ranks"),
        ("decode_ranks", 0, "ranks"),
        ("prefill_block_tokens", 0, "block_tokens"),
        ("decode_block_tokens", -3, "block_tokens"),
        ("cache_order", "XYZ", "order"),
    ],
)
def test_a_cache_that_cannot_be_is_named(field: str, value: object, named: str) -> None:
    with pytest.raises(BadValue) as caught:
        DemoOptions(**{field: value}).check()  # type: ignore[arg-type]
    assert caught.value.field == named


def test_a_prompt_needs_a_token_for_each_phase() -> None:
    with pytest.raises(BadValue, match="at least 2"):
        Prompt(tokens=(1,), answer_tokens=1)
    with pytest.raises(BadValue, match="at least 1"):
        Prompt(tokens=(1, 2), answer_tokens=0)


def test_one_matrix_thread_unless_the_user_said_otherwise() -> None:
    environ = {VARIABLES[0]: "3"}
    use_one_matrix_thread(environ)
    assert environ == {VARIABLES[0]: "3", **dict.fromkeys(VARIABLES[1:], "1")}
