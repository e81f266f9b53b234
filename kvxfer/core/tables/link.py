"""The handshake of one link, both sides.

Owns LINK. Data only. Invariant: UP is reached by HELLO, WELCOME, both
proofs where a key was agreed, and both DESCRIBE messages, in this order and in no
other way.
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
    CHALLENGED = "challenged"
    """Acceptor: WELCOME with a key and the own proof sent, the dialler's awaited."""
    WELCOMED = "welcomed"
    """Acceptor: WELCOME sent and what it asks for proven, DESCRIBE awaited."""
    PROVING = "proving"
    """Dialler: WELCOME with a key came, the acceptor's proof is awaited."""
    DESCRIBING = "describing"
    """Dialler: DESCRIBE sent, the other one awaited."""
    UP = "up"
    CLOSED = "closed"


class LinkEvent(Enum):
    DIALLED = "connection open, this side dialled"
    HELLO = "HELLO, acceptable"
    HELLO_KEYED = "HELLO, acceptable, with a key in common"
    WELCOME = "WELCOME, acceptable"
    WELCOME_KEYED = "WELCOME, acceptable, with a key"
    PROOF = "PROOF, right"
    DESCRIBE = "DESCRIBE, acceptable"
    REFUSED = "REFUSE, or unacceptable message"
    TIMEOUT = "handshake deadline"
    LOST = "connection lost, or BYE"


class LinkAction(Enum):
    SEND_HELLO = "send HELLO"
    SEND_WELCOME = "send WELCOME"
    SEND_PROOF = "send PROOF"
    SEND_DESCRIBE = "send DESCRIBE"
    REPORT_UP = "report link up"
    REPORT_LOST = "report link lost"
    REPORT_UNREACHABLE = "report peer unreachable"
    CLOSE = "close the connection"


_L, _LE, _LA = LinkState, LinkEvent, LinkAction

_END = (_L.CLOSED, (_LA.CLOSE,))
_END_DIAL = (_L.CLOSED, (_LA.CLOSE, _LA.REPORT_UNREACHABLE))
_END_UP = (_L.CLOSED, (_LA.CLOSE, _LA.REPORT_LOST))
_NEVER_NEXT = (_LE.HELLO, _LE.HELLO_KEYED, _LE.WELCOME, _LE.WELCOME_KEYED, _LE.PROOF, _LE.DESCRIBE)
"""Handshake messages: each ends the link wherever it is not the one expected next."""
_ENDS = (*_NEVER_NEXT, _LE.REFUSED, _LE.TIMEOUT, _LE.LOST)

LINK = table(
    "link",
    LinkState,
    LinkEvent,
    _L.CALLED,
    {_L.CLOSED},
    [
        row(
            _L.CALLED,
            dict.fromkeys(_ENDS, _END)
            | {
                _LE.DIALLED: (_L.CALLING, (_LA.SEND_HELLO,)),
                _LE.HELLO: (_L.WELCOMED, (_LA.SEND_WELCOME,)),
                _LE.HELLO_KEYED: (_L.CHALLENGED, (_LA.SEND_WELCOME, _LA.SEND_PROOF)),
            },
        ),
        row(
            _L.CALLING,
            dict.fromkeys(_ENDS, _END_DIAL)
            | {
                _LE.WELCOME: (_L.DESCRIBING, (_LA.SEND_DESCRIBE,)),
                _LE.WELCOME_KEYED: (_L.PROVING, ()),
            },
            {_LE.DIALLED},
        ),
        row(
            _L.CHALLENGED,
            dict.fromkeys(_ENDS, _END) | {_LE.PROOF: (_L.WELCOMED, ())},
            {_LE.DIALLED},
        ),
        row(
            _L.WELCOMED,
            dict.fromkeys(_ENDS, _END)
            | {_LE.DESCRIBE: (_L.UP, (_LA.SEND_DESCRIBE, _LA.REPORT_UP))},
            {_LE.DIALLED},
        ),
        row(
            _L.PROVING,
            # The proof of the side that was dialled comes first: nothing of ours is shown before.
            dict.fromkeys(_ENDS, _END_DIAL)
            | {_LE.PROOF: (_L.DESCRIBING, (_LA.SEND_PROOF, _LA.SEND_DESCRIBE))},
            {_LE.DIALLED},
        ),
        row(
            _L.DESCRIBING,
            dict.fromkeys(_ENDS, _END_DIAL) | {_LE.DESCRIBE: (_L.UP, (_LA.REPORT_UP,))},
            {_LE.DIALLED},
        ),
        row(
            _L.UP,
            # A handshake message on a link that is up breaks the order: end the link.
            dict.fromkeys((*_NEVER_NEXT, _LE.REFUSED, _LE.LOST), _END_UP),
            {_LE.DIALLED, _LE.TIMEOUT},
        ),
        row(_L.CLOSED, {}, LinkEvent),
    ],
)
