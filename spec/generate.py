"""Rebuild the state tables of kvxfer-1.md from the code's tables.

    python spec/generate.py          write
    python spec/generate.py --check  exit 1 where the file is out of date

The text between the two markers belongs to this script; all else to people.
"""

from __future__ import annotations

import sys
from pathlib import Path

from kvxfer.core.machine import Table
from kvxfer.core.tables import TABLES

SPEC = Path(__file__).with_name("kvxfer-1.md")
BEGIN, END = "<!-- tables:begin -->", "<!-- tables:end -->"

TITLES = {
    "request": "REQUEST: one registration, as the consumer's engine sees it",
    "part": "PART: one part at the consumer",
    "writer": "WRITER: one producer's ability to write, for one attempt, at the consumer",
    "reader": "READER: what the own READs of one attempt may still do, at the consumer, in pull",
    "source": "SOURCE: the source blocks of one transfer, at the producer",
    "send": "SEND: one consumer's attempt, at the producer",
    "loan": "LOAN: one consumer's attempt, at the producer, in pull",
    "link": "LINK: the handshake of one link, both sides",
}


def tables_text() -> str:
    """All tables as Markdown, one section and one diagram each."""
    return "\n".join(_section(whole) for whole in TABLES)


def _section(whole: Table) -> str:
    lines = [f"#### {TITLES[whole.name]}", ""]
    lines += ["| state | event | next state | actions, in order |", "|---|---|---|---|"]
    for row in whole.rows:
        for event, (target, actions) in row.on.items():
            done = "; ".join(action.value for action in actions) or "none"
            lines.append(f"| {row.state.value} | {event.value} | {target.value} | {done} |")
        if row.ignored:
            names = sorted(event.value for event in row.ignored)
            ignored = "every event" if not row.on else "; ".join(names)
            lines.append(f"| {row.state.value} | {ignored} | {row.state.value} | ignored |")
    lines += ["", "```mermaid", "stateDiagram-v2", f"    [*] --> {_id(whole.initial)}"]
    for row in whole.rows:
        arrows: dict[str, list[str]] = {}
        for event, (target, _) in row.on.items():
            arrows.setdefault(_id(target), []).append(event.value.replace(":", ""))
        for target_id, events in arrows.items():
            lines.append(f"    {_id(row.state)} --> {target_id}: {', '.join(events)}")
    lines += [f"    {_id(state)} --> [*]" for state in sorted(whole.terminal, key=_id)]
    return "\n".join([*lines, "```", ""])


def _id(state: object) -> str:
    return str(getattr(state, "name", state))


def rebuilt(text: str) -> str:
    """The specification with fresh tables. ValueError where a marker is missing."""
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{SPEC.name} lacks {BEGIN} or {END}")
    return f"{head}{BEGIN}\n\n{tables_text()}\n{END}{tail}"


def main(arguments: list[str]) -> int:
    old = SPEC.read_text(encoding="utf-8")
    new = rebuilt(old)
    if arguments == ["--check"]:
        return int(new != old)
    SPEC.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
