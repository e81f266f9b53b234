"""Layout descriptors in JSON files: one shard, or a list of the shards of one engine.

Owns the form of the file: the plain form of the specification (7.1), as JSON. Knows no
edge. Invariant: what is loaded has passed the same check as a peer's descriptor.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from kvxfer.errors import LocalFault, RemoteFault
from kvxfer.layout.geometry import Shard
from kvxfer.layout.plain import shard_from_plain, shard_to_plain
from kvxfer.limits import Limits


class BadDescriptor(LocalFault):
    """A file holds no usable descriptor. Names file, field, value and bound."""


def load_shards(path: Path, limits: Limits | None = None) -> tuple[Shard, ...]:
    """The shards of a file, ordered by rank.

    Raises BadDescriptor naming the file, the field, the value and the bound that it missed.
    """
    bounds = limits or Limits()
    found = _parsed(path)
    items = found if isinstance(found, list) else [found]
    if not 0 < len(items) <= bounds.ranks_per_engine_max:
        bound = f"from 1 to {bounds.ranks_per_engine_max}"
        raise BadDescriptor(f"{path}: shards = {len(items)}: {bound}")
    shards = []
    for index, item in enumerate(items):
        where = f"{path}[{index}]" if isinstance(found, list) else str(path)
        try:
            shards.append(shard_from_plain(item, bounds))
        except RemoteFault as fault:
            raise BadDescriptor(f"{where}: {fault}") from None
    _check_one_engine(path, shards)
    return tuple(sorted(shards, key=lambda shard: shard.rank))


def dump_shards(shards: Sequence[Shard]) -> str:
    """JSON text of the shards: an object for one, an array for several. Ends in a newline."""
    plain = [shard_to_plain(shard) for shard in shards]
    return json.dumps(plain[0] if len(plain) == 1 else plain, indent=1) + "\n"


def _parsed(path: Path) -> object:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadDescriptor(f"{path}: cannot be read: {error}") from None
    try:
        parsed: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadDescriptor(f"{path}: is no JSON: {error}") from None
    return parsed


def _check_one_engine(path: Path, shards: list[Shard]) -> None:
    """Several shards in a file are ranks of one engine: one rank map, every rank once."""
    ranks = [shard.rank for shard in shards]
    if len(set(ranks)) != len(ranks):
        raise BadDescriptor(f"{path}: ranks = {ranks}: every rank once")
    for shard in shards[1:]:
        if shard.ranks != shards[0].ranks:
            raise BadDescriptor(
                f"{path}: rank {shard.rank} has another rank map than rank {ranks[0]}: "
                "shards of one file are of one engine"
            )
