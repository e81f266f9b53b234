"""The real sessions, run once for every (state, event) that comes up.

Owns one representative `Session` per distinct session state, and the memory of
what each event did to it. A session is deterministic and looks at differences
of time only, so what it did once it does always; the explorer's states then are
tuples of numbers, and most steps are a look-up. Knows no network. Invariant: a
representative is never changed; an event works on a copy.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable
from typing import Any, NamedTuple, assert_never

import attrs

from kvxfer.core import effects as fx
from kvxfer.core.credentials import MAC_BYTES, NONCE_BYTES, Credentials
from kvxfer.core.events import Event
from kvxfer.core.ids import AttemptKey, LinkId, OpId, PeerKey, Reason
from kvxfer.core.messages import Hello, Message, Welcome
from kvxfer.core.sends import AnyServed
from kvxfer.core.session import Session
from kvxfer.core.tables import RequestState, SourceState
from kvxfer.core.timers import (
    DeadlineTimer,
    EdgeTimer,
    GrantTimer,
    HandshakeTimer,
    OfferTimer,
    Timers,
)
from kvxfer.testing.between import Violation
from kvxfer.testing.explore.canon import canon
from kvxfer.testing.explore.copying import duplicate, names_of
from kvxfer.testing.explore.values import LinkNo, Numbers

START_MS = 1_000_000
"""Where every clock starts: only differences matter, and nothing is before it."""

CRASHES = (AssertionError, LookupError, AttributeError, TypeError, ValueError, RuntimeError)

Step = tuple[Hashable, ...]
"""What is done to a session: a verb and plain arguments."""


@attrs.frozen
class Facts:
    """What the explorer looks at in a session state."""

    deadline_ms: int | None
    """From now to the next timer."""
    links: frozenset[int]
    waiting: tuple[str, ...]
    """Transfers that P's engine has announced and must offer or withdraw."""
    left: tuple[str, ...]
    """Tables that are not empty, though they must be after quiescence (L1)."""
    granted: frozenset[tuple[PeerKey, AttemptKey]]
    """Attempts at a producer that this side waits for."""
    held: frozenset[tuple[PeerKey, AttemptKey]]
    """Attempts of a consumer that this side holds and may still serve."""
    orphans: tuple[str, ...]
    """Timers of what is no more (L1)."""


class Stepped(NamedTuple):
    """What one step did."""

    number: int
    effects: tuple[fx.Effect, ...]
    allowed: bool
    """The answer of a claim; True for everything else."""


@attrs.define
class Agents:
    """All session states met so far, by number."""

    messages: Numbers[Message] = attrs.field(factory=Numbers)
    events: Numbers[Event] = attrs.field(factory=Numbers)
    runs: int = 0
    """How often a real session was fed an event."""
    _numbers: dict[Hashable, int] = attrs.field(factory=dict)
    _sessions: list[Session] = attrs.field(factory=list)
    _clocks: list[int] = attrs.field(factory=list)
    facts: list[Facts] = attrs.field(factory=list)
    _memory: dict[tuple[int, Step], Stepped] = attrs.field(factory=dict)
    _renamed: dict[tuple[int, tuple[tuple[int, int], ...]], int] = attrs.field(factory=dict)

    def __len__(self) -> int:
        return len(self._sessions)

    def add(self, session: Session, now_ms: int = START_MS) -> int:
        """The number of this session state. The caller gives the session away."""
        form = canon(session, now_ms)
        number = self._numbers.get(form.key)
        if number is None:
            number = self._numbers[form.key] = len(self._sessions)
            self._sessions.append(session)
            self._clocks.append(now_ms)
            self.facts.append(_facts(session, now_ms, form.links))
        return number

    def session(self, number: int) -> Session:
        """The representative; to look at only."""
        return self._sessions[number]

    def clock_ms(self, number: int) -> int:
        """What the representative's clock shows."""
        return self._clocks[number]

    def step(self, number: int, step: Step) -> Stepped:
        """Do `step` to a session state. Violation where the real session breaks."""
        known = self._memory.get((number, step))
        if known is not None:
            return known
        session = duplicate(self._sessions[number])
        now_ms = self._clocks[number]
        if step[0] == "advance":
            now_ms += _int(step[1])
        self.runs += 1
        before = Counter(session.ctx.counters)
        try:
            allowed = self._perform(session, step, now_ms)
        except CRASHES as error:
            raise Violation(f"I1: a session broke: {type(error).__name__} {error}") from error
        batch = tuple(session.poll())
        _check_outcomes(session.ctx.counters - before, batch)
        result = self._memory[number, step] = Stepped(self.add(session, now_ms), batch, allowed)
        return result

    def rename(self, number: int, links: tuple[tuple[int, int], ...]) -> int:
        """The same session state with its link ids renamed."""
        known = self._renamed.get((number, links))
        if known is None:
            session = duplicate(self._sessions[number], dict(links))
            known = self._renamed[number, links] = self.add(session, self._clocks[number])
        return known

    def _perform(self, session: Session, step: Step, now_ms: int) -> bool:
        match step:
            case ("receive", link, number):
                message = self.messages.value(_int(number))
                session.receive(_link(link), message, now_ms)
            case ("handle", number):
                session.handle(self.events.value(_int(number)), now_ms)
            case ("advance", _):
                session.advance(now_ms)
            case ("claim", op):
                return session.claim(OpId(_int(op)), now_ms)
            case ("open", link, dialled, keyed):
                credentials = _KEYED if keyed else None
                session.open_link(_link(link), _key(dialled), now_ms, credentials)
            case ("shut down",):
                session.shut_down(now_ms)
            case ("close", link):
                session.close_link(_link(link), Reason.PEER_LOST, now_ms)
            case _:
                raise TypeError(f"no such step: {step}")
        return True


