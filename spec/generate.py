"""Rebuild what is derived in spec/: state tables, vectors, the index of rules.

    python spec/generate.py               write
    python spec/generate.py --check       exit 1 where a file is out of date; names it
    python spec/generate.py --read K-1.2  also mark these rules as read again ("all": every one)

In kvxfer-1.md the text between the two markers belongs to this script, in requirements.toml all
but `tests` and `read`; the vector files belong to vectorgen/, all else to people.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
if str(HERE) not in sys.path:
    sys.path.insert(0, str(HERE))

from vectorgen import files, rules  # noqa: E402 - the folder has to be on the path first

from kvxfer.core.machine import Table  # noqa: E402
from kvxfer.core.tables import TABLES  # noqa: E402

SPEC = HERE / "kvxfer-1.md"
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


def everything(read: frozenset[str] = frozenset()) -> dict[Path, str]:
    """Every derived file with the text that it should have."""
    spec = rebuilt(SPEC.read_text(encoding="utf-8"))
    vectors = files.all_files()
    found = {files.VECTORS / f"{name}.json": files.text_of(vectors[name]) for name in files.FILES}
    found[files.DIGESTS] = files.digests_text(vectors)
    found[SPEC] = spec
    found[rules.REQUIREMENTS] = rules.requirements_text(spec, vectors, read)
    found[rules.INDEX] = rules.index_text(spec, vectors)
    return found


def stale() -> list[Path]:
    """Derived files whose text is not what it should be."""
    return [
        path
        for path, text in everything().items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]


def main(arguments: list[str]) -> int:
    if arguments == ["--check"]:
        late = stale()
        for path in late:
            sys.stderr.write(f"out of date: {path.relative_to(HERE)}\n")
        return int(bool(late))
    read = frozenset(arguments[1:]) if arguments[:1] == ["--read"] else frozenset()
    for path, text in everything(read).items():
        path.write_text(text, encoding="utf-8")
    # The index counts the tests of the rows that were just written.
    rules.INDEX.write_text(everything()[rules.INDEX], encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
