"""The worker's half of the connector: carries orders to the agent and reports back.

Owns the agent of this worker. Knows no scheduler state and no vLLM type. Invariant:
no call here waits for a peer or grows with the number of blocks, but one, and that
for a bounded time: blocks of a preempted stream. Every other wait is in the agent's
own thread, and no step of the engine is needed for a transfer to go on.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, assert_never

import attrs

from kvxfer.driver import Agent, AgentConfig, Memory, Role, Timings, keys_from
from kvxfer.driver.commands import Grow
from kvxfer.driver.results import Landed, Lost, Result, Unsent
from kvxfer.errors import BadValue, LocalFault
from kvxfer.layout.geometry import RankHolding, Shard
from kvxfer.layout.halves import with_halves
from kvxfer_vllm.config import Settings, port_of_rank
from kvxfer_vllm.geometry import CacheGroup, TensorLike, describe_groups
from kvxfer_vllm.layers import Layers, part_layers
from kvxfer_vllm.ledger import Ledger, Report
from kvxfer_vllm.metadata import (
    Abort,
    Decline,
    Drop,
    Expect,
    Extend,
    Halt,
    LastChunk,
    Order,
    ProducerOrder,
    Receive,
    Refuse,
    Seal,
    Send,
    StepOrders,
    Stream,
)
from kvxfer_vllm.place import ALONE, Place
from kvxfer_vllm.stats import Data, StatsCollector, is_failure
from kvxfer_vllm.tails import Tails
from kvxfer_vllm.watching import serve_metrics, watched

if TYPE_CHECKING:
    from kvxfer.observe import Server

logger = logging.getLogger("vllm.kvxfer")

SLEEP_S = 30.0
"""How long an engine that goes to sleep may wait until no peer reaches its memory any more."""
HALT_S = 5.0
"""How long a step may wait until nothing reads the blocks of a stream that it takes away.

