"""The worker side with a stand-in agent: orders are carried out once, reports follow results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import numpy as np
import pytest
from vllm_settings import settings_for

from kvxfer.driver import Initiator, KeyFile, KeyRing, Reason, Role, TransferId
from kvxfer.driver.commands import Grow, Offer, ProducerAddress, Register
from kvxfer.driver.results import Landed, LetGo, Lost, Result, Sent, Unsent
from kvxfer.errors import BadValue
from kvxfer.layout.geometry import BlockTable, GroupKind
from kvxfer_vllm.config import Settings
from kvxfer_vllm.geometry import CacheGroup
from kvxfer_vllm.metadata import (
    Abort,
    Decline,
    Drop,
    Expect,
    Extend,
    Halt,
    Order,
    Receive,
    Refuse,
    Seal,
    Send,
    StepOrders,
    Stream,
)
from kvxfer_vllm.place import ALONE, Place
from kvxfer_vllm.stats import StatsCollector, add_up, empty_data, is_empty, summary
from kvxfer_vllm.worker_side import HALT_S, WorkerSide

T = TransferId("r:t")
PRODUCERS = (ProducerAddress(engine_id="eng-P", rank=0, host="127.0.0.1", port=5610),)
TABLE = BlockTable(group=0, first_token=0, blocks=np.array([1, 2], dtype=np.int64))


@attrs.define
class StandInAgent:
    """Records calls; gives the results that a test puts in."""

    config: Any
    calls: list[tuple[str, dict[str, Any]]] = attrs.field(factory=list)
    results: list[Result] = attrs.field(factory=list)
    numbers: dict[str, int] = attrs.field(factory=dict)
    address: tuple[str, int] | None = None
    closed: bool = False
    coming: list[Result] = attrs.field(factory=list)
    """Results that come while the worker waits."""
    on_wait: Callable[[], None] = lambda: None
    left: tuple[str, ...] = ()
    """What a peer may still reach."""

    def wait(self, timeout_s: float) -> bool:
        self.on_wait()
        self.results, self.coming = self.results + self.coming, []
        return bool(self.results)

    def take(self) -> list[Result]:
        taken, self.results = self.results, []
        return taken

    def counters(self) -> Mapping[str, int]:
        return self.numbers

    def close(self) -> None:
        self.closed = True

    def quiesce(self, timeout_s: float) -> tuple[str, ...]:
        self.calls.append(("quiesce", {"timeout_s": timeout_s}))
        return self.left

    def resume(self) -> None:
        self.calls.append(("resume", {}))

    def register(self, **given: Any) -> None:
        self.calls.append(("register", given))

    def offer(self, **given: Any) -> None:
        self.calls.append(("offer", given))

    def grow(self, **given: Any) -> None:
        self.calls.append(("grow", given))

    def cancel(self, transfer_id: TransferId, tag: str) -> None:
        self.calls.append(("cancel", {"transfer_id": transfer_id, "tag": tag}))

    def expect(self, transfer_id: TransferId, *, tag: str) -> None:
        self.calls.append(("expect", {"transfer_id": transfer_id, "tag": tag}))

    def withdraw(self, transfer_id: TransferId, *, tag: str) -> None:
        self.calls.append(("withdraw", {"transfer_id": transfer_id, "tag": tag}))

    def decline(self, transfer_id: TransferId, producers: tuple[ProducerAddress, ...]) -> None:
        self.calls.append(("decline", {"transfer_id": transfer_id, "producers": producers}))


def cache() -> Any:
    """One layer of 4 blocks, 2 heads, 16 slots, 8 elements of 2 bytes."""
    storage = SimpleNamespace(data_ptr=lambda: 4096, nbytes=lambda: 2048)
    return SimpleNamespace(
        shape=(4, 2, 16, 8),
        dtype="torch.float16",
        stride=lambda: (256, 128, 8, 1),
        data_ptr=lambda: 4096,
        element_size=lambda: 2,
        untyped_storage=lambda: storage,
    )


def worker(
    role: Role = Role.BOTH,
    *,
    fail: bool = True,
    settings: Settings | None = None,
    place: Place = ALONE,
    **group: Any,
) -> tuple[WorkerSide, StandInAgent]:
    made: list[StandInAgent] = []

    def start(config: Any) -> Any:
        made.append(StandInAgent(config))
        return made[0]

    side = WorkerSide(
        settings
        or settings_for(
            engine_id="eng",
            role=role,
            transport_options={"a": 1},
            offer_lease_ms=12_000,
            deadline_ms=34_000,
            fail_on_load_failure=fail,
        ),
        (CacheGroup(layers=("l0",), tokens_per_block=16, manager_blocks=4, **group),),
        2 * place.tensor_size,
        place,
        start_agent=start,
    )
    side.register_caches({"l0": cache()})
    return side, made[0]


def test_the_plane_of_k_beside_v_is_split_where_asked_for() -> None:
    side, agent = worker()
    assert [p.name for p in agent.config.shard.groups[0].planes] == ["kv"]
    split, agent = worker(settings=attrs.evolve(side.settings, split_kv=True))
    assert [p.name for p in agent.config.shard.groups[0].planes] == ["k", "v"]
    assert split.agent is agent


def step(number: int, *orders: Order) -> StepOrders:
    return StepOrders(step=number, orders=orders)


def receive(request_id: str) -> Receive:
    return Receive(
        request_id=request_id,
        register=Register(
            transfer_id=T,
            producers=PRODUCERS,
            tables=(TABLE,),
            token_start=0,
            token_stop=20,
            digest=b"d",
            deadline_ms=5,
            tag=request_id,
        ),
    )


def test_the_agent_gets_the_keys_of_the_file_or_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert worker()[1].config.keys is None
    line = f"k {bytes(range(32)).hex()}"
    monkeypatch.setenv("KVXFER_KEYS", line)
    assert worker()[1].config.keys == KeyRing.parse(line, "")
    path = tmp_path / "keys"
    path.write_text(f"file {bytes(range(32)).hex()}")
    base = worker()[0].settings
    config = worker(settings=attrs.evolve(base, key_file=str(path), host="192.0.2.1"))[1].config
    assert isinstance(config.keys, KeyFile)
    assert config.authenticates
    monkeypatch.delenv("KVXFER_KEYS")
    with pytest.raises(BadValue, match="off loopback keys are needed"):
        worker(settings=attrs.evolve(base, host="192.0.2.1"))


def test_a_producer_listens_and_a_consumer_does_not() -> None:
    assert worker(Role.PRODUCER)[1].config.listen == ("127.0.0.1", 5610)
    assert worker(Role.BOTH)[1].config.listen == ("127.0.0.1", 5610)
    assert worker(Role.CONSUMER)[1].config.listen is None


def test_the_agent_gets_the_settings() -> None:
    config = worker()[1].config
    assert (config.engine_id, config.transport, config.transport_options) == (
        "eng",
        "loopback",
        {"a": 1},
    )
    assert config.timings.offer_lease_ms == 12_000
    assert config.timings.transfer_deadline_ms == 34_000


def test_a_registration_goes_out_once_and_comes_back() -> None:
    side, agent = worker()
    orders = step(1, receive("a"))
    side.deliver(orders)
    side.deliver(orders)
    ((name, given),) = agent.calls
    assert name == "register"
    assert given["transfer_id"] == T
    assert given["tables"] == (TABLE,)
    assert given["producers"] == PRODUCERS
    assert (given["token_start"], given["token_stop"], given["tag"]) == (0, 20, "a")
    assert side.take_report().received == set()
    agent.results = [
        Landed(transfer_id=T, attempt=1, tag="a", bytes_received=640, elapsed_ms=2.0),
        LetGo(transfer_id=T, attempt=1, tag="a"),
    ]
    report = side.take_report()
    assert (report.received, report.failed) == ({"a"}, set())


def test_the_end_of_a_parked_request_cancels_its_registration_only() -> None:
    side, agent = worker()
    side.deliver(step(1, receive("a")))
    side.deliver(step(2, Drop(request_id="a", transfer_id=T)))
    assert agent.calls[-1] == ("cancel", {"transfer_id": T, "tag": "a"})


def test_the_end_of_a_request_that_was_reported_is_no_cancel() -> None:
    side, agent = worker()
    side.deliver(step(1, receive("a")))
    agent.results = [
        Lost(transfer_id=T, attempt=1, tag="a", reason=Reason.DEADLINE),
        LetGo(transfer_id=T, attempt=1, tag="a"),
    ]
    assert side.take_report().failed == {"a"}
    side.deliver(step(2, Drop(request_id="a", transfer_id=T)))
    assert [name for name, _ in agent.calls] == ["register"]


@pytest.mark.parametrize(("fail", "blocks"), [(True, {1, 2}), (False, set())])
def test_a_lost_load_is_told_before_its_blocks_are_let_go(fail: bool, blocks: set[int]) -> None:
    side, agent = worker(fail=fail)
    side.deliver(step(1, receive("a")))
    agent.results = [Lost(transfer_id=T, attempt=1, tag="a", reason=Reason.DEADLINE)]
    assert side.take_report().received == set()
    assert side.take_bad_blocks() == blocks


def test_blocks_of_a_window_are_not_told_one_by_one() -> None:
    """Among them is vLLM's null block, which other requests have, too."""
    side, agent = worker(kind=GroupKind.WINDOW, reach=20)
    side.deliver(step(1, receive("a")))
    agent.results = [
        Lost(transfer_id=T, attempt=1, tag="a", reason=Reason.DEADLINE),
        LetGo(transfer_id=T, attempt=1, tag="a"),
    ]
    assert side.take_report().failed == {"a"}
    assert side.take_bad_blocks() == set()


