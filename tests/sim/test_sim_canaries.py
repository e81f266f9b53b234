"""Faults planted in the core: the simulator must find each within a stated number of seeds."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from click.testing import CliRunner

from kvxfer.cli import main
from kvxfer.core import consumer, producer, senders, tables, writers
from kvxfer.core.consumer import Consumer
from kvxfer.core.events import OpEnded
from kvxfer.core.ids import Part
from kvxfer.core.machine import Table, row, table
from kvxfer.core.readers import Readers
from kvxfer.core.senders import Senders
from kvxfer.core.sends import Source
from kvxfer.testing.sim import find_by_seeds

W, WE, WA = tables.WriterState, tables.WriterEvent, tables.WriterAction
N, NE, NA = tables.SendState, tables.SendEvent, tables.SendAction
S, SE, SA = tables.SourceState, tables.SourceEvent, tables.SourceAction
R, RE = tables.RequestState, tables.RequestEvent

TRANSFERS = 100


def with_cell(whole: Table, state: Any, event: Any, target: Any, actions: tuple) -> Table:
    """The same table with one cell replaced."""
    rows = []
    for r in whole.rows:
        on, ignored = dict(r.on), set(r.ignored)
        if r.state is state:
            on[event] = (target, actions)
            ignored.discard(event)
        rows.append(row(r.state, on, ignored))
    return table(whole.name, type(whole.initial), type(event), whole.initial, whole.terminal, rows)


@pytest.mark.timeout(600)  # the deadline that leads nowhere costs a minute of a quiet core
@pytest.mark.parametrize(
    ("module", "name", "cell", "rule", "seeds_max"),
    [
        # D takes a timer for a proof: the field's late write after free.
        (writers, "WRITER", (W.CANCELLING, WE.SILENT, W.QUIET, (WA.LET_GO,)), "A2", 60),
        # D takes the loss of a link for a proof.
        (writers, "WRITER", (W.CANCELLING, WE.LINK_LOST, W.QUIET, (WA.LET_GO,)), "A2", 30),
        # P says that it has drained while an operation runs.
        (senders, "SEND", (N.SENDING, NE.CANCEL, N.ENDED, (NA.TELL_DRAINED,)), ("A2", "C2"), 10),
        # P goes on posting under an attempt that was cancelled.
        (senders, "SEND", (N.SENDING, NE.CANCEL, N.SENDING, ()), "B2", 40),
        # P gives its blocks back while they are read.
        (
            producer,
            "SOURCE",
            (S.OFFERED, SE.WITHDRAW, S.RELEASED, (SA.STOP_SENDS, SA.TELL_END)),
            "B1",
            10,
        ),
        # D's deadline leads nowhere.
        (consumer, "REQUEST", (R.WAITING, RE.DEADLINE, R.WAITING, ()), "C2", 20),
    ],
)
def test_a_broken_cell_is_found(
    monkeypatch: pytest.MonkeyPatch,
    module: Any,
    name: str,
    cell: tuple,
    rule: str | tuple[str, ...],
    seeds_max: int,
) -> None:
    monkeypatch.setattr(module, name, with_cell(getattr(tables, name), *cell))
    found = find_by_seeds(range(seeds_max), TRANSFERS)
    assert found is not None
    assert found.broken.rule.startswith(rule)


def test_wrong_parts_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """D takes any end of a part for the end of all: it would decode from half a cache."""
    whole = Consumer.end_part

    def one_is_all(self: Consumer, reg: Any, edge: Any, part: Part, event: Any, why: Any) -> None:
        for every in reg.edges.values():
            for name in every.parts:
                whole(self, reg, every, name, event, why)

    monkeypatch.setattr(Consumer, "end_part", one_is_all)
    found = find_by_seeds(range(20), TRANSFERS)
    assert found is not None
    assert found.broken.rule.startswith(("D1", "A2"))


def test_wrong_pairing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """P serves a grant from another transfer's blocks: right shape, wrong content."""
    whole = Senders._queue_parts

    def from_another(self: Senders, send: Any) -> None:
        own = self.host.source_of(send.key.transfer_id)
        others = [s for s in self.host.sources.values() if s.tag and s is not own and s.token_count]
        kept = own.tag
        if others:
            own.tag = others[0].tag
        whole(self, send)
        own.tag = kept

    monkeypatch.setattr(Senders, "_queue_parts", from_another)
    found = find_by_seeds(range(20), TRANSFERS)
    assert found is not None
    assert found.broken.rule.startswith(("D1", "B1", "X1"))


def test_a_failed_read_that_counts_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pull: D takes every end of a READ for success (C3)."""
    whole = Readers.op_ended

    def always_done(self: Readers, owner: Any, part: Part, event: OpEnded) -> None:
        whole(self, owner, part, attrs.evolve(event, done=True))

    monkeypatch.setattr(Readers, "op_ended", always_done)
    found = find_by_seeds(range(40), TRANSFERS)
    assert found is not None
    assert found.broken.rule.startswith(("D1", "A2"))


def test_a_chunk_that_is_sent_too_early_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streaming: P posts parts whose tokens are not computed yet (Q1)."""
    monkeypatch.setattr(Source, "is_final", lambda _self, _part: True)
    found = find_by_seeds(range(20), TRANSFERS)
    assert found is not None
    assert found.broken.rule.startswith("D1")


def test_a_failing_seed_says_how_to_repeat_it_and_what_happened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cell = (S.OFFERED, SE.WITHDRAW, S.RELEASED, (SA.STOP_SENDS, SA.TELL_END))
    monkeypatch.setattr(producer, "SOURCE", with_cell(tables.SOURCE, *cell))
    found = find_by_seeds(range(10), TRANSFERS)
    assert found is not None
    command = f"kvxfer sim --seed {found.broken.seed} --transfers {TRANSFERS}"
    assert found.broken.command == command
    again = CliRunner().invoke(main, command.split()[1:])
    assert again.exit_code == 1
    assert found.broken.rule in again.output
    assert f"repeat: {command}" in again.output
    assert "posts op" in again.output
    assert found.broken.transcript in again.output
