"""Feeds sessions and carries out what they ask for, on a `Draft`.

Owns the meaning of every effect in the explorer's world, and the checks at the
moment an engine is told of something. Knows no move: `moves` calls it. Invariant:
whatever a batch asks for is done before the draft becomes a state.
"""

from __future__ import annotations

from collections import deque
from typing import assert_never

import attrs

from kvxfer.core import effects as fx
from kvxfer.core import events as ev
from kvxfer.core.handshake import Identity
from kvxfer.core.ids import Attempt, Incarnation, Initiator, Part, PeerKey, Reason, Role, TransferId
from kvxfer.core.messages import Describe
from kvxfer.core.session import Session
from kvxfer.testing.explore import books, transport, wires
from kvxfer.testing.explore.agents import Agents, Step
from kvxfer.testing.explore.config import Config
from kvxfer.testing.explore.state import Budget, Draft, Draining, State
from kvxfer.testing.explore.values import Numbers


def _describe(_link: object, _peer: object) -> Describe:
    return Describe(transport="explore", blob=b"", shard=b"")


@attrs.define
class Rig:
    """One configuration's world: who there is, and how effects are carried out."""

    config: Config
    agents: Agents = attrs.field(factory=Agents)
    content_tags: Numbers[str] = attrs.field(factory=Numbers)
    """What a block table of the producer's memory names: the tag of an offer."""
    log: list[str] | None = None
    _names: dict[int, str] = attrs.field(factory=dict)
    _shown: dict[int, str] = attrs.field(factory=dict)
    _pending: deque[tuple[int, Step]] = attrs.field(factory=deque)

    # --- who there is ---

    @property
    def d_side(self) -> range:
        """Agents of the decode engine."""
        return range(self.config.consumers)

    @property
    def p_side(self) -> range:
        """Agents of the prefill engine."""
        first = self.config.consumers
        return range(first, first + self.config.producers)

    def takers(self, transfer_id: str) -> range:
        """Whose memory a transfer goes to."""
        return self.p_side if transfer_id in self.config.back else self.d_side

    def givers(self, transfer_id: str) -> range:
        return self.d_side if transfer_id in self.config.back else self.p_side

    def key(self, agent: int) -> PeerKey:
        if agent in self.d_side:
            return PeerKey("D", agent)
        return PeerKey("P", agent - self.config.consumers)

    def agent(self, key: PeerKey) -> int:
        return key.rank if key.engine_id == "D" else key.rank + self.config.consumers

    def name(self, agent: int) -> str:
        """For people."""
        name = self._names.get(agent)
        if name is None:
            name = self._names[agent] = self._name(agent)
        return name

    def _name(self, agent: int) -> str:
        key = self.key(agent)
        many = self.config.consumers if key.engine_id == "D" else self.config.producers
        return key.engine_id if many == 1 else f"{key.engine_id}{key.rank}"

    def new_session(self, agent: int, life: int) -> int:
        """The number of a session that has just started."""
        decodes = agent in self.d_side
        ranks = tuple(range(self.config.producers if decodes else self.config.consumers))
        role = Role.BOTH if self.config.back else Role.CONSUMER if decodes else Role.PRODUCER
        key = self.key(agent)
        session = Session(
            me=Identity(
                engine_id=key.engine_id,
                rank=key.rank,
                incarnation=Incarnation(life),
                role=role,
            ),
            limits=self.config.limits,
            timings=self.config.timings,
            describe=_describe,
            accept=lambda _link, _peer, _theirs: ranks,
        )
        return self.agents.add(session)

    def start(self) -> State:
        """Every engine has just started; links are up where the configuration says so."""
        lives = [1000 * (rank + 1) for rank in self.d_side]
        lives += [1 + 100 * rank for rank in range(self.config.producers)]
        counts = [0] * (len(lives) * len(self.config.transfers))
        draft = Draft(
            agents=[self.new_session(a, life) for a, life in enumerate(lives)],
            lives=lives,
            cables=[],
            dials=[],
            ops=[],
            fences=[],
            resolves=[],
            strays=[],
            bookings=[],
            holdings=[],
            registered=list(counts),
            offered=list(counts),
            draining=[Draining.NO] * len(lives),
            used=[0] * len(Budget),
        )
        if self.config.linked:
            self._link_all(draft)
        return wires.freeze(self, draft)

    def _link_all(self, draft: Draft) -> None:
        earlier = TransferId("earlier")
        for taker in range(len(draft.agents)) if self.config.back else self.d_side:
            others = self.p_side if taker in self.d_side else self.d_side
            event = ev.Register(
                transfer_id=earlier,
                producers=tuple(self.key(other) for other in others),
                digest=b"",
                deadline_ms=self.config.deadline_ms,
                silent=True,
            )
            self.handle(draft, taker, event)
        while draft.dials:
            wires.connect(self, draft, *draft.dials[0])
        self._deliver_all(draft)
        while draft.resolves:
            self.resolve(draft, 0)
        self._deliver_all(draft)
        for giver in range(len(draft.agents)) if self.config.back else self.p_side:
            ended = ev.Withdraw(transfer_id=earlier, reason=Reason.PRODUCER_ABORTED)
            self.handle(draft, giver, ended)
        self._deliver_all(draft)

    def _deliver_all(self, draft: Draft) -> None:
        moved = True
        while moved:
            moved = False
            for cable in list(draft.cables):
                if cable.to_producer or cable.to_consumer:
                    wires.deliver(self, draft, cable.link, to_producer=bool(cable.to_producer))
                    moved = True

    # --- feeding ---

    def handle(self, draft: Draft, agent: int, event: ev.Event) -> None:
        self.feed(draft, agent, ("handle", self.agents.events.of(event)))

    def feed(self, draft: Draft, agent: int, step: Step) -> bool:
        """Do a step to a session, and everything that follows at once; the answer of a claim."""
        allowed = self._step(draft, agent, step)
        while self._pending:
            self._step(draft, *self._pending.popleft())
        return allowed

    def _step(self, draft: Draft, agent: int, step: Step) -> bool:
        stepped = self.agents.step(draft.agents[agent], step)
        draft.agents[agent] = stepped.number
        for effect in stepped.effects:
            self._effect(draft, agent, effect)
        return stepped.allowed

    def later(self, agent: int, event: ev.Event) -> None:
        self._pending.append((agent, ("handle", self.agents.events.of(event))))

    def say(self, line: str) -> None:
        if self.log is not None:
            self.log.append(line)

    # --- effects ---

    def _effect(self, draft: Draft, agent: int, effect: fx.Effect) -> None:
        match effect:
            case fx.Trace():
                pass
            case fx.Send():
                wires.send(self, draft, agent, effect.link, effect.message)
            case fx.Dial():
                dial = (agent, self.agent(effect.peer))
                if dial not in draft.dials:
                    draft.dials.append(dial)
            case fx.DropLink():
                self.say(f"{self.name(agent)} drops link {effect.link}: {effect.reason.name}")
                wires.close_end(self, draft, agent, effect.link)
            case fx.Resolve():
                self._resolve(draft, agent, effect)
            case fx.Fence():
                transport.fence(self, draft, agent, effect.peer)
            case fx.Post():
                transport.post(self, draft, agent, effect)
            case fx.StopOp():
                transport.stop(draft, agent, effect.op)
            case fx.TellLanded() | fx.TellLost() | fx.TellLetGo():
                books.told_consumer(self, draft, agent, effect)
            case fx.TellSent() | fx.TellUnsent():
                books.told_producer(self, draft, agent, effect)
            case fx.TellDrained():
                books.told_drained(self, draft, agent)
            case _:
                assert_never(effect)

    def _resolve(self, draft: Draft, agent: int, effect: fx.Resolve) -> None:
        draft.resolves.append(
            (agent, effect.transfer_id, effect.attempt, effect.tag, effect.silent)
        )
        books.numbered(draft, agent, effect.tag, effect.attempt)
        if not self.config.slow_resolve:
            self._pending.append((agent, self._resolved(draft, len(draft.resolves) - 1)))

    def resolve(self, draft: Draft, index: int) -> None:
        """The driver answers: here are the parts."""
        agent = draft.resolves[index][0]
        self.feed(draft, agent, self._resolved(draft, index))

    def _resolved(self, draft: Draft, index: int) -> Step:
        agent, transfer_id, attempt, tag, silent = draft.resolves.pop(index)
        slot = 0 if silent else books.slot_of(draft, agent, tag)
        plans = tuple(
            ev.EdgePlan(
                peer=self.key(producer),
                parts=() if silent else self.parts(producer),
                tables=() if silent else (books.table(slot),),
            )
            for producer in self._writers(agent)
        )
        event = ev.Resolved(
            transfer_id=TransferId(transfer_id), attempt=Attempt(attempt), edges=plans
        )
        return ("handle", self.agents.events.of(event))

    def parts(self, producer: int) -> tuple[Part, ...]:
        rank = self.key(producer).rank
        if self.config.by_layers:
            layers = range(self.config.parts)
            return tuple(Part(rank, 0, 0, books.TOKENS_PER_PART, n, n + 1) for n in layers)
        starts = range(0, self.config.parts * books.TOKENS_PER_PART, books.TOKENS_PER_PART)
        return tuple(Part(rank, 0, start, start + books.TOKENS_PER_PART) for start in starts)

    def part_index(self, part: Part) -> int:
        """Which cell of a slot the part fills."""
        number = part.layer_start + part.token_start // books.TOKENS_PER_PART
        return part.producer_rank * self.config.parts + number

    def _writers(self, agent: int) -> range:
        """Those of the other side that have a part."""
        others = self._others(agent)
        return others[: len(others) - self.config.idle_producers]

    def _others(self, agent: int) -> range:
        return self.p_side if agent in self.d_side else self.d_side

    def registration(self, transfer_id: str, tag: str, *, silent: bool) -> ev.Register:
        reads = self.config.pulls or transfer_id in self.config.back
        return ev.Register(
            transfer_id=TransferId(transfer_id),
            producers=tuple(self.key(giver) for giver in self.givers(transfer_id)),
            digest=self.config.digest_of("D", tag),
            deadline_ms=self.config.deadline_ms,
            tag=tag,
            silent=silent,
            initiator=Initiator.CONSUMER if reads else Initiator.PRODUCER,
        )

    def show(self, number: int) -> str:
        """A message, for people."""
        shown = self._shown.get(number)
        if shown is None:
            shown = self._shown[number] = self._words(number)
        return shown

    def _words(self, number: int) -> str:
        message = self.agents.messages.value(number)
        words = [type(message).__name__]
        header = getattr(message, "header", None)
        if header is not None:
            words.append(f"{header.transfer_id}/{header.attempt}")
        part = getattr(message, "part", None)
        if part is not None:
            words.append(f"part {self.part_index(part)}")
        reason = getattr(message, "reason", None)
        if reason is not None:
            words.append(reason.name)
        return " ".join(words)