def test_a_refused_load_never_reaches_the_agent() -> None:
    side, agent = worker()
    side.deliver(step(1, Refuse(request_id="a", blocks=((1, 2),), why="remote_port")))
    report = side.take_report()
    assert (report.received, report.failed) == ({"a"}, {"a"})
    assert agent.calls == []


def test_the_producers_orders() -> None:
    side, agent = worker()
    offer = Offer(transfer_id=T, tables=(TABLE,), token_count=20, digest=b"d", tag="p")
    side.deliver(
        step(
            1,
            Expect(request_id="q", transfer_id=T),
            Abort(request_id="q", transfer_id=T),
            Send(request_id="p", offer=offer),
            Decline(transfer_id=T, producers=PRODUCERS),
        )
    )
    assert [name for name, _ in agent.calls] == ["expect", "withdraw", "offer", "decline"]
    # An abort names its own request: a duplicate's must not end another one's offer.
    assert [given.get("tag") for _, given in agent.calls[:2]] == ["q", "q"]
    assert agent.calls[2][1]["token_count"] == 20
    assert agent.calls[2][1]["tag"] == "p"
    agent.results = [Unsent(transfer_id=T, tag="p", reason=Reason.OFFER_EXPIRED)]
    assert side.take_report().sent == {"p"}
    stats = side.take_stats()
    assert stats is not None
    assert stats["num_kv_expired_reqs"] == [1]


