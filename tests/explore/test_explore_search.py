"""The search: complete, shortest first, the same every time, and clean on the core as it is."""

from __future__ import annotations

import functools

import pytest

from kvxfer.testing.between import Violation
from kvxfer.testing.explore.checks import INVARIANTS, check
from kvxfer.testing.explore.configs import CONFIGS, by_name
from kvxfer.testing.explore.enabled import moves
from kvxfer.testing.explore.moves import DO, apply
from kvxfer.testing.explore.rest import Rest
from kvxfer.testing.explore.rig import Rig
from kvxfer.testing.explore.search import Result, search
from kvxfer.testing.explore.state import Budget, State
from kvxfer.testing.explore.transcript import transcript
from kvxfer.testing.planted.catalogue import FAULTS
from kvxfer.testing.planted.fault import Fault

STATES_MAX = 400


def fault(name: str) -> Fault:
    return next(fault for fault in FAULTS if fault.name == name)


@functools.cache
def quick(config_name: str) -> Result:
    config = by_name(config_name)
    assert config is not None
    return search(config, states_max=STATES_MAX)


@pytest.mark.parametrize("name", [config.name for config in CONFIGS])
def test_the_core_breaks_no_invariant(name: str) -> None:
    result = quick(name)
    assert result.found is None, transcript(result.config, result.found)
    assert result.states >= STATES_MAX


def test_a_small_world_is_met_whole_and_the_same_every_time() -> None:
    config = by_name("tokens")
    assert config is not None
    first, again = search(config), search(config)
    assert first.exhausted
    assert (first.states, first.transitions, first.depth) == (
        again.states,
        again.transitions,
        again.depth,
    )


def test_a_search_that_is_cut_off_says_so() -> None:
    result = search(CONFIGS[0], states_max=50)
    assert not result.exhausted
    assert result.states >= 50


def test_no_shorter_way_than_the_one_found() -> None:
    """Every state at a smaller distance is fine: looked at one by one, without the search."""
    config = by_name("cancel")
    assert config is not None
    with fault("free on cancel").plant():
        found = search(config, states_max=5_000).found
        assert found is not None
        assert found.invariant == "A2"
        rig = Rig(config)
        rest = Rest(rig)
        layer: set[State] = {rig.start()}
        for _ in range(len(found.trace) - 1):
            layer = {apply(rig, state, move) for state in layer for move in moves(rig, state)}
            for state in layer:
                check(rig, state)
                rest.check(state)
        beyond = [apply(rig, state, move) for state in layer for move in moves(rig, state)]
        with pytest.raises(Violation, match="A2"):
            _check_all(rest, beyond)


def _check_all(rest: Rest, states: list[State]) -> None:
    for state in states:
        rest.check(state)


def test_a_transcript_tells_the_story() -> None:
    config = by_name("cancel")
    assert config is not None
    with fault("free on cancel").plant():
        found = search(config, states_max=5_000).found
        assert found is not None
        assert transcript(config, found) == (
            "configuration cancel: cancelled at any point and registered again, "
            "as the next attempt\n"
            "\n"
            "  1  D's engine registers t as t.1\n"
            "  2  D's engine cancels t.1\n"
            "     D's engine is told: t.1 Lost (CANCELLED_BY_CONSUMER)\n"
            "     D's engine is told: t.1 LetGo\n"
            "  3  P's engine offers 10 tokens of t as t.1\n"
            "     from here all goes well:\n"
            "     P receives Grant t/1\n"
            "     P posts WRITE 1 (t/1 part 0) into slot 1\n"
            "     A2: P's WRITE 1 for t/1 may write into slot 1, which was let go\n"
        )


def test_configurations_use_every_move_and_every_budget() -> None:
    assert len({config.name for config in CONFIGS}) == len(CONFIGS)
    budgets = {kind for config in CONFIGS for kind in config.budgets}
    assert budgets == set(Budget)
    late = by_name("new-life")
    assert late is not None
    results = [quick(config.name) for config in CONFIGS] + [search(late)]
    assert {move for result in results for move in result.made} == set(DO)


def test_every_invariant_that_a_check_names_is_listed() -> None:
    named = {invariant for fault in FAULTS for invariant in fault.invariants}
    assert named <= set(INVARIANTS)
