"""The scheduler's half of the connector: decides what each request loads or offers.

Owns the life of a decode request as vLLM's scheduler sees it and the orders for the
workers; `prefills` has the other leg. Knows no agent, no memory, no clock; reads vLLM's
request objects by attribute and imports none of its types. Invariants: nothing that a client sends
raises here, since an exception ends the whole engine; `matched_tokens` decides
nothing, since the scheduler may ask many times; a request is loaded at most once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from enum import Enum, auto
from typing import Any

import attrs

from kvxfer.driver import Role, TransferId
from kvxfer.driver.commands import ProducerAddress, Register
from kvxfer_vllm.config import Settings, port_of_rank
from kvxfer_vllm.metadata import Decline, Drop, Order, Receive, Refuse, StepOrders
from kvxfer_vllm.names import derived_name, explicit_name
from kvxfer_vllm.params import MODE_KEY, Leg, LegParams, parse_params, traceparent_of
from kvxfer_vllm.prefills import Finished, Prefills
from kvxfer_vllm.readback import keep, wish_for
from kvxfer_vllm.tables import BlockIds, Tables

logger = logging.getLogger("vllm.kvxfer")


class _Phase(Enum):
    NEW = auto()
    """Not admitted yet, or admission failed for want of blocks."""
    PARKED = auto()
    """Blocks are allocated, the scheduler waits for the workers' report."""
    SETTLED = auto()
    """Loaded, failed or never needed: whatever is missing is computed here."""


@attrs.define
class _Consumer:
    transfer_id: TransferId
    params: LegParams
    token_stop: int
    """Tokens [0, token_stop) of the prompt are to be had, less what is found here."""
    tokens_min: int = 1
    """Fewer than these are not worth a load."""
    is_readback: bool = False
    found: int = 0
    """Tokens that the scheduler had here when it last asked."""
    phase: _Phase = _Phase.NEW

    @property
    def producers(self) -> tuple[ProducerAddress, ...]:
        return tuple(
            ProducerAddress(
                engine_id=self.params.remote_engine_id,
                rank=rank,
                host=self.params.remote_host,
                port=port_of_rank(self.params.remote_port, rank),
            )
            for rank in range(self.params.remote_ranks)
        )


