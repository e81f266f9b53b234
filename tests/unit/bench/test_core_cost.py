"""The core's benchmark does what it says: every transfer ends, every figure is there."""

from __future__ import annotations

import json

from click.testing import CliRunner

from kvxfer.bench.core_cost import measure
from kvxfer.bench.core_pair import Pair
from kvxfer.cli import main


def test_a_pair_serves_whole_transfers_and_is_empty_afterwards() -> None:
    pair = Pair()
    for number in range(5):
        pair.register(f"t{number}")
    assert (pair.consumer.live(), pair.producer.live()) == (5, 5)
    before = pair.events
    for number in range(5):
        pair.serve(f"t{number}")
    # Offer, claim, end, notice.
    assert pair.events - before == 4 * 5
    # Landed, let go, sent.
    assert pair.tells == 3 * 5
    assert (pair.consumer.live(), pair.producer.live()) == (0, 0)


def test_figures_are_of_what_was_asked() -> None:
    cost = measure((3, 12), transfers=6, rounds=1)
    assert [row.live for row in cost.rows] == [3, 12]
    for row in cost.rows:
        assert row.transfer_us > row.event_us > 0
        assert min(row.renewal_us, row.expiry_us, row.far_link_us, row.far_fence_us) > 0
    assert cost.growth == cost.rows[1].event_us / cost.rows[0].event_us
    # A table of 256 blocks alone is 2 kB.
    assert cost.memory.consumer_bytes > 2048
    assert cost.memory.producer_bytes > 2048


def test_command_prints_a_table_or_json() -> None:
    options = ["bench", "core", "--live-max", "10", "--transfers", "5", "--rounds", "1"]
    shown = CliRunner().invoke(main, options)
    assert shown.exit_code == 0
    assert "bytes per live transfer" in shown.output
    line = CliRunner().invoke(main, [*options, "--json"])
    assert [row["live"] for row in json.loads(line.output)["rows"]] == [10]
