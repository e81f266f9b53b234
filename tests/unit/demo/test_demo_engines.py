"""The engines against an agent that this test moves by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import pytest

from kvxfer.core.ids import Initiator, Reason, TransferId
from kvxfer.demo.cache import CacheShape, EngineCache
from kvxfer.demo.decode import DecodeEngine
from kvxfer.demo.engines import Job
from kvxfer.demo.model import Model
from kvxfer.demo.prefill import PrefillEngine
from kvxfer.demo.reports import EngineDied, Failed, Finished, Prefilled, Released, Report
from kvxfer.demo.sequence import Prompt, answer_alone
from kvxfer.driver.results import Landed, LetGo, Lost, Result, Sent, Unsent
from kvxfer.errors import BadValue

SHAPE = CacheShape(block_count=20, block_tokens=16)


class HandAgent:
    """Keeps what it is told; gives the results that the test puts in."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, TransferId]] = []
        self.tables: dict[TransferId, Any] = {}
        self.digests: dict[TransferId, bytes] = {}
        self.stated: list[tuple[int, bool]] = []
        self.initiators: list[Initiator] = []
        self.results: list[Result] = []

    def expect(self, transfer_id: TransferId) -> None:
        self.calls.append(("expect", transfer_id))

    def offer(
        self,
        transfer_id: TransferId,
        tables: Any,
        token_count: int,
        *,
        digest: bytes = b"",
        sealed: bool = True,
    ) -> None:
        self.calls.append(("offer", transfer_id))
        self.stated.append((token_count, sealed))
        self.tables[transfer_id], self.digests[transfer_id] = tables, digest

    def grow(
        self, transfer_id: TransferId, tables: Any, token_count: int, *, sealed: bool = False
    ) -> None:
        self.calls.append(("grow", transfer_id))
        self.stated.append((token_count, sealed))

    def withdraw(self, transfer_id: TransferId) -> None:
        self.calls.append(("withdraw", transfer_id))

    def register(
        self,
        transfer_id: TransferId,
        *,
        producers: Any,
        tables: Any,
        token_start: int,
        token_stop: int,
        digest: bytes = b"",
        initiator: Initiator = Initiator.PRODUCER,
    ) -> None:
        self.initiators.append(initiator)
        assert token_start == 0
        assert producers == ()
        self.calls.append(("register", transfer_id))
        self.tables[transfer_id], self.digests[transfer_id] = tables, digest

    def cancel(self, transfer_id: TransferId) -> None:
        self.calls.append(("cancel", transfer_id))

    def take(self) -> list[Result]:
        taken, self.results = self.results, []
        return taken

    def wait(self, timeout_s: float) -> bool:
        return bool(self.results)

    def counters(self) -> Mapping[str, int]:
        return {"live": 2, "quarantined": 1}

    def events(self) -> Sequence[Any]:
        return ()

    def close(self, timeout_s: float = 5.0) -> None:
        self.calls.append(("close", TransferId("")))


class Both:
    """A prefill and a decode engine on hand-moved agents, turned by the test."""

    def __init__(self, ranks: int = 1, shape: CacheShape = SHAPE) -> None:
        self.model = Model.from_seed(2)
        self.reports: list[Report] = []
        self.p_agents = [HandAgent() for _ in range(ranks)]
        self.d_agents = [HandAgent() for _ in range(ranks)]
        split = CacheShape(
            block_count=shape.block_count, block_tokens=shape.block_tokens, ranks=ranks
        )
        self.p = PrefillEngine(
            name="P",
            model=self.model,
            cache=EngineCache(self.model.shape, split, 1),
            agents=self.p_agents,
            report=self.reports.append,
        )
        self.d = DecodeEngine(
            name="D",
            model=self.model,
            cache=EngineCache(self.model.shape, split, 2),
            agents=self.d_agents,
            report=self.reports.append,
            producers=(),
        )

    def copy(self, transfer_id: TransferId) -> None:
        """Carry the offered blocks over, rank by rank."""
        for rank, (p, d) in enumerate(zip(self.p_agents, self.d_agents, strict=True)):
            source = p.tables[transfer_id][0].blocks
            target = d.tables[transfer_id][0].blocks
            self.d.cache.pools[rank].view[:, target] = self.p.cache.pools[rank].view[:, source]

    def turn_d(self, times: int = 30) -> None:
        for _ in range(times):
            self.d.turn()


