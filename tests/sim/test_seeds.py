"""Seeded walks of the real machines, the rare paths they must reach, and canaries."""

from collections import Counter

import pytest

from kvxfer.core import lenders, readers, senders, tables, writers
from kvxfer.core.machine import Table, row, table
from kvxfer.testing.between import Violation
from kvxfer.testing.walk import walk

SEEDS = range(2500)


def test_walks_hold_every_invariant_and_reach_the_rare_paths() -> None:
    reached: Counter[str] = Counter()
    for seed in SEEDS:
        duet = walk(seed)
        counts = duet.consumer.ctx.counters
        assert counts["registered"] == counts["landed"] + counts["lost"] + counts["cancelled"]
        reached.update(duet.consumer.ctx.counters)
        reached.update({f"P {k}": v for k, v in duet.producer.ctx.counters.items()})
        reached["quarantine"] += any("False" in line for line in duet.transcript)
    for path in (
        "landed",
        "lost_cancelled_by_consumer",
        "lost_deadline",
        "lost_peer_lost",
        "lost_transport_failed",
        "lost_producer_aborted",
        "lost_offer_expired",
        "lost_tokens_missing",
        "lost_draining",
        "repeated_parts",
        "late_messages",
        "quarantine",
        "P sent",
        "P unsent_offer_expired",
        "P unsent_cancelled_by_consumer",
        "P unsent_peer_lost",
        "P grants_refused",
        "P late_offers",
    ):
        assert reached[path], f"no walk reached {path}"


def walk_all() -> None:
    for seed in SEEDS:
        walk(seed)


def broken(whole: Table, state: object, event: object, target: object, actions: tuple) -> Table:
    """The same table with one cell replaced."""
    rows = []
    for r in whole.rows:
        on = dict(r.on)
        ignored = set(r.ignored)
        if r.state is state:
            on[event] = (target, actions)
            ignored.discard(event)
        rows.append(row(r.state, on, ignored))
    return table(whole.name, type(whole.initial), type(event), whole.initial, whole.terminal, rows)


W, WE, WA = tables.WriterState, tables.WriterEvent, tables.WriterAction
R, RE, RA = tables.ReaderState, tables.ReaderEvent, tables.ReaderAction
L, LE, LA = tables.LoanState, tables.LoanEvent, tables.LoanAction
N, NE, NA = tables.SendState, tables.SendEvent, tables.SendAction


@pytest.mark.parametrize(
    ("module", "name", "cell"),
    [
        # D takes a timer for a proof: the field's late write after free.
        (writers, "WRITER", (W.CANCELLING, WE.SILENT, W.QUIET, (WA.LET_GO,))),
        # P says it has drained while an operation runs.
        (senders, "SEND", (N.SENDING, NE.CANCEL, N.ENDED, (NA.TELL_DRAINED,))),
        # D takes silence for a proof.
        (writers, "WRITER", (W.CANCELLING, WE.LINK_LOST, W.QUIET, (WA.LET_GO,))),
        # D lets its blocks go under READs of its own.
        (readers, "READER", (R.READING, RE.CANCEL, R.QUIET, (RA.SEND_RELEASE, RA.LET_GO))),
        # D takes a fence of one READ for the end of another.
        (readers, "READER", (R.FENCING, RE.FENCED, R.QUIET, (RA.LET_GO,))),
        # P takes its word that it serves no more for the reader's.
        (lenders, "LOAN", (L.LENT, LE.STOP, L.ENDED, (LA.TELL_GONE, LA.SETTLE))),
        # P takes the loss of a link for the end of reading.
        (lenders, "LOAN", (L.LENT, LE.LINK_LOST, L.ENDED, (LA.SETTLE,))),
    ],
)
def test_canary_a_broken_cell_is_found(
    monkeypatch: pytest.MonkeyPatch, module: object, name: str, cell: tuple
) -> None:
    monkeypatch.setattr(module, name, broken(getattr(tables, name), *cell))
    with pytest.raises(Violation):
        walk_all()
