"""Slabs of an engine's cache: who has which, and who waits for one.

Owns the free list and its queue. Knows no protocol. Invariant (O1): whoever finds
no slab waits in order and holds nothing meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import attrs

from kvxfer.testing.sim.scene import Scene


@attrs.define(eq=False)
class Pool:
    """Slabs [first, first + count) of one engine."""

    scene: Scene
    first: int
    count: int
    free: list[int] = attrs.field(init=False)
    waiting: deque[Callable[[int], None]] = attrs.field(factory=deque)

    def __attrs_post_init__(self) -> None:
        self.reset()

    def take(self, use: Callable[[int], None]) -> None:
        """Call `use` with a slab, now or once one is free."""
        if self.free and not self.waiting:
            use(self._draw())
        else:
            self.scene.hit("waited for blocks")
            self.waiting.append(use)

    def give(self, slab: int) -> None:
        self.free.append(slab)
        if self.waiting:
            self.waiting.popleft()(self._draw())

    def reset(self) -> None:
        """The engine is gone, with all that it held and all that waited in it."""
        self.free = list(range(self.first, self.first + self.count))
        self.waiting.clear()

    def _draw(self) -> int:
        free = self.free
        index = int(self.scene.draw.random() * len(free))
        free[index], free[-1] = free[-1], free[index]
        return free.pop()
