"""The prefill engine.

Owns the prefill queue and the source blocks. Refuses to know who will read them.
Invariant: blocks that were offered are freed only at Sent or Unsent of every
rank, since until then they may be read, and never while a prefill writes them.
"""

from __future__ import annotations

from collections import deque
from typing import assert_never

import attrs
import numpy as np
import numpy.typing as npt

from kvxfer.core.ids import TransferId
from kvxfer.demo.engines import Engine, Job
from kvxfer.demo.reports import Prefilled, Released, clock_ms
from kvxfer.demo.sequence import Prompt, prefill
from kvxfer.driver.results import Landed, LetGo, Lost, Result, Sent, Unsent


@attrs.define(eq=False, kw_only=True)
class _Offered:
    """A prompt in the hands of the agents."""

    blocks: npt.NDArray[np.int64]
    ranks_open: set[int]
    computing: bool
    """The prefill goes on: the offer is not sealed."""
    bytes_written: int = 0
    descriptors: int = 0
    reason: str = ""


@attrs.define(eq=False, kw_only=True)
class PrefillEngine(Engine):
    """Computes prompts one after the other; offers each whole, or chunk by chunk."""

    _offered: dict[TransferId, _Offered] = attrs.field(factory=dict)
    _withdrawn: deque[TransferId] = attrs.field(factory=deque)

    def withdraw(self, transfer_id: TransferId) -> None:
        """Nobody wants this request any more; from any thread. Ends in Released."""
        self._withdrawn.append(transfer_id)

    def tokens_kept(self, prompt: Prompt) -> int:
        return prompt.prefill_tokens

    def turn(self) -> bool:
        moved = self._collect()
        while self._withdrawn:
            moved = True
            self._drop(self._withdrawn.popleft())
        job = self.next_job()
        if job is None:
            return moved
        self._prefill(*job)
        return True

    def _drop(self, transfer_id: TransferId) -> None:
        """Take a request back: from the agents that have it, or out of the queue."""
        if transfer_id in self._offered:
            for rank in self._offered[transfer_id].ranks_open:
                self.agents[rank].withdraw(transfer_id)
            return
        for job in [job for job in self.inbox if job.transfer_id == transfer_id]:
            self.inbox.remove(job)
            self.report(
                Released(
                    transfer_id=transfer_id, bytes_written=0, descriptors=0, reason="withdrawn"
                )
            )

    def _prefill(self, job: Job, blocks: npt.NDArray[np.int64]) -> None:
        start_ms = clock_ms()
        for agent in self.agents:
            agent.expect(job.transfer_id)
        if job.streams:
            self._offer(job, blocks, 0)
        store = self.cache.sequence(blocks)
        for count in prefill(self.model, store, job.prompt):
            if self._stop.is_set():
                if not job.streams:
                    self.cache.allocator.give_back(blocks.tolist())
                return
            self._collect()
            if job.streams and count < job.prompt.prefill_tokens:
                self._grow(job, blocks, count)
        stop_ms = clock_ms()
        if job.streams:
            self._seal(job, blocks)
        else:
            self._offer(job, blocks, job.prompt.prefill_tokens)
        self.report(Prefilled(transfer_id=job.transfer_id, start_ms=start_ms, stop_ms=stop_ms))

    def _offer(self, job: Job, blocks: npt.NDArray[np.int64], token_count: int) -> None:
        """Offer the prompt to whoever comes: whole, or as the beginning of a stream."""
        sealed = token_count == job.prompt.prefill_tokens
        self._offered[job.transfer_id] = _Offered(
            blocks=blocks, ranks_open=set(range(len(self.agents))), computing=not sealed
        )
        table = self.cache.table(blocks, job.prompt.prefill_tokens)
        for agent in self.agents:
            agent.offer(
                job.transfer_id, (table,), token_count, digest=job.prompt.digest, sealed=sealed
            )

    def _grow(self, job: Job, blocks: npt.NDArray[np.int64], token_count: int) -> None:
        """State the tokens that are final to the ranks that still serve the request."""
        sealed = token_count == job.prompt.prefill_tokens
        table = self.cache.table(blocks, job.prompt.prefill_tokens)
        for rank in self._offered[job.transfer_id].ranks_open:
            self.agents[rank].grow(job.transfer_id, (table,), token_count, sealed=sealed)

    def _seal(self, job: Job, blocks: npt.NDArray[np.int64]) -> None:
        """The prefill is over: nothing writes these blocks any more."""
        self._grow(job, blocks, job.prompt.prefill_tokens)
        offered = self._offered[job.transfer_id]
        offered.computing = False
        self._release(job.transfer_id, offered)

    def _collect(self) -> bool:
        results = self.results()
        for rank, result in results:
            self._take(rank, result)
        return bool(results)

    def _take(self, rank: int, result: Result) -> None:
        match result:
            case Sent():
                offered = self._offered[result.transfer_id]
                offered.bytes_written += result.bytes_written
                offered.descriptors += result.descriptors
            case Unsent():
                offered = self._offered[result.transfer_id]
                offered.reason = f"rank {rank}: {result.reason.name} {result.detail}".strip()
            case Landed() | Lost() | LetGo():
                raise AssertionError(f"a producer was told {result}")
            case _:
                assert_never(result)
        offered.ranks_open.discard(rank)
        self._release(result.transfer_id, offered)

    def _release(self, transfer_id: TransferId, offered: _Offered) -> None:
        """Free the blocks once no rank's transfer and no prefill is at work on them."""
        if offered.ranks_open or offered.computing:
            return
        del self._offered[transfer_id]
        self.cache.allocator.give_back(offered.blocks.tolist())
        self.report(
            Released(
                transfer_id=transfer_id,
                bytes_written=offered.bytes_written,
                descriptors=offered.descriptors,
                reason=offered.reason,
            )
        )
