"""What a `Duet` has been told, and the rules that hold at every tell.

Owns the outcomes, the landed parts and the danger to memory. Knows no session.
Invariant: a tell that breaks A1, A2, B1, B2, C1, C3, D1, N2 or P1 raises
`Violation` at once.
"""

from __future__ import annotations

from collections import Counter
from typing import assert_never

import attrs

from kvxfer.core import effects as fx
from kvxfer.core.ids import Attempt, AttemptKey, Incarnation, OpId, Part, Reason
from kvxfer.testing.between import Posted, Violation


@attrs.define(eq=False)
class Books:
    """Base of `Duet`: what is known, and whether it may be."""

    parts_per_transfer: int = 2
    now_ms: int = 0
    told: list[fx.Effect] = attrs.field(factory=list)
    let_go: set[AttemptKey] = attrs.field(factory=set)
    transcript: list[str] = attrs.field(factory=list)
    parts_landed: set[tuple[AttemptKey, Part]] = attrs.field(factory=set)
    outcomes: Counter[tuple[str, str]] = attrs.field(factory=Counter)
    posted: dict[OpId, Posted] = attrs.field(factory=dict)
    danger: dict[tuple[Incarnation, OpId], Posted] = attrs.field(factory=dict)
    """Operations that may still write into the consumer's memory, its own READs among them."""
    registered: set[str] = attrs.field(factory=set)
    offered: set[str] = attrs.field(factory=set)
    streams: dict[str, int] = attrs.field(factory=dict)
    """Tokens that are final, of every offer by its tag that is not sealed."""
    drained: set[str] = attrs.field(factory=set)
    """Sides, "P" and "D", that are told that nothing is left to finish."""

    def parts(self) -> tuple[Part, ...]:
        return tuple(Part(0, 0, 10 * i, 10 * i + 10) for i in range(self.parts_per_transfer))

    def enter_danger(self, life: Incarnation, posted: Posted) -> None:
        """From now on this operation may write into the consumer's memory."""
        key = posted.post.grant.header.key
        if key in self.let_go:
            raise Violation(f"A1: op {posted.op} posted after {key} was let go")
        self.danger[life, posted.op] = posted

    def told_drained(self, side: str, entries: int) -> None:
        self.say(f"{side} is told Drained")
        if entries or side in self.drained:
            raise Violation(f"P1: {side} drained twice or with {entries} entries left")
        self.drained.add(side)

    def told_consumer(self, effect: fx.TellLanded | fx.TellLost | fx.TellLetGo) -> None:
        self.told.append(effect)
        self.say(f"D is told {type(effect).__name__} {effect.tag}")
        key = AttemptKey(effect.transfer_id, effect.attempt)
        if effect.tag not in self.registered:
            raise Violation(f"N2: {effect} names what the engine did not register")
        match effect:
            case fx.TellLanded():
                self._once(effect.tag, "end")
                missing = [p for p in self.parts() if (key, p) not in self.parts_landed]
                if missing:
                    raise Violation(f"D1: {key} landed without {missing}")
            case fx.TellLost():
                self._once(effect.tag, "end")
            case fx.TellLetGo():
                self._once(effect.tag, "let go")
                if not self.outcomes[effect.tag, "end"]:
                    raise Violation(f"C1: {key} let go before it ended")
                if effect.attempt == Attempt(0):
                    return
                self.let_go.add(key)
                live = [p.op for p in self.danger.values() if p.post.grant.header.key == key]
                if live:
                    raise Violation(f"A2: {key} let go while ops {live} may write")
            case _:
                assert_never(effect)

    def told_producer(self, effect: fx.TellSent | fx.TellUnsent) -> None:
        self.told.append(effect)
        self.say(f"P is told {type(effect).__name__} {effect.tag}")
        if effect.tag not in self.offered:
            raise Violation(f"N2: {effect} names what the engine did not offer")
        self._once(effect.tag, "end")
        self.streams.pop(effect.tag, None)
        if isinstance(effect, fx.TellUnsent) and effect.reason is Reason.ALREADY_IN_USE:
            return
        reading = [
            p.op
            for p in self.posted.values()
            if p.post.grant.header.transfer_id == effect.transfer_id and p.post.tag == effect.tag
        ]
        if reading:
            raise Violation(f"B1: {effect.transfer_id} ended while ops {reading} read it")

    def _once(self, tag: str, what: str) -> None:
        self.outcomes[tag, what] += 1
        if self.outcomes[tag, what] > 1:
            raise Violation(f"C1: {tag} was told '{what}' twice")

    def say(self, line: str) -> None:
        self.transcript.append(f"{self.now_ms:8d}  {line}")
