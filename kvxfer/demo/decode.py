"""The decode engine.

Owns the destination blocks and the running requests. Refuses to know how bytes
arrive. Invariants: a request decodes only after Landed of every rank; its blocks
are freed only after LetGo of every rank and after its own last token.
"""

from __future__ import annotations

from typing import assert_never

import attrs
import numpy as np
import numpy.typing as npt

from kvxfer.core.ids import Initiator, TransferId
from kvxfer.demo.engines import Engine, Job
from kvxfer.demo.reports import Failed, Finished, clock_ms
from kvxfer.demo.sequence import Prompt, decode_step
from kvxfer.driver.commands import ProducerAddress
from kvxfer.driver.results import Landed, LetGo, Lost, Result, Sent, Unsent


@attrs.define(eq=False, kw_only=True)
class _Sequence:
    """One request at D. Ranks leave `waiting` at Landed or Lost, `held` at LetGo."""

    job: Job
    blocks: npt.NDArray[np.int64]
    admitted_ms: float
    waiting: set[int]
    held: set[int]
    answer: list[int] = attrs.field(factory=list)
    landed_ms: float = 0.0
    first_token_ms: float = 0.0
    failure: str = ""
    bytes_read: int = 0
    descriptors: int = 0

    @property
    def complete(self) -> bool:
        return bool(self.failure) or len(self.answer) >= self.job.prompt.answer_tokens


@attrs.define(eq=False, kw_only=True)
class DecodeEngine(Engine):
    """Registers a request when it comes and decodes what has landed, one token each in turn."""

    producers: tuple[ProducerAddress, ...]
    _sequences: dict[TransferId, _Sequence] = attrs.field(factory=dict)

    def tokens_kept(self, prompt: Prompt) -> int:
        return prompt.total_tokens

    def turn(self) -> bool:
        moved = self._admit()
        for rank, result in self.results():
            moved = True
            self._take(rank, result)
        for sequence in list(self._sequences.values()):
            if not sequence.waiting and not sequence.complete:
                moved = True
                self._decode(sequence)
        return moved

    def _admit(self) -> bool:
        """Give the oldest new request its blocks, and kvxfer the right to fill them."""
        taken = self.next_job()
        if taken is None:
            return False
        job, blocks = taken
        tokens = job.prompt.prefill_tokens
        ranks = range(len(self.agents))
        self._sequences[job.transfer_id] = _Sequence(
            job=job, blocks=blocks, admitted_ms=clock_ms(), waiting=set(ranks), held=set(ranks)
        )
        for agent in self.agents:
            agent.register(
                job.transfer_id,
                producers=self.producers,
                tables=(self.cache.table(blocks, tokens),),
                token_start=0,
                token_stop=tokens,
                digest=job.prompt.digest,
                initiator=Initiator.CONSUMER if job.reads else Initiator.PRODUCER,
            )
        return True

    def _take(self, rank: int, result: Result) -> None:
        match result:
            case Landed():
                sequence = self._sequences[result.transfer_id]
                sequence.waiting.discard(rank)
                sequence.landed_ms = clock_ms()
                sequence.bytes_read += result.bytes_read
                sequence.descriptors += result.descriptors
            case Lost():
                sequence = self._sequences[result.transfer_id]
                sequence.waiting.discard(rank)
                self._lose(sequence, f"rank {rank}: {result.reason.name} {result.detail}".strip())
            case LetGo():
                sequence = self._sequences[result.transfer_id]
                sequence.held.discard(rank)
                self._free(sequence)
            case Sent() | Unsent():
                raise AssertionError(f"a consumer was told {result}")
            case _:
                assert_never(result)

    def _lose(self, sequence: _Sequence, reason: str) -> None:
        if sequence.failure:
            return
        sequence.failure = reason
        for rank in sequence.waiting:
            self.agents[rank].cancel(sequence.job.transfer_id)
        self.report(Failed(transfer_id=sequence.job.transfer_id, reason=reason))

    def _decode(self, sequence: _Sequence) -> None:
        store = self.cache.sequence(sequence.blocks)
        decode_step(self.model, store, sequence.job.prompt, sequence.answer)
        now_ms = clock_ms()
        sequence.first_token_ms = sequence.first_token_ms or now_ms
        if not sequence.complete:
            return
        self._free(sequence)
        self.report(
            Finished(
                transfer_id=sequence.job.transfer_id,
                tokens=tuple(sequence.answer),
                admitted_ms=sequence.admitted_ms,
                landed_ms=sequence.landed_ms,
                first_token_ms=sequence.first_token_ms,
                last_token_ms=now_ms,
                bytes_read=sequence.bytes_read,
                descriptors=sequence.descriptors,
            )
        )

    def _free(self, sequence: _Sequence) -> None:
        """Free the blocks once both owners have let go: the request and the writers."""
        if sequence.held or not sequence.complete:
            return
        del self._sequences[sequence.job.transfer_id]
        self.cache.allocator.give_back(sequence.blocks.tolist())