def job(name: str = "t", length: int = 40, answer: int = 5, seed: int = 0) -> Job:
    tokens = np.random.default_rng(seed).integers(0, 1000, length).tolist()
    prompt = Prompt(tokens=tokens, answer_tokens=answer)
    return Job(transfer_id=TransferId(name), prompt=prompt)


def landed(one: Job) -> Landed:
    return Landed(transfer_id=one.transfer_id, attempt=1)


def let_go(one: Job) -> LetGo:
    return LetGo(transfer_id=one.transfer_id, attempt=1)


def lost(one: Job, reason: Reason = Reason.DEADLINE) -> Lost:
    return Lost(transfer_id=one.transfer_id, attempt=1, reason=reason)


@pytest.mark.parametrize("ranks", [1, 2])
def test_tokens_of_the_pair_are_those_of_one_engine(ranks: int) -> None:
    both, one = Both(ranks), job()
    both.d.submit(one)
    both.p.submit(one)
    both.turn_d(1)
    both.p.turn()
    both.copy(one.transfer_id)
    for agent in both.d_agents:
        agent.results += [landed(one), let_go(one)]
    both.turn_d()
    alone = EngineCache(both.model.shape, CacheShape(block_count=9, block_tokens=5), 77)
    finished = [r for r in both.reports if isinstance(r, Finished)]
    assert [r.tokens for r in finished] == [answer_alone(both.model, alone, one.prompt)]
    assert both.p_agents[0].digests == both.d_agents[0].digests == {"t": one.prompt.digest}


def test_without_the_copy_the_tokens_differ() -> None:
    both, one = Both(), job()
    both.d.submit(one)
    both.turn_d(1)
    both.d_agents[0].results += [landed(one), let_go(one)]
    both.turn_d()
    alone = EngineCache(both.model.shape, SHAPE, 77)
    (finished,) = both.reports
    assert isinstance(finished, Finished)
    assert finished.tokens != answer_alone(both.model, alone, one.prompt)


def test_decode_waits_for_every_rank() -> None:
    both, one = Both(ranks=2), job()
    both.d.submit(one)
    both.turn_d(2)
    both.d_agents[0].results += [landed(one), let_go(one)]
    both.turn_d()
    assert both.reports == []
    both.d_agents[1].results += [landed(one), let_go(one)]
    both.turn_d()
    assert [type(r) for r in both.reports] == [Finished]
    assert both.d.cache.allocator.held == 0


def test_d_holds_its_blocks_until_every_rank_has_let_go() -> None:
    both, one = Both(ranks=2), job()
    both.d.submit(one)
    both.turn_d(1)
    for agent in both.d_agents:
        agent.results.append(landed(one))
    both.d_agents[0].results.append(let_go(one))
    both.turn_d()
    assert [type(r) for r in both.reports] == [Finished]
    assert both.d.cache.allocator.held == 3
    both.d_agents[1].results.append(let_go(one))
    both.turn_d(1)
    assert both.d.cache.allocator.held == 0


def test_d_holds_its_blocks_until_its_last_token() -> None:
    both, one = Both(), job(answer=4)
    both.d.submit(one)
    both.turn_d(1)
    both.d_agents[0].results += [landed(one), let_go(one)]
    both.turn_d(3)
    assert both.d.cache.allocator.held == 3
    both.turn_d(1)
    assert both.d.cache.allocator.held == 0


