"""The cluster simulator: it reproduces what was measured, and every part by itself."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path

import attrs
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from kvxfer.bench.cluster.costs import KNOWN, Costs, load_costs
from kvxfer.bench.cluster.engines import Decode, Line, Prefill, PrefixCache
from kvxfer.bench.cluster.events import Events
from kvxfer.bench.cluster.router import POLICIES
from kvxfer.bench.cluster.run import Cluster, Fleet
from kvxfer.bench.cluster.trace import Request, drawn, read_trace
from kvxfer.bench.cluster.validate import Cell, validate
from kvxfer.bench.cluster.ways import WAYS
from kvxfer.bench.harness import percentile
from kvxfer.cli import main
from kvxfer.errors import BadValue

PLAIN = Costs(
    name="plain",
    source="made up",
    prefill_base_ms=10,
    prefill_token_us=10,
    prefill_pair_ns=0,
    chunk_tokens=1000,
    decode_base_ms=10,
    decode_request_us=0,
    idle_poll_ms=0,
    request_ms=0,
    request_token_us=0,
    answer_ms=0,
    first_token_ms=0,
    kv_token_bytes=1000,
    block_tokens=10,
    block_pieces=1,
    joint_blocks=1,
    post_base_us=0,
    post_piece_us=100,
    wire_bytes_per_s=1e9,
)


# --- against what was measured ---


@pytest.fixture(scope="module")
def cells() -> list[Cell]:
    return validate()


def test_most_measured_cells_are_met(cells: list[Cell]) -> None:
    measured = [cell for cell in cells if cell.costs != "aws-fit"]
    assert len(measured) == 54
    off = [abs(math.log(cell.ratio)) for cell in measured]
    assert statistics.median(off) < math.log(1.25)
    assert sum(one < math.log(1.5) for one in off) >= 0.8 * len(off)
    assert max(off) < math.log(2.5)


def test_push_wins_while_p_is_idle_and_loses_once_it_is_busy(cells: list[Cell]) -> None:
    """As measured, for the engine that polls once a step."""
    at = {(c.costs, c.way, c.tokens, c.rate): c.simulated for c in cells}
    for costs in ("h200-default", "h200-block128", "h200-crosslayer"):
        for tokens in (1024, 4096, 16384):
            idle = (tokens, 0)
            assert at[costs, "push-steps", *idle] < at[costs, "pull", *idle]
    for costs in ("h200-default", "h200-crosslayer"):
        for rate in (2, 8):
            assert at[costs, "push-steps", 16384, rate] > at[costs, "pull", 16384, rate]


def test_the_published_point_is_met(cells: list[Cell]) -> None:
    published = [cell for cell in cells if cell.costs == "aws-fit"]
    assert {(cell.way, cell.what) for cell in published} == {
        (way, what) for way in ("pull", "push") for what in ("ttft", "tpot")
    }
    for cell in published:
        assert cell.ratio == pytest.approx(1.0, abs=0.05), cell


def test_the_published_shape_push_and_pull_are_alike_when_light() -> None:
    found = {}
    for way in ("pull", "push"):
        requests = drawn(rate=1, count=200, tokens=2048, output_tokens=128, seed=1)
        found[way] = Cluster(load_costs("aws-fit"), WAYS[way], Fleet(prefills=6)).run(requests)
    assert found["pull"]["ttft_ms_p50"] < 1.35 * found["push"]["ttft_ms_p50"]
    assert found["pull"]["tpot_ms_p50"] < 1.02 * found["push"]["tpot_ms_p50"]


# --- reckoned by hand ---


def one_request(way: str, tokens: int = 100, output_tokens: int = 3) -> Request:
    request = Request(arrive_s=0.0, tokens=tokens, output_tokens=output_tokens)
    Cluster(PLAIN, WAYS[way], Fleet()).run([request])
    return request


@pytest.mark.parametrize("way", ["pull", "pull-thread", "push", "push-steps"])
def test_a_single_request_is_the_sum_of_its_parts(way: str) -> None:
    """11 ms of prefill, 10 pieces of 0.1 ms, 100 kB over 1 GB/s, one step of 10 ms."""
    request = one_request(way)
    assert request.answered_s == pytest.approx(0.011)
    assert request.first_s == pytest.approx(0.011 + 0.001 + 0.0001 + 0.010)
    assert request.last_s == pytest.approx(request.first_s + 0.020)
    assert request.tpot_s == pytest.approx(0.010)


def test_streaming_leaves_the_last_chunk() -> None:
    """2,500 tokens in chunks of 1,000: the last 500 are 50 pieces, 5 ms and 0.5 ms."""
    plain, streamed = one_request("push", 2500), one_request("stream", 2500)
    assert plain.answered_s == streamed.answered_s == pytest.approx(0.055)
    assert plain.after_prefill_s == pytest.approx(0.025 + 0.0025 + 0.010)
    assert streamed.after_prefill_s == pytest.approx(0.005 + 0.0005 + 0.010)


def test_posting_on_the_engine_stops_those_who_decode() -> None:
    def last_of_first(way: str) -> float:
        first = Request(arrive_s=0.0, tokens=10, output_tokens=100)
        second = Request(arrive_s=0.5, tokens=10_000, output_tokens=2)
        Cluster(PLAIN, WAYS[way], Fleet()).run([first, second])
        return first.last_s

    # 1,000 pieces of 0.1 ms each.
    assert last_of_first("pull") == pytest.approx(last_of_first("pull-thread") + 0.1)


def test_a_line_serves_in_order() -> None:
    line = Line()
    assert line.take(1.0, 2.0) == 3.0
    assert line.take(2.0, 1.0) == 4.0
    assert line.take(9.0, 1.0) == 10.0
    assert line.busy_s == 4.0


def test_steps_of_d_are_reckoned_as_they_would_be_played() -> None:
    """Two requests that join at different steps; a stall moves both."""
    events = Events()
    costs = attrs.evolve(PLAIN, decode_request_us=1000)
    d = Decode(events, costs)
    told: list[tuple[str, float]] = []

    def join(name: str, tokens: int) -> None:
        d.join(
            tokens,
            lambda: told.append((f"{name} first", events.now_s)),
            lambda: told.append((f"{name} last", events.now_s)),
        )

    join("a", 4)
    # In the second step of 11 ms: it joins at 22 ms, and steps are 12 ms from there.
    events.at(0.015, lambda: d.at_poll(lambda: join("b", 3)))
    events.at(0.030, lambda: d.at_poll(lambda: d.stall(0.5)))
    events.run()
    assert [name for name, _ in told] == ["a first", "b first", "a last", "b last"]
    when = dict(told)
    assert when["a first"] == pytest.approx(0.011)
    assert when["b first"] == pytest.approx(0.034)
    assert when["a last"] == pytest.approx(0.534 + 0.012)
    assert when["b last"] == pytest.approx(0.546 + 0.011)
    assert d.stalled_s == 0.5
    assert d.running == 0


def test_a_step_of_p_is_shared() -> None:
    events = Events()
    p = Prefill(events, PLAIN, PrefixCache(0))
    ended: list[tuple[str, int, bool, float]] = []
    for name, tokens in (("a", 1500), ("b", 700)):
        p.waiting_tokens += tokens
        p.add(
            tokens,
            0,
            lambda took, last, name=name: ended.append((name, took, last, events.now_s)),  # type: ignore[misc]
        )
    events.run()
    assert ended == [
        ("a", 1000, False, pytest.approx(0.020)),
        ("a", 500, True, pytest.approx(0.040)),
        ("b", 500, False, pytest.approx(0.040)),
        ("b", 200, True, pytest.approx(0.052)),
    ]
    assert p.waiting_tokens == 0


def test_a_prefix_that_is_known_is_not_computed() -> None:
    cache = PrefixCache(3)
    cache.add([1, 2])
    assert cache.hit_tokens([1, 2, 3], 2000) == 1024
    assert cache.hit_tokens([3, 1], 2000) == 0
    assert cache.hit_tokens([1, 2], 1024) == 1023
    cache.add([3, 4])
    assert cache.hit_tokens([1, 2], 2000) == 0


# --- any load ---


@settings(max_examples=40, deadline=None)
@given(
    way=st.sampled_from(sorted(WAYS)),
    policy=st.sampled_from(POLICIES),
    prefills=st.integers(1, 4),
    decodes=st.integers(1, 4),
    sizes=st.lists(
        st.tuples(
            st.floats(0, 2), st.integers(1, 5000), st.integers(1, 50), st.lists(st.integers(0, 3))
        ),
        min_size=1,
        max_size=30,
    ),
)
def test_every_request_ends_and_in_order(
    way: str,
    policy: str,
    prefills: int,
    decodes: int,
    sizes: list[tuple[float, int, int, list[int]]],
) -> None:
    requests = [
        Request(arrive_s=at, tokens=n, output_tokens=out, prefix=tuple(prefix))
        for at, n, out, prefix in sizes
    ]
    fleet = Fleet(prefills=prefills, decodes=decodes, policy=policy, prefix_blocks=8)
    cluster = Cluster(PLAIN, WAYS[way], fleet)
    found = cluster.run(requests)
    assert found["requests"] == len(requests)
    for one in requests:
        assert one.arrive_s <= one.answered_s <= one.first_s <= one.last_s
        # No token is quicker than a step.
        assert one.last_s - one.first_s >= (one.output_tokens - 1) * 0.010 - 1e-6
    assert all(d.held == 0 and d.running == 0 for d in cluster.router.decodes)
    assert all(p.waiting_tokens == 0 for p in cluster.router.prefills)


# --- files ---


@pytest.mark.parametrize("name", KNOWN)
def test_known_costs_load(name: str) -> None:
    assert load_costs(name).name == name


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"decode_base_ms": 0}, "decode_base_ms"),
        ({"post_base_us": -1}, "post_base_us"),
        ({"kv_token_bytes": "many"}, "kv_token_bytes"),
        ({"further": 1}, "further"),
        ({"source": None}, "source"),
    ],
)
def test_wrong_costs_are_named(tmp_path: Path, change: dict[str, object], named: str) -> None:
    path = tmp_path / "costs.json"
    path.write_text(json.dumps(attrs.asdict(PLAIN) | change))
    with pytest.raises(BadValue, match=named):
        load_costs(str(path))


@pytest.mark.parametrize("text", ["", "[1]", "{"])
def test_no_costs_at_all(tmp_path: Path, text: str) -> None:
    path = tmp_path / "costs.json"
    path.write_text(text)
    with pytest.raises(BadValue):
        load_costs(str(path))


def test_a_trace_is_read(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    row = {"timestamp": 2000, "input_length": 7, "output_length": 3, "hash_ids": [4, 5]}
    path.write_text(json.dumps(row) + "\n" + json.dumps(row | {"timestamp": 0}) + "\n")
    first, second = read_trace(path, speed=2.0)
    assert (first.arrive_s, second.arrive_s) == (0.0, 1.0)
    assert (second.tokens, second.output_tokens, second.prefix) == (7, 3, (4, 5))
    assert len(read_trace(path, count=1)) == 1


@pytest.mark.parametrize(
    "change", [{"input_length": 0}, {"timestamp": "x"}, {"hash_ids": 3}, {"output_length": None}]
)
def test_a_wrong_line_is_named(tmp_path: Path, change: dict[str, object]) -> None:
    path = tmp_path / "trace.jsonl"
    row = {"timestamp": 0, "input_length": 7, "output_length": 3} | change
    path.write_text(json.dumps(row) + "\n")
    with pytest.raises(BadValue, match=r"trace\.jsonl:1"):
        read_trace(path)


def test_percentile_of_nothing() -> None:
    assert percentile([], 50) is None
    assert percentile([1.0, 2.0], 99) == 2.0


@pytest.mark.parametrize("words", [["--way", "x"], ["--costs", "x"], ["--policy", "x"]])
def test_the_command_names_what_is_wrong(words: list[str]) -> None:
    assert CliRunner().invoke(main, ["sim", "cluster", *words]).exit_code == 2


def test_the_command_and_its_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    words = [
        "sim",
        "cluster",
        "--count",
        "20",
        "--rate",
        "1",
        "--rate",
        "2",
        "--way",
        "pull",
        "--way",
        "push",
        "--json",
    ]
    ran = CliRunner().invoke(main, words)
    assert ran.exit_code == 0, ran.output
    report = json.loads(ran.stdout)
    assert [(row["rate"], row["way"]) for row in report["rows"]] == [
        (1.0, "pull"),
        (1.0, "push"),
        (2.0, "pull"),
        (2.0, "push"),
    ]
    source, target = tmp_path / "c.json", tmp_path / "c.svg"
    source.write_text(ran.stdout)
    drawn_it = CliRunner().invoke(main, ["bench", "plot", str(source), "--out", str(target)])
    assert drawn_it.exit_code == 0, drawn_it.output
    assert "TTFT" in target.read_text() or "<svg" in target.read_text()
    again = target.read_bytes()
    CliRunner().invoke(main, ["bench", "plot", str(source), "--out", str(target)])
    assert target.read_bytes() == again


@pytest.mark.parametrize("text", ["", "{}", '{"rows": []}', '{"rows": [{"name": "a"}]}'])
def test_no_report_no_picture(tmp_path: Path, text: str) -> None:
    pytest.importorskip("matplotlib")
    source = tmp_path / "x.json"
    source.write_text(text)
    words = ["bench", "plot", str(source), "--out", str(tmp_path / "x.svg")]
    assert CliRunner().invoke(main, words).exit_code == 2
