"""A trace as a person reads it: every move, and what it led to.

Owns the wording of a transcript. Knows no rule. Invariant: the same trace gives
the same text.
"""

from __future__ import annotations

from kvxfer.testing.between import Violation
from kvxfer.testing.explore.checks import check, check_idle, check_rest
from kvxfer.testing.explore.config import Config
from kvxfer.testing.explore.enabled import under_way
from kvxfer.testing.explore.moves import apply
from kvxfer.testing.explore.rest import STEPS_MAX, friendly_step
from kvxfer.testing.explore.rig import Rig
from kvxfer.testing.explore.search import Found
from kvxfer.testing.explore.state import State

INDENT = "     "


def transcript(config: Config, found: Found) -> str:
    """The shortest way to a violation, step by step."""
    lines = [f"configuration {config.name}: {config.about}", ""]
    rig = Rig(config)
    state = rig.start()
    rig.log = []
    head = INDENT
    try:
        for number, move in enumerate(found.trace, 1):
            head = f"{number:3d}  "
            state = apply(rig, state, move)
            _take(rig, lines, head)
            head = INDENT
            check(rig, state)
        if found.in_rest:
            lines.append(f"{INDENT}from here all goes well:")
            _to_rest(rig, state, lines)
    except Violation as violation:
        _take(rig, lines, head)
        lines.append(f"{INDENT}{violation}")
    return "\n".join(lines) + "\n"


def _to_rest(rig: Rig, state: State, lines: list[str]) -> None:
    for _ in range(STEPS_MAX):
        if under_way(state) is None:
            check_idle(rig, state)
        after = friendly_step(rig, state)
        _take(rig, lines, INDENT)
        if after is None:
            check_rest(rig, state)
            return
        state = after
        check(rig, state)
    raise Violation(f"C2: no rest after {STEPS_MAX} steps in which all goes well")


def _take(rig: Rig, lines: list[str], head: str) -> None:
    """Move what was said to the text; only its first line carries the move's number."""
    for line in rig.log or []:
        lines.append(head + line)
        head = INDENT
    rig.log = []
