"""The demo on real agents over the loopback, and its prefill process."""

from __future__ import annotations

import os
import queue
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvxfer.core.ids import TransferId
from kvxfer.demo.cache import CacheShape, EngineCache
from kvxfer.demo.decode import DecodeEngine
from kvxfer.demo.engines import Job
from kvxfer.demo.pair import DemoStopped, Pair
from kvxfer.demo.producers import ProcessProducer, ProducerDown
from kvxfer.demo.reports import EngineDied, Prefilled, Report
from kvxfer.demo.run import phases, run_demo
from kvxfer.demo.sequence import Prompt
from kvxfer.demo.setup import EngineSetup
from kvxfer.demo.timeline import collect, demo_page
from kvxfer.demo.workload import DemoOptions, Mode
from kvxfer.errors import BadValue

SMALL = DemoOptions(requests=4, prompt_min=2, prompt_max=90, answer_tokens=3, concurrency=3)
SETUP = EngineSetup(
    engine_id="P",
    transport="loopback",
    model_seed=0,
    cache_seed=1,
    cache=CacheShape(block_count=20),
)


def changed(**fields: object) -> DemoOptions:
    return DemoOptions(**{**_fields(SMALL), **fields})  # type: ignore[arg-type]


def _fields(options: DemoOptions) -> dict[str, object]:
    return {name: getattr(options, name) for name in DemoOptions.__slots__ if name[0] != "_"}


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"prefill_ranks": 2},
        {"decode_ranks": 2},
        {"prefill_ranks": 2, "decode_ranks": 3},
        {"decode_block_tokens": 24},
        {"prefill_block_tokens": 8, "cache_order": "BLHNC"},
        {"prefill_ranks": 4, "decode_ranks": 2, "decode_block_tokens": 12},
    ],
    ids=lambda fields: "-".join(f"{k}={v}" for k, v in fields.items()) or "plain",
)
def test_every_token_is_that_of_one_engine(fields: dict[str, object]) -> None:
    steps: list[tuple[str, int]] = []
    result = run_demo(changed(**fields), lambda name, done: steps.append((name, done)))
    assert result.failures() == []
    assert result.ok
    assert result.summary()["identical"] == 4
    assert steps == [(name, done) for name in phases(SMALL) for done in (1, 2, 3, 4)]


def test_engines_that_share_keys_serve_as_well(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"k {bytes(range(32)).hex()}")
    assert run_demo(changed(key_file=str(path)), lambda *_: None).ok
    with pytest.raises(BadValue, match="key file"):
        run_demo(changed(key_file=str(tmp_path / "none")), lambda *_: None)


def test_what_was_moved_is_the_prompts_kv_and_no_more() -> None:
    result = run_demo(SMALL, lambda *_: None)
    per_token = 4 * 8 * 64
    tokens = sum(p.prefill_tokens for p in SMALL.prompts())
    assert result.bytes_moved == 2 * per_token * tokens
    assert result.descriptors_posted > 0


def test_times_are_in_order_and_pull_registers_after_the_prefill() -> None:
    result = run_demo(changed(modes=tuple(Mode), prompt_min=80), lambda *_: None)
    for mode in Mode:
        moments = collect(result, mode)
        assert len(moments) == 4
        for one in moments:
            p, d = one.prefilled, one.finished
            assert one.served.arrival_ms <= p.start_ms <= p.stop_ms
            assert p.stop_ms <= one.moved_ms
            assert one.posted_ms <= one.moved_ms
            assert d.admitted_ms <= d.landed_ms <= d.first_token_ms <= d.last_token_ms
            if mode is Mode.PULL:
                assert d.admitted_ms >= p.stop_ms
    assert "request 3, write" in demo_page(result)
    assert "request 3, read" in demo_page(result)


