"""A build of the next minor version of the protocol, made of this one.

What spec section 11 lets a minor version add: a bit of `features`, a key in every map of the
control connection, a message type that needs no answer and goes to everybody, and one that
needs an answer and goes only to those with the bit. `install` has to come before the driver
is imported. Numbers lie in what the registries reserve.
"""

from __future__ import annotations

from collections import Counter
from enum import IntEnum
from typing import Any

import attrs

NEW_BIT = 1 << 40
NEW_KEY = 900


class NewType(IntEnum):
    """Message types of the newer version."""

    HINT = 60_000
    ASK = 60_001
    ANSWER = 60_002


SEEN: Counter[str] = Counter()
"""What this build met of its own additions."""


@attrs.frozen(kw_only=True)
class Hint:
    """Needs no answer."""


@attrs.frozen(kw_only=True)
class Ask:
    """Wants an ANSWER."""


@attrs.frozen(kw_only=True)
class Answer:
    """To an ASK."""


def install() -> None:
    """Turn the library, as it is loaded in this process, into the newer build."""
    from kvxfer.core import ids

    ids.FEATURES |= ids.Feature(NEW_BIT)  # type: ignore[misc]
    from kvxfer.core.effects import Send
    from kvxfer.core.messages import Describe, Done, Grant, GrantAck
    from kvxfer.core.session import Session
    from kvxfer.wire import codec, schema

    for number, cls in zip(NewType, (Hint, Ask, Answer), strict=True):
        layout = schema.Layout(number, cls, (), headed=False)
        schema.BY_TYPE[number] = schema.BY_CLASS[cls] = layout
    write, loads, poll, receive = codec._write, codec.loads, Session.poll, Session.receive

    def write_more(fields: Any, values: object, body: dict[int, Any]) -> None:
        write(fields, values, body)
        # A notification may only grow for peers that have the bit (K-11.3).
        if not isinstance(values, Done):
            body[NEW_KEY] = "newer"

    def load_more(data: Any, *rest: Any) -> Any:
        value = loads(data, *rest)
        if isinstance(value, list) and isinstance(value[1], dict):
            SEEN["keys"] += NEW_KEY in value[1]
        return value

    def poll_more(self: Session) -> list[Any]:
        batch: list[Any] = []
        for effect in poll(self):
            batch.append(effect)
            if isinstance(effect, Send) and isinstance(effect.message, Grant | GrantAck):
                batch.append(Send(link=effect.link, message=Hint()))
                link = self.ctx.links.get(effect.link)
                if link is not None and link.features & NEW_BIT:
                    batch.append(Send(link=effect.link, message=Ask()))
                    SEEN["asked"] += 1
        return batch

    def receive_more(self: Session, link: Any, message: Any, now_ms: int) -> None:
        match message:
            case Hint():
                SEEN["hints"] += 1
            case Ask():
                self.ctx.emit(Send(link=link, message=Answer()))
            case Answer():
                SEEN["answers"] += 1
            case _:
                if isinstance(message, Describe):
                    SEEN["described"] += 1
                receive(self, link, message, now_ms)

    codec._write, codec.loads = write_more, load_more
    Session.poll, Session.receive = poll_more, receive_more  # type: ignore[method-assign]
