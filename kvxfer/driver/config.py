"""What an agent is told at its start.

Owns the configuration record. Knows no engine. Invariant: a config that was
built passes every check that needs no network and no library.
"""

from __future__ import annotations

import ipaddress
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import attrs

from kvxfer.core.ids import Initiator, Role
from kvxfer.driver.keys import KeyFile, Keys
from kvxfer.driver.tls import TlsFiles
from kvxfer.errors import BadValue
from kvxfer.layout.choice import Costs
from kvxfer.layout.geometry import Shard
from kvxfer.limits import Limits, Timings
from kvxfer.record.tap import Sink
from kvxfer.transport.ops import Memory

OFF_LOOPBACK = (
    "off loopback keys are needed, and required of every peer, unless allow_unauthenticated=True"
)


_AT_LEAST_ONE = (
    "half_open_max",
    "messages_per_s_max",
    "messages_burst_max",
    "notices_per_turn_max",
)
RECORD_DIR: Final = "KVXFER_RECORD_DIR"
"""Environment variable: a folder into which every agent of the process records itself."""
STEPS_MAX: Final = 10_000_000


@attrs.frozen(kw_only=True)
class AgentConfig:
    """One agent: one rank of one engine.

    `memories` are the areas of `shard`, in the same order. `listen` is the
    address for control connections of consumers, (host, port), port 0 for any
    free one; None for an agent that only dials. Off loopback, to listen and to
    dial, `keys` are needed, or `allow_unauthenticated`.
    """

    engine_id: str
    role: Role
    shard: Shard
    memories: tuple[Memory, ...]
    transport: str = "loopback"
    transport_options: Mapping[str, Any] = attrs.field(factory=dict)
    listen: tuple[str, int] | None = None
    keys: Keys | None = None
    """Keys of which every peer has to prove one, and this agent proves one to it."""
    require_authentication: bool = True
    """With False a peer without any key is served, too: for the time in which keys are handed
    out. It protects from nobody who can change what is sent."""
    allow_unauthenticated: bool = False
    """Without keys: reach other hosts all the same."""
    tls: TlsFiles | None = None
    """Control connections over TLS, with certificates on both sides; besides keys."""
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
    """How many steps are kept for `Agent.events`; the oldest leave first."""
    flight_transfers: int = 512
    """Flight recorder: of so many transfers the last steps are kept; 0: of none."""
    flight_steps: int = 64
    """Flight recorder: so many steps of each."""
    record_dir: Path | None = attrs.field(factory=lambda: _folder_of(RECORD_DIR))
    """Where this agent writes its recording, a file of its own; None: it writes none."""
    sinks: tuple[Sink, ...] = ()
    """Further takers of every step, called in a thread of their own (kvxfer.observe.spans)."""
    logger: logging.Logger = attrs.field(factory=lambda: logging.getLogger("kvxfer"))

    def __attrs_post_init__(self) -> None:
        size = len(self.engine_id.encode())
        if not 0 < size <= self.limits.engine_id_bytes_max:
            bound = f"1 to {self.limits.engine_id_bytes_max} bytes"
            raise BadValue("engine_id", self.engine_id, bound)
        for name, high in (("part_tokens", 1 << 40), ("part_layers", self.limits.layers_max)):
            if not 0 <= getattr(self, name) <= high:
                raise BadValue(name, getattr(self, name), f"from 0 to {high}")
        for name in _AT_LEAST_ONE:
            if getattr(self.limits, name) < 1:
                raise BadValue(f"limits.{name}", getattr(self.limits, name), "at least 1")
        for name, low in (("flight_transfers", 0), ("flight_steps", 1), ("events_max", 0)):
            if not low <= getattr(self, name) <= STEPS_MAX:
                raise BadValue(name, getattr(self, name), f"from {low} to {STEPS_MAX}")
        areas = [(a.base, a.length) for a in self.shard.areas]
        if [(m.base, m.length) for m in self.memories] != areas:
            raise BadValue("memories", self.memories, f"the areas of the shard, {areas}")
        if self.staging is not None:
            kinds = {memory.kind for memory in (self.staging, *self.memories)}
            if kinds != {"dram"}:
                raise BadValue("staging", sorted(kinds), "dram alone: the permute runs on the host")
        if self.role & Role.PRODUCER and self.listen is None:
            raise BadValue("listen", None, "an address, since consumers dial a producer")
        if self.listen is not None and not self.may_reach(self.listen[0]):
            raise BadValue("listen", self.listen, f"a loopback host: {OFF_LOOPBACK}")
        if isinstance(self.keys, KeyFile) and self.keys.world_readable:
            self.logger.warning("%s can be read by every user of this host", self.keys.path)

    @property
    def authenticates(self) -> bool:
        """Is a peer without a key refused?"""
        return self.keys is not None and self.require_authentication

    def may_reach(self, host: str) -> bool:
        """May this agent talk to peers at this address?"""
        return self.authenticates or self.allow_unauthenticated or _loopback(host)


def _folder_of(variable: str) -> Path | None:
    text = os.environ.get(variable, "")
    return Path(text) if text else None


def _loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