def test_only_pull_reads_and_only_streams_begin_before_the_prefill_ends() -> None:
    """With one request at a time nothing else can hold a write back."""
    options = changed(modes=tuple(Mode), concurrency=1, prompt_min=130, prompt_max=140)
    result = run_demo(options, lambda *_: None)
    assert result.ok
    for mode in Mode:
        for one in collect(result, mode):
            assert one.served.finished is not None
            assert bool(one.served.finished.bytes_read) is (mode is Mode.PULL)
            assert (one.posted_ms < one.prefilled.stop_ms) is (mode is Mode.STREAM)


def test_push_registers_before_the_prefill_is_done() -> None:
    """With one request at a time nothing else can hold a registration back."""
    result = run_demo(changed(concurrency=1, prompt_min=80), lambda *_: None)
    for one in result.served[Mode.PUSH]:
        assert one.finished is not None
        assert one.prefilled is not None
        assert one.finished.admitted_ms < one.prefilled.stop_ms


def test_a_wrong_source_block_shows_in_the_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: P offers the right count of blocks, two of them in each other's place."""
    right = EngineCache.table

    def crossed(self: EngineCache, blocks: object, tokens: int) -> object:
        table = right(self, blocks, tokens)  # type: ignore[arg-type]
        if self.seed == SMALL.seed + 1:
            table.blocks[:2] = table.blocks[1::-1]
        return table

    monkeypatch.setattr(EngineCache, "table", crossed)
    result = run_demo(changed(prompt_min=60), lambda *_: None)
    assert result.summary()["identical"] == 0
    assert not result.ok
    assert (result.leaked, result.quarantined) == (0, 0)


def test_a_prompt_that_differs_at_d_is_refused_by_its_digest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    digests = iter(range(10**6))
    monkeypatch.setattr(Prompt, "digest", property(lambda self: b"%d" % next(digests)))
    result = run_demo(changed(requests=2), lambda *_: None)
    assert all("DIGEST_MISMATCH" in line for line in result.failures())
    assert len(result.failures()) == 4
    assert (result.leaked, result.quarantined) == (0, 0)


def test_a_dead_engine_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("out of order")

    monkeypatch.setattr(DecodeEngine, "_decode", broken)
    with (
        Pair.start(SMALL) as pair,
        pytest.raises(DemoStopped, match=r"engine D died: RuntimeError: out of order"),
    ):
        pair.serve(Mode.PUSH, SMALL.prompts(), 2, lambda _: None)


# --- the prefill engine in a process of its own ---


def start(reports: queue.SimpleQueue[Report], **fields: object) -> ProcessProducer:
    setup = {name: getattr(SETUP, name) for name in ("engine_id", "transport", "model_seed")}
    setup |= {"cache_seed": 1, "cache": SETUP.cache}
    return ProcessProducer.start(EngineSetup(**{**setup, **fields}), reports.put)


def test_the_process_prefills_and_ends_when_closed() -> None:
    reports: queue.SimpleQueue[Report] = queue.SimpleQueue()
    producer = start(reports)
    try:
        assert [(p.engine_id, p.rank) for p in producer.producers] == [("P", 0)]
        prompt = Prompt(tokens=tuple(range(40)), answer_tokens=1)
        producer.submit(Job(transfer_id=TransferId("t"), prompt=prompt))
        prefilled = reports.get(timeout=60)
        assert isinstance(prefilled, Prefilled)
        assert prefilled.start_ms < prefilled.stop_ms <= time.monotonic() * 1e3
        state = producer.state(with_steps=True)
        assert state.blocks_held == 3
    finally:
        producer.close()
    assert producer.process.returncode == 0


def test_a_killed_process_is_reported() -> None:
    reports: queue.SimpleQueue[Report] = queue.SimpleQueue()
    producer = start(reports)
    try:
        os.kill(producer.process.pid, signal.SIGKILL)
        died = reports.get(timeout=60)
        assert died == EngineDied(engine="P", error="its process ended, status -9")
        with pytest.raises(ProducerDown):
            producer.state()
    finally:
        producer.close()


def test_a_process_that_cannot_start_says_why() -> None:
    with pytest.raises(ProducerDown, match="nothing-like-this") as caught:
        start(queue.SimpleQueue(), transport="nothing-like-this")
    assert caught.value.usage
