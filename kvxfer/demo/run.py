"""The demo from start to end.

Owns the order of the phases: plain engine, then each mode on one pair, then the
count of what is left. Prints nothing; `progress` is told how far it is.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import attrs

from kvxfer.demo.cache import EngineCache
from kvxfer.demo.model import Model
from kvxfer.demo.pair import Pair
from kvxfer.demo.result import DemoResult
from kvxfer.demo.sequence import Prompt, answer_alone
from kvxfer.demo.served import Served
from kvxfer.demo.workload import DemoOptions, Mode

Progress = Callable[[str, int], None]
"""progress(phase, requests done in it); phases are `phases(options)`."""

PLAIN = "one engine"

ROUND_REQUESTS = 8
"""Modes take turns in rounds of this size, so that a slow moment of the machine meets both."""


def phases(options: DemoOptions) -> list[str]:
    """Names of the phases, in order; each has `options.requests` steps."""
    return [PLAIN, *options.modes]


def run_demo(options: DemoOptions, progress: Progress, record_dir: str = "") -> DemoResult:
    """Run everything; the agents record themselves into `record_dir`, where one is given.

    Raises KvxferError, ProducerDown or DemoStopped.
    """
    options.check()
    started_s = time.monotonic()
    prompts = options.prompts()
    with Pair.start(options, record_dir) as pair:
        expected = _answers_alone(options, prompts, progress)
        _warm_up(pair, options, prompts[0])
        served = _serve(pair, options, prompts, progress)
        prefill_state, decode_state = pair.settle()
    return DemoResult(
        options=options,
        expected=expected,
        served=served,
        prefill_state=prefill_state,
        decode_state=decode_state,
        two_processes=pair.two_processes,
        seconds=time.monotonic() - started_s,
    )


def _answers_alone(
    options: DemoOptions, prompts: list[Prompt], progress: Progress
) -> tuple[tuple[int, ...], ...]:
    model = Model.from_seed(options.seed)
    # One rank, and blocks of its own: the pair's paging must not show in the tokens.
    shape = attrs.evolve(options.decode_cache(), ranks=1)
    cache = EngineCache(model.shape, shape, options.seed + 3)
    answers = []
    for done, prompt in enumerate(prompts, 1):
        answers.append(answer_alone(model, cache, prompt))
        progress(PLAIN, done)
    return tuple(answers)


def _warm_up(pair: Pair, options: DemoOptions, prompt: Prompt) -> None:
    """One request that is not counted: it pays for connecting the ranks."""
    pair.serve(options.modes[0], [prompt], 1, lambda _: None, first_index=options.requests)


def _serve(
    pair: Pair, options: DemoOptions, prompts: list[Prompt], progress: Progress
) -> dict[Mode, list[Served]]:
    """Every prompt in every mode, in rounds; the mode that goes first changes each round."""
    served: dict[Mode, list[Served]] = {mode: [] for mode in options.modes}
    done = dict.fromkeys(options.modes, 0)

    def answered(one: Served) -> None:
        done[one.mode] += 1
        progress(one.mode, done[one.mode])

    order = list(options.modes)
    for start in range(0, len(prompts), ROUND_REQUESTS):
        chosen = prompts[start : start + ROUND_REQUESTS]
        for mode in order:
            served[mode] += pair.serve(
                mode, chosen, options.concurrency, answered, first_index=start
            )
        order.reverse()
    return served
