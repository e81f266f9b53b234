"""Pairs that are refused: one fault each, in a pair that would be served without it."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import attrs

from kvxfer.layout.geometry import GroupKind, Plane, Shard, Split
from kvxfer.layout.plain import shard_to_plain
from vectorgen.layout_accept import (
    D_BASE,
    P_BASE,
    alone,
    engine,
    group_of,
    shared,
    windowed,
)

Plain = dict[str, Any]
Path = Sequence[str | int]
GONE = object()
GROUP: Path = ("groups", 0)
PLANE: Path = ("groups", 0, "planes", 0)
OWN: Path = ("ranks", 0, "holdings", 0)


def cases() -> list[Plain]:
    return [*_forms(), *_bounds(), *_boxes(), *_kinds(), *_maps(), *_edges(), *_tables()]


def _pair() -> tuple[Plain, Plain]:
    planes = {"planes": ("k", "v"), "null_block": 0}
    source, target = engine(**planes)[0], engine("LBNHC", D_BASE, **planes)[0]
    return shard_to_plain(source), shard_to_plain(target)


def _changed(whole: Plain, *changes: tuple[Path, Any]) -> Plain:
    whole = copy.deepcopy(whole)
    for path, value in changes:
        place: Any = whole
        for key in path[:-1]:
            place = place[key]
        if value is GONE:
            del place[path[-1]]
        else:
            place[path[-1]] = value
    return whole


def _case(
    name: str, note: str, rule: str, source: Any, target: Any, stage: str, side: str, **more: Any
) -> Plain:
    reason = "OUT_OF_BOUNDS" if stage == "table" else "LAYOUT_REFUSED"
    return {
        "id": name,
        "note": note,
        "flags": [],
        "rules": [rule],
        "verdict": "reject",
        "source": source,
        "target": target,
        **more,
        "stage": stage,
        "reason": reason,
        "side": side,
    }


def _wrong(name: str, note: str, rule: str, *changes: tuple[Path, Any], **other: Any) -> Plain:
    """A descriptor with a fault, at the consumer; the producer's is as it should be."""
    source, target = (shard_to_plain(s) for s in other["pair"]) if other else _pair()
    return _case(name, note, rule, source, _changed(target, *changes), "descriptor", "target")


def _forms() -> list[Plain]:
    source, target = _pair()
    rule = "K-7.3.1"
    return [
        _case("not-a-map", "The descriptor is an array.", rule, source, [], "descriptor", "target"),
        _case("null", "The descriptor is null.", rule, None, target, "descriptor", "source"),
        _wrong("no-groups", "An array of groups is there, but empty.", rule, (("groups",), [])),
        _wrong("no-areas-key", "The key of the areas is missing.", rule, (("areas",), GONE)),
        _wrong("text-for-a-number", "A stride is text.", rule, ((*GROUP, "stride_block"), "64")),
        _wrong("negative", "A stride is below 0.", rule, ((*GROUP, "stride_block"), -64)),
        _wrong("too-large", "An offset is 2^64.", rule, ((*PLANE, "offset"), 1 << 64)),
        _wrong("truth-for-a-number", "The rank is a truth value.", rule, (("rank",), False)),
        _wrong("empty-name", "A group has an empty name.", rule, ((*GROUP, "name"), "")),
        _wrong("null-for-a-number", "tokens_per_state of the group is null.", rule,
               ((*GROUP, "tokens_per_state"), None)),
        _wrong("unknown-kind", "The registry has no group kind 6.", rule, ((*GROUP, "kind"), 6)),
        _wrong("split-not-a-map", "A split is a number.", rule, ((*PLANE, "split"), 2)),
    ]  # fmt: skip


