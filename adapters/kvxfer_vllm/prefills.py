"""The scheduler's half of the connector, for requests whose KV another engine wants.

Owns each prefill from its coming to its end: what is offered, when, and whether its
blocks stay held. Knows no agent and no clock; reads vLLM's request objects by
attribute. Invariant: a token is offered only when the step that computed it has been
processed, and a block only when no later step writes to it.

A prefill may be streamed: offered by and by while it runs. vLLM may then preempt it
and give its blocks away without asking; the stream ends with that, and the prefill is
offered whole, under another tag, once it has been computed again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import attrs
import numpy as np

from kvxfer.driver import TransferId
from kvxfer.driver.commands import Grow, Offer
from kvxfer.layout.geometry import BlockTable
from kvxfer_vllm.answers import answer
from kvxfer_vllm.config import Settings
from kvxfer_vllm.digest import prompt_digest
from kvxfer_vllm.metadata import Abort, Expect, Extend, Halt, Order, Seal, Send, Stream

FINISHED_WELL = frozenset({"FINISHED_LENGTH_CAPPED", "FINISHED_STOPPED"})
"""Names of the request states with which a prefill has a result to hand over."""

BlockIds = Sequence[Sequence[int]]
"""Manager blocks of a request, by cache group."""


@attrs.define
class _Prefill:
    request: Any
    transfer_id: TransferId
    tokens_found: int | None = None
    """Computed tokens at admission. They may be another request's in the same step."""
    streamed: int = 0
    """Tokens offered so far while the prefill runs; 0: no stream is open."""
    halted: bool = False
    """A stream of it was ended by a preemption."""
    announced: bool = True
    """The producer's agent knows that an offer will come."""

    @property
    def request_id(self) -> str:
        return str(self.request.request_id)

    @property
    def tag(self) -> str:
        """One per offer: the end of a stream must not pass for the end of what came after."""
        return f"{self.request_id}#whole" if self.halted else self.request_id


@attrs.frozen(kw_only=True)
class Finished:
    """What follows from a prefill's end. `held`: its blocks stay until reported as sent."""

    orders: tuple[Order, ...]
    held: bool
    answer: dict[str, Any] | None = None


