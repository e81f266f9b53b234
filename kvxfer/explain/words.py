"""The explanation in words and tables, for a terminal.

Owns sentences. Knows no plan: every number comes from the report. Invariant: a refusal
and a missing shard are said as plainly as a range.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kvxfer.explain.cells import memory_order
from kvxfer.explain.joins import Join
from kvxfer.explain.report import EdgeReport, Report
from kvxfer.layout.geometry import Group, Shard


def show(
    console: Console, report: Report, producers: Sequence[Shard], consumers: Sequence[Shard]
) -> None:
    """Print all of the report."""
    console.print(_caches(producers, consumers))
    for text in report.refused:
        console.print(f"refused: {text}", style="bold red", markup=False)
    if report.edges:
        console.print(_edges(report.edges))
    for edge in report.edges:
        _show_edge(console, edge)
    for rank in [shard.rank for shard in consumers]:
        parts = [f"rank {source}/{group}" for source, group in report.parts(rank)]
        if parts:
            noun = "part" if len(parts) == 1 else "parts"
            text = f"consumer rank {rank} waits for {len(parts)} {noun}: {', '.join(parts)}"
            console.print(text, markup=False, highlight=False)


def _caches(producers: Sequence[Shard], consumers: Sequence[Shard]) -> Table:
    table = Table(title="caches", title_justify="left")
    for name in ("", "group", "kind", "tokens per block", "heads", "layers", "content", "memory"):
        table.add_column(name)
    for side, shards in (("producer", producers), ("consumer", consumers)):
        for shard in shards:
            for group in shard.groups:
                table.add_row(f"{side} {shard.rank} of {len(shard.ranks)}", *_group(shard, group))
    return table


def _group(shard: Shard, group: Group) -> list[str]:
    block = str(group.tokens_per_block)
    if group.physical_per_block > 1:
        block += f" ({group.physical_per_block} physical blocks)"
    planes = ", ".join(f"{plane.name} {plane.content_bytes} B" for plane in group.planes)
    return [
        escape(group.name),
        group.kind.name.lower() + (f", last {group.reach}" if group.reach is not None else ""),
        block,
        f"{group.head_start} to {group.head_stop - 1} of {group.heads_total}",
        str(len(group.layers)),
        escape(planes),
        memory_order(shard, group),
    ]


def _edges(edges: Sequence[EdgeReport]) -> Table:
    table = Table(title="edges", title_justify="left")
    for name in ("from", "to", "group", "heads", "layers", "also held by"):
        table.add_column(name)
    for name in ("blocks", "ranges", "bytes each", "in a row"):
        table.add_column(name, justify="right")
    for one in edges:
        edge = one.edge
        others = [str(rank) for rank in one.owner_of if rank != edge.producer_rank]
        table.add_row(
            f"rank {edge.producer_rank}",
            f"rank {edge.consumer_rank}",
            escape(one.group),
            f"{edge.head_start} to {edge.head_stop - 1}",
            _layers(edge.layers),
            ", ".join(others) or "-",
            *_counts(one),
        )
    return table


def _counts(one: EdgeReport) -> list[str]:
    if one.range_bytes is None:
        return ["?", "?", "?", "?"]
    low, high = one.range_bytes
    size = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    return [str(one.blocks), f"{one.ranges:,}", size, f"{one.ranges_in_a_row:,}"]


def _layers(layers: Sequence[str]) -> str:
    if len(layers) == 1:
        return escape(layers[0])
    return f"{len(layers)}: {escape(layers[0])} to {escape(layers[-1])}"


def _show_edge(console: Console, one: EdgeReport) -> None:
    edge = one.edge
    lines = [f"rank {edge.producer_rank} to rank {edge.consumer_rank}, group {one.group}:"]
    if one.missing:
        lines.append(f"  no ranges to show: {one.missing}")
    for join in one.joins:
        lines.append(f"  {join_words(join)}")
        lines += [f"  {left.count} {left.axis}s stay apart: {left.reason}" for left in join.left]
        why = f"do not join: {join.blocks_apart}" if join.blocks_apart else "join to one range"
        lines.append(f"  blocks that are neighbours on both sides {why}")
    if one.way:
        lines.append(f"  way: {one.way} ({one.way_reason})")
    console.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)


def join_words(join: Join) -> str:
    """What one range holds, as '4,096 bytes (512 side by side, all its slots)'."""
    inside = "".join(f", all its {axis}s" for axis in join.joined)
    name = "plane" if len(join.planes) == 1 else "planes"
    text = f"one range of {name} {', '.join(join.planes)}: {join.run_bytes:,} bytes"
    text += f" ({join.content_bytes} side by side{inside})"
    return text + (f", {join.starts} times, unevenly spaced" if join.starts > 1 else "")
