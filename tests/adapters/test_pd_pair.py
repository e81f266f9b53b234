"""The harness against stand-in engines: it starts, reads, ends, and sees what is wrong."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import attrs
import pytest

from kvxfer.errors import LocalFault
from kvxfer_vllm.pd import engines, pair
from kvxfer_vllm.pd.bench import Bench
from kvxfer_vllm.pd.check import Traffic, check_traffic, remains_of, through_router
from kvxfer_vllm.pd.client import Client, completion
from kvxfer_vllm.pd.crossing import crossed_prompts, differing, refused
from kvxfer_vllm.pd.engines import EngineSpec, Policy, Stack, Tuning
from kvxfer_vllm.pd.pair import Pair, Setting
from kvxfer_vllm.pd.ports import LOOPBACK, pick_ports
from kvxfer_vllm.pd.processes import Supervisor, members
from kvxfer_vllm.pd.prompts import prompt

FAKE = Path(__file__).with_name("pd_fake_engine.py")
PROMPTS = [prompt(length, "test") for length in (5, 40, 300)]
STACK = Stack(module=None)

Work = Callable[[Pair], Awaitable[None]]


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Faults of the stand-ins by engine name; a test fills it in before it starts them."""
    chosen: dict[str, str] = {}

    def argv(spec: EngineSpec, *_: object) -> list[str]:
        return [sys.executable, str(FAKE), str(spec.port), chosen.get(spec.name, "")]

    monkeypatch.setattr(engines, "argv", argv)
    return chosen