@attrs.define
class Prefills:
    """All prefills for other engines. All calls come from the EngineCore thread."""

    settings: Settings
    tokens_per_block: int
    whole_blocks: bool
    _live: dict[str, _Prefill] = attrs.field(factory=dict)

    def __len__(self) -> int:
        return len(self._live)

    def begin(self, request: Any, transfer_id: TransferId) -> Expect:
        """A prefill has come."""
        prefill = self._live[request.request_id] = _Prefill(request, transfer_id)
        return _expect(prefill)

    def step(
        self,
        scheduled: Collection[str],
        preempted: Collection[str],
        block_ids_of: Callable[[str], BlockIds | None],
    ) -> list[Order]:
        """What of the streams leaves, or must stop, before this step computes."""
        if not self.settings.stream_tokens:
            return []
        orders: list[Order] = []
        for request_id in preempted:
            prefill = self._live.get(request_id)
            if prefill is not None:
                orders += self._preempt(prefill)
        for request_id in scheduled:
            prefill = self._live.get(request_id)
            if prefill is None:
                continue
            if not prefill.halted:
                orders += self._advance(prefill, block_ids_of)
            elif not prefill.announced:
                prefill.announced = True
                orders.append(_expect(prefill))
        return orders

    def finish(self, request: Any, block_ids: BlockIds) -> Finished | None:
        """The request has ended; None where no other engine wants its KV."""
        prefill = self._live.pop(request.request_id, None)
        if prefill is None:
            return None
        if prefill.streamed > request.num_computed_tokens:
            # Preempted, and ended before any step told: its blocks are gone already.
            return Finished(orders=tuple(self._preempt(prefill)), held=False)
        token_count = self._offered_tokens(request)
        if request.status.name not in FINISHED_WELL or token_count == 0:
            held = prefill.streamed > 0
            abort = Abort(request_id=prefill.request_id, transfer_id=prefill.transfer_id, held=held)
            return Finished(orders=(abort,), held=held)
        blocks = list(block_ids[0][: -(-token_count // self.tokens_per_block)])
        return Finished(
            orders=(self._last_offer(prefill, blocks, token_count),),
            held=True,
            answer=self._answer(prefill, blocks),
        )

    def digest(self, request: Any, token_count: int) -> bytes:
        """Hash of the prompt's beginning, by which two engines tell that it is the same."""
        if not self.settings.check_digest or request.prompt_token_ids is None:
            return b""
        return prompt_digest(request.prompt_token_ids[:token_count])

    # --- streams ---

    def _preempt(self, prefill: _Prefill) -> list[Order]:
        """It begins anew, in other blocks."""
        prefill.tokens_found = None
        if not prefill.streamed:
            return []
        halt = Halt(request_id=prefill.request_id, transfer_id=prefill.transfer_id, tag=prefill.tag)
        # Announced again when it is computed again: nothing of the stream is open by then.
        prefill.streamed, prefill.halted, prefill.announced = 0, True, False
        return [halt]

    def _advance(
        self, prefill: _Prefill, block_ids_of: Callable[[str], BlockIds | None]
    ) -> list[Order]:
        """Offer what has become final, if a further part of the grid is full."""
        token_count = self._final_tokens(prefill)
        if token_count <= prefill.streamed:
            return []
        block_ids = block_ids_of(prefill.request_id)
        if block_ids is None:
            return []
        tables = (table_of(0, block_ids[0][: token_count // self.tokens_per_block]),)
        begun, prefill.streamed = prefill.streamed > 0, token_count
        if begun:
            grow = self._grow(prefill, tables, token_count, sealed=False)
            return [Extend(request_id=prefill.request_id, grow=grow)]
        offer = self._offer(prefill, tables, token_count, sealed=False)
        return [Stream(request_id=prefill.request_id, offer=offer)]

    def _final_tokens(self, prefill: _Prefill) -> int:
        """Tokens of full parts that no step in flight or to come writes.

        A hit in the prefix cache may be on blocks that another request computes in the very
        step that admits this one, so nothing is final before a step of its own is processed.
        """
        request = prefill.request
        if request.prompt_token_ids is None:
            # Without a digest a decode leg of another length could take the wrong tokens.
            return 0
        if prefill.tokens_found is None:
            prefill.tokens_found = request.num_computed_tokens
        processed = request.num_computed_tokens - request.num_in_flight_tokens
        if processed <= prefill.tokens_found:
            return 0
        # The block of the last prompt token is written again by whatever is decoded here.
        final = min(processed, request.num_prompt_tokens - 1)
        return int(final // self.settings.stream_tokens * self.settings.stream_tokens)

    # --- what the workers and the client are told ---

    def _last_offer(self, prefill: _Prefill, blocks: list[int], token_count: int) -> Order:
        tables = (table_of(0, blocks),)
        if prefill.streamed:
            grow = self._grow(prefill, tables, token_count, sealed=True)
            return Seal(request_id=prefill.request_id, grow=grow)
        offer = self._offer(prefill, tables, token_count, sealed=True)
        return Send(request_id=prefill.request_id, offer=offer)

    def _offer(
        self, prefill: _Prefill, tables: tuple[BlockTable, ...], token_count: int, *, sealed: bool
    ) -> Offer:
        return Offer(
            transfer_id=prefill.transfer_id,
            tables=tables,
            token_count=token_count,
            digest=self.digest(prefill.request, prefill.request.num_prompt_tokens),
            tag=prefill.tag,
            sealed=sealed,
        )

    def _grow(
        self, prefill: _Prefill, tables: tuple[BlockTable, ...], token_count: int, *, sealed: bool
    ) -> Grow:
        return Grow(
            transfer_id=prefill.transfer_id,
            tables=tables,
            token_count=token_count,
            sealed=sealed,
            tag=prefill.tag,
        )

    def _offered_tokens(self, request: Any) -> int:
        """How many tokens the offer covers; up to whole blocks where blocks are packed.

        The last block of a finished prompt counts in full then. A prompt that was
        not computed to its end offers no block that is not full.
        """
        computed = min(request.num_computed_tokens, request.num_prompt_tokens)
        if not self.whole_blocks:
            return int(computed)
        if computed == request.num_prompt_tokens:
            return -(-computed // self.tokens_per_block) * self.tokens_per_block
        return int(computed // self.tokens_per_block * self.tokens_per_block)

    def _answer(self, prefill: _Prefill, blocks: list[int]) -> dict[str, Any]:
        request = prefill.request
        computed = min(request.num_computed_tokens, request.num_prompt_tokens)
        return answer(self.settings, request, prefill.transfer_id, blocks, token_count=computed)


def _expect(prefill: _Prefill) -> Expect:
    return Expect(request_id=prefill.request_id, transfer_id=prefill.transfer_id)


def table_of(first_token: int, block_ids: Sequence[int]) -> BlockTable:
    """The only cache group's table, whose first block begins at `first_token`."""
    return BlockTable(
        group=0, first_token=first_token, blocks=np.asarray(block_ids, dtype=np.int64)
    )
