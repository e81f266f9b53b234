"""Tables: every cell is there, terminal states stay, quiet needs a fact."""

from enum import Enum

import pytest

from kvxfer.core.machine import row, table
from kvxfer.core.tables import (
    LOAN,
    READER,
    REQUEST,
    TABLES,
    WRITER,
    LoanEvent,
    LoanState,
    ReaderAction,
    ReaderEvent,
    ReaderState,
    RequestState,
    WriterAction,
    WriterEvent,
    WriterState,
)


@pytest.mark.parametrize("whole", TABLES, ids=lambda t: t.name)
def test_every_cell_is_defined_and_terminal_states_do_nothing(whole) -> None:
    states = type(whole.initial)
    events = {event for _, event in whole.cells}
    assert len(whole.cells) == len(states) * len(events)
    for state in whole.terminal:
        for event in events:
            cell = whole.fire(state, event)
            assert (cell.target, cell.actions) == (state, ())


def test_writer_lets_go_only_by_a_fact() -> None:
    facts = {
        WriterEvent.PARTS_QUIET,
        WriterEvent.CANCELLED,
        WriterEvent.GONE,
        WriterEvent.FENCED,
    }
    for (state, event), cell in WRITER.cells.items():
        if WriterAction.LET_GO in cell.actions:
            assert cell.target is WriterState.QUIET
            # Before the grant has left, nobody knows the address: any end is quiet.
            assert event in facts or state is WriterState.DIALLING


def test_a_reader_lets_go_only_with_its_operations_terminal() -> None:
    """Straight from a state with open or unproven operations, nothing leads to quiet."""
    for (state, event), cell in READER.cells.items():
        if ReaderAction.LET_GO in cell.actions:
            assert cell.target is ReaderState.QUIET
            facts = (ReaderEvent.DRAINED, ReaderEvent.PARTS_ENDED)
            assert event in facts or state is ReaderState.DIALLING
            assert state not in (ReaderState.FENCING, ReaderState.QUARANTINED)


def test_a_loan_that_was_offered_ends_by_release_or_lease() -> None:
    for (state, event), cell in LOAN.cells.items():
        if cell.target is LoanState.ENDED and state in (LoanState.LENT, LoanState.RECALLED):
            assert event in (LoanEvent.RELEASE, LoanEvent.LEASE_EXPIRED)


def test_failure_is_sticky() -> None:
    for (state, _), cell in REQUEST.cells.items():
        if state is RequestState.LOST:
            assert cell.target is RequestState.LOST


class S(Enum):
    A = 1
    B = 2


class E(Enum):
    X = 1
    Y = 2


class A(Enum):
    DO = 1


def test_a_table_with_a_hole_cannot_be_built() -> None:
    with pytest.raises(ValueError, match=r"A x Y defined not once"):
        table("t", S, E, S.A, {S.B}, [row(S.A, {E.X: (S.B, ())}), row(S.B, {}, E)])


def test_a_cell_defined_twice_is_refused() -> None:
    rows = [row(S.A, {E.X: (S.B, ()), E.Y: (S.B, ())}, {E.Y}), row(S.B, {}, E)]
    with pytest.raises(ValueError, match=r"A x Y defined not once"):
        table("t", S, E, S.A, {S.B}, rows)


def test_an_unreachable_state_is_refused() -> None:
    with pytest.raises(ValueError, match=r"never reached \['B'\]"):
        table("t", S, E, S.A, {S.B}, [row(S.A, {}, E), row(S.B, {}, E)])


def test_a_terminal_state_that_is_left_is_refused() -> None:
    rows = [row(S.A, {E.X: (S.B, ())}, {E.Y}), row(S.B, {E.X: (S.A, (A.DO,))}, {E.Y})]
    with pytest.raises(ValueError, match=r"left again \['B'\]"):
        table("t", S, E, S.A, {S.B}, rows)