@pytest.fixture
def no_router(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that send their legs themselves: the router is what takes long to start."""

    async def nothing_to_start(*_: object) -> None:
        return None

    monkeypatch.setattr(Pair, "_start_router", nothing_to_start)


def with_pair(run: Path, work: Work) -> None:
    async def main() -> None:
        with Supervisor(grace_s=5) as supervisor:
            async with Client.open() as client:
                setting = Setting(
                    supervisor=supervisor, client=client, model=run, run=run, say=said.append
                )
                await work(await Pair.start(setting, STACK, Tuning()))

    said: list[str] = []
    asyncio.run(main())


def expected(prompts: list[list[int]]) -> list[tuple[int, ...]]:
    return [tuple((sum(token_ids) + i) % 2000 for i in range(32)) for token_ids in prompts]


def traffic_of(run: Path) -> Traffic:
    found: list[Traffic] = []

    async def work(started: Pair) -> None:
        found.append(await check_traffic(started, PROMPTS, expected(PROMPTS)))

    with_pair(run, work)
    return found[0]


def test_a_good_pair_is_seen_as_good(tmp_path: Path, faults: Mapping[str, str]) -> None:
    traffic = traffic_of(tmp_path)
    assert traffic.identical == 3
    assert traffic.received.external_tokens == 345
    assert (traffic.received.local_tokens, traffic.received.recomputed_requests) == (0, 0)


def test_wrong_tokens_are_seen(tmp_path: Path, faults: dict[str, str]) -> None:
    faults["D"] = "wrong"
    assert traffic_of(tmp_path).identical == 0


def test_recomputing_is_seen(tmp_path: Path, faults: dict[str, str]) -> None:
    faults["D"] = "recomputes"
    received = traffic_of(tmp_path).received
    assert received.external_tokens == 0
    assert (received.local_tokens, received.recomputed_requests) == (345, 3)


def test_leaked_blocks_are_seen(
    tmp_path: Path, faults: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    faults["D"] = "leaks"
    monkeypatch.setattr("kvxfer_vllm.pd.check.DRAIN_S", 0.0)

    async def work(started: Pair) -> None:
        assert (await remains_of(started)).leaked == 0
        await check_traffic(started, PROMPTS, expected(PROMPTS))
        assert (await remains_of(started)).leaked == 3

    with_pair(tmp_path, work)


def test_blocks_that_take_time_are_no_leak(tmp_path: Path, faults: dict[str, str]) -> None:
    faults["D"] = "lingers"

    async def work(started: Pair) -> None:
        await through_router(started, PROMPTS)
        assert await started.blocks_held(started.decode) > 0
        assert (await remains_of(started)).leaked == 0

    with_pair(tmp_path, work)


@pytest.mark.parametrize(
    ("fault", "refusals", "different"),
    [("", 0, 0), ("refuses", 3, 0), ("fails", 0, 0), ("wrong", 0, 3)],
)
@pytest.mark.usefixtures("no_router")
def test_crossed_legs_are_counted(
    tmp_path: Path,
    faults: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
    refusals: int,
    different: int,
) -> None:
    faults["D"] = fault
    monkeypatch.setattr("kvxfer_vllm.pd.crossing.LOG_S", 1.0)

    async def work(started: Pair) -> None:
        crossed = crossed_prompts("test")
        own = expected([list(own) for own, _ in crossed])
        assert await refused(started, crossed) == refusals
        assert await differing(started, crossed, own) == different

    with_pair(tmp_path, work)


@pytest.mark.usefixtures("no_router")
def test_an_engine_that_dies_at_start_is_named_with_its_log(
    tmp_path: Path, faults: dict[str, str]
) -> None:
    faults["D"] = "dies"
    with pytest.raises(LocalFault, match=r"(?s)D ended while it started.*no memory for the cache"):
        with_pair(tmp_path, nothing)


@pytest.mark.usefixtures("no_router")
def test_an_engine_that_never_gets_healthy_is_given_up(
    tmp_path: Path, faults: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    faults["P"] = "silent"
    monkeypatch.setattr(pair, "START_S", 0.0)
    with pytest.raises(LocalFault, match="not up after 0 s"):
        with_pair(tmp_path, nothing)


async def nothing(_: Pair) -> None:
    return None


@pytest.mark.usefixtures("no_router")
def test_a_killed_producer_is_started_again_where_it_was(
    tmp_path: Path, faults: Mapping[str, str]
) -> None:
    async def work(started: Pair) -> None:
        before = started.prefill
        started.kill_producer()
        assert not started.producer_alive
        assert (await started.nudge(before)).status == 0
        await started.restart_producer("P-again")
        assert started.producer_alive
        assert started.prefill == attrs.evolve(before, engine_id="P-again")
        assert started.place.engine_id == "P-again"
        assert (await started.nudge(started.prefill)).good

    with_pair(tmp_path, work)


def test_everything_is_ended_and_only_once(tmp_path: Path, faults: Mapping[str, str]) -> None:
    groups: list[int] = []

    async def work(started: Pair) -> None:
        groups.extend(running.pid for running in started._running.values())
        assert all(members(group) for group in groups)
        started.end("router")
        assert not (await started.setting.client.is_up(started.router_url))

    with_pair(tmp_path, work)
    assert len(groups) == 3
    assert not any(members(group) for group in groups)


@pytest.mark.usefixtures("no_router")
def test_a_probe_sees_wrong_tokens_and_held_blocks(tmp_path: Path, faults: dict[str, str]) -> None:
    # The stand-in computes plain prompts and loaded ones alike: only the leak is wrong.
    faults["D"] = "leaks"

    async def work(started: Pair) -> None:
        bench = Bench(started, Policy.FAIL)
        await bench.begin()
        await bench.note_next("test")
        await bench.note_free(limit_s=0.0)
        await bench.end()
        assert [finding.ok for finding in bench.findings] == [True, False, True]
        assert bench.findings[1].seen == "1 held"

    with_pair(tmp_path, work)


@pytest.mark.parametrize(
    ("fault", "policy", "verdict"),
    [
        ("", Policy.FAIL, True),
        ("", Policy.RECOMPUTE, True),
        ("fails", Policy.FAIL, True),
        ("fails", Policy.RECOMPUTE, False),
    ],
)
@pytest.mark.usefixtures("no_router")
def test_a_failed_load_is_right_by_policy_only(
    tmp_path: Path, faults: dict[str, str], fault: str, policy: Policy, verdict: bool
) -> None:
    faults["D"] = fault

    async def work(started: Pair) -> None:
        bench = Bench(started, policy)
        await bench.note_end(bench.send_decode("name", PROMPTS[0], 4), PROMPTS[0], 20.0, 4)
        # A connection that breaks is neither right nor an end by policy.
        broken = bench.send(f"http://{LOOPBACK}:{pick_ports(1)[0]}", completion([1], 1))
        await bench.note_end(broken, PROMPTS[0], 20.0, 4)
        assert [finding.ok for finding in bench.findings] == [True, verdict, True, False]

    with_pair(tmp_path, work)


@pytest.mark.usefixtures("no_router")
def test_a_request_that_never_ends_is_a_finding(tmp_path: Path, faults: Mapping[str, str]) -> None:
    async def work(started: Pair) -> None:
        bench = Bench(started, Policy.FAIL)
        call = bench.send_decode("name", PROMPTS[0], 4)
        await bench.note_end(call, PROMPTS[0], 0.0, 4)
        assert [(finding.ok, finding.seen) for finding in bench.findings] == [(False, "no answer")]
        await bench.end()
        assert call.answered

    with_pair(tmp_path, work)


@pytest.mark.parametrize(
    ("role", "reads_back", "told"),
    [
        ("kv_producer", True, "kv_both"),
        ("kv_producer", False, "kv_producer"),
        ("kv_consumer", True, "kv_consumer"),
    ],
)
def test_a_producer_that_reads_back_is_a_consumer_too(
    role: str, *, reads_back: bool, told: str
) -> None:
    spec = EngineSpec(name="P", port=1, role=role, engine_id="p0")
    tuning = Tuning(options={"bidirectional_kv_xfer": reads_back})
    assert engines.transfer_config(spec, Stack(), tuning)["kv_role"] == told
