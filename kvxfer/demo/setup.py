"""Building an engine with its agents from a plain description.

Owns the start and the end of the agents of one engine. Invariant: either all
ranks of an engine are up or none is left running.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import attrs

from kvxfer.core.ids import Role
from kvxfer.demo.cache import CacheShape, EngineCache
from kvxfer.demo.decode import DecodeEngine
from kvxfer.demo.model import Model
from kvxfer.demo.prefill import PrefillEngine
from kvxfer.demo.reports import Report
from kvxfer.driver.agent import Agent
from kvxfer.driver.commands import ProducerAddress
from kvxfer.driver.config import AgentConfig
from kvxfer.driver.keys import keys_from

HOST = "127.0.0.1"


@attrs.frozen(kw_only=True)
class EngineSetup:
    """All that makes one engine of the demo, in plain values."""

    engine_id: str
    transport: str
    model_seed: int
    cache_seed: int
    cache: CacheShape
    part_tokens: int = 0
    """The grid on which P's parts are cut."""
    key_file: str = ""
    """Keys that both engines share; without it those of KVXFER_KEYS, where that is set."""
    record_dir: str = ""
    """Where the agents write recordings; empty: where the environment says, if it does."""


def start_agents(setup: EngineSetup, cache: EngineCache, role: Role) -> list[Agent]:
    """One agent for each rank. A producer's agents listen on a free port of this host.

    Raises LocalFault or TransportFault where the transport cannot be used here.
    """
    agents: list[Agent] = []
    try:
        for rank, pool in enumerate(cache.pools):
            config = AgentConfig(
                engine_id=setup.engine_id,
                role=role,
                shard=cache.shard(rank),
                memories=(pool.memory,),
                transport=setup.transport,
                part_tokens=setup.part_tokens,
                listen=(HOST, 0) if role is Role.PRODUCER else None,
                keys=keys_from(setup.key_file),
            )
            if setup.record_dir:
                config = attrs.evolve(config, record_dir=Path(setup.record_dir))
            agents.append(Agent.start(config))
    except BaseException:
        close_agents(agents, drain_s=0.0)
        raise
    return agents


def close_agents(agents: list[Agent], *, drain_s: float) -> None:
    """Close all of them."""
    for agent in agents:
        agent.close(timeout_s=drain_s)


def start_prefill(
    setup: EngineSetup, report: Callable[[Report], None]
) -> tuple[PrefillEngine, list[Agent]]:
    """A running prefill engine and its agents."""
    model = Model.from_seed(setup.model_seed)
    cache = EngineCache(model.shape, setup.cache, setup.cache_seed)
    agents = start_agents(setup, cache, Role.PRODUCER)
    engine = PrefillEngine(
        name=setup.engine_id, model=model, cache=cache, agents=agents, report=report
    )
    engine.start()
    return engine, agents


def start_decode(
    setup: EngineSetup,
    producers: tuple[ProducerAddress, ...],
    report: Callable[[Report], None],
) -> tuple[DecodeEngine, list[Agent]]:
    """A running decode engine and its agents."""
    model = Model.from_seed(setup.model_seed)
    cache = EngineCache(model.shape, setup.cache, setup.cache_seed)
    agents = start_agents(setup, cache, Role.CONSUMER)
    engine = DecodeEngine(
        name=setup.engine_id,
        model=model,
        cache=cache,
        agents=agents,
        report=report,
        producers=producers,
    )
    engine.start()
    return engine, agents


def addresses(setup: EngineSetup, agents: list[Agent]) -> tuple[ProducerAddress, ...]:
    """Where consumers dial these agents."""
    found = []
    for rank, agent in enumerate(agents):
        assert agent.address is not None, "a producer's agent listens"
        host, port = agent.address
        found.append(ProducerAddress(engine_id=setup.engine_id, rank=rank, host=host, port=port))
    return tuple(found)
