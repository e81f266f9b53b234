"""Consumer's machines: the request, one part, one producer's ability to write.

Owns REQUEST, PART and WRITER; READER, its counterpart in pull, is in `reader.py`. Data only.
Invariant: WRITER reaches QUIET by positive facts alone (A2).
"""

from __future__ import annotations

from enum import Enum

from kvxfer.core.machine import row, table

# --- consumer: the request, as the engine sees it ---


class RequestState(Enum):
    WAITING = "waiting"
    LANDED = "landed"
    LOST = "lost"


class RequestEvent(Enum):
    ALL_DONE = "all parts done"
    FAIL = "part or edge failed"
    CANCEL = "engine cancels"
    DEADLINE = "deadline"


class RequestAction(Enum):
    TELL_LANDED = "tell engine: landed"
    TELL_LOST = "tell engine: lost"
    CANCEL_EDGES = "cancel every edge"


REQUEST = table(
    "request",
    RequestState,
    RequestEvent,
    RequestState.WAITING,
    {RequestState.LANDED, RequestState.LOST},
    [
        row(
            RequestState.WAITING,
            {
                RequestEvent.ALL_DONE: (RequestState.LANDED, (RequestAction.TELL_LANDED,)),
                RequestEvent.FAIL: (
                    RequestState.LOST,
                    (RequestAction.TELL_LOST, RequestAction.CANCEL_EDGES),
                ),
                RequestEvent.CANCEL: (
                    RequestState.LOST,
                    (RequestAction.TELL_LOST, RequestAction.CANCEL_EDGES),
                ),
                RequestEvent.DEADLINE: (
                    RequestState.LOST,
                    (RequestAction.TELL_LOST, RequestAction.CANCEL_EDGES),
                ),
            },
        ),
        row(RequestState.LANDED, {}, RequestEvent),
        # Failure is sticky: a success that comes later changes nothing (C3).
        row(RequestState.LOST, {}, RequestEvent),
    ],
)


# --- consumer: one part ---


class PartState(Enum):
    EXPECTED = "expected"
    OFFERED = "offered"
    DONE = "done"
    FAILED = "failed"
    UNQUIET = "unquiet"
    NEVER_POSTED = "never posted"


class PartEvent(Enum):
    OFFERED = "OFFER"
    DONE = "DONE, or read within the lease"
    FAILED_QUIET = "FAILED, quiet"
    FAILED_UNQUIET = "FAILED, not quiet"
    NEVER_POSTED = "NEVER_POSTED"


class PartAction(Enum):
    READ = "queue the READ"
    COUNT = "count the part"


_ENDS = {
    PartEvent.DONE: (PartState.DONE, (PartAction.COUNT,)),
    PartEvent.FAILED_QUIET: (PartState.FAILED, (PartAction.COUNT,)),
    PartEvent.FAILED_UNQUIET: (PartState.UNQUIET, (PartAction.COUNT,)),
    PartEvent.NEVER_POSTED: (PartState.NEVER_POSTED, (PartAction.COUNT,)),
}


PART = table(
    "part",
    PartState,
    PartEvent,
    PartState.EXPECTED,
    {PartState.DONE, PartState.FAILED, PartState.UNQUIET, PartState.NEVER_POSTED},
    [
        row(
            PartState.EXPECTED,
            {PartEvent.OFFERED: (PartState.OFFERED, (PartAction.READ,)), **_ENDS},
        ),
        # Pull only: a part that is offered twice is read once.
        row(PartState.OFFERED, _ENDS, {PartEvent.OFFERED}),
        # The first end counts; a repeated part is a no-op (D2).
        row(PartState.DONE, {}, PartEvent),
        row(PartState.FAILED, {}, PartEvent),
        row(PartState.UNQUIET, {}, PartEvent),
        row(PartState.NEVER_POSTED, {}, PartEvent),
    ],
)


# --- consumer: one producer's ability to write for one attempt ---


class WriterState(Enum):
    DIALLING = "dialling"
    GRANTED = "granted"
    CANCELLING = "cancelling"
    FENCING = "fencing"
    QUARANTINED = "quarantined"
    QUIET = "quiet"


class WriterEvent(Enum):
    GRANT = "all links up, parts known"
    NOTHING = "no part on this edge"
    UNREACHABLE = "link cannot be had"
    LINK_LOST = "link lost"
    RELINKED = "same life of the peer is back"
    CANCEL = "request lets go"
    PARTS_QUIET = "all parts ended quietly"
    CANCELLED = "CANCELLED"
    GONE = "GONE"
    SILENT = "no answer in time"
    FENCED = "fence proven"
    NOT_FENCED = "fence not proven"
    RETRY = "fence retry due"


class WriterAction(Enum):
    SEND_GRANT = "send GRANT"
    SEND_CANCEL = "send CANCEL"
    DROP_LINK = "drop the link"
    FENCE = "fence the peer"
    FAIL_REQUEST = "request: part or edge failed"
    ARM_RETRY = "try the fence again later"
    LET_GO = "this writer has let go"


