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

from collections.abc import Callable, Collection, Mapping
from typing import Any

import attrs

from kvxfer.driver import TransferId
from kvxfer.driver.commands import Grow, Offer
from kvxfer.layout.geometry import BlockTable
from kvxfer_vllm.answers import answer
from kvxfer_vllm.config import Settings
from kvxfer_vllm.digest import prompt_digest
from kvxfer_vllm.metadata import (
    Abort,
    Expect,
    Extend,
    Halt,
    LastChunk,
    Order,
    Seal,
    Send,
    Stream,
)
from kvxfer_vllm.tables import BlockIds, Tables

FINISHED_WELL = frozenset({"FINISHED_LENGTH_CAPPED", "FINISHED_STOPPED"})
"""Names of the request states with which a prefill has a result to hand over."""


@attrs.define
class _Prefill:
    request: Any
    transfer_id: TransferId
    wanted: int
    """Tokens of the prompt that are handed over."""
    streams: bool = True
    """It may be offered while it runs."""
    tokens_found: int | None = None
    """Computed tokens at admission. They may be another request's in the same step."""
    streamed: int = 0
    """Tokens that the open stream reaches: those offered, or computed in their last chunk and
    offered layer by layer. 0: no stream is open."""
    halted: bool = False
    """A stream of it was ended by a preemption."""
    traceparent: str = ""
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
    tables: Tables
    _live: dict[str, _Prefill] = attrs.field(factory=dict)

    def __len__(self) -> int:
        return len(self._live)

    def begin(
        self,
        request: Any,
        transfer_id: TransferId,
        *,
        streams: bool = True,
        traceparent: str = "",
    ) -> Expect:
        """A prefill has come; its prompt is cut to what is handed over."""
        wanted = self.handed_over(request)
        if 0 < wanted < request.num_prompt_tokens:
            _shorten(request, wanted)
        prefill = _Prefill(request, transfer_id, wanted, streams, traceparent=traceparent)
        self._live[request.request_id] = prefill
        return _expect(prefill)

    def handed_over(self, request: Any) -> int:
        """How many tokens of its prompt P computes for D; both work it out alike."""
        wanted = self.tables.handed_over(request.num_prompt_tokens)
        if wanted < request.num_prompt_tokens and not _can_be_shortened(request):
            return 0
        return wanted

    def step(
        self,
        scheduled: Mapping[str, int],
        preempted: Collection[str],
        block_ids_of: Callable[[str], BlockIds | None],
    ) -> list[Order]:
        """What of the streams leaves, or must stop, before this step computes.

        `scheduled`: how many tokens of each request it computes.
        """
        if not self.settings.stream_tokens:
            return []
        orders: list[Order] = []
        for request_id in preempted:
            prefill = self._live.get(request_id)
            if prefill is not None:
                orders += self._preempt(prefill)
        for request_id, tokens in scheduled.items():
            prefill = self._live.get(request_id)
            if prefill is None:
                continue
            if not prefill.halted:
                orders += self._advance(prefill, block_ids_of)
                orders += self._last_chunk(prefill, tokens, block_ids_of)
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
        token_count = self._offered_tokens(request, prefill.wanted)
        if request.status.name not in FINISHED_WELL or token_count == 0:
            held = prefill.streamed > 0
            abort = Abort(request_id=prefill.request_id, transfer_id=prefill.transfer_id, held=held)
            return Finished(orders=(abort,), held=held)
        tables = self.tables.cut(block_ids, 0, token_count)
        return Finished(
            orders=(self._last_offer(prefill, tables, token_count),),
            held=True,
            answer=self._answer(prefill, tables, token_count),
        )

    def digest(self, request: Any, token_count: int) -> bytes:
        """Hash of the tokens handed over, by which two engines tell that the prompt is the same."""
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
        tables = self.tables.cut(block_ids, 0, token_count)
        begun, prefill.streamed = prefill.streamed > 0, token_count
        if begun:
            grow = self._grow(prefill, tables, token_count, sealed=False)
            return [Extend(request_id=prefill.request_id, grow=grow)]
        offer = self._offer(prefill, tables, token_count, sealed=False)
        return [Stream(request_id=prefill.request_id, offer=offer)]

    def _last_chunk(
        self, prefill: _Prefill, tokens: int, block_ids_of: Callable[[str], BlockIds | None]
    ) -> list[Order]:
        """Let the layers of the last chunk leave one by one, if this step computes it."""
        before = prefill.request.num_computed_tokens
        if not self._may_leave_by_layers(prefill) or before + tokens < prefill.wanted:
            return []
        block_ids = block_ids_of(prefill.request_id)
        if block_ids is None:
            return []
        tables = self.tables.cut(block_ids, 0, prefill.wanted)
        orders: list[Order] = []
        if not prefill.streamed:
            offer = self._offer(prefill, tables, 0, sealed=False)
            orders.append(Stream(request_id=prefill.request_id, offer=offer))
        prefill.streamed = prefill.wanted
        orders.append(
            LastChunk(
                request_id=prefill.request_id,
                tokens_before=self._computed_before(prefill),
                grow=self._grow(prefill, tables, prefill.wanted, sealed=True),
            )
        )
        return orders

    def _may_leave_by_layers(self, prefill: _Prefill) -> bool:
        """Its prompt can be streamed, and nothing is decoded here into the block of its end."""
        return (
            self.settings.layer_slices > 1
            and prefill.streams
            and prefill.request.prompt_token_ids is not None
            and prefill.wanted > 0
            and prefill.request.max_tokens == 1
        )

    def _computed_before(self, prefill: _Prefill) -> int:
        """Tokens of full parts that earlier steps have computed by the time this one computes.

        Of what was found in the prefix cache, see `_final_tokens`: not in its first step.
        """
        computed = prefill.request.num_computed_tokens
        if computed == prefill.tokens_found:
            return 0
        return int(computed // self.settings.stream_tokens * self.settings.stream_tokens)

    def _final_tokens(self, prefill: _Prefill) -> int:
        """Tokens of full parts that no step in flight or to come writes.

        A hit in the prefix cache may be on blocks that another request computes in the very
        step that admits this one, so nothing is final before a step of its own is processed.
        """
        request = prefill.request
        if request.prompt_token_ids is None or not prefill.streams or not prefill.wanted:
            # Without a digest a decode leg of another length could take the wrong tokens.
            # Where none is wanted the prompt was not shortened, and there is no such digest.
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

    def _last_offer(
        self, prefill: _Prefill, tables: tuple[BlockTable, ...], token_count: int
    ) -> Order:
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
            digest=self.digest(prefill.request, prefill.wanted),
            tag=prefill.tag,
            sealed=sealed,
            traceparent=prefill.traceparent,
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

    def _offered_tokens(self, request: Any, wanted: int) -> int:
        """How many tokens the offer covers: all that are wanted, if they were computed.

        A prompt that was not computed to its end offers no block that is packed and not full.
        """
        computed = min(request.num_computed_tokens, request.num_prompt_tokens)
        if computed >= wanted:
            return wanted
        return int(computed // self.tables.grain * self.tables.grain)

    def _answer(
        self, prefill: _Prefill, tables: tuple[BlockTable, ...], token_count: int
    ) -> dict[str, Any]:
        request, name = prefill.request, prefill.transfer_id
        return answer(self.settings, request, name, tables, token_count=token_count)


def _expect(prefill: _Prefill) -> Expect:
    return Expect(request_id=prefill.request_id, transfer_id=prefill.transfer_id)


def _can_be_shortened(request: Any) -> bool:
    """It has token ids, and nobody asks what P thinks of all its tokens (prompt logprobs)."""
    asks = getattr(request, "get_skip_reading_prefix_cache", None)
    return request.prompt_token_ids is not None and not (asks is not None and asks())


def _shorten(request: Any, token_count: int) -> None:
    """Leave the end of the prompt to the decode engine."""
    del request.prompt_token_ids[token_count:]
    # vLLM's own connectors shorten a request by the same fields.
    del request._all_token_ids[token_count:]
    request.num_prompt_tokens = token_count
    request.max_tokens = 1
