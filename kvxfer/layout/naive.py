"""The obvious translation, byte by byte: the oracle for tests and vectors.

Owns nothing but the address formula of the specification (7.2), written out.
Shares no code with `translate`, on purpose. Slow, on purpose.
"""

from __future__ import annotations

from kvxfer.layout.geometry import BlockTable, Group, Plane, Shard


def owns(group: Group, token: int) -> bool:
    """Is the token at this context rank?"""
    return token // group.context_interleave % group.context_size == group.context_rank


def address(
    shard: Shard, table: BlockTable, plane: str, layer: str, token: int, head: int, byte: int
) -> int:
    """Absolute address of one content byte of the slot in which a token lies."""
    group = shard.groups[table.group]
    found = next(p for p in group.planes if p.name == plane)
    place = group.layers.index(layer)
    # The token's number among those that this rank owns, from the table's first on.
    period = group.context_size * group.context_interleave
    local = token // period * group.context_interleave + token % group.context_interleave
    local -= table.first_token // group.context_size
    entry, inside = divmod(local, group.tokens_per_block)
    part, inside = divmod(inside, group.tokens_per_block // group.physical_per_block)
    slot = inside // _or(found.tokens_per_state, group.tokens_per_state)
    block = int(table.blocks[entry]) * group.physical_per_block + part
    element, rest = divmod(byte, _or(found.element_bytes, found.content_bytes))
    at = found.offset
    if found.layer_areas:
        at += shard.areas[found.layer_areas[place]].base
    else:
        at += shard.areas[found.area].base
        at += place * _or(found.stride_layer, group.stride_layer)
    at += block * _or(found.stride_block, group.stride_block)
    at += (head - heads(group, found)[0]) * _or(found.stride_head, group.stride_head)
    at += slot * _or(found.stride_slot, group.stride_slot)
    stride_element = _or(found.stride_element, _or(found.element_bytes, found.content_bytes))
    return at + element * stride_element + rest


def heads(group: Group, plane: Plane) -> tuple[int, int]:
    """Heads of a plane that are held here: [start, stop)."""
    if plane.split is not None:
        return plane.split.start, plane.split.stop
    return group.head_start, group.head_stop


def naive_plan(
    src: Shard,
    dst: Shard,
    source: BlockTable,
    target: BlockTable,
    token_start: int,
    token_stop: int,
) -> dict[int, int]:
    """Target address -> source address of every byte that both shards hold."""
    here, there = src.groups[source.group], dst.groups[target.group]
    pairs = {}
    for plane in there.planes:
        mine = next(p for p in here.planes if p.name == plane.name)
        start = max(heads(here, mine)[0], heads(there, plane)[0])
        stop = min(heads(here, mine)[1], heads(there, plane)[1])
        for layer in (name for name in there.layers if name in here.layers):
            for head in range(start, stop):
                for token in range(token_start, token_stop):
                    if not (owns(here, token) and owns(there, token)):
                        continue
                    for byte in range(plane.content_bytes):
                        at = (plane.name, layer, token, head, byte)
                        pairs[address(dst, target, *at)] = address(src, source, *at)
    return pairs


def _or(own: int | None, groups: int) -> int:
    return groups if own is None else own
