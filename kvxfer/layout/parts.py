"""The boxes that the parts of one edge name: tokens by layers of one group.

Owns the cutting of a request into parts that can be written one after the other, and
what both sides must derive alike (spec 6.4, 7.4). Knows no messages. Invariant: the
boxes of a request tile the slots that it needs, none twice, and no box is empty.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import attrs

from kvxfer.errors import BadValue, LayoutMismatch
from kvxfer.layout.edges import Edge
from kvxfer.layout.geometry import BlockTable, Group, GroupKind, Shard
from kvxfer.layout.grid import grain_of
from kvxfer.layout.match import state_tokens
from kvxfer.layout.tokens import share_of, shared_tokens, wanted_tokens

SPANS_MAX = 1 << 16
"""Cuts of one request's tokens: a grid that asks for more is a mistake."""


@attrs.frozen(kw_only=True)
class Box:
    """Tokens [token_start, token_stop) of the consumer's group `group`, in the layers at
    positions [layer_start, layer_stop) of the producer rank's own list (spec 6.4)."""

    group: int
    token_start: int
    token_stop: int
    layer_start: int
    layer_stop: int


def part_boxes(
    src: Shard,
    dst: Shard,
    edges: Sequence[Edge],
    token_start: int,
    token_stop: int,
    *,
    grid_tokens: int | None = None,
    grid_layers: int | None = None,
) -> tuple[Box, ...]:
    """What the producer rank `src` has to write for a request at the consumer rank `dst`.

    `edges` are those of this pair. The consumer lacks tokens [token_start, token_stop).
    Tokens are cut at multiples of `grid_tokens`, which is rounded up to whole states,
    and the last tokens also at multiples of `grid_layers` layers: a chunked prefill has
    written all the others long before. None: no cut. Both sides get the same boxes,
    by ascending group, token and layer.
    """
    boxes: list[Box] = []
    for index in sorted({edge.consumer_group for edge in edges}):
        mine = [edge for edge in edges if edge.consumer_group == index]
        here, there = src.groups[mine[0].producer_group], dst.groups[index]
        spans = token_spans(there, token_start, token_stop, grid_tokens)
        for span in spans:
            if shared_tokens(share_of(here), share_of(there), *span):
                cuts = layer_spans(here, mine, grid_layers if span == spans[-1] else None)
                boxes += [_box(index, span, layers) for layers in cuts]
    return tuple(boxes)


def _box(group: int, tokens: tuple[int, int], layers: tuple[int, int]) -> Box:
    return Box(
        group=group,
        token_start=tokens[0],
        token_stop=tokens[1],
        layer_start=layers[0],
        layer_stop=layers[1],
    )


def token_spans(
    group: Group, token_start: int, token_stop: int, grid_tokens: int | None = None
) -> list[tuple[int, int]]:
    """The wanted tokens of a group, cut at multiples of the grid, in order."""
    start, stop = wanted_tokens(group, token_start, token_stop)
    if start >= stop:
        return []
    if grid_tokens is None:
        return [(start, stop)]
    if grid_tokens < 1:
        raise BadValue("grid_tokens", grid_tokens, "at least 1")
    grain = grain_of(group)
    step = -(-grid_tokens // grain) * grain
    if (stop - start) // step > SPANS_MAX:
        raise BadValue("grid_tokens", grid_tokens, f"at most {SPANS_MAX} cuts of {stop - start}")
    borders = [start, *range(start - start % step + step, stop, step), stop]
    return list(itertools.pairwise(borders))


def layer_spans(
    group: Group, edges: Sequence[Edge], grid_layers: int | None = None
) -> list[tuple[int, int]]:
    """Positions in the producer's list, cut at multiples of the grid, that an edge moves.

    A state moves whole: layers that run ahead of the tokens may hold that of a later token.
    """
    if grid_layers is None or group.kind is GroupKind.STATE:
        return [(0, len(group.layers))]
    if grid_layers < 1:
        raise BadValue("grid_layers", grid_layers, "at least 1")
    moved = {layer for edge in edges for layer in edge.layers}
    borders = [*range(0, len(group.layers), grid_layers), len(group.layers)]
    spans = itertools.pairwise(borders)
    return [(a, b) for a, b in spans if moved.intersection(group.layers[a:b])]


def bytes_wanted(shard: Shard, token_start: int, token_stop: int) -> int:
    """Bytes that land in a shard for a request that lacks these tokens, padding not counted."""
    total = 0
    for group in shard.groups:
        start, stop = (
            share_of(group).position(token)
            for token in wanted_tokens(group, token_start, token_stop)
        )
        if start >= stop:
            continue
        for plane in group.planes:
            tokens = state_tokens(group, plane)
            span = (group.head_start, group.head_stop)
            if plane.split is not None:
                span = (plane.split.start, plane.split.stop)
            slots = -(-stop // tokens) - start // tokens
            total += slots * (span[1] - span[0]) * len(group.layers) * plane.content_bytes
    return total


def groups_left_out(
    shard: Shard, token_start: int, token_stop: int, covered: Iterable[int]
) -> list[str]:
    """Names of groups that need tokens of the request and are not among `covered`."""
    found = set(covered)
    names = []
    for index, group in enumerate(shard.groups):
        start, stop = wanted_tokens(group, token_start, token_stop)
        if index not in found and shared_tokens(share_of(group), share_of(group), start, stop):
            names.append(group.name)
    return names


def check_state(group: Group, table: BlockTable, token_stop: int, tokens_final: int) -> None:
    """Raise LayoutMismatch where a state page does not hold the state after `token_stop` tokens.

    A page holds the state after its last token, or after the last one there is. Pages
    at checkpoints may lie before the end of the prompt; a running state may not.
    """
    if group.kind is not GroupKind.STATE:
        return
    into = token_stop - 1 - table.first_token
    page_stop = table.first_token + (into // group.tokens_per_block + 1) * group.tokens_per_block
    state = min(page_stop, tokens_final)
    if state != token_stop:
        raise LayoutMismatch(
            f"group {group.name!r}: the page holds the state after {state} tokens, "
            f"the one after {token_stop} is wanted"
        )


def edges_in(src: Shard, edges: Sequence[Edge], box: Box) -> tuple[Edge, ...]:
    """The edges of a box's group, each with the box's layers only; none without a layer."""
    mine = [edge for edge in edges if edge.consumer_group == box.group]
    found = []
    for edge in mine:
        group = src.groups[edge.producer_group]
        named = frozenset(group.layers[box.layer_start : box.layer_stop])
        kept = tuple(layer for layer in edge.layers if layer in named)
        if kept:
            found.append(attrs.evolve(edge, layers=kept))
    return tuple(found)
