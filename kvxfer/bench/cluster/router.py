"""Which P and which D a request goes to.

Owns the policies. Invariant: a choice looks only at what a router could know: what it
has sent and what has come back.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final

import attrs

from kvxfer.bench.cluster.engines import Decode, Prefill
from kvxfer.bench.cluster.trace import Request
from kvxfer.errors import BadValue

POLICIES: Final = ("round-robin", "least-loaded", "prefix")


@attrs.define(eq=False)
class Router:
    """`policy` is for P; D is the one that holds the fewest requests, or the next in turn."""

    policy: str
    prefills: Sequence[Prefill]
    decodes: Sequence[Decode]
    _turn_p: itertools.count[int] = attrs.field(factory=itertools.count)
    _turn_d: itertools.count[int] = attrs.field(factory=itertools.count)

    def __attrs_post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise BadValue("policy", self.policy, f"one of {', '.join(POLICIES)}")

    def prefill(self, request: Request) -> Prefill:
        turn = next(self._turn_p)
        if self.policy == "round-robin":
            return self.prefills[turn % len(self.prefills)]
        # Equal ones take turns.
        shift = turn % len(self.prefills)
        order = (*self.prefills[shift:], *self.prefills[:shift])
        if self.policy == "least-loaded":
            return min(order, key=lambda one: one.waiting_tokens)
        return min(order, key=lambda one: self._cost(one, request))

    @staticmethod
    def _cost(engine: Prefill, request: Request) -> int:
        """Tokens to compute before this prompt is ready there."""
        hit = engine.cache.hit_tokens(request.prefix, request.tokens)
        return engine.waiting_tokens + request.tokens - hit

    def decode(self) -> Decode:
        turn = next(self._turn_d)
        shift = turn % len(self.decodes)
        order = (*self.decodes[shift:], *self.decodes[:shift])
        if self.policy == "round-robin":
            return order[0]
        return min(order, key=lambda one: one.held)