@attrs.define
class SchedulerSide:
    """State of the scheduler side. All calls come from the EngineCore thread."""

    settings: Settings
    tables: Tables
    _consumers: dict[str, _Consumer] = attrs.field(factory=dict)
    _prefills: Prefills = attrs.field(init=False)
    _orders: list[Order] = attrs.field(factory=list)
    _step: int = 0

    def __attrs_post_init__(self) -> None:
        self._prefills = Prefills(self.settings, self.tables)

    def on_new_request(self, request: Any) -> None:
        """Read the request's parameters; nothing after this looks at them again."""
        params = self._check_role(parse_params(request.kv_transfer_params))
        if params.problem:
            logger.warning("request %s: no KV transfer, %s", request.request_id, params.problem)
        if params.leg is Leg.CONSUME:
            transfer_id = self._name(request.request_id, params)
            self._consumers[request.request_id] = _Consumer(
                transfer_id, params, self._prefills.handed_over(request)
            )
        elif params.leg is Leg.PRODUCE and not params.problem:
            transfer_id = self._name(request.request_id, params)
            begun = self._prefills.begin(
                request,
                transfer_id,
                streams=params.streams,
                traceparent=traceparent_of(request, params),
            )
            self._orders.append(begun)
            self._read_back(request, params)

    def matched_tokens(self, request: Any, computed_tokens: int) -> tuple[int, bool]:
        """How many tokens beyond the local hit will come, and that they come asynchronously."""
        consumer = self._consumers.get(request.request_id)
        if consumer is None or consumer.phase is not _Phase.NEW:
            return 0, False
        if consumer.params.problem and not self.settings.fail_on_load_failure:
            return 0, False
        consumer.found = computed_tokens
        wanted = consumer.token_stop - computed_tokens
        return (wanted, True) if wanted >= consumer.tokens_min else (0, False)

    def after_alloc(self, request: Any, block_ids: BlockIds, wanted: int) -> None:
        """The request was admitted with `wanted` tokens to load; `block_ids` are all its blocks.

        They follow on those found here, and may be fewer than `matched_tokens` has promised.
        """
        consumer = self._consumers.get(request.request_id)
        if consumer is None or consumer.phase is not _Phase.NEW:
            return
        if wanted <= 0:
            consumer.phase = _Phase.SETTLED
            self._decline(consumer)
        elif consumer.params.problem:
            consumer.phase = _Phase.PARKED
            self._refuse(request, consumer, block_ids, wanted)
        else:
            consumer.phase = _Phase.PARKED
            self._register(request, consumer, block_ids, wanted)

    def request_finished(
        self, request: Any, block_ids: BlockIds
    ) -> tuple[bool, dict[str, Any] | None]:
        """The request has ended. True: its blocks stay held until a worker reports it as sent."""
        consumer = self._consumers.pop(request.request_id, None)
        if consumer is not None:
            if consumer.phase is _Phase.NEW:
                # Among these are the stand-ins that vLLM's front end makes when a request
                # with our parameters fails or its client leaves: a request of its own id
                # with the same parameters, aborted at once, so that P hears of it.
                self._decline(consumer)
            elif consumer.phase is _Phase.PARKED:
                self._orders.append(
                    Drop(request_id=request.request_id, transfer_id=consumer.transfer_id)
                )
        finished = self._end(request, consumer, block_ids)
        if finished is None:
            return False, None
        self._orders += finished.orders
        return finished.held, finished.answer

    def reported(self, received: Iterable[str] | None) -> None:
        """The workers reported these receives, landed or failed; the scheduler goes on."""
        for request_id in received or ():
            consumer = self._consumers.get(request_id)
            if consumer is not None:
                consumer.phase = _Phase.SETTLED

    def follow_step(
        self,
        scheduled: Mapping[str, int],
        preempted: Collection[str],
        block_ids_of: Callable[[str], BlockIds | None],
    ) -> None:
        """A step was planned: tokens that it computes, by request, and whom it has preempted."""
        self._orders += self._prefills.step(scheduled, preempted, block_ids_of)

    def take_orders(self) -> StepOrders:
        """The orders of this step, in the order in which they arose."""
        self._step += 1
        orders, self._orders = tuple(self._orders), []
        return StepOrders(step=self._step, orders=orders)

    def has_orders(self) -> bool:
        """True while the workers have not been told everything: the engine must make a step."""
        return bool(self._orders)

    def _end(
        self, request: Any, consumer: _Consumer | None, block_ids: BlockIds
    ) -> Finished | None:
        """What another engine may have of a request that has ended."""
        if consumer is None or consumer.is_readback:
            return self._prefills.finish(request, block_ids)
        if not self.settings.bidirectional or consumer.phase is not _Phase.SETTLED:
            return None
        return keep(request, block_ids, self.settings, self.tables)

    def _read_back(self, request: Any, params: LegParams) -> None:
        """P: load what the decode engine of an earlier turn kept, if it is of use here."""
        if not self.settings.bidirectional:
            return
        if params.kept_problem:
            logger.warning("request %s: no read-back, %s", request.request_id, params.kept_problem)
        if params.kept is None:
            return
        wish = wish_for(params.kept, request)
        consumer = _Consumer(
            wish.transfer_id,
            wish.source,
            wish.token_stop,
            tokens_min=max(1, self.settings.load_tokens_min),
            is_readback=True,
        )
        if wish.token_stop:
            self._consumers[request.request_id] = consumer
        else:
            self._decline(consumer)

    def _check_role(self, params: LegParams) -> LegParams:
        settings = self.settings
        if params.mode not in ("", settings.mode) and not settings.mode_open:
            problem = f"{MODE_KEY} = {params.mode}: this connector's name says {settings.mode}"
            return attrs.evolve(params, problem=params.problem or problem)
        needed = {Leg.PRODUCE: Role.PRODUCER, Leg.CONSUME: Role.CONSUMER}.get(params.leg)
        if needed is None or params.problem or settings.role in (needed, Role.BOTH):
            return params
        return attrs.evolve(
            params,
            problem=f"this engine's kv_role is {settings.role.name.lower()} only",
        )

    def _name(self, request_id: str, params: LegParams) -> TransferId:
        randomized = self.settings.randomized_ids
        if params.transfer_name is not None:
            return TransferId(params.transfer_name)
        if params.transfer_id is not None:
            return explicit_name(params.transfer_id, request_id, randomized=randomized)
        return derived_name(request_id, randomized=randomized)

    def _register(
        self, request: Any, consumer: _Consumer, block_ids: BlockIds, wanted: int
    ) -> None:
        token_start, token_stop = consumer.found, consumer.found + wanted
        register = Register(
            transfer_id=consumer.transfer_id,
            producers=consumer.producers,
            tables=self.tables.cut(block_ids, token_start, token_stop),
            token_start=token_start,
            token_stop=token_stop,
            digest=self._prefills.digest(request, consumer.token_stop),
            deadline_ms=self.settings.deadline_ms,
            tag=request.request_id,
            initiator=self.settings.initiator_of(consumer.params.mode),
            traceparent=traceparent_of(request, consumer.params),
        )
        self._orders.append(Receive(request_id=request.request_id, register=register))

    def _refuse(self, request: Any, consumer: _Consumer, block_ids: BlockIds, wanted: int) -> None:
        """Blocks of a local hit are not named: they are sound, and other requests use them."""
        tables = self.tables.cut(block_ids, consumer.found, consumer.found + wanted)
        blocks = tuple(tuple(table.blocks.tolist()) for table in tables)
        why = consumer.params.problem
        self._orders.append(Refuse(request_id=request.request_id, blocks=blocks, why=why))

    def _decline(self, consumer: _Consumer) -> None:
        if not consumer.params.problem:
            self._orders.append(
                Decline(transfer_id=consumer.transfer_id, producers=consumer.producers)
            )