@attrs.frozen
class _Honest:
    """A prover among friends: every proof is the same, and right."""

    def sent(self, message: Hello | Welcome) -> None:
        """Nothing hangs on it."""

    def proof(self, _key_id: str) -> bytes:
        return bytes(MAC_BYTES)

    def check(self, _key_id: str, mac: bytes) -> bool:
        return mac == bytes(MAC_BYTES)


_KEYED = Credentials(nonce=bytes(NONCE_BYTES), key_ids=("k",), required=True, prover=_Honest())


def _int(value: Any) -> int:
    return int(value)


def _link(value: Any) -> LinkId:
    return LinkId(LinkNo(value))


def _key(value: Any) -> PeerKey | None:
    return None if value is None else PeerKey(value[0], value[1])


STAYING = frozenset({"links", "_by_peer", "counters"})
"""Tables of a context that are not about transfers: a link may stay up."""

OUTCOMES = ("landed", "lost", "cancelled", "sent", "unsent")


def _facts(session: Session, now_ms: int, links: frozenset[int]) -> Facts:
    deadline_ms = session.next_deadline_ms()
    waiting = (SourceState.EXPECTED, SourceState.UNWANTED)
    return Facts(
        deadline_ms=None if deadline_ms is None else max(0, deadline_ms - now_ms),
        links=links,
        waiting=tuple(
            source.transfer_id
            for source in session.producer.sources.values()
            if source.state in waiting
        ),
        left=_left(session),
        granted=frozenset(
            (key, edge.attempt)
            for reg in session.consumer.registrations.values()
            if reg.state is RequestState.WAITING and not reg.silent
            for key, edge in reg.edges.items()
            if edge.link in session.ctx.links and not edge.all_done()
        ),
        held=frozenset(
            (peer.key, key)
            for (peer, key), served in session.producer.attempts.live.items()
            if _may_serve(session, served)
        ),
        orphans=_orphans(session),
    )


def _may_serve(session: Session, served: AnyServed) -> bool:
    """False for an attempt from which nothing more will come."""
    source = session.producer.sources.get(served.key.transfer_id)
    return served.parked if source is None else source.state is not SourceState.CLOSING


def _orphans(session: Session) -> tuple[str, ...]:
    consumer, producer = session.consumer, session.producer
    found = []
    for timer in session.ctx.timers._live:
        match timer:
            case HandshakeTimer(link):
                owned = link in session._handshakes
            case DeadlineTimer(key) | EdgeTimer(key):
                owned = key in consumer.registrations
            case GrantTimer(peer, key):
                owned = (peer, key) in producer.attempts.live
            case OfferTimer(transfer_id):
                owned = transfer_id in producer.sources
            case _:
                assert_never(timer)
        if not owned:
            found.append(type(timer).__name__)
    return tuple(found)


def _left(session: Session) -> tuple[str, ...]:
    found = []
    for machine in (
        session.ctx,
        session.operations,
        session.consumer,
        session.producer,
        session.producer.attempts,
    ):
        for name in names_of(type(machine)):
            table = getattr(machine, name)
            sized = isinstance(table, dict | list | set | deque | Timers)
            if sized and len(table) and name not in STAYING:
                found.append(f"{type(machine).__name__.lower()}.{name.strip('_')}")
    if set(session._handshakes) != set(session.ctx.links):
        found.append("session.handshakes")
    return tuple(found)


def _check_outcomes(counted: Counter[str], batch: tuple[fx.Effect, ...]) -> None:
    """Every end that an engine is told of moves exactly one outcome counter (R1)."""
    told = sum(
        isinstance(e, fx.TellLanded | fx.TellLost | fx.TellSent | fx.TellUnsent) for e in batch
    )
    outcomes = sum(counted[name] for name in OUTCOMES)
    if not told - counted["refused"] <= outcomes <= told:
        raise Violation(f"R1: {told} ends were told, {outcomes} outcomes were counted")
