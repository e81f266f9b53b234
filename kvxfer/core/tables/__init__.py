"""States and transition tables, as data; nothing else.

Owns every state machine of the protocol. The tables and diagrams of
spec/kvxfer-1.md section 3.4 are generated from here. Two rules govern the file:

1. What the engine is told about a request (REQUEST) and who may still touch the
   memory (WRITER or READER at the consumer, SOURCE at the producer) are separate
   machines. A destination block has two owners, and neither machine can end the
   other's ownership (A1).
2. WRITER reaches QUIET only by a positive fact: all parts ended quietly, the
   producer's word that it has drained (CANCELLED, GONE), or a fence (A2). No
   timer leads there.
"""

from kvxfer.core.tables.consumer import (
    PART,
    REQUEST,
    WRITER,
    PartAction,
    PartEvent,
    PartState,
    RequestAction,
    RequestEvent,
    RequestState,
    WriterAction,
    WriterEvent,
    WriterState,
)
from kvxfer.core.tables.link import (
    LINK,
    LinkAction,
    LinkEvent,
    LinkState,
)
from kvxfer.core.tables.loan import (
    LOAN,
    LoanAction,
    LoanEvent,
    LoanState,
)
from kvxfer.core.tables.producer import (
    SEND,
    SOURCE,
    SendAction,
    SendEvent,
    SendState,
    SourceAction,
    SourceEvent,
    SourceState,
)
from kvxfer.core.tables.reader import (
    READER,
    ReaderAction,
    ReaderEvent,
    ReaderState,
)

TABLES = (REQUEST, PART, WRITER, READER, SOURCE, SEND, LOAN, LINK)

__all__ = [
    "LINK",
    "LOAN",
    "PART",
    "READER",
    "REQUEST",
    "SEND",
    "SOURCE",
    "TABLES",
    "WRITER",
    "LinkAction",
    "LinkEvent",
    "LinkState",
    "LoanAction",
    "LoanEvent",
    "LoanState",
    "PartAction",
    "PartEvent",
    "PartState",
    "ReaderAction",
    "ReaderEvent",
    "ReaderState",
    "RequestAction",
    "RequestEvent",
    "RequestState",
    "SendAction",
    "SendEvent",
    "SendState",
    "SourceAction",
    "SourceEvent",
    "SourceState",
    "WriterAction",
    "WriterEvent",
    "WriterState",
]