def test_a_lost_rank_fails_the_request_and_cancels_the_others() -> None:
    both, one = Both(ranks=2), job()
    both.d.submit(one)
    both.turn_d(1)
    both.d_agents[0].results.append(lost(one, Reason.PEER_LOST))
    both.turn_d()
    (failed,) = both.reports
    assert isinstance(failed, Failed)
    assert "rank 0: PEER_LOST" in failed.reason
    assert ("cancel", one.transfer_id) in both.d_agents[1].calls
    assert ("cancel", one.transfer_id) not in both.d_agents[0].calls
    both.d_agents[0].results.append(let_go(one))
    both.turn_d()
    assert both.d.cache.allocator.held == 3, "rank 1 may still be written to"
    both.d_agents[1].results += [lost(one, Reason.CANCELLED_BY_CONSUMER), let_go(one)]
    both.turn_d()
    assert both.d.cache.allocator.held == 0
    assert both.reports == [failed]


def test_p_holds_its_blocks_until_every_rank_is_through() -> None:
    both, one = Both(ranks=2), job()
    both.p.submit(one)
    both.p.turn()
    assert [name for name, _ in both.p_agents[1].calls] == ["expect", "offer"]
    tid = one.transfer_id
    both.p_agents[0].results.append(Sent(transfer_id=tid, bytes_written=100, descriptors=3))
    both.p.turn()
    assert both.p.cache.allocator.held == 3
    assert [type(r) for r in both.reports] == [Prefilled]
    both.p_agents[1].results.append(Sent(transfer_id=tid, bytes_written=50, descriptors=2))
    both.p.turn()
    assert both.p.cache.allocator.held == 0
    assert both.reports[1] == Released(transfer_id="t", bytes_written=150, descriptors=5)


def test_an_unsent_offer_frees_the_blocks_and_says_why() -> None:
    both, one = Both(), job()
    both.p.submit(one)
    both.p.turn()
    unsent = Unsent(transfer_id=one.transfer_id, reason=Reason.OFFER_EXPIRED)
    both.p_agents[0].results.append(unsent)
    both.p.turn()
    assert both.p.cache.allocator.held == 0
    released = both.reports[-1]
    assert isinstance(released, Released)
    assert released.reason == "rank 0: OFFER_EXPIRED"


def test_a_withdrawn_request_leaves_the_queue_or_the_agents() -> None:
    both = Both(ranks=2)
    offered, queued = job("offered"), job("queued")
    both.p.submit(offered)
    both.p.turn()
    both.p_agents[0].results.append(Sent(transfer_id=offered.transfer_id))
    both.p.turn()
    both.p.submit(queued)
    for one in (offered, queued):
        both.p.withdraw(one.transfer_id)
    both.p.turn()
    # Rank 0 has sent already: there is nothing to take back.
    assert ("withdraw", offered.transfer_id) not in both.p_agents[0].calls
    assert ("withdraw", offered.transfer_id) in both.p_agents[1].calls
    assert ("expect", queued.transfer_id) not in both.p_agents[0].calls
    assert both.reports[-1] == Released(
        transfer_id="queued", bytes_written=0, descriptors=0, reason="withdrawn"
    )
    assert both.p.cache.allocator.held == 3, "rank 1 may still read them"


def test_withdrawing_what_is_over_changes_nothing() -> None:
    both, one = Both(), job()
    both.p.submit(one)
    both.p.turn()
    both.p_agents[0].results.append(Sent(transfer_id=one.transfer_id))
    both.p.turn()
    reports = list(both.reports)
    both.p.withdraw(one.transfer_id)
    both.p.turn()
    assert both.reports == reports