_W, _WE, _WA = WriterState, WriterEvent, WriterAction

WRITER = table(
    "writer",
    WriterState,
    WriterEvent,
    _W.DIALLING,
    {_W.QUIET},
    [
        row(
            _W.DIALLING,
            {
                # No address has left this peer yet: quiet needs no further proof.
                _WE.GRANT: (_W.GRANTED, (_WA.SEND_GRANT,)),
                _WE.NOTHING: (_W.QUIET, (_WA.LET_GO,)),
                _WE.UNREACHABLE: (_W.QUIET, (_WA.FAIL_REQUEST, _WA.LET_GO)),
                _WE.LINK_LOST: (_W.QUIET, (_WA.FAIL_REQUEST, _WA.LET_GO)),
                _WE.CANCEL: (_W.QUIET, (_WA.LET_GO,)),
            },
            {
                _WE.RELINKED,
                _WE.PARTS_QUIET,
                _WE.CANCELLED,
                _WE.GONE,
                _WE.SILENT,
                _WE.FENCED,
                _WE.NOT_FENCED,
                _WE.RETRY,
            },
        ),
        row(
            _W.GRANTED,
            {
                _WE.LINK_LOST: (_W.FENCING, (_WA.FAIL_REQUEST, _WA.FENCE)),
                _WE.CANCEL: (_W.CANCELLING, (_WA.SEND_CANCEL,)),
                _WE.PARTS_QUIET: (_W.QUIET, (_WA.LET_GO,)),
                _WE.CANCELLED: (_W.QUIET, (_WA.FAIL_REQUEST, _WA.LET_GO)),
                _WE.GONE: (_W.QUIET, (_WA.FAIL_REQUEST, _WA.LET_GO)),
                _WE.SILENT: (_W.FENCING, (_WA.FAIL_REQUEST, _WA.DROP_LINK, _WA.FENCE)),
            },
            {
                _WE.GRANT,
                _WE.NOTHING,
                _WE.UNREACHABLE,
                _WE.RELINKED,
                _WE.FENCED,
                _WE.NOT_FENCED,
                _WE.RETRY,
            },
        ),
        row(
            _W.CANCELLING,
            {
                _WE.LINK_LOST: (_W.FENCING, (_WA.FENCE,)),
                _WE.PARTS_QUIET: (_W.QUIET, (_WA.LET_GO,)),
                _WE.CANCELLED: (_W.QUIET, (_WA.LET_GO,)),
                _WE.GONE: (_W.QUIET, (_WA.LET_GO,)),
                _WE.FENCED: (_W.QUIET, (_WA.LET_GO,)),
                _WE.SILENT: (_W.FENCING, (_WA.DROP_LINK, _WA.FENCE)),
            },
            {
                _WE.GRANT,
                _WE.NOTHING,
                _WE.UNREACHABLE,
                _WE.RELINKED,
                _WE.CANCEL,
                _WE.NOT_FENCED,
                _WE.RETRY,
            },
        ),
        row(
            _W.FENCING,
            {
                _WE.PARTS_QUIET: (_W.QUIET, (_WA.LET_GO,)),
                _WE.CANCELLED: (_W.QUIET, (_WA.LET_GO,)),
                _WE.GONE: (_W.QUIET, (_WA.LET_GO,)),
                _WE.FENCED: (_W.QUIET, (_WA.LET_GO,)),
                _WE.NOT_FENCED: (_W.QUARANTINED, (_WA.ARM_RETRY,)),
                _WE.RELINKED: (_W.FENCING, (_WA.SEND_CANCEL,)),
            },
            {
                _WE.GRANT,
                _WE.NOTHING,
                _WE.UNREACHABLE,
                _WE.LINK_LOST,
                _WE.CANCEL,
                _WE.SILENT,
                _WE.RETRY,
            },
        ),
        row(
            _W.QUARANTINED,
            {
                _WE.PARTS_QUIET: (_W.QUIET, (_WA.LET_GO,)),
                _WE.CANCELLED: (_W.QUIET, (_WA.LET_GO,)),
                _WE.GONE: (_W.QUIET, (_WA.LET_GO,)),
                _WE.FENCED: (_W.QUIET, (_WA.LET_GO,)),
                _WE.RETRY: (_W.FENCING, (_WA.FENCE,)),
                # The same process answers again: it may vouch that it has drained. It does
                # not where an operation failed unproven, so the fence is still tried.
                _WE.RELINKED: (_W.QUARANTINED, (_WA.SEND_CANCEL,)),
            },
            {
                _WE.GRANT,
                _WE.NOTHING,
                _WE.UNREACHABLE,
                _WE.LINK_LOST,
                _WE.CANCEL,
                _WE.SILENT,
                _WE.NOT_FENCED,
            },
        ),
        row(_W.QUIET, {}, WriterEvent),
    ],
)