def _bounds() -> list[Plain]:
    _, target = _pair()
    group = target["groups"][0]
    twice = (("groups",), [group, group])
    return [
        _wrong("group-twice", "Two groups have the same name.", "K-7.3.1", twice,
               ((*OWN[:-1],), [target["ranks"][0]["holdings"][0]] * 2)),
        _wrong("layer-twice", "Two layers have the same key.", "K-7.3.1",
               ((*GROUP, "layers"), ["a", "a"]), ((*OWN, "layers"), ["a", "a"])),
        _wrong("no-planes", "A group has no plane.", "K-7.3.1", ((*GROUP, "planes"), [])),
        _wrong("plane-twice", "Two planes have the same name.", "K-7.3.1", ((*PLANE, "name"), "v")),
        _wrong("area-past-the-end", "An area ends above 2^64-1.", "K-7.3.2",
               (("areas", 0, "base"), (1 << 64) - 8)),
        _wrong("area-of-nothing", "An area has no bytes.", "K-7.3.2", (("areas", 0, "length"), 0)),
        _wrong("uneven-physical", "3 physical blocks do not make 4 tokens.", "K-7.3.3",
               ((*GROUP, "physical_per_block"), 3)),
        _wrong("no-heads", "head_stop is not above head_start.", "K-7.3.3",
               ((*GROUP, "head_stop"), 0)),
        _wrong("heads-past-the-total", "head_stop is above heads_total.", "K-7.3.3",
               ((*GROUP, "head_stop"), 3)),
        _wrong("content-of-nothing", "A plane has no content.", "K-7.3.4",
               ((*PLANE, "content_bytes"), 0)),
        _wrong("tokens-past-the-bound", "tokens_per_block is above 2^40.", "K-7.3.4",
               ((*GROUP, "tokens_per_block"), (1 << 40) + 1)),
        _wrong("uneven-states", "States of 3 tokens in a block of 4.", "K-7.3.8",
               ((*GROUP, "tokens_per_state"), 3)),
        _wrong("uneven-states-of-a-plane", "A plane's states are larger than its block.", "K-7.3.8",
               ((*PLANE, "tokens_per_state"), 8)),
        _wrong("uneven-elements", "Elements of 3 bytes in a content of 4.", "K-7.3.8",
               ((*PLANE, "element_bytes"), 3)),
        _wrong("split-of-nothing", "A split stops where it starts.", "K-7.3.9",
               ((*PLANE, "split"), {"total": 2, "start": 1, "stop": 1})),
        _wrong("split-past-its-total", "A split stops above its total.", "K-7.3.9",
               ((*PLANE, "split"), {"total": 2, "start": 1, "stop": 3})),
    ]  # fmt: skip


def _boxes() -> list[Plain]:
    _, target = _pair()
    plane = target["groups"][0]["planes"][0]
    half = [
        {"base": D_BASE + n * 100, "length": 256, "kind": "dram", "device": 0} for n in range(2)
    ]
    split = {"total": 2, "start": 0, "stop": 2}
    own = [{"plane": name, "start": 0, "stop": 2} for name in ("k", "v")]
    return [
        _wrong("outside-its-area", "The last block ends a byte behind the area.", "K-7.3.5",
               (("areas", 0, "length"), target["areas"][0]["length"] - 1)),
        _wrong("area-that-is-not-there", "A plane is in area 1 of one.", "K-7.3.5",
               ((*PLANE, "area"), 1)),
        _wrong("slots-overlap", "Slots are nearer than their content is long.", "K-7.3.6",
               ((*GROUP, "stride_slot"), 3)),
        _wrong("layers-overlap", "All layers lie at one place.", "K-7.3.6",
               ((*GROUP, "stride_layer"), 0)),
        _wrong("elements-overlap", "Elements of two bytes one byte apart.", "K-7.3.6",
               ((*PLANE, "element_bytes"), 2), ((*PLANE, "stride_element"), 1)),
        _wrong("planes-overlap", "V starts at the second byte of K.", "K-7.3.6",
               (("groups", 0, "planes", 1, "offset"), plane["offset"] + 1)),
        _wrong("every-plane-split", "No plane goes with the group's heads.", "K-7.3.9",
               ((*PLANE, "split"), split), (("groups", 0, "planes", 1, "split"), split),
               ((*OWN, "splits"), own)),
        _wrong("too-few-layer-areas", "One area for two layers.", "K-7.3.10",
               ((*PLANE, "layer_areas"), [0])),
        _wrong("layer-areas-overlap", "The areas of two layers share bytes.", "K-7.3.10",
               (("areas",), half), ((*PLANE, "layer_areas"), [0, 1]),
               pair=(engine()[0], engine(base=D_BASE)[0])),
    ]  # fmt: skip