def test_a_streamed_prompt_is_stated_chunk_by_chunk() -> None:
    both = Both()
    one = attrs.evolve(job(length=151), streams=True)
    both.p.submit(one)
    both.p.turn()
    assert both.p_agents[0].stated == [(0, False), (64, False), (128, False), (150, True)]
    assert [name for name, _ in both.p_agents[0].calls[:2]] == ["expect", "offer"]
    both.p_agents[0].results.append(Sent(transfer_id=one.transfer_id, bytes_written=7))
    both.p.turn()
    assert [type(r) for r in both.reports] == [Prefilled, Released]
    assert both.p.cache.allocator.held == 0


def test_blocks_stay_while_the_prefill_writes_them_though_nobody_wants_them() -> None:
    """D left in mid-stream: Unsent comes while P still computes."""
    both = Both()
    one = attrs.evolve(job(length=151), streams=True)
    agent = both.p_agents[0]
    grow = agent.grow
    held: list[int] = []

    def leave(*args: Any, **kwargs: Any) -> None:
        grow(*args, **kwargs)
        held.append(both.p.cache.allocator.held)
        if len(held) == 1:
            agent.results.append(
                Unsent(transfer_id=one.transfer_id, reason=Reason.CANCELLED_BY_CONSUMER)
            )

    agent.grow = leave  # type: ignore[method-assign]
    both.p.submit(one)
    both.p.turn()
    # The first chunk only: after that no rank is left to be told.
    assert held == [10]
    assert both.p.cache.allocator.held == 0
    released = next(r for r in both.reports if isinstance(r, Released))
    assert released.reason == "rank 0: CANCELLED_BY_CONSUMER"


def test_d_reads_where_the_job_says_so() -> None:
    both = Both()
    for one in (attrs.evolve(job("a"), reads=True), job("b")):
        both.d.submit(one)
        both.turn_d(1)
    assert both.d_agents[0].initiators == [Initiator.CONSUMER, Initiator.PRODUCER]


def test_jobs_wait_for_blocks_in_their_order() -> None:
    both = Both(shape=CacheShape(block_count=4, block_tokens=16))
    big, small = job("big", length=60), job("small", length=5)
    first = job("first", length=20)
    for one in (first, big, small):
        both.p.submit(one)
        both.p.turn()
        both.p.turn()
    # `small` would fit; it does not overtake `big`.
    assert [r.transfer_id for r in both.reports if isinstance(r, Prefilled)] == ["first"]
    both.p_agents[0].results.append(Sent(transfer_id=first.transfer_id))
    both.p.turn()
    both.p.turn()
    assert [r.transfer_id for r in both.reports if isinstance(r, Prefilled)] == ["first", "big"]


def test_a_request_that_can_never_fit_is_refused_at_once() -> None:
    both = Both(shape=CacheShape(block_count=2, block_tokens=16))
    with pytest.raises(BadValue, match="at most 2 at D"):
        both.d.submit(job(length=40))


def test_requests_decode_side_by_side() -> None:
    both = Both()
    jobs = [job("a", answer=8, seed=1), job("b", answer=2, seed=2)]
    for one in jobs:
        both.d.submit(one)
        both.turn_d(1)
    both.d_agents[0].results += [landed(jobs[0]), landed(jobs[1])]
    both.turn_d()
    assert [r.transfer_id for r in both.reports if isinstance(r, Finished)] == ["b", "a"]


def test_an_error_in_the_thread_is_reported() -> None:
    both, one = Both(), job()
    both.p_agents[0].results.append(landed(one))
    both.p.start()
    both.p._thread.join(30)  # type: ignore[union-attr]
    (died,) = both.reports
    assert isinstance(died, EngineDied)
    assert died.engine == "P"
    assert "AssertionError" in died.error


def test_stop_ends_the_thread_and_state_counts_what_is_open() -> None:
    both = Both(ranks=2)
    both.d.submit(job())
    both.turn_d(1)
    both.d.start()
    both.d.stop()
    assert not both.d._thread.is_alive()  # type: ignore[union-attr]
    state = both.d.state()
    assert (state.blocks_held, state.live, state.quarantined) == (3, 4, 2)