FIRST = Offer(transfer_id=T, tables=(TABLE,), token_count=16, digest=b"d", tag="p", sealed=False)
MORE = Grow(transfer_id=T, tables=(TABLE,), token_count=32, tag="p")
UNSENT = Unsent(transfer_id=T, tag="p", reason=Reason.PRODUCER_ABORTED)


def test_a_stream_is_offered_grown_and_sealed_and_reported_once() -> None:
    side, agent = worker()
    side.deliver(step(1, Stream(request_id="p", offer=FIRST)))
    side.deliver(step(2, Extend(request_id="p", grow=MORE)))
    assert side.take_report().sent == set()
    side.deliver(step(3, Seal(request_id="p", grow=attrs.evolve(MORE, sealed=True))))
    assert [name for name, _ in agent.calls] == ["offer", "grow", "grow"]
    assert [given["sealed"] for _, given in agent.calls] == [False, False, True]
    agent.results = [Sent(transfer_id=T, tag="p", bytes_written=640)]
    assert side.take_report().sent == {"p"}
    stats = side.take_stats()
    assert stats is not None
    assert stats["kvxfer_streamed"] == [1]


def test_an_aborted_stream_holds_its_blocks_until_nothing_reads_them() -> None:
    side, agent = worker()
    side.deliver(step(1, Stream(request_id="p", offer=FIRST)))
    side.deliver(step(2, Abort(request_id="p", transfer_id=T, held=True)))
    assert agent.calls[-1] == ("withdraw", {"transfer_id": T, "tag": "p"})
    assert side.take_report().sent == set()
    agent.results = [UNSENT]
    assert side.take_report().sent == {"p"}


