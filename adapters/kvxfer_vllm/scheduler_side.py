"""The scheduler's half of the connector: decides what each request loads or offers.

Owns the life of a request as vLLM's scheduler sees it and the orders for the
workers. Knows no agent, no memory, no clock; reads vLLM's request objects by
attribute and imports none of its types. Invariants: nothing that a client sends
raises here, since an exception ends the whole engine; `matched_tokens` changes
nothing, since the scheduler may ask many times; a request is loaded at most once.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from enum import Enum, auto
from typing import Any

import attrs
import numpy as np

from kvxfer.driver import Role, TransferId
from kvxfer.driver.commands import Offer, ProducerAddress, Register
from kvxfer.layout.geometry import BlockTable
from kvxfer_vllm.config import Settings
from kvxfer_vllm.digest import prompt_digest
from kvxfer_vllm.metadata import (
    Abort,
    Decline,
    Drop,
    Expect,
    Order,
    Receive,
    Refuse,
    Send,
    StepOrders,
)
from kvxfer_vllm.names import derived_name, explicit_name
from kvxfer_vllm.params import TRANSFER_NAME_KEY, Leg, LegParams, parse_params

logger = logging.getLogger("vllm.kvxfer")

FINISHED_WELL = frozenset({"FINISHED_LENGTH_CAPPED", "FINISHED_STOPPED"})
"""Names of the request states with which a prefill has a result to hand over."""


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
    phase: _Phase = _Phase.NEW

    @property
    def producers(self) -> tuple[ProducerAddress, ...]:
        return (
            ProducerAddress(
                engine_id=self.params.remote_engine_id,
                rank=0,
                host=self.params.remote_host,
                port=self.params.remote_port,
            ),
        )


@attrs.define
class SchedulerSide:
    """State of the scheduler side. All calls come from the EngineCore thread."""

    settings: Settings
    tokens_per_block: int
    whole_blocks: bool = False
    """Blocks are packed inside: only whole ones mean anything to the other engine."""
    _consumers: dict[str, _Consumer] = attrs.field(factory=dict)
    _producers: dict[str, TransferId] = attrs.field(factory=dict)
    _orders: list[Order] = attrs.field(factory=list)
    _step: int = 0

    def on_new_request(self, request: Any) -> None:
        """Read the request's parameters; nothing after this looks at them again."""
        params = self._check_role(parse_params(request.kv_transfer_params))
        if params.problem:
            logger.warning("request %s: no KV transfer, %s", request.request_id, params.problem)
        if params.leg is Leg.CONSUME:
            transfer_id = self._name(request.request_id, params)
            self._consumers[request.request_id] = _Consumer(transfer_id, params)
        elif params.leg is Leg.PRODUCE and not params.problem:
            transfer_id = self._name(request.request_id, params)
            self._producers[request.request_id] = transfer_id
            self._orders.append(Expect(request_id=request.request_id, transfer_id=transfer_id))

    def matched_tokens(self, request: Any, computed_tokens: int) -> tuple[int, bool]:
        """How many tokens beyond the local hit will come, and that they come asynchronously."""
        consumer = self._consumers.get(request.request_id)
        if consumer is None or consumer.phase is not _Phase.NEW:
            return 0, False
        if consumer.params.problem and not self.settings.fail_on_load_failure:
            return 0, False
        wanted = request.num_prompt_tokens - computed_tokens
        return (wanted, True) if wanted > 0 else (0, False)

    def after_alloc(self, request: Any, block_ids: Sequence[Sequence[int]], wanted: int) -> None:
        """The request was admitted with `wanted` tokens to load; `block_ids` are all its blocks."""
        consumer = self._consumers.get(request.request_id)
        if consumer is None or consumer.phase is not _Phase.NEW:
            return
        if wanted <= 0:
            consumer.phase = _Phase.SETTLED
            self._decline(consumer)
        elif consumer.params.problem:
            consumer.phase = _Phase.PARKED
            self._orders.append(Refuse(request_id=request.request_id, why=consumer.params.problem))
        else:
            consumer.phase = _Phase.PARKED
            self._register(request, consumer, block_ids[0], wanted)

    def request_finished(
        self, request: Any, block_ids: Sequence[Sequence[int]]
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
            return False, None
        transfer_id = self._producers.pop(request.request_id, None)
        if transfer_id is None:
            return False, None
        token_count = self._offered_tokens(request)
        if request.status.name not in FINISHED_WELL or token_count == 0:
            self._orders.append(Abort(request_id=request.request_id, transfer_id=transfer_id))
            return False, None
        blocks = list(block_ids[0][: self._block_count(token_count)])
        self._orders.append(
            Send(
                request_id=request.request_id,
                offer=Offer(
                    transfer_id=transfer_id,
                    tables=(_table(0, blocks),),
                    token_count=token_count,
                    digest=self._digest(request),
                    tag=request.request_id,
                ),
            )
        )
        return True, self._answer(request, transfer_id, blocks)

    def reported(self, received: Iterable[str] | None) -> None:
        """The workers reported these receives, landed or failed; the scheduler goes on."""
        for request_id in received or ():
            consumer = self._consumers.get(request_id)
            if consumer is not None:
                consumer.phase = _Phase.SETTLED

    def take_orders(self) -> StepOrders:
        """The orders of this step, in the order in which they arose."""
        self._step += 1
        orders, self._orders = tuple(self._orders), []
        return StepOrders(step=self._step, orders=orders)

    def has_orders(self) -> bool:
        """True while the workers have not been told everything: the engine must make a step."""
        return bool(self._orders)

    def _check_role(self, params: LegParams) -> LegParams:
        needed = {Leg.PRODUCE: Role.PRODUCER, Leg.CONSUME: Role.CONSUMER}.get(params.leg)
        if needed is None or params.problem or self.settings.role in (needed, Role.BOTH):
            return params
        return attrs.evolve(
            params,
            problem=f"this engine's kv_role is {self.settings.role.name.lower()} only",
        )

    def _name(self, request_id: str, params: LegParams) -> TransferId:
        randomized = self.settings.randomized_ids
        if params.transfer_name is not None:
            return TransferId(params.transfer_name)
        if params.transfer_id is not None:
            return explicit_name(params.transfer_id, request_id, randomized=randomized)
        return derived_name(request_id, randomized=randomized)

    def _register(
        self, request: Any, consumer: _Consumer, block_ids: Sequence[int], wanted: int
    ) -> None:
        token_stop = request.num_prompt_tokens
        token_start = token_stop - wanted
        first = token_start // self.tokens_per_block
        last = self._block_count(token_stop)
        if self.whole_blocks:
            token_stop = last * self.tokens_per_block
        register = Register(
            transfer_id=consumer.transfer_id,
            producers=consumer.producers,
            tables=(_table(first * self.tokens_per_block, block_ids[first:last]),),
            token_start=token_start,
            token_stop=token_stop,
            digest=self._digest(request),
            deadline_ms=self.settings.deadline_ms,
            tag=request.request_id,
        )
        self._orders.append(Receive(request_id=request.request_id, register=register))

    def _decline(self, consumer: _Consumer) -> None:
        if not consumer.params.problem:
            self._orders.append(
                Decline(transfer_id=consumer.transfer_id, producers=consumer.producers)
            )

    def _digest(self, request: Any) -> bytes:
        if not self.settings.check_digest or request.prompt_token_ids is None:
            return b""
        return prompt_digest(request.prompt_token_ids[: request.num_prompt_tokens])

    def _block_count(self, token_count: int) -> int:
        return -(-token_count // self.tokens_per_block)

    def _offered_tokens(self, request: Any) -> int:
        """How many tokens the offer covers; up to whole blocks where blocks are packed.

        The last block of a finished prompt counts in full then. A prompt that was
        not computed to its end offers no block that is not full.
        """
        computed = min(request.num_computed_tokens, request.num_prompt_tokens)
        if not self.whole_blocks:
            return int(computed)
        if computed == request.num_prompt_tokens:
            return self._block_count(computed) * self.tokens_per_block
        return int(computed // self.tokens_per_block * self.tokens_per_block)

    def _answer(self, request: Any, transfer_id: TransferId, blocks: list[int]) -> dict[str, Any]:
        """The `kv_transfer_params` of the answer, which a pull-order router passes on unread."""
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [blocks],
            "remote_engine_id": self.settings.engine_id,
            "remote_request_id": request.request_id,
            "remote_host": self.settings.host,
            "remote_port": self.settings.port,
            "tp_size": 1,
            "pp_size": 1,
            "dcp_size": 1,
            "remote_num_tokens": min(request.num_computed_tokens, request.num_prompt_tokens),
            "transfer_mode": "push",
            TRANSFER_NAME_KEY: transfer_id,
        }


def _table(first_token: int, block_ids: Sequence[int]) -> BlockTable:
    return BlockTable(
        group=0, first_token=first_token, blocks=np.asarray(block_ids, dtype=np.int64)
    )