def _kinds() -> list[Plain]:
    rank = "context_rank"
    pair = (shared(P_BASE, 2, 2)[0], shared(D_BASE, 2, 2)[0])
    return [
        _wrong("full-with-a-reach", "A group of kind FULL has a reach.", "K-7.3.13",
               ((*GROUP, "reach"), 4)),
        _wrong("window-without-a-reach", "A window of unknown length.", "K-7.3.13",
               ((*GROUP, "kind"), 2)),
        _wrong("latent-with-heads", "A latent of two heads.", "K-7.3.14", ((*GROUP, "kind"), 3)),
        _wrong("state-of-one-token", "A state page with a slot for each token.", "K-7.3.15",
               ((*GROUP, "kind"), 4), ((*GROUP, "reach"), 1)),
        _wrong("page-without-a-fingerprint", "An opaque page that nothing is said about.",
               "K-7.3.16", ((*GROUP, "kind"), 5), ((*GROUP, "tokens_per_state"), 4)),
        _wrong("context-rank-past-the-size", "Context rank 2 of two.", "K-7.3.11",
               ((*GROUP, rank), 2), ((*OWN, rank), 2), pair=pair),
        _wrong("context-interleave-uneven", "Turns of 3 tokens in blocks of 4.", "K-7.3.11",
               ((*GROUP, "context_interleave"), 3), ((*OWN, "context_interleave"), 3),
               (("ranks", 1, "holdings", 0, "context_interleave"), 3), pair=pair),
        _wrong("context-tears-a-state", "Turns of one token, states of two.", "K-7.3.11",
               ((*GROUP, "tokens_per_state"), 2), ((*GROUP, "context_interleave"), 1),
               ((*OWN, "context_interleave"), 1),
               (("ranks", 1, "holdings", 0, "context_interleave"), 1), pair=pair),
        _wrong("contexts-differ-within-an-engine", "Rank 1 takes other turns than rank 0.",
               "K-7.3.12", (("ranks", 1, "holdings", 0, "context_interleave"), 1), pair=pair),
    ]  # fmt: skip


def _maps() -> list[Plain]:
    return [
        _wrong("not-in-its-map", "The rank map lacks the shard's own rank.", "K-7.3.7",
               (("ranks", 0, "rank"), 9)),
        _wrong("map-says-other-heads", "The map gives this rank one head of its two.", "K-7.3.7",
               ((*OWN, "head_stop"), 1)),
        _wrong("map-hides-a-split", "The map does not know that a plane is split.", "K-7.3.7",
               ((*PLANE, "split"), {"total": 2, "start": 0, "stop": 2})),
        _wrong("map-hides-a-context", "The map does not know of other ranks' tokens.", "K-7.3.7",
               ((*GROUP, "context_size"), 2), ((*GROUP, "context_interleave"), 2)),
    ]  # fmt: skip


def _edges() -> list[Plain]:
    def refused(name: str, note: str, rule: str, source: Shard, target: Shard) -> Plain:
        pair = shard_to_plain(source), shard_to_plain(target)
        return _case(name, note, rule, *pair, "edges", "both")

    mine, theirs = engine()[0], engine(base=D_BASE)[0]

    def other(**changes: Any) -> Shard:
        return alone(group_of(theirs, **changes), D_BASE)

    def part(total: int | None) -> Plane:
        split = None if total is None else Split(total=total, start=0, stop=2)
        return Plane(name="part", area=0, offset=512, content_bytes=4, split=split)

    plane = theirs.groups[0].planes[0]
    scale = attrs.evolve(plane, tokens_per_state=4, stride_slot=4)
    threes = attrs.evolve(
        mine.groups[0].planes[0], content_bytes=12, element_bytes=6, stride_element=6
    )
    fours = attrs.evolve(threes, element_bytes=4, stride_element=4)
    wide = {"stride_slot": 12, "stride_head": 48, "stride_block": 96, "stride_layer": 768}
    half = shared(P_BASE, 2, 2)
    lost = attrs.evolve(half[0], ranks=half[0].ranks[:1])
    page = {"kind": GroupKind.PAGE, "tokens_per_state": 4}
    packed = [
        alone(group_of(s, fingerprint=name, **page), base)
        for s, name, base in ((mine, "amx", P_BASE), (theirs, "avx", D_BASE))
    ]
    return [
        refused("other-group", "The producer has no group of that name.", "K-7.4.1",
                mine, engine(base=D_BASE, group="latent")[0]),
        refused("other-kind", "FULL at the producer, WINDOW at the consumer.", "K-7.4.1",
                mine, other(kind=GroupKind.WINDOW, reach=8)),
        refused("other-heads", "Models with two heads and with four.", "K-7.4.1",
                mine, engine(base=D_BASE, heads_total=4)[0]),
        refused("other-reach", "Windows of different length.", "K-7.4.1",
                windowed(P_BASE), windowed(D_BASE, reach=6)),
        refused("other-content", "Four bytes a head at the producer, eight at the consumer.",
                "K-7.4.1", mine, engine(base=D_BASE, content_bytes=8)[0]),
        refused("other-planes", "K and V in one plane, and in two.", "K-7.4.1",
                mine, engine(base=D_BASE, planes=("k", "v"))[0]),
        refused("other-fingerprint", "Opaque pages with unlike insides.", "K-7.4.1", *packed),
        refused("no-giver-for-a-layer", "No producer holds layer c.", "K-7.4.3",
                mine, engine(base=D_BASE, layers=("a", "b", "c"))[0]),
        refused("no-giver-for-a-head", "The only producer rank holds head 0 of two.", "K-7.4.3",
                alone(group_of(mine, head_stop=1)), theirs),
        refused("no-giver-for-tokens", "Nobody holds the tokens of context rank 1.", "K-7.4.3",
                lost, shared(D_BASE, 1, 1)[0]),
        refused("other-states", "A scale for each token, and one for a block.", "K-7.4.4",
                mine, other(planes=(scale,))),
        refused("scales-of-unlike-blocks", "One scale for 4 tokens, and one for 8.", "K-7.4.4",
                alone(group_of(mine, planes=(scale,))),
                other(planes=(attrs.evolve(scale, tokens_per_state=8),), tokens_per_block=8)),
        refused("other-split", "A plane split over two units, and over four.", "K-7.4.4",
                *(alone(group_of(s, planes=(s.groups[0].planes[0], part(total))), base)
                  for s, total, base in ((mine, 2, P_BASE), (theirs, 4, D_BASE)))),
        refused("split-at-one-side", "A plane with a split of its own, and one with the group's.",
                "K-7.4.4",
                *(alone(group_of(s, planes=(s.groups[0].planes[0], part(total))), base)
                  for s, total, base in ((mine, None, P_BASE), (theirs, 2, D_BASE)))),
        refused("elements-of-6-and-4", "Neither size divides the other.", "K-7.4.5",
                alone(group_of(mine, planes=(threes,), **wide)),
                other(planes=(fours,), **wide)),
    ]  # fmt: skip


