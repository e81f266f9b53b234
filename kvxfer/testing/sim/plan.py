"""The router of a run: which transfers there are, and what their legs will do.

Owns each transfer's draw. Knows no engine. Invariant: everything that an engine
will do to a transfer on its own wish is decided here, from the run's one source
of chance.
"""

from __future__ import annotations

import attrs
import numpy as np
import numpy.typing as npt

from kvxfer.core.ids import TransferId
from kvxfer.testing.sim.scene import Scene
from kvxfer.testing.sim.shapes import CONTENT_SIZE, TOKENS_MAX

_STAMPS = np.random.default_rng(20260101).integers(0, 256, 1 << 20, dtype=np.uint8)
PROMPTS = (5, 12, TOKENS_MAX)
STARTS = (0, 0, 0, 3)
LEG_US = 20_000
"""How long a prefill takes, and how far two legs are apart, at most."""


@attrs.define(eq=False, kw_only=True)
class Transfer:
    """One request's move between two engines."""

    number: int
    id: TransferId
    producer: int
    consumer: int
    """Numbers of the two engines."""
    tokens: int
    start: int
    """Tokens that D has already; equal to `tokens` where it needs nothing."""
    pull: bool = False
    """D reads; else P writes."""
    rounds: int = 0
    """How often it was dispatched."""
    landed: int = 0
    """Legs at D of which all ranks landed."""
    declined: bool = False
    aborted: bool = False
    """D's engine gave it up; it is not dispatched again."""

    @property
    def content(self) -> npt.NDArray[np.uint8]:
        """The bytes of the prompt's cache, in canonical order; other than any other's."""
        first = self.number * 7919 % (_STAMPS.size - CONTENT_SIZE)
        return _STAMPS[first : first + CONTENT_SIZE]

    @property
    def digest(self) -> bytes:
        return self.number.to_bytes(8, "little")


@attrs.frozen(kw_only=True)
class Legs:
    """When each leg of one dispatch begins, and what goes wrong with it. Times are delays."""

    round: int
    """Which dispatch of the transfer it is, from 1."""
    prefill_us: int | None
    """None where this leg never comes."""
    offer_us: int = 0
    """From the start of the prefill to its end."""
    expect: bool = False
    withdraw_us: int | None = None
    offer_tokens: int = 0
    stream: bool = False
    """The offer is made when the prefill starts, and grows."""
    repeat_offer: bool = False
    register_us: int | None = None
    decline: bool = False
    cancel_us: int | None = None
    digest: bytes = b""
    """What D's engine says of the prompt."""
    repeat_register: bool = False


def draw_transfer(
    scene: Scene, number: int, producer: int, consumer: int, *, read_back: bool = False
) -> Transfer:
    draw = scene.draw
    tokens = draw.choice(PROMPTS)
    start = tokens if draw.random() < 0.02 else min(draw.choice(STARTS), tokens)
    return Transfer(
        number=number,
        id=TransferId(f"t{number}"),
        producer=producer,
        consumer=consumer,
        tokens=tokens,
        start=start,
        pull=read_back or draw.random() < scene.knobs.ways.pull,
    )


def draw_legs(scene: Scene, transfer: Transfer) -> Legs:
    draw, chance = scene.draw, scene.chance
    timings = scene.knobs.timings
    prefill_us: int | None = draw.randrange(LEG_US)
    register_us: int | None = draw.randrange(LEG_US)
    if chance("late"):
        lease_us = 1000 * min(timings.offer_lease_ms, timings.transfer_deadline_ms)
        late_us = int(lease_us * (0.5 + draw.random()))
        if draw.random() < 0.5:
            prefill_us = late_us
        else:
            register_us = late_us
    decline = chance("decline")
    if chance("missing"):
        if draw.random() < 0.5:
            prefill_us = None
        else:
            register_us = None
    wrong = chance("wrong_prompt")
    known = draw.random() < 0.8
    return Legs(
        round=transfer.rounds,
        prefill_us=prefill_us,
        offer_us=draw.randrange(LEG_US),
        expect=draw.random() < 0.4,
        withdraw_us=draw.randrange(3 * LEG_US) if chance("withdraw") else None,
        offer_tokens=transfer.tokens - (1 if chance("short_offer") else 0),
        stream=draw.random() < scene.knobs.ways.stream,
        repeat_offer=chance("repeated"),
        register_us=register_us,
        decline=decline,
        cancel_us=draw.randrange(3 * LEG_US) if chance("cancel") else None,
        digest=b"wrong" if wrong else transfer.digest if known else b"",
        repeat_register=not decline and chance("repeated"),
    )
