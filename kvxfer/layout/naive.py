"""The obvious translation, byte by byte: the oracle for tests and vectors.

Owns nothing but the address formula of the specification (7.2), written out.
Shares no code with `translate`, on purpose. Slow, on purpose.
"""

from __future__ import annotations

from kvxfer.layout.geometry import BlockTable, Shard


def address(
    shard: Shard, table: BlockTable, plane: str, layer: str, token: int, head: int, byte: int
) -> int:
    """Absolute address of one content byte."""
    group = shard.groups[table.group]
    found = next(p for p in group.planes if p.name == plane)
    offset = token - table.first_token
    entry, inside = divmod(offset, group.tokens_per_block)
    part, slot = divmod(inside, group.tokens_per_block // group.physical_per_block)
    block = int(table.blocks[entry]) * group.physical_per_block + part
    return (
        shard.areas[found.area].base
        + found.offset
        + group.layers.index(layer) * group.stride_layer
        + block * group.stride_block
        + (head - group.head_start) * group.stride_head
        + slot * group.stride_slot
        + byte
    )


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
        for layer in (name for name in there.layers if name in here.layers):
            start = max(here.head_start, there.head_start)
            stop = min(here.head_stop, there.head_stop)
            for head in range(start, stop):
                for token in range(token_start, token_stop):
                    for byte in range(plane.content_bytes):
                        at = (plane.name, layer, token, head, byte)
                        pairs[address(dst, target, *at)] = address(src, source, *at)
    return pairs
