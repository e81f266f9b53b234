"""The engines of one kind, and which of them is asked next.

Owns what is open at each engine and which beginnings of prompts each has computed. Refuses
to know HTTP and the order of legs; the time is an argument. Invariant: a seat that was
taken is left once, so that an engine without open legs weighs nothing.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Collection, Iterable
from typing import Final

import attrs

from kvxfer_router.config import Coordinates, EngineSpec, RouterConfig
from kvxfer_router.health import Health, State
from kvxfer_router.prompts import BLOCK_TOKENS, Prompt

KNOWN_BLOCKS_MAX: Final = 65536
"""Beginnings that are remembered, 4 million tokens; the least recently used goes first."""


@attrs.define(eq=False)
class Engine:
    """One engine of the fleet. `coordinates` are a P's, as configured or learned last."""

    number: int
    spec: EngineSpec
    health: Health
    coordinates: Coordinates | None = attrs.field()
    load_tokens: int = 0
    """Weight of the open legs."""
    open_legs: int = 0
    chosen_last: int = 0

    @coordinates.default
    def _configured(self) -> Coordinates | None:
        return self.spec.coordinates

    def sit(self, weight_tokens: int) -> Seat:
        """Count a leg that opens."""
        self.load_tokens += weight_tokens
        self.open_legs += 1
        return Seat(self, weight_tokens)


@attrs.define(eq=False)
class Seat:
    """One open leg's place at an engine."""

    engine: Engine
    weight_tokens: int
    taken: bool = True

    def leave(self) -> None:
        """The leg has ended. May be repeated."""
        if self.taken:
            self.taken = False
            self.engine.load_tokens -= self.weight_tokens
            self.engine.open_legs -= 1


class Prefixes:
    """Which engine has computed which beginnings, by name; bounded."""

    def __init__(self, names_max: int = KNOWN_BLOCKS_MAX) -> None:
        self._names_max = names_max
        self._engines: OrderedDict[bytes, int] = OrderedDict()
        """Engines as bits, by name of a beginning; last used last."""

    def __len__(self) -> int:
        return len(self._engines)

    def known_blocks(self, prompt: Prompt, engine: Engine) -> int:
        """How many of the prompt's first blocks this engine has computed."""
        bit = 1 << engine.number
        return sum(
            1
            for _ in itertools.takewhile(
                lambda name: self._engines.get(name, 0) & bit, prompt.blocks
            )
        )

    def learn(self, prompt: Prompt, engine: Engine) -> None:
        """This engine has computed the prompt."""
        # The longest first: of one prompt, the end is forgotten before the beginning.
        for name in reversed(prompt.blocks):
            self._engines[name] = self._engines.get(name, 0) | 1 << engine.number
            self._engines.move_to_end(name)
        while len(self._engines) > self._names_max:
            self._engines.popitem(last=False)

    def forget(self, engine: Engine) -> None:
        """What this engine had is lost."""
        for name, bits in list(self._engines.items()):
            left = bits & ~(1 << engine.number)
            if left:
                self._engines[name] = left
            else:
                del self._engines[name]


class Pool:
    """All engines of one kind."""

    def __init__(self, specs: Iterable[EngineSpec], config: RouterConfig) -> None:
        self.engines = tuple(
            Engine(
                number,
                spec,
                Health(config.failures_max, config.pause_s, config.pause_s_max),
            )
            for number, spec in enumerate(specs)
        )
        self.prefixes = Prefixes()
        self._choices = itertools.count(1)

    def choose(
        self, prompt: Prompt, now_s: float, without: Collection[Engine] = (), *, known: bool = False
    ) -> Engine | None:
        """The engine that will be through with this prompt first; None where none may be asked.

        That is the one with the least work, what is open there plus what it would have to
        compute: a known beginning counts as work saved, so it outweighs as many waiting tokens
        as it has, and no more. Among equals the one that was chosen longest ago. `known`:
        only engines whose coordinates are known.
        """
        free = [
            engine
            for engine in self.engines
            if engine not in without
            and (engine.coordinates is not None or not known)
            and engine.health.admits(now_s, engine.open_legs)
        ]
        if not free:
            return None
        return min(free, key=lambda engine: (self._work(prompt, engine), engine.chosen_last))

    def take(self, engine: Engine, prompt: Prompt) -> Seat:
        """Send a leg for this prompt to this engine."""
        engine.chosen_last = next(self._choices)
        return engine.sit(prompt.weight_tokens)

    def note_failed(self, engine: Engine, now_s: float) -> None:
        """A leg at this engine failed, which speaks against it."""
        engine.health.leg_failed(now_s)
        self._forget_if_out(engine)

    def note_checked(self, engine: Engine, good: bool, now_s: float) -> None:
        """A health check of this engine has ended."""
        engine.health.checked(good, now_s)
        self._forget_if_out(engine)

    def _forget_if_out(self, engine: Engine) -> None:
        # An engine that comes back has most likely been started anew, with nothing in its cache.
        if engine.health.state is State.OUT:
            self.prefixes.forget(engine)

    def _work(self, prompt: Prompt, engine: Engine) -> int:
        saved = BLOCK_TOKENS * self.prefixes.known_blocks(prompt, engine)
        return engine.load_tokens + prompt.weight_tokens - saved


@attrs.frozen
class Fleet:
    """Both pools of one router."""

    prefill: Pool
    decode: Pool

    @classmethod
    def of(cls, config: RouterConfig) -> Fleet:
        """All engines that the configuration names, none of them checked yet."""
        return cls(Pool(config.prefills, config), Pool(config.decodes, config))
