"""Two sessions with a link up, and what their engines were told."""

from __future__ import annotations

from kvxfer.testing.between import Cable
from kvxfer.testing.duet import Duet

LONG_MS = 10_000_000


def linked(**settings: object) -> tuple[Duet, Cable]:
    duet = Duet(**settings)
    return duet, duet.link_up()


def told(duet: Duet, tag: str) -> list[str]:
    """What the engine was told of a request: names, with the reason where there is one."""
    names = []
    for effect in duet.told:
        if effect.tag == tag:
            reason = getattr(effect, "reason", None)
            name = type(effect).__name__.removeprefix("Tell")
            names.append(f"{name}:{reason.name}" if reason is not None else name)
    return names