What is read after that is of no use to anybody: the end of a halted stream is never
offered, so no decode engine can count it as landed.
"""

LEFT_SHOWN = 3


@attrs.define
class WorkerSide:
    """State of one worker. All calls come from the worker's main thread."""

    settings: Settings
    groups: tuple[CacheGroup, ...]
    heads_total: int
    place: Place = ALONE
    exchange: Callable[[RankHolding], tuple[RankHolding, ...]] = lambda own: (own,)
    """Called once by all workers of the engine: what each holds, to all of them."""
    zeroed: bool = False
    """The model reads slots that nothing has written; they must be zero."""
    start_agent: Callable[[AgentConfig], Agent] = Agent.start
    clock_s: Callable[[], float] = time.monotonic
    ledger: Ledger = attrs.field(factory=Ledger)
    stats: StatsCollector = attrs.field(factory=StatsCollector)
    _agent: Agent | None = None
    _metrics: Server | None = None
    _last_step: int = 0
    _tails: Tails | None = None
    _layers: Layers | None = None
    """None until the caches are registered."""
    _asleep: bool = False

    def register_caches(self, caches: Mapping[str, TensorLike], packing: str = "") -> None:
        """Describe the KV cache and start the agent on it; `packing` as in describe_caches.

        Raises LayoutMismatch for a cache that cannot be described, LocalFault where the
        agent cannot start (port taken, transport library missing): the engine's start
        then fails with that text.
        """
        shard, memories = self.describe(caches, packing)
        if self.zeroed:
            self._tails = Tails.of(shard, caches)
        shard = attrs.evolve(shard, ranks=self.exchange(*shard.ranks))
        config = self._agent_config(shard, memories)
        self._layers = Layers.of(shard, config.part_layers, self._grow)
        self._agent = self.start_agent(config)
        try:
            self._metrics = serve_metrics(self.settings, self._agent)
        except BadValue:
            self.close()
            raise
        logger.info(
            "kvxfer agent %d of engine %s is up: role %s, transport %s, listening on %s",
            shard.rank,
            self.settings.engine_id,
            self.settings.role.name,
            self.settings.transport,
            self._agent.address,
        )

    def describe(
        self, caches: Mapping[str, TensorLike], packing: str
    ) -> tuple[Shard, tuple[Memory, ...]]:
        """The caches as vLLM registered them; engines with tensors of another form override it."""
        shard, memories = describe_groups(
            caches,
            self.groups,
            self.heads_total,
            packing,
            place=self.place,
            slots=self.settings.slots,
        )
        return (with_halves(shard) if self.settings.split_kv else shard), memories

    def sleep(self) -> None:
        """Before vLLM gives the cache's memory back: end all, tell the peers, unregister.

        Harmless where it has been done. Raises LocalFault where a peer may still reach the
        memory, which must then stay mapped; nothing is transferred until a later call ends well.
        """
        if self._agent is None or self._asleep:
            return
        left = self._agent.quiesce(SLEEP_S)
        if left:
            names = ", ".join(map(str, left[:LEFT_SHOWN]))
            raise LocalFault(
                f"the cache of {self.settings.engine_id} is still reached after {SLEEP_S:.0f} s: "
                f"{len(left)} transfers, among them {names}; sleep again later"
            )
        self._asleep = True

    def wake(self) -> None:
        """Register the memory anew, where it was; peers find another life of this engine."""
        if self._agent is None or not self._asleep:
            return
        self._agent.resume()
        self._asleep = False

    def deliver(self, orders: StepOrders) -> None:
        """Carry out the orders of a step, once, whichever hook brings them first."""
        if orders.step <= self._last_step:
            return
        self._last_step = orders.step
        self.layers.begin_step()
        for order in orders.orders:
            self._carry_out(order)
        self._drain_halted()

    def layer_saved(self, layer: str) -> None:
        """The step at work has written this layer's cache; called between two layers."""
        self.layers.saved(layer)

    def take_report(self) -> Report:
        """Request ids that have ended since the last call."""
        self._collect()
        return self.ledger.take()

    def take_bad_blocks(self) -> set[int]:
        """Manager blocks of loads that have just been lost; asked for after take_report."""
        return self.ledger.take_bad_blocks()

    def take_stats(self) -> Data | None:
        """Statistics since the last call, None where nothing happened."""
        if self._agent is None:
            return None
        self.stats.sliced = self.layers.begun
        return self.stats.take(self._agent.counters())

    def close(self) -> None:
        """Stop the agent. Peers are told; may never be called, they then find out by silence."""
        if self._agent is not None:
            self._agent.close()
            self._agent = None
        if self._metrics is not None:
            self._metrics.close()
            self._metrics = None

    @property
    def layers(self) -> Layers:
        """What the step at work has written. vLLM registers the caches before the first step."""
        assert self._layers is not None
        return self._layers

    @property
    def agent(self) -> Agent:
        """The running agent. vLLM registers the caches before the first step."""
        assert self._agent is not None
        return self._agent

    def _collect(self) -> None:
        results = self.agent.take()
        self.ledger.apply(results)
        for result in results:
            self._zero_tail(result)
            self.stats.add(result)
            _log_failure(result)

    def _zero_tail(self, result: Result) -> None:
        """Before the load is reported: the model may read its blocks from then on."""
        if self._tails is None:
            return
        if isinstance(result, Landed):
            self._tails.clean(result.tag)
        elif isinstance(result, Lost):
            self._tails.forget(result.tag)

    def _drain_halted(self) -> None:
        """The one wait: vLLM gives the blocks of a preempted request away in this step."""
        if not self.ledger.halted():
            return
        until_s = self.clock_s() + HALT_S
        self._collect()
        while self.ledger.halted():
            left_s = until_s - self.clock_s()
            if left_s <= 0:
                logger.error("still read after %.0f s: %s", HALT_S, self.ledger.halted())
                self.ledger.forget_halted()
                return
            self.agent.wait(left_s)
            self._collect()

    def _carry_out(self, order: Order) -> None:
        if isinstance(order, Receive | Refuse | Drop | Decline):
            self._consume(order)
        else:
            self._produce(order)

    def _consume(self, order: Receive | Refuse | Drop | Decline) -> None:
        match order:
            case Receive(request_id=request_id, register=register):
                # Under the policy "fail" vLLM ends the request as soon as it hears of bad
                # blocks, and holds them on; under "recompute" it needs them, and has to wait.
                # Of several groups it takes no word about single blocks, and a window's list
                # has the null block, which all requests share.
                plain = len(self.groups) == 1 and self.groups[0].reach is None
                early = self.settings.fail_on_load_failure and plain
                blocks = tuple(table.blocks for table in register.tables)
                self.ledger.open_receive(request_id, blocks, early=early)
                if self._tails is not None:
                    self._tails.note(register)
                self.agent.register(**attrs.asdict(register, recurse=False))
            case Refuse(request_id=request_id, blocks=blocks):
                self.ledger.refuse_receive(request_id, blocks)
            case Drop(request_id=request_id, transfer_id=transfer_id):
                if self.ledger.is_receiving(request_id):
                    self.agent.cancel(transfer_id, tag=request_id)
            case Decline(transfer_id=transfer_id, producers=producers):
                self.agent.decline(transfer_id, producers=producers)
            case _:
                assert_never(order)

    def _produce(self, order: ProducerOrder) -> None:
        match order:
            case Expect(request_id=request_id, transfer_id=transfer_id):
                self.agent.expect(transfer_id, tag=request_id)
            case Send(request_id=request_id, offer=offer):
                self.ledger.open_send(request_id, offer.tag)
                self.agent.offer(**attrs.asdict(offer, recurse=False))
            case Stream(offer=offer):
                self.ledger.open_stream(offer.tag)
                self.stats.streamed += 1
                self.agent.offer(**attrs.asdict(offer, recurse=False))
            case Extend(grow=grow):
                self._grow(grow)
            case LastChunk():
                self.layers.add(order)
            case Seal(request_id=request_id, grow=grow):
                self.ledger.close_stream(request_id, grow.tag)
                if not self.layers.take_sealed(grow.tag):
                    self._grow(grow)
            case Halt(transfer_id=transfer_id, tag=tag):
                self.layers.take_sealed(tag)
                self.ledger.halt_stream(tag)
                self.agent.withdraw(transfer_id, tag=tag)
            case Abort(request_id=request_id, transfer_id=transfer_id, held=held):
                self.layers.take_sealed(request_id)
                if held:
                    self.ledger.close_stream(request_id, request_id)
                self.agent.withdraw(transfer_id, tag=request_id)
            case _:
                assert_never(order)

    def _grow(self, grow: Grow) -> None:
        self.agent.grow(**attrs.asdict(grow, recurse=False))

    def _agent_config(self, shard: Shard, memories: tuple[Memory, ...]) -> AgentConfig:
        settings = self.settings
        listens = settings.role is not Role.CONSUMER
        config = AgentConfig(
            engine_id=settings.engine_id,
            role=settings.role,
            shard=shard,
            memories=memories,
            transport=settings.transport,
            transport_options=settings.transport_options,
            initiator=settings.initiator_of(""),
            listen=(settings.host, port_of_rank(settings.port, shard.rank)) if listens else None,
            timings=Timings(
                offer_lease_ms=settings.offer_lease_ms,
                transfer_deadline_ms=settings.deadline_ms,
            ),
            check_digest=settings.check_digest,
            part_tokens=settings.stream_tokens if listens else 0,
            part_layers=part_layers(shard, settings.layer_slices) if listens else 0,
            keys=keys_from(settings.key_file),
            require_authentication=settings.require_authentication,
            allow_unauthenticated=settings.allow_unauthenticated,
            tls=settings.tls,
            logger=logger,
        )
        return watched(config, settings)


def _log_failure(result: Result) -> None:
    if isinstance(result, Lost | Unsent) and is_failure(result.reason):
        logger.warning(
            "transfer %s: %s, %s %s",
            result.transfer_id,
            type(result).__name__.lower(),
            result.reason.name,
            result.detail,
        )
