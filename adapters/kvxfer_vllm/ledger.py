"""The worker's ledger: which request ids the scheduler waits for, and what became of them.

Owns the open receives and sends, by the tag that the agent echoes in every result:
vLLM's request id, or for an offer one made from it. Knows neither vLLM nor the agent.
Invariant (N1, N2): an id is reported exactly once, only if the scheduler asked for it,
and a receive only after the agent said LetGo: vLLM hands the blocks to somebody else in
the same pass that sees the report. That a load failed may be told before
(`take_bad_blocks`), so that nobody waits for blocks in quarantine.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum, auto
from typing import assert_never

import attrs

from kvxfer.driver import Reason
from kvxfer.driver.results import Landed, LetGo, Lost, Result, Sent, Unsent

BlockColumns = Sequence[Iterable[int]]
"""Blocks by cache group; looked at only when something has failed."""


class _Verdict(Enum):
    OPEN = auto()
    LANDED = auto()
    LOST = auto()


class _Stream(Enum):
    """A send that began before the scheduler holds blocks for it."""

    OPEN = auto()
    ENDED = auto()
    HALTED = auto()
    """Nobody will ask for its end, but its blocks may still be read."""


@attrs.define
class _Receive:
    blocks: BlockColumns
    early: bool
    verdict: _Verdict = _Verdict.OPEN


@attrs.frozen(kw_only=True)
class Report:
    """Request ids for one step's answer to the scheduler. A failed id is in `received` too."""

    sent: frozenset[str]
    received: frozenset[str]
    failed: frozenset[str]
    failed_blocks: frozenset[int]
    """Blocks of what failed, for a scheduler that understands nothing else."""


@attrs.define
class Ledger:
    """Open receives and sends of one worker. One thread only."""

    _receives: dict[str, _Receive] = attrs.field(factory=dict)
    _sends: dict[str, str] = attrs.field(factory=dict)
    """Request ids by tag."""
    _streams: dict[str, _Stream] = attrs.field(factory=dict)
    _sent: set[str] = attrs.field(factory=set)
    _received: set[str] = attrs.field(factory=set)
    _failed: set[str] = attrs.field(factory=set)
    _failed_blocks: set[int] = attrs.field(factory=set)
    _bad_blocks: set[int] = attrs.field(factory=set)

    def __len__(self) -> int:
        return len(self._receives) + len(self._sends) + len(self._streams)

    def open_receive(self, request_id: str, blocks: BlockColumns, *, early: bool) -> None:
        """Enter a request that the scheduler parked with these blocks to be filled.

        `early`: they are named as bad as soon as the load is lost, before they are let go.
        """
        self._receives[request_id] = _Receive(blocks, early)

    def refuse_receive(self, request_id: str, blocks: BlockColumns) -> None:
        """Report a parked request as failed; no transfer was started for it."""
        self._fail(request_id, blocks)

    def open_send(self, request_id: str, tag: str) -> None:
        """Enter a finished request whose blocks the scheduler holds, offered under `tag`."""
        self._sends[tag] = request_id

    def open_stream(self, tag: str) -> None:
        """Enter an offer of a request that is not finished: its end is kept, not reported."""
        self._streams[tag] = _Stream.OPEN

    def close_stream(self, request_id: str, tag: str) -> None:
        """The request has finished and the scheduler holds its blocks: report the end now."""
        if self._streams.pop(tag, _Stream.OPEN) is _Stream.ENDED:
            self._sent.add(request_id)
        else:
            self._sends[tag] = request_id

    def halt_stream(self, tag: str) -> None:
        """Nobody will ask for the end of this stream; until it has come its blocks are read."""
        if self._streams.get(tag) is _Stream.OPEN:
            self._streams[tag] = _Stream.HALTED
        else:
            self._streams.pop(tag, None)

    def halted(self) -> list[str]:
        """Tags of halted streams that have not ended."""
        return [tag for tag, state in self._streams.items() if state is _Stream.HALTED]

    def is_receiving(self, request_id: str) -> bool:
        """True from open_receive until the report."""
        return request_id in self._receives

    def forget_halted(self) -> None:
        """Stop waiting for halted streams; their ends mean nothing to anybody."""
        for tag in self.halted():
            del self._streams[tag]

    def apply(self, results: Iterable[Result]) -> None:
        """Enter what the agent said. Results about nothing that is open are ignored."""
        for result in results:
            match result:
                case Landed(tag=tag):
                    self._judge(tag, _Verdict.LANDED)
                case Lost(tag=tag, reason=reason):
                    lost = self._judge(tag, _Verdict.LOST)
                    # After our own cancel the request has ended: nobody is to be told.
                    wanted = reason is not Reason.CANCELLED_BY_CONSUMER
                    if lost is not None and lost.early and wanted:
                        self._bad_blocks |= _ids(lost.blocks)
                case LetGo(tag=tag):
                    self._let_go(tag)
                case Sent(tag=tag) | Unsent(tag=tag):
                    self._end_send(tag)
                case _:
                    assert_never(result)

    def take(self) -> Report:
        """All that is new since the last call. Each id appears in one report only."""
        report = Report(
            sent=frozenset(self._sent),
            received=frozenset(self._received),
            failed=frozenset(self._failed),
            failed_blocks=frozenset(self._failed_blocks),
        )
        self._failed_blocks.clear()
        self._sent.clear()
        self._received.clear()
        self._failed.clear()
        return report

    def take_bad_blocks(self) -> set[int]:
        """Blocks of loads that were lost since the last call; they are still held."""
        bad, self._bad_blocks = self._bad_blocks, set()
        return bad

    def _end_send(self, tag: str) -> None:
        if tag in self._sends:
            self._sent.add(self._sends.pop(tag))
        elif self._streams.get(tag) is _Stream.HALTED:
            del self._streams[tag]
        elif tag in self._streams:
            self._streams[tag] = _Stream.ENDED

    def _judge(self, request_id: str, verdict: _Verdict) -> _Receive | None:
        """Enter a verdict. The first one stays: a failure is sticky (C3)."""
        receive = self._receives.get(request_id)
        if receive is None or receive.verdict is not _Verdict.OPEN:
            return None
        receive.verdict = verdict
        return receive

    def _let_go(self, request_id: str) -> None:
        receive = self._receives.pop(request_id, None)
        if receive is None:
            return
        if receive.verdict is _Verdict.LANDED:
            self._received.add(request_id)
        else:
            self._fail(request_id, receive.blocks)

    def _fail(self, request_id: str, blocks: BlockColumns) -> None:
        self._received.add(request_id)
        self._failed.add(request_id)
        self._failed_blocks |= _ids(blocks)


def _ids(blocks: BlockColumns) -> set[int]:
    return {int(block) for column in blocks for block in column}
