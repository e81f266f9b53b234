"""What an agent is told at its start.

Owns the configuration record. Knows no engine. Invariant: a config that was
built passes every check that needs no network and no library.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Mapping
from typing import Any

import attrs

from kvxfer.core.ids import Initiator, Role
from kvxfer.errors import BadValue
from kvxfer.layout.choice import Costs
from kvxfer.layout.geometry import Shard
from kvxfer.limits import Limits, Timings
from kvxfer.transport.ops import Memory


@attrs.frozen(kw_only=True)
class AgentConfig:
    """One agent: one rank of one engine.

    `memories` are the areas of `shard`, in the same order. `listen` is the
    address for control connections of consumers, (host, port), port 0 for any
    free one; None for an agent that only dials. A host off loopback has to be
    allowed by `allow_remote`, since this version does not authenticate peers.
    """

    engine_id: str
    role: Role
    shard: Shard
    memories: tuple[Memory, ...]
    transport: str = "loopback"
    transport_options: Mapping[str, Any] = attrs.field(factory=dict)
    listen: tuple[str, int] | None = None
    allow_remote: bool = False
    check_digest: bool = True
    initiator: Initiator = Initiator.PRODUCER
    """Consumer: CONSUMER where this agent is meant to read (pull). The start then fails where the
    transport cannot, instead of every transfer. Each registration says for itself who moves it."""
    part_tokens: int = 0
    """Producer: parts end at multiples of so many tokens, so that they can leave while the
    prefill runs; the engine's chunk size is a good choice. 0: one part for all tokens."""
    part_layers: int = 0
    """Producer: the last tokens are cut further, after so many layers. 0: not cut."""
    staging: Memory | None = None
    """Producer: host memory, registered besides the cache, for parts that would be very many
    tiny ranges: they are permuted into it first. None: they are written as they are."""
    staging_costs: Costs = attrs.field(factory=Costs)
    """What that decision reckons with."""
    limits: Limits = attrs.field(factory=Limits)
    timings: Timings = attrs.field(factory=Timings)
    events_max: int = 100_000
    """How many trace records are kept for timelines; the oldest leave first."""
    logger: logging.Logger = attrs.field(factory=lambda: logging.getLogger("kvxfer"))

    def __attrs_post_init__(self) -> None:
        size = len(self.engine_id.encode())
        if not 0 < size <= self.limits.engine_id_bytes_max:
            bound = f"1 to {self.limits.engine_id_bytes_max} bytes"
            raise BadValue("engine_id", self.engine_id, bound)
        for name, high in (("part_tokens", 1 << 40), ("part_layers", self.limits.layers_max)):
            if not 0 <= getattr(self, name) <= high:
                raise BadValue(name, getattr(self, name), f"from 0 to {high}")
        areas = [(a.base, a.length) for a in self.shard.areas]
        if [(m.base, m.length) for m in self.memories] != areas:
            raise BadValue("memories", self.memories, f"the areas of the shard, {areas}")
        if self.staging is not None:
            kinds = {memory.kind for memory in (self.staging, *self.memories)}
            if kinds != {"dram"}:
                raise BadValue("staging", sorted(kinds), "dram alone: the permute runs on the host")
        if self.role & Role.PRODUCER and self.listen is None:
            raise BadValue("listen", None, "an address, since consumers dial a producer")
        if self.listen is not None and not self.allow_remote and not _loopback(self.listen[0]):
            raise BadValue(
                "listen",
                self.listen,
                "a loopback host, unless allow_remote=True: "
                "this version does not authenticate peers",
            )


def _loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
