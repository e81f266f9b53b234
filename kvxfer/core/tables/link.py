"""The handshake of one link, both sides.

Owns LINK. Data only. Invariant: UP is reached by HELLO, WELCOME and both
DESCRIBE messages in this order and in no other way.
"""

from __future__ import annotations

from enum import Enum

from kvxfer.core.machine import row, table

# --- both sides: the handshake of one link ---


class LinkState(Enum):
    CALLED = "called"
    """Acceptor: connection open, HELLO awaited."""
    CALLING = "calling"
    """Dialler: HELLO sent, WELCOME awaited."""
    WELCOMED = "welcomed"
    """Acceptor: WELCOME sent, DESCRIBE awaited."""
    DESCRIBING = "describing"
    """Dialler: DESCRIBE sent, the other one awaited."""
    UP = "up"
    CLOSED = "closed"


class LinkEvent(Enum):
    DIALLED = "connection open, this side dialled"
    HELLO = "HELLO, acceptable"
    WELCOME = "WELCOME, acceptable"
    DESCRIBE = "DESCRIBE, acceptable"
    REFUSED = "REFUSE, or unacceptable message"
    TIMEOUT = "handshake deadline"
    LOST = "connection lost, or BYE"


class LinkAction(Enum):
    SEND_HELLO = "send HELLO"
    SEND_WELCOME = "send WELCOME"
    SEND_DESCRIBE = "send DESCRIBE"
    REPORT_UP = "report link up"
    REPORT_LOST = "report link lost"
    REPORT_UNREACHABLE = "report peer unreachable"
    CLOSE = "close the connection"


_L, _LE, _LA = LinkState, LinkEvent, LinkAction

LINK = table(
    "link",
    LinkState,
    LinkEvent,
    _L.CALLED,
    {_L.CLOSED},
    [
        row(
            _L.CALLED,
            {
                _LE.DIALLED: (_L.CALLING, (_LA.SEND_HELLO,)),
                _LE.HELLO: (_L.WELCOMED, (_LA.SEND_WELCOME,)),
                _LE.WELCOME: (_L.CLOSED, (_LA.CLOSE,)),
                _LE.DESCRIBE: (_L.CLOSED, (_LA.CLOSE,)),
                _LE.REFUSED: (_L.CLOSED, (_LA.CLOSE,)),
                _LE.TIMEOUT: (_L.CLOSED, (_LA.CLOSE,)),
                _LE.LOST: (_L.CLOSED, (_LA.CLOSE,)),
            },
        ),
        row(
            _L.CALLING,
            {
                _LE.WELCOME: (_L.DESCRIBING, (_LA.SEND_DESCRIBE,)),
                _LE.HELLO: (_L.CLOSED, (_LA.CLOSE, _LA.REPORT_UNREACHABLE)),
                _LE.DESCRIBE: (_L.CLOSED, (_LA.CLOSE, _LA.REPORT_UNREACHABLE)),
                _LE.REFUSED: (_L.CLOSED, (_LA.CLOSE, _LA.REPORT_UNREACHABLE)),
                _LE.TIMEOUT: (_L.CLOSED, (_LA.CLOSE, _LA.REPORT_UNREACHABLE)),
                _LE.LOST: (_L.CLOSED, (_LA.CLOSE, _LA.REPORT_UNREACHABLE)),
            },
            {_LE.DIALLED},
        ),
        row(
            _L.WELCOMED,
            {
                _LE.DESCRIBE: (_L.UP, (_LA.SEND_DESCRIBE, _LA.REPORT_UP)),
                _LE.HELLO: (_L.CLOSED, (_LA.CLOSE,)),
                _LE.WELCOME: (_L.CLOSED, (_LA.CLOSE,)),
                _LE.REFUSED: (_L.CLOSED, (_LA.CLOSE,)),
                _LE.TIMEOUT: (_L.CLOSED, (_LA.CLOSE,)),
                _LE.LOST: (_L.CLOSED, (_LA.CLOSE,)),
            },
            {_LE.DIALLED},
        ),
        row(
            _L.DESCRIBING,
            {
                _LE.DESCRIBE: (_L.UP, (_LA.REPORT_UP,)),
                _LE.HELLO: (_L.CLOSED, (_LA.CLOSE, _LA.REPORT_UNREACHABLE)),
                _LE.WELCOME: (_L.CLOSED, (_LA.CLOSE, _LA.REPORT_UNREACHABLE)),
                _LE.REFUSED: (_L.CLOSED, (_LA.CLOSE, _LA.REPORT_UNREACHABLE)),
                _LE.TIMEOUT: (_L.CLOSED, (_LA.CLOSE, _LA.REPORT_UNREACHABLE)),
                _LE.LOST: (_L.CLOSED, (_LA.CLOSE, _LA.REPORT_UNREACHABLE)),
            },
            {_LE.DIALLED},
        ),
        row(
            _L.UP,
            {
                # A handshake message on a link that is up breaks the order: end the link.
                _LE.HELLO: (_L.CLOSED, (_LA.CLOSE, _LA.REPORT_LOST)),
                _LE.WELCOME: (_L.CLOSED, (_LA.CLOSE, _LA.REPORT_LOST)),
                _LE.DESCRIBE: (_L.CLOSED, (_LA.CLOSE, _LA.REPORT_LOST)),
                _LE.REFUSED: (_L.CLOSED, (_LA.CLOSE, _LA.REPORT_LOST)),
                _LE.LOST: (_L.CLOSED, (_LA.CLOSE, _LA.REPORT_LOST)),
            },
            {_LE.DIALLED, _LE.TIMEOUT},
        ),
        row(_L.CLOSED, {}, LinkEvent),
    ],
)
