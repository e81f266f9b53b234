"""Equal states have equal futures: what a key leaves out, no later step looks at."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvxfer.core.ids import LinkId
from kvxfer.core.session import Session
from kvxfer.testing.explore.agents import START_MS, Agents, Step, Stepped
from kvxfer.testing.explore.canon import canon
from kvxfer.testing.explore.config import Config
from kvxfer.testing.explore.configs import CONFIGS
from kvxfer.testing.explore.copying import duplicate
from kvxfer.testing.explore.enabled import moves
from kvxfer.testing.explore.moves import apply
from kvxfer.testing.explore.rig import Rig
from kvxfer.testing.explore.state import State
from kvxfer.testing.explore.values import LinkNo

WALK = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
choices = st.lists(st.integers(0, 10_000), min_size=5, max_size=40)
configs = st.sampled_from(CONFIGS)


@attrs.define
class Straight(Agents):
    """Runs every session straight through: nothing is merged, nothing is looked up."""

    def add(self, session: Session, now_ms: int = START_MS) -> int:
        self._numbers.clear()
        return Agents.add(self, session, now_ms)

    def step(self, number: int, step: Step) -> Stepped:
        self._memory.clear()
        return Agents.step(self, number, step)

    def rename(self, number: int, links: tuple[tuple[int, int], ...]) -> int:
        self._renamed.clear()
        return Agents.rename(self, number, links)


def walk(rig: Rig, numbers: list[int]) -> list[State]:
    """A walk whose moves are drawn from those enabled; what was said is in `rig.log`."""
    state = rig.start()
    rig.log = []
    met = [state]
    for number in numbers:
        enabled = moves(rig, state)
        if not enabled:
            break
        state = apply(rig, state, enabled[number % len(enabled)])
        met.append(state)
    return met


@WALK
@given(configs, choices, st.lists(choices, max_size=3))
def test_merged_sessions_do_what_separate_ones_do(
    config: Config, numbers: list[int], earlier: list[list[int]]
) -> None:
    """Whatever else was explored before, a walk goes as if it were the only one."""
    merged, straight = Rig(config), Rig(config, agents=Straight())
    for others in earlier:
        walk(merged, others)
    walk(merged, numbers)
    walk(straight, numbers)
    assert merged.log == straight.log


@WALK
@given(configs, choices)
def test_a_trace_repeats_itself(config: Config, numbers: list[int]) -> None:
    rig = Rig(config)
    first, again = walk(rig, numbers), walk(rig, numbers)
    assert first == again
    assert [hash(state) for state in first] == [hash(state) for state in again]


@WALK
@given(configs, choices)
def test_a_copy_is_equal_and_apart(config: Config, numbers: list[int]) -> None:
    rig = Rig(config)
    for state in walk(rig, numbers):
        for number in state.agents:
            session = rig.agents.session(number)
            now_ms = rig.agents.clock_ms(number)
            before = canon(session, now_ms)
            copy = duplicate(session)
            assert canon(copy, now_ms) == before
            copy.advance(now_ms + 10_000)
            copy.shut_down(now_ms + 10_000)
            assert canon(session, now_ms) == before


@WALK
@given(configs, choices, st.integers(8, 20))
def test_names_of_links_do_not_matter(config: Config, numbers: list[int], shift: int) -> None:
    """Renamed, stepped and renamed back is the same as stepped."""
    rig = Rig(config)
    for state in walk(rig, numbers):
        for cable in state.cables:
            if cable.to_consumer and cable.consumer_open:
                agent, message = state.agents[cable.consumer], cable.to_consumer[0]
                _check_renaming(rig.agents, agent, cable.link, message, shift)


def _check_renaming(agents: Agents, number: int, link: int, message: int, shift: int) -> None:
    held = sorted(agents.facts[number].links)
    there = tuple((old, old + shift) for old in held)
    renamed = agents.rename(number, there)
    plain = agents.step(number, ("receive", link, message)).number
    other = agents.step(renamed, ("receive", link + shift, message)).number
    back = tuple((old + shift, old) for old in sorted(agents.facts[plain].links))
    assert agents.rename(other, back) == plain


def test_where_the_clock_starts_does_not_matter() -> None:
    rig = Rig(CONFIGS[0])
    number = rig.new_session(0, 1000)
    session = duplicate(rig.agents.session(number))
    later_ms = START_MS + 12_345
    key = canon(session, later_ms)
    assert key == canon(rig.agents.session(number), START_MS)
    session.open_link(LinkId(LinkNo(1)), rig.key(1), later_ms)
    opened = duplicate(rig.agents.session(number))
    opened.open_link(LinkId(LinkNo(1)), rig.key(1), START_MS)
    assert canon(session, later_ms) == canon(opened, START_MS)
    assert canon(session, later_ms).links == {1}


@attrs.define
class Unknown:
    """Something that nobody gave a rule for."""

    item: Any = attrs.field(factory=lambda: bytearray(1))


def test_what_has_no_rule_is_refused() -> None:
    with pytest.raises(TypeError, match="no rule to copy a bytearray"):
        duplicate(Unknown())
