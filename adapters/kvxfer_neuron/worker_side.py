"""The worker's half on Neuron: other tensors, and a step that may still be running.

Owns what differs from vLLM's adapter and nothing else: how the caches are described and
resolved, and that an offer waits for what it offers. Invariant: no KV is offered before
every step that was started has written its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from kvxfer.driver import Memory
from kvxfer.layout.geometry import Shard
from kvxfer_neuron.hbm import materialise, place
from kvxfer_neuron.marks import Elements
from kvxfer_neuron.paged import describe_paged
from kvxfer_neuron.ranks import Place
from kvxfer_vllm.metadata import Extend, Seal, Send, StepOrders, Stream
from kvxfer_vllm.worker_side import WorkerSide

OFFERS = (Send, Stream, Extend, Seal)


@attrs.define
class NeuronWorkerSide(WorkerSide):
    """State of one worker. All calls come from the worker's main thread."""

    marks: Mapping[str, str] = attrs.field(factory=dict, kw_only=True)
    """`scales` and `packing` of `Elements`, as the operator gave them."""
    _written: Any = None
    """A tensor that every step writes."""

    def describe(self, caches: Mapping[str, Any], packing: str) -> tuple[Shard, tuple[Memory, ...]]:
        """The caches as vLLM Neuron registers them. Raises as `describe_paged` and `resolve`."""
        placed = {name: place(name, tensor) for name, tensor in caches.items()}
        self._written = next(iter(caches.values()))
        elements = Elements(
            dtype=next(iter(placed.values())).dtype,
            **{"packing": packing} | dict(self.marks),
        )
        heads, first = self.place.heads_of(self.heads_total)
        here = Place(
            heads_total=self.heads_total,
            head_start=first,
            head_stop=first + heads,
            rank=self.place.rank,
        )
        return describe_paged(placed, self.groups, here, elements)

    def deliver(self, orders: StepOrders) -> None:
        """Carry out the orders of a step, once; what is offered has been written by then.

        The scheduler orders an offer when it has processed a step's output. On Neuron the
        part of that output which nobody reads may still be a future: so one element of the
        cache is read first, once a step, and only where something is offered.
        """
        new = orders.step > self._last_step
        if new and any(isinstance(order, OFFERS) for order in orders.orders):
            materialise(self._written)
        super().deliver(orders)
