"""The bench of many peers: blocks, arithmetic, a small run over the loopback, the command."""

from __future__ import annotations

import json
from pathlib import Path

import attrs
import numpy as np
import pytest
from click.testing import CliRunner

from kvxfer.bench.peers.arm import Arm, Carried, Load
from kvxfer.bench.peers.memory import Bytes
from kvxfer.bench.peers.pool import Pool, Shape
from kvxfer.bench.peers.report import MANY, ONE, STOPPED, Samples, aims_of, row_of
from kvxfer.bench.peers.run import run_peers
from kvxfer.cli import main
from kvxfer.driver import Role
from kvxfer.errors import BadValue, TransportFault

SHAPE = Shape(layers=2, blocks=3, page_bytes=64)
LOAD = Load(transport="loopback", hub=Role.PRODUCER, peers=3, in_flight=7, shape=SHAPE, seed=1)


def test_a_slot_s_blocks_are_its_own_and_scattered() -> None:
    pool = Pool.of(SHAPE, 4, 0, filled=True)
    ids = np.sort(np.concatenate([table.blocks for (table,) in pool.tables]))
    assert len(set(ids.tolist())) == 12
    assert (np.diff(ids) > 1).all()
    assert pool.bytes_of(1).shape == (2, 3, 64)
    assert not np.array_equal(pool.bytes_of(0), pool.bytes_of(1))


@pytest.mark.parametrize("changes", [{"page_bytes": 24}, {"blocks": 0}])
def test_shapes_out_of_bounds_are_refused(changes: dict[str, int]) -> None:
    with pytest.raises(BadValue):
        attrs.evolve(SHAPE, **changes)


def test_a_pool_has_a_bound() -> None:
    with pytest.raises(BadValue, match="memory of one end"):
        Pool.of(Shape(blocks=1 << 20), 1 << 10, 0, filled=False)


def carried(wall_s: float, latency_s: dict[int, list[float]], cpu_s: float = 0.1) -> Carried:
    return Carried(
        latency_s=latency_s, wall_s=wall_s, cpu_s=cpu_s, process_cpu_s=2 * cpu_s, ended=100
    )


def samples() -> Samples:
    return Samples(
        load=LOAD,
        runs={
            ONE: [carried(1.0, {0: [0.1]}), carried(2.0, {0: [0.3]})],
            MANY: [carried(1.25, {0: [0.1], 1: [0.2], 2: [9.0]}, 0.2)] * 2,
            STOPPED: [carried(1.0, {0: [0.3], 1: [0.3]})] * 2,
        },
    )


def test_what_a_row_says() -> None:
    """Rates of each run; latencies without the last peer, which is the one that is stopped."""
    row = row_of(samples(), MANY)
    assert row["requests_per_s_p50"] == 80.0
    assert row["writer_cpu_us"] == 2000.0
    assert row["process_cpu_us"] == 4000.0
    assert row["latency_ms_p50"] == 150.0
    assert row["slowest_peer"] == 1.333
    assert row_of(samples(), ONE)["latency_ms_p50"] == 200.0


def test_ratios_are_taken_within_a_round() -> None:
    kept = samples()
    told = aims_of(kept)
    assert told["throughput_ratio"] == 1.2
    assert (told["throughput_ratio_min"], told["throughput_ratio_max"]) == (0.8, 1.6)
    assert told["throughput_met"]
    assert told["writer_cpu_ratio"] == 2.0
    assert told["throughput_ratio_by_cpu"] == 0.5
    assert told["stopped_latency_ratio_p50"] == 2.0
    assert "bytes_met" not in told
    kept.memory = Bytes(held=8000.0, remembered=10.0)
    assert aims_of(kept)["bytes_met"] is False


@pytest.mark.parametrize("role", [Role.PRODUCER, Role.CONSUMER])
def test_a_run(role: Role) -> None:
    """Every request ends, also those of the peer that stood still, and all bytes are right."""
    said: list[str] = []
    report = run_peers(
        rounds=1,
        peers=3,
        in_flight=7,
        requests=20,
        transports=["loopback"],
        roles=[role],
        shape=SHAPE,
        on_run=said.append,
    ).to_plain()
    assert [row["arm"] for row in report["rows"]] == [ONE, MANY, STOPPED]
    assert report["aims"][0]["bytes_per_request"] > 0
    assert any("memory" in text for text in said)


def test_wrong_bytes_are_found() -> None:
    arm = Arm.start(LOAD)
    try:
        arm.run(7)
        arm.check_bytes()
        arm.pools[0].memory[:] ^= 1
        with pytest.raises(TransportFault, match="slot 0: the bytes at D"):
            arm.check_bytes()
    finally:
        arm.close()


def test_a_stopped_peer_s_requests_wait_and_end() -> None:
    arm = Arm.start(LOAD)
    try:
        found = arm.run(9, stopped=True)
        assert set(found.latency_s) == {0, 1}
        assert found.ended == 9
        assert all(slot.ends_left == 0 for slot in arm.slots)
        assert {slot.number for slot in arm.slots if slot.peer_number == 2} == {1}
    finally:
        arm.close()


def test_the_command_and_its_picture(tmp_path: Path) -> None:
    words = "bench peers --rounds 1 --peers 2 --in-flight 4 --requests 8 --transport loopback"
    ran = CliRunner().invoke(main, [*words.split(), "--role", "producer", "--json"])
    assert ran.exit_code == 0, ran.output
    told = json.loads(ran.stdout)
    assert {"rows", "aims", "environment", "setting"} <= set(told)
    pytest.importorskip("matplotlib")
    source, picture = tmp_path / "peers.json", tmp_path / "peers.svg"
    source.write_text(ran.stdout, encoding="utf-8")
    ran = CliRunner().invoke(main, ["bench", "plot", str(source), "--out", str(picture)])
    assert ran.exit_code == 0, ran.output
    assert picture.read_text(encoding="utf-8").startswith("<?xml")


def test_what_cannot_run_here_says_why() -> None:
    report = run_peers(
        rounds=1, peers=2, in_flight=2, requests=2, transports=["no such"], roles=[Role.PRODUCER]
    ).to_plain()
    assert "no such" in report["rows"][0]["skipped"]
    assert report["aims"] == []


@pytest.mark.parametrize(
    "words", [["--in-flight", "3"], ["--requests", "999"], ["--role", "router"]]
)
def test_wrong_options_are_named(words: list[str]) -> None:
    assert CliRunner().invoke(main, ["bench", "peers", *words]).exit_code == 2
