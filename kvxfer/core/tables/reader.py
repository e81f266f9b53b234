"""Consumer's machine in pull: what its own READs may still do to its own memory.

Owns READER. Data only. Invariant: READER reaches QUIET only with every own
operation terminal, and after an unproven end only by a fence (A2).
"""

from __future__ import annotations

from enum import Enum

from kvxfer.core.machine import row, table


class ReaderState(Enum):
    DIALLING = "dialling"
    READING = "reading"
    STOPPING = "stopping"
    FENCING = "fencing"
    QUARANTINED = "quarantined"
    QUIET = "quiet"


class ReaderEvent(Enum):
    GRANT = "all links up, parts known"
    UNREACHABLE = "link cannot be had"
    LINK_LOST = "link lost"
    CANCEL = "request lets go"
    GONE = "GONE"
    SILENT = "no answer in time"
    PARTS_ENDED = "all parts ended quietly"
    DRAINED = "no own operation posted"
    UNQUIET = "an own operation failed unproven"
    FENCED = "fence proven"
    NOT_FENCED = "fence not proven"
    RETRY = "fence retry due"


class ReaderAction(Enum):
    SEND_GRANT = "send GRANT"
    SEND_RELEASE = "send RELEASE"
    STOP_READS = "drop what is not posted"
    CHECK_DRAINED = "no own operation posted already?"
    DROP_LINK = "drop the link"
    FENCE = "fence the peer"
    FENCE_OPEN = "fence the peer where own operations are posted"
    FAIL_REQUEST = "request: part or edge failed"
    ARM_RETRY = "try the fence again later"
    LET_GO = "this reader has let go"


_R, _RE, _RA = ReaderState, ReaderEvent, ReaderAction

READER = table(
    "reader",
    ReaderState,
    ReaderEvent,
    _R.DIALLING,
    {_R.QUIET},
    [
        row(
            _R.DIALLING,
            {
                _RE.GRANT: (_R.READING, (_RA.SEND_GRANT,)),
                _RE.UNREACHABLE: (_R.QUIET, (_RA.FAIL_REQUEST, _RA.LET_GO)),
                _RE.LINK_LOST: (_R.QUIET, (_RA.FAIL_REQUEST, _RA.LET_GO)),
                _RE.CANCEL: (_R.QUIET, (_RA.LET_GO,)),
            },
            {
                _RE.GONE,
                _RE.SILENT,
                _RE.PARTS_ENDED,
                _RE.DRAINED,
                _RE.UNQUIET,
                _RE.FENCED,
                _RE.NOT_FENCED,
                _RE.RETRY,
            },
        ),
        row(
            _R.READING,
            {
                _RE.LINK_LOST: (_R.STOPPING, (_RA.FAIL_REQUEST, _RA.STOP_READS, _RA.FENCE_OPEN)),
                _RE.CANCEL: (_R.STOPPING, (_RA.STOP_READS,)),
                # The source may go at any time now: what ends later is not counted.
                _RE.GONE: (_R.STOPPING, (_RA.FAIL_REQUEST, _RA.STOP_READS)),
                _RE.SILENT: (
                    _R.STOPPING,
                    (_RA.FAIL_REQUEST, _RA.DROP_LINK, _RA.STOP_READS, _RA.FENCE_OPEN),
                ),
                _RE.PARTS_ENDED: (_R.QUIET, (_RA.SEND_RELEASE, _RA.LET_GO)),
                _RE.UNQUIET: (_R.FENCING, (_RA.STOP_READS, _RA.FENCE)),
            },
            {
                _RE.GRANT,
                _RE.UNREACHABLE,
                _RE.DRAINED,
                _RE.FENCED,
                _RE.NOT_FENCED,
                _RE.RETRY,
            },
        ),
        row(
            _R.STOPPING,
            {
                _RE.DRAINED: (_R.QUIET, (_RA.SEND_RELEASE, _RA.LET_GO)),
                _RE.UNQUIET: (_R.FENCING, (_RA.FENCE,)),
                # An operation that does not end by itself is ended by the fence.
                _RE.LINK_LOST: (_R.STOPPING, (_RA.FENCE_OPEN,)),
                _RE.SILENT: (_R.STOPPING, (_RA.DROP_LINK, _RA.FENCE_OPEN)),
                _RE.RETRY: (_R.STOPPING, (_RA.FENCE_OPEN,)),
            },
            {
                _RE.GRANT,
                _RE.UNREACHABLE,
                _RE.CANCEL,
                _RE.GONE,
                _RE.PARTS_ENDED,
                _RE.FENCED,
                _RE.NOT_FENCED,
            },
        ),
        row(
            _R.FENCING,
            {
                # Other operations of this attempt may be posted still: they end first.
                _RE.FENCED: (_R.STOPPING, (_RA.CHECK_DRAINED,)),
                _RE.NOT_FENCED: (_R.QUARANTINED, (_RA.ARM_RETRY,)),
            },
            {
                _RE.GRANT,
                _RE.UNREACHABLE,
                _RE.LINK_LOST,
                _RE.CANCEL,
                _RE.GONE,
                _RE.SILENT,
                _RE.PARTS_ENDED,
                _RE.DRAINED,
                _RE.UNQUIET,
                _RE.RETRY,
            },
        ),
        row(
            _R.QUARANTINED,
            {
                _RE.FENCED: (_R.STOPPING, (_RA.CHECK_DRAINED,)),
                _RE.RETRY: (_R.FENCING, (_RA.FENCE,)),
            },
            {
                _RE.GRANT,
                _RE.UNREACHABLE,
                _RE.LINK_LOST,
                _RE.CANCEL,
                _RE.GONE,
                _RE.SILENT,
                _RE.PARTS_ENDED,
                _RE.DRAINED,
                _RE.UNQUIET,
                _RE.NOT_FENCED,
            },
        ),
        row(_R.QUIET, {}, ReaderEvent),
    ],
)
