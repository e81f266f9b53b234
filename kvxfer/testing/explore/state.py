"""One state of the whole: sessions by number, cables, operations, memory, engines' books.

Owns the records. Knows no rule and no move. Invariant: a `State` is a tuple of
tuples and small numbers; two states that are equal have equal futures, whatever
the link ids were on the way.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import attrs


class Budget(IntEnum):
    """What the world may do a limited number of times; the index into `State.used`."""

    CANCEL = 0
    DECLINE = 1
    EXPECT = 2
    WITHDRAW = 3
    CUT = 4
    RESTART_P = 5
    RESTART_D = 6
    LOSE = 7
    AGAIN = 8
    REFUSE_DIAL = 9
    REFUSE_POST = 10
    FAIL = 11
    UNKNOWN = 12
    NO_FENCE = 13
    UNRESOLVED = 14
    DRAIN = 15
    SHUT_DOWN = 16
    SKEW = 17


class Cable(NamedTuple):
    """One control connection with a queue in each direction, and its transport's notices."""

    link: int
    consumer: int
    producer: int
    consumer_life: int
    producer_life: int
    consumer_open: bool
    producer_open: bool
    shut: bool
    """The consumer's fence succeeded: nothing posted over it lands any more."""
    to_producer: tuple[int, ...]
    to_consumer: tuple[int, ...]
    notices: tuple[int, ...]


class Phase(IntEnum):
    """How far the transport is with a part."""

    QUEUED = 0
    POSTED = 1
    STOPPED = 2
    """Posted; nothing more of it will be."""
    ADRIFT = 3
    """Nobody at P knows of it any more, and it may still write."""


class Work(NamedTuple):
    """What an operation is to do: fixed at its Post effect."""

    transfer_id: str
    attempt: int
    consumer: int
    consumer_life: int
    producer: int
    producer_life: int
    part: int
    slot: int
    """Of the consumer's memory: where it writes."""
    tag: str
    """Of the offer: what it reads."""
    read: bool
    """The consumer reads; else the producer writes."""


class Op(NamedTuple):
    """One part on its way, of one life of the side that posts it."""

    poster: int
    life: int
    op: int
    link: int
    phase: Phase
    shut: bool
    """It can reach the consumer's memory no more."""
    aborted: bool
    """A READ: a fence was tried, so it ends, and not well."""
    tainted: bool
    """A READ: its source was somebody else's for a part of the time."""
    work: Work

    @property
    def name(self) -> str:
        return f"{'READ' if self.work.read else 'WRITE'} {self.op}"


class End(IntEnum):
    """What an engine has been told of a registration."""

    NONE = 0
    LANDED = 1
    LOST = 2


class Stamp(NamedTuple):
    """Who wrote a destination cell: which operation, for which attempt, from which content."""

    producer: int
    life: int
    op: int
    attempt: int
    content: str
    """The offer's tag; empty where the write broke off."""


class Booking(NamedTuple):
    """A registration in the books of D's engine, and the destination cells that it holds."""

    consumer: int
    transfer_id: str
    tag: str
    slot: int
    attempt: int
    end: End
    cells: tuple[Stamp | None, ...]


class Holding(NamedTuple):
    """An offer in the books of P's engine: its source cells hold `tag` as long as this is here."""

    producer: int
    transfer_id: str
    tag: str
    tokens: int
    """So many are final."""
    sealed: bool


class Draining(IntEnum):
    """What an agent has been told of its end."""

    NO = 0
    ASKED = 1
    TOLD = 2


class State(NamedTuple):
    """Everything that the future depends on."""

    agents: tuple[int, ...]
    lives: tuple[int, ...]
    cables: tuple[Cable, ...]
    dials: tuple[tuple[int, int], ...]
    ops: tuple[Op, ...]
    fences: tuple[tuple[int, int, int], ...]
    """(who asks, about whom, which life)."""
    resolves: tuple[tuple[int, str, int, str, bool], ...]
    """(consumer, transfer, attempt, tag, silent) that the driver works on."""
    strays: tuple[tuple[int, int, int], ...]
    """(consumer, producer, message): notices that outlived their cable."""
    bookings: tuple[Booking, ...]
    holdings: tuple[Holding, ...]
    registered: tuple[int, ...]
    """How often each agent has registered each transfer."""
    offered: tuple[int, ...]
    draining: tuple[Draining, ...]
    used: tuple[int, ...]


@attrs.define
class Draft:
    """A state in the making: the same fields, that can change."""

    agents: list[int]
    lives: list[int]
    cables: list[Cable]
    dials: list[tuple[int, int]]
    ops: list[Op]
    fences: list[tuple[int, int, int]]
    resolves: list[tuple[int, str, int, str, bool]]
    strays: list[tuple[int, int, int]]
    bookings: list[Booking]
    holdings: list[Holding]
    registered: list[int]
    offered: list[int]
    draining: list[Draining]
    used: list[int]

    @classmethod
    def of(cls, state: State) -> Draft:
        return cls(*[list(field) for field in state])  # type: ignore[arg-type]

    def cable(self, link: int) -> Cable | None:
        for cable in self.cables:
            if cable.link == link:
                return cable
        return None

    def put(self, cable: Cable) -> None:
        """Replace the cable with the same link."""
        for index, old in enumerate(self.cables):
            if old.link == cable.link:
                self.cables[index] = cable
                return

    def freeze(self) -> State:
        """In one order for all: what is a set here is sorted."""
        return State(
            tuple(self.agents),
            tuple(self.lives),
            tuple(self.cables),
            tuple(sorted(self.dials)),
            tuple(sorted(self.ops)) if len(self.ops) > 1 else tuple(self.ops),
            tuple(sorted(set(self.fences))),
            tuple(self.resolves),
            tuple(sorted(self.strays)),
            tuple(self.bookings),
            tuple(self.holdings),
            tuple(self.registered),
            tuple(self.offered),
            tuple(self.draining),
            tuple(self.used),
        )