def _tables() -> list[Plain]:
    def refused(
        name: str,
        note: str,
        rule: str,
        blocks: list[int],
        *,
        side: str = "target",
        first: int = 0,
        group: int = 0,
        pair: tuple[Shard, Shard] | None = None,
        tokens: tuple[int, int] = (0, 8),
    ) -> Plain:
        whole = pair or (engine(null_block=0)[0], engine(base=D_BASE, null_block=0)[0])
        good = [{"group": 0, "first_token": 0, "blocks": [5, 2, 3]}]
        bad = [{"group": group, "first_token": first, "blocks": blocks}]
        source, target = (good, bad) if side == "target" else (bad, good)
        return _case(
            name,
            note,
            rule,
            *(shard_to_plain(shard) for shard in whole),
            "table",
            side,
            source_tables=source,
            target_tables=target,
            tokens=list(tokens),
        )

    windows = (windowed(P_BASE), windowed(D_BASE))
    states = tuple(
        alone(group_of(engine(base=base)[0], tokens_per_state=2, tokens_per_block=8), base)
        for base in (P_BASE, D_BASE)
    )
    return [
        refused("table-too-short", "The blocks end at token 4 of 8.", "K-6.2.4", [5]),
        refused("table-starts-too-late", "The blocks start at 4.", "K-6.2.4", [5, 6], first=4),
        refused("source-too-short", "The producer's blocks end at token 4 of 8.", "K-6.2.4", [5],
                side="source"),
        refused("no-table", "The only table is of another group.", "K-6.2.4", [5, 6], group=1),
        refused("block-outside-the-pool", "Block 8 of eight.", "K-6.2.5", [5, 8]),
        refused("negative-block", "A block below 0.", "K-6.2.5", [5, -1]),
        refused("null-block", "The null block in the place of a wanted token.", "K-6.2.5", [5, 0]),
        refused("source-null-block", "The producer has dropped a wanted block.", "K-6.2.5", [0, 5],
                side="source"),
        refused("block-twice", "One block for two parts of the sequence.", "K-6.2.5", [5, 5]),
        refused("null-in-a-window", "A block of the window is null.", "K-6.2.5", [3, 0, 4],
                pair=windows, tokens=(0, 10)),
        refused("table-tears-a-state", "Entry 0 starts in the middle of a state.", "K-7.2.3",
                [5, 6], first=3, pair=(states[0], states[1]), tokens=(4, 8)),
    ]  # fmt: skip
