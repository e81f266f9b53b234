"""Layout: pairs of descriptors with the bytes that must be copied, or why they are refused (7).

The ranges come from the formula of the specification, byte by byte (`kvxfer.layout.naive`),
not from the translation that the vectors judge.

    python spec/vectorgen/layout.py           write vectors/layout.json
    python spec/vectorgen/layout.py --check   exit 1 where it is out of date
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

if str(Path(__file__).resolve().parents[1]) not in sys.path:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from kvxfer.layout.edges import Edge, edges_of
from kvxfer.layout.geometry import BlockTable, Shard
from kvxfer.layout.naive import address, owns
from vectorgen import layout_accept, layout_reject

Plain = dict[str, Any]
PATH = Path(__file__).resolve().parents[1] / "vectors" / "layout.json"

NOTES = [
    "source and target are the descriptors of one producer rank and one consumer rank; the tables"
    " name their blocks of one request, and `tokens` are those that the consumer lacks.",
    "accept: `parts` are all that this producer rank has to write, one for each group, with no"
    " further cut. `uncovered` is given where a block is not full.",
    "reject: the pair is refused with `reason`. Where `stage` is table the link comes up, and the"
    " part is never posted.",
    "Descriptors leave out keys that have the value which absence stands for.",
]


def layout_file() -> Plain:
    """The whole file."""
    cases = [_accepted(case) for case in layout_accept.cases()] + layout_reject.cases()
    return {"protocol": "kvxfer-1", "part": "layout", "notes": NOTES, "vectors": cases}


def _accepted(case: layout_accept.Case) -> Plain:
    source, target = layout_accept.tables(case)
    edges = edges_of(case.source, case.target, case.source.rank, case.target.rank)
    return {
        "id": case.id,
        "note": case.note,
        "flags": [],
        "rules": list(case.rules),
        "verdict": "accept",
        "source": layout_accept.plain(case.source, case.extra),
        "target": layout_accept.plain(case.target, case.extra),
        "source_tables": [_table(one) for one in source],
        "target_tables": [_table(one) for one in target],
        "tokens": list(case.tokens),
        "parts": [
            _part(case, [e for e in edges if e.consumer_group == group], source, target)
            for group in sorted({edge.consumer_group for edge in edges})
        ],
    }


def _table(table: BlockTable) -> Plain:
    blocks = table.blocks.tolist()
    return {"group": table.group, "first_token": table.first_token, "blocks": blocks}


def _part(
    case: layout_accept.Case,
    edges: Sequence[Edge],
    sources: Sequence[BlockTable],
    targets: Sequence[BlockTable],
) -> Plain:
    index = edges[0].consumer_group
    group = case.target.groups[index]
    start, stop = case.tokens
    if group.reach is not None:
        start = max(start, stop - group.reach)
    source = next(t for t in sources if t.group == edges[0].producer_group)
    target = next(t for t in targets if t.group == index)
    pairs: dict[int, int] = {}
    for edge in edges:
        pairs |= _pairs(case, edge, source, target, (start, stop))
    whole: Plain = {
        "part": [case.source.rank, index, start, stop],
        "ranges": [
            [*_place(case.source, src, size), *_place(case.target, dst, size), size]
            for src, dst, size in _runs(case, pairs)
        ],
    }
    left = _left(case, target, (start, stop))
    if left:
        whole["uncovered"] = left
    return whole


def _pairs(
    case: layout_accept.Case,
    edge: Edge,
    source: BlockTable,
    target: BlockTable,
    tokens: tuple[int, int],
) -> dict[int, int]:
    """Target address to source address of every byte of one edge."""
    here = case.source.groups[source.group]
    there = case.target.groups[target.group]
    pairs = {}
    for plane in there.planes:
        if plane.name != edge.plane if edge.plane else plane.split is not None:
            continue
        for token in range(*tokens):
            if not (owns(here, token) and owns(there, token)):
                continue
            for layer in edge.layers:
                for head in range(edge.head_start, edge.head_stop):
                    for byte in range(plane.content_bytes):
                        at = (plane.name, layer, token, head, byte)
                        to = address(case.target, target, *at)
                        pairs[to] = address(case.source, source, *at)
    return pairs


def _left(case: layout_accept.Case, table: BlockTable, tokens: tuple[int, int]) -> list[list[int]]:
    """Bytes behind the last token in the last block that holds one."""
    group = case.target.groups[table.group]
    size = group.tokens_per_block * group.context_size
    if size > 1 << 16:
        return []
    end = table.first_token - (table.first_token - tokens[1]) // size * size

    def bytes_of(span: Iterable[int]) -> set[int]:
        return {
            address(case.target, table, plane.name, layer, token, head, byte)
            for plane in group.planes
            for layer in group.layers
            for token in span
            if owns(group, token)
            for head in range(*layout_accept.heads_of(group, plane))
            for byte in range(plane.content_bytes)
        }

    rest = bytes_of(range(tokens[1], end)) - bytes_of([tokens[1] - 1])
    runs = _runs(case, {at: at for at in rest}, both=False)
    return [[*_place(case.target, dst, size), size] for _, dst, size in runs]


def _runs(
    case: layout_accept.Case, pairs: dict[int, int], both: bool = True
) -> list[tuple[int, int, int]]:
    """(source, target, bytes), joined where they touch on both sides within an area."""
    runs: list[list[int]] = []
    for dst in sorted(pairs):
        src = pairs[dst]
        if runs:
            last = runs[-1]
            touches = (last[0] + last[2], last[1] + last[2]) == (src, dst)
            same = _area(case.target, dst) == _area(case.target, last[1])
            if both:
                same = same and _area(case.source, src) == _area(case.source, last[0])
            if touches and same:
                last[2] += 1
                continue
        runs.append([src, dst, 1])
    placed = [(run[0], run[1], run[2]) for run in runs]
    return sorted(placed, key=lambda run: _place(case.target, run[1], run[2]))


def _area(shard: Shard, at: int) -> int:
    return next(n for n, a in enumerate(shard.areas) if a.base <= at < a.base + a.length)


def _place(shard: Shard, at: int, size: int) -> tuple[int, int]:
    index = _area(shard, at)
    area = shard.areas[index]
    assert at + size <= area.base + area.length
    return index, at - area.base


def text_of(whole: Plain) -> str:
    """JSON with a line for each key of a case."""
    head = {key: value for key, value in whole.items() if key != "vectors"}
    lines = json.dumps(head, indent=1)[:-2] + ',\n "vectors": ['
    return lines + ",".join(_case(case) for case in whole["vectors"]) + "\n ]\n}\n"


def _case(case: Plain) -> str:
    rows = [f"   {json.dumps(key)}: {json.dumps(value)}" for key, value in case.items()]
    return "\n  {\n" + ",\n".join(rows) + "\n  }"


def main(arguments: list[str]) -> int:
    text = text_of(layout_file())
    if arguments == ["--check"]:
        return int(not PATH.exists() or PATH.read_text(encoding="utf-8") != text)
    PATH.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