def test_a_step_that_takes_a_streams_blocks_waits_until_nothing_reads_them() -> None:
    side, agent = worker()
    side.deliver(step(1, Stream(request_id="p", offer=FIRST)))
    agent.coming = [UNSENT]
    side.deliver(step(2, Halt(request_id="p", transfer_id=T, tag="p")))
    assert agent.calls[-1] == ("withdraw", {"transfer_id": T, "tag": "p"})
    assert agent.coming == []
    assert len(side.ledger) == 0
    assert side.take_report().sent == set()


def test_a_step_that_takes_a_streams_blocks_does_not_wait_for_ever(
    caplog: pytest.LogCaptureFixture,
) -> None:
    side, agent = worker()
    clock = [0.0]
    side.clock_s = lambda: clock[0]

    def tick() -> None:
        clock[0] += 1.0

    agent.on_wait = tick
    side.deliver(step(1, Stream(request_id="p", offer=FIRST)))
    side.deliver(step(2, Halt(request_id="p", transfer_id=T, tag="p")))
    assert clock[0] == HALT_S
    assert "still read" in caplog.text
    # Nothing of it is left: what comes later is about nobody.
    agent.results = [UNSENT]
    assert side.take_report().sent == set()
    assert len(side.ledger) == 0


def test_only_a_producer_cuts_parts() -> None:
    def part_tokens(role: Role) -> int:
        settings = attrs.evolve(worker(role)[0].settings, stream_tokens=32)
        return int(worker(role, settings=settings)[1].config.part_tokens)

    assert (part_tokens(Role.PRODUCER), part_tokens(Role.CONSUMER)) == (32, 0)
    assert worker(Role.PRODUCER)[1].config.part_tokens == 0


def test_in_pull_the_registration_says_who_reads_and_the_reader_counts() -> None:
    side, agent = worker()
    pull = receive("a")
    register = attrs.evolve(pull.register, initiator=Initiator.CONSUMER)
    side.deliver(step(1, attrs.evolve(pull, register=register)))
    assert agent.calls[0][1]["initiator"] is Initiator.CONSUMER
    landed = Landed(transfer_id=T, attempt=1, tag="a", bytes_received=640, descriptors=5)
    agent.results = [landed, LetGo(transfer_id=T, attempt=1, tag="a")]
    # The source was read: it has nothing to say about a transfer of its own.
    agent.results.append(Sent(transfer_id=T, tag="b"))
    assert side.take_report().received == {"a"}
    agent.numbers = {"bytes_read": 640}
    data = side.take_stats()
    assert data is not None
    assert (data["bytes_transferred"], data["num_descriptors"]) == ([640], [5])
    assert data["kvxfer_bytes_read"] == [640]


def test_closing_twice_is_harmless() -> None:
    side, agent = worker()
    side.close()
    side.close()
    assert agent.closed


