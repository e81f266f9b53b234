"""The simulator on fixed seeds: nothing breaks, every fault hits, the same run twice."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from kvxfer.testing.sim import Total, run_seed, simulate
from kvxfer.testing.sim.knobs import INCIDENTS, RATES, draw_knobs

SEEDS = range(160)
TRANSFERS = 80

HITS = {
    *RATES,
    *INCIDENTS,
    "silent deaths",
    "cancelled in an incident",
    "dial failed",
    "dial into a partition",
    "dispatched to a dead engine",
    "fence not proven",
    "fence proven",
    "late write landed",
    "late write shut out",
    "message held up",
    "operation dropped before posting",
    "operation stopped between windows",
    "waited for blocks",
    "write posted",
    "read posted",
    "read-back",
    "stream begun",
    "grown after its end",
    "drained",
    "drain cut short",
    "operation ended by a fence",
    "core: grants_refused",
    "core: late_messages",
    "core: late_offers",
    "core: pairs_refused",
    "core: reads_after_lease",
    "core: repeated_parts",
}
LOST = {
    "ALREADY_IN_USE",
    "CANCELLED_BY_CONSUMER",
    "DEADLINE",
    "DIGEST_MISMATCH",
    "DRAINING",
    "GRANT_EXPIRED",
    "LAYOUT_REFUSED",
    "OFFER_EXPIRED",
    "OUT_OF_BOUNDS",
    "PEER_LOST",
    "PEER_SILENT",
    "PRODUCER_ABORTED",
    "SHUTDOWN",
    "TABLE_FULL",
    "TOKENS_MISSING",
    "TRANSPORT_FAILED",
    "UNREACHABLE",
}
UNSENT = {
    "ALREADY_IN_USE",
    "CANCELLED_BY_CONSUMER",
    "DRAINING",
    "GRANT_EXPIRED",
    "NEW_INCARNATION",
    "OFFER_EXPIRED",
    "PEER_LOST",
    "PRODUCER_ABORTED",
    "SHUTDOWN",
    "TABLE_FULL",
    "TOKENS_MISSING",
    "TRANSPORT_FAILED",
}


@pytest.fixture(scope="module")
def total() -> Total:
    return simulate(SEEDS, TRANSFERS)


def test_every_invariant_holds_and_everything_ends(total: Total) -> None:
    assert [broken.text() for broken in total.broken] == []
    assert (total.seeds, total.violations, total.unended) == (len(SEEDS), 0, 0)
    assert total.tables_empty
    assert total.transfers >= len(SEEDS) * TRANSFERS
    assert total.ok


def test_every_fault_and_every_end_was_really_hit(total: Total) -> None:
    wanted = HITS | {f"lost: {name}" for name in LOST} | {f"unsent: {name}" for name in UNSENT}
    missing = sorted(name for name in wanted | {"landed", "sent"} if not total.hits[name])
    assert missing == []


def test_swarm_turns_each_fault_off_in_many_seeds(total: Total) -> None:
    drawn = [draw_knobs(seed) for seed in SEEDS]
    for name in RATES:
        off = sum(getattr(knobs.rates, name) == 0 for knobs in drawn)
        assert len(SEEDS) // 5 < off < len(SEEDS) * 4 // 5, name
    assert any(knobs.on_wire for knobs in drawn)
    assert any(len(knobs.producers) + len(knobs.consumers) > 4 for knobs in drawn)


def test_same_seed_same_run_in_another_process_with_another_hash_seed() -> None:
    here = simulate(range(7, 10), 60).summary()
    command = [sys.executable, "-m", "kvxfer", "sim", "--seed", "7", "--seeds", "3"]
    for hash_seed, jobs in (("1", "1"), ("4711", "2")):
        done = subprocess.run(
            [*command, "--transfers", "60", "--jobs", jobs, "--json"],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=100,
        )
        there = json.loads(done.stdout)
        assert there["digest"] == here["digest"]
        assert there["hits"] == here["hits"]


def test_another_seed_is_another_run() -> None:
    assert run_seed(1, 30).digest != run_seed(2, 30).digest


def test_a_seed_whose_few_transfers_lie_far_apart_ends() -> None:
    assert simulate(range(1, 2), transfers=5, jobs=1).ok
