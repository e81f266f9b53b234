"""Two engines in one process, each a cache and a real agent, over any transport."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import numpy as np
from neuron_caches import Cache

from kvxfer.driver import (
    Agent,
    AgentConfig,
    Initiator,
    Landed,
    Lost,
    ProducerAddress,
    Role,
    Sent,
    TransferId,
    Unsent,
)

DEADLINE_S = 60.0


@attrs.define(eq=False)
class End:
    """One engine. It prefills for others and decodes what others have prefilled."""

    name: str
    cache: Cache
    agent: Agent

    @classmethod
    def start(cls, name: str, cache: Cache, transport: str, options: Mapping[str, Any]) -> End:
        config = AgentConfig(
            engine_id=name,
            role=Role.BOTH,
            shard=cache.shard,
            memories=cache.memories,
            transport=transport,
            transport_options=options,
            listen=("127.0.0.1", 0),
        )
        return cls(name, cache, Agent.start(config))

    @property
    def address(self) -> ProducerAddress:
        assert self.agent.address is not None
        host, port = self.agent.address
        return ProducerAddress(engine_id=self.name, rank=0, host=host, port=port)

    def until(self, kind: type) -> Any:
        """The next result of that kind; Lost and Unsent fail the test with their reason."""
        end = time.monotonic() + DEADLINE_S
        while True:
            for result in self.agent.take():
                assert not isinstance(result, Lost | Unsent), result
                if isinstance(result, kind):
                    return result
            assert time.monotonic() < end, f"no {kind.__name__}"
            self.agent.wait(1.0)


def move(
    p: End,
    d: End,
    here: Sequence[int],
    there: Sequence[int],
    span: tuple[int, int],
    initiator: Initiator = Initiator.PRODUCER,
) -> Landed:
    """One request from `p` to `d`: tokens [start, stop) must be there and nothing else changed.

    Each side is read by its own engine's indices.
    """
    start, stop = span
    transfer = TransferId(f"{p.name}-{d.name}-{initiator.name}")
    expected = {
        layer: [
            d.cache.with_tokens(
                layer, plane, there, start, p.cache.read(layer, plane, here)[start:stop]
            )
            for plane in (0, 1)
        ]
        for layer in p.cache.arrays
    }
    d.agent.register(
        transfer,
        producers=(p.address,),
        tables=(d.cache.table(there),),
        token_start=start,
        token_stop=stop,
        initiator=initiator,
    )
    p.agent.offer(transfer, (p.cache.table(here),), stop)
    landed: Landed = d.until(Landed)
    p.until(Sent)
    for layer, pair in expected.items():
        for plane, tensor in enumerate(pair):
            assert np.array_equal(d.cache.arrays[layer][plane], tensor), (layer, plane)
    return landed
