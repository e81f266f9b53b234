"""What lies between two sessions of a `Duet`: cables and posted operations.

Owns the records. Knows no rule. `duet.py` moves them.
"""

from __future__ import annotations

from collections import deque

import attrs

from kvxfer.core import effects as fx
from kvxfer.core.ids import Incarnation, LinkId, OpId
from kvxfer.core.messages import Message


class Violation(AssertionError):
    """An invariant of the protocol broke."""


@attrs.define(eq=False)
class Cable:
    """One control connection with a message queue in each direction, and its transport."""

    id: LinkId
    producer_life: Incarnation
    to_producer: deque[Message] = attrs.field(factory=deque)
    to_consumer: deque[Message] = attrs.field(factory=deque)
    notices: deque[Message] = attrs.field(factory=deque)
    """DONE messages that travel over the transport."""
    open_at_consumer: bool = True
    open_at_producer: bool = True
    shut_by_consumer: bool = False
    """The consumer's fence succeeded: nothing posted over it lands any more."""


@attrs.define(eq=False)
class Posted:
    """One claimed part: what the producer's transport still works on."""

    op: OpId
    post: fx.Post
    cable: Cable
    stopped: bool = False