def test_statistics_of_both_ends() -> None:
    stats = StatsCollector()
    assert stats.take({}) is None
    stats.add(Landed(transfer_id=T, attempt=1, bytes_received=640, elapsed_ms=2.0))
    stats.add(Sent(transfer_id=T, bytes_written=320, descriptors=4, elapsed_ms=0.0))
    data = stats.take({"landed": 1, "bytes_received": 640, "quarantined": 2})
    assert data is not None
    assert data["bytes_transferred"] == [640, 320]
    assert data["num_descriptors"] == [0, 4]
    assert data["transfer_duration"][0] == pytest.approx(0.002)
    assert data["transfer_duration"][1] > 0
    assert data["kvxfer_bytes_received"] == [640]
    assert data["kvxfer_quarantined"] == [2]
    assert data.keys() == empty_data().keys()


def test_counters_are_published_as_differences_and_gauges_as_they_are() -> None:
    stats = StatsCollector()
    stats.take({"landed": 3, "live": 5})
    data = stats.take({"landed": 4, "live": 0})
    assert data is not None
    assert (data["kvxfer_landed"], data["kvxfer_live"]) == ([1], [0])
    assert stats.take({"landed": 4, "live": 0}) is None


@pytest.mark.parametrize(
    ("reason", "key"),
    [
        (Reason.DEADLINE, "num_failed_transfers"),
        (Reason.DIGEST_MISMATCH, "num_failed_transfers"),
        (Reason.UNREACHABLE, "num_failed_handshakes"),
        (Reason.LAYOUT_REFUSED, "num_failed_handshakes"),
        (Reason.CANCELLED_BY_CONSUMER, None),
        (Reason.PRODUCER_ABORTED, None),
    ],
)
def test_which_failures_count(reason: Reason, key: str | None) -> None:
    stats = StatsCollector()
    stats.add(Lost(transfer_id=T, attempt=1, reason=reason))
    data = stats.take({})
    if key is None:
        assert data is None
    else:
        assert data is not None
        assert data[key] == [1]


def test_the_log_line_counts_what_went_well_and_what_did_not() -> None:
    total, more = empty_data(), empty_data()
    assert is_empty(total)
    more["transfer_duration"], more["bytes_transferred"] = [0.001, 0.003], [2**20, 3 * 2**20]
    more["num_failed_handshakes"], more["num_kv_expired_reqs"] = [1], [1, 1]
    add_up(total, more)
    add_up(total, empty_data())
    assert summary(total) == {
        "Num successful transfers": 2,
        "Num failed transfers": 1,
        "Num KV expired reqs": 2,
        "Avg xfer time (ms)": 2.0,
        "Max xfer time (ms)": 3.0,
        "Avg MB per transfer": 2.0,
    }
    assert summary(empty_data())["Num successful transfers"] == 0


class Recorder:
    """Stands in for the tensors of a cache."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []

    def note(self, register: Register) -> None:
        self.calls.append(("note", register.tag))

    def clean(self, tag: str) -> None:
        self.calls.append(("clean", tag))

    def forget(self, tag: str) -> None:
        self.calls.append(("forget", tag))


def test_what_a_load_leaves_is_zeroed_before_it_is_reported() -> None:
    side, agent = worker(Role.CONSUMER)
    side._tails = tails = Recorder()  # type: ignore[assignment]
    side.deliver(step(1, receive("a"), receive("b")))
    assert side.take_report().received == frozenset()
    agent.results = [
        Landed(transfer_id=T, attempt=1, tag="a", bytes_received=1, elapsed_ms=1.0),
        LetGo(transfer_id=T, attempt=1, tag="a"),
        Lost(transfer_id=T, attempt=1, tag="b", reason=Reason.PRODUCER_ABORTED),
    ]
    assert side.take_report().received == {"a"}
    assert tails.calls == [("note", "a"), ("note", "b"), ("clean", "a"), ("forget", "b")]


def test_a_rank_listens_at_a_port_of_its_own() -> None:
    _, agent = worker(Role.PRODUCER, place=Place(tensor_rank=1, tensor_size=2))
    assert agent.config.listen == ("127.0.0.1", 5610 + 64)
    assert agent.config.shard.rank == 1
