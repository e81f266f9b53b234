"""The fault probes: what is broken, and what has to hold afterwards.

Owns one function per probe, under the names of the study in which they were first run
against vLLM's own push connector (a1 to d2), and e1, e2 for clients that leave. Refuses
to know how engines are started. Invariant: a probe notes at least that blocks return and
that the next request is right; it leaves the pair usable if the pair under test is.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from kvxfer_vllm.pd.bench import (
    ANSWER_S,
    ANSWER_TOKENS,
    DEADLINE_S,
    LEASE_S,
    SLACK_S,
    STAGED_TOKENS,
    TOLD_S,
    Bench,
    Staged,
)
from kvxfer_vllm.pd.client import Call, completion
from kvxfer_vllm.pd.legs import fresh_name
from kvxfer_vllm.pd.pair import fresh_engine_id
from kvxfer_vllm.pd.prompts import prompt

Probe = Callable[[Bench], Awaitable[None]]

LATE_S = 5.0
"""A decode leg that comes this much later is late, and within P's lease."""
LONG_ANSWER_TOKENS = 600
"""Decoding takes seconds."""
EARLY_TOKENS = 300
LONGEST_ANSWER_TOKENS = 3000
"""Decoded for far longer than a request takes to be staged, also where a token takes 4 ms."""
TRIES = 3
ROUTER_S = 10.0
"""The router checks an engine that is out every second."""
POLL_S = 0.02


async def a1(bench: Bench) -> None:
    """D's leg is cut after its registration, P goes on and finishes."""
    staged = await bench.stage("a1")
    await staged.decode.cut()
    answer = await staged.prefill.wait(ANSWER_S)
    bench.note("P's leg ends well", answer is not None and answer.good, answer)
    await bench.note_free()
    await bench.note_next("a1 next")


async def a2(bench: Bench) -> None:
    """Both legs are cut while P has not begun, as a router does when the client leaves."""
    await _cut_both(bench, "a2")
    await bench.note_free()
    await bench.note_next("a2 next")


async def a3(bench: Bench) -> None:
    """Only P's leg is cut; D is left waiting for KV that will not come."""
    staged = await bench.stage("a3")
    await staged.prefill.cut()
    # Where the leg is cut before P's engine was given it, nobody at P can tell D: then D's
    # own deadline ends the request. Else it ends within a round trip.
    limit_s = DEADLINE_S + SLACK_S
    await bench.note_end(staged.decode, staged.token_ids, limit_s, ANSWER_TOKENS)
    await staged.decode.cut()
    await bench.all_end(staged.fillers)
    await bench.note_free()
    await bench.note_next("a3 next")


async def b(bench: Bench) -> None:
    """P is killed while one request waits at D for its KV and another one is decoding."""
    pair = bench.pair
    alive = False
    for index in range(TRIES):
        # A machine that is busy with other work may take longer to stage than D to decode.
        early = prompt(EARLY_TOKENS, f"b early {index}")
        name = fresh_name()
        prefill = bench.send_prefill(name, early)
        decoding = bench.send_decode(name, early, LONGEST_ANSWER_TOKENS, stream=True)
        await prefill.wait(ANSWER_S)
        await decoding.await_first_bytes(ANSWER_S)
        staged = await bench.stage(f"b {index}")
        alive = decoding.first_bytes.is_set() and not decoding.answered
        if alive:
            break
        await bench.all_end([staged.prefill, staged.decode, *staged.fillers])
    bench.note("one request decoding at D", alive)
    pair.kill_producer()
    limit_s = DEADLINE_S + SLACK_S
    await bench.note_end(staged.decode, staged.token_ids, limit_s, ANSWER_TOKENS)
    await staged.decode.cut()
    answer = await decoding.wait(ANSWER_S)
    expected = await bench.expected(early, LONGEST_ANSWER_TOKENS)
    bench.note("the decoding request ends right", answer is not None and answer.tokens == expected)
    await bench.note_free(pair.decode)
    served = await bench.expected(prompt(64, "b plain"), ANSWER_TOKENS)
    bench.note("D serves plain requests", len(served) == ANSWER_TOKENS)


async def b2(bench: Bench) -> None:
    """P has died and comes back under the same engine id; nothing is done at D."""
    pair = bench.pair
    if pair.producer_alive:
        # D must have a connection to the life of P that ends here.
        await bench.note_next("b2 before")
        pair.kill_producer()
    await bench.restart_producer(pair.prefill.engine_id)
    for index in range(TRIES):
        await bench.note_next(f"b2 {index}", what=f"request {index} after the restart")
    found = await bench.pair.router_ready(ROUTER_S)
    bench.note(f"the router has found P again within {ROUTER_S:.0f} s", found)
    await bench.note_next_routed("b2 routed")
    await bench.note_free()


async def b3(bench: Bench) -> None:
    """P has died and comes back under a new engine id, at the same port."""
    pair = bench.pair
    if pair.producer_alive:
        await bench.note_next("b3 before")
        pair.kill_producer()
    await bench.restart_producer(fresh_engine_id("P"))
    await bench.note_next("b3 next")
    await bench.note_free()


async def c(bench: Bench) -> None:
    """D's leg never comes."""
    await _expired_offer(bench, fresh_name(), prompt(STAGED_TOKENS, "c"))
    await bench.note_free(bench.pair.decode)
    await bench.note_next("c next")


async def c_late(bench: Bench) -> None:
    """D's leg comes after P's lease for it has expired."""
    name, token_ids = fresh_name(), prompt(STAGED_TOKENS, "c-late")
    await _expired_offer(bench, name, token_ids)
    decode = bench.send_decode(name, token_ids)
    await bench.note_end(decode, token_ids, TOLD_S, ANSWER_TOKENS)
    await decode.cut()
    await bench.note_free()
    await bench.note_next("c-late next")


async def c2(bench: Bench) -> None:
    """D's leg comes late, but within the lease."""
    name, token_ids = fresh_name(), prompt(STAGED_TOKENS, "c2")
    prefill = await bench.send_prefill(name, token_ids).wait(ANSWER_S)
    bench.note("P's leg ends well", prefill is not None and prefill.good, prefill)
    await asyncio.sleep(LATE_S)
    answer = await bench.send_decode(name, token_ids).wait(DEADLINE_S)
    await bench.note_right("the late request is right", answer, token_ids)
    await bench.note_free()


async def d1(bench: Bench) -> None:
    """Both legs are cut, then the same id is used again, twice, for other prompts."""
    staged = await _cut_both(bench, "d1")
    await bench.note_next("d1 second", name=staged.name, what="second request of the same id")
    await bench.note_next("d1 third", name=staged.name, what="third request of the same id")
    await bench.note_free()


async def d2(bench: Bench) -> None:
    """Only D's leg is cut and P finishes, then the same id is used again."""
    staged = await bench.stage("d2")
    await staged.decode.cut()
    await staged.prefill.wait(ANSWER_S)
    await bench.note_next("d2 second", name=staged.name, what="second request of the same id")
    await bench.note_free()


async def e1(bench: Bench) -> None:
    """The router's client leaves while P is in the middle of the prefill."""
    caught = False
    for index in range(TRIES):
        watch = bench.watch_registration(r"\S+")
        fillers = bench.send_fillers(f"e1 {index}")
        body = completion(prompt(STAGED_TOKENS, f"e1 {index}"), ANSWER_TOKENS)
        client = bench.send(bench.pair.router_url, body)
        if bench.pair.stack.mode.order == "pull":
            # D hears of it only when P has done.
            registered = await _waiting(bench, client, some=True)
        else:
            registered = await watch.wait()
        # Requests begin in the order of their coming: nothing waits once the last has begun.
        begun = await _waiting(bench, client, some=False)
        caught = registered and begun and not client.answered
        await client.cut()
        await bench.all_end(fillers)
        if caught:
            break
    bench.note("the client left when P had begun and not finished", caught)
    await bench.note_free()
    await bench.note_next_routed("e1 next")


async def e2(bench: Bench) -> None:
    """The router's client leaves while D is decoding."""
    body = completion(prompt(STAGED_TOKENS, "e2"), LONG_ANSWER_TOKENS, stream=True)
    client = bench.send(bench.pair.router_url, body)
    decoding = await client.await_first_bytes(ANSWER_S)
    bench.note("the client left when D was decoding", decoding and not client.answered)
    await client.cut()
    await bench.note_free()
    await bench.note_next_routed("e2 next")


async def _cut_both(bench: Bench, seed: str) -> Staged:
    staged = await bench.stage(seed)
    await staged.decode.cut()
    await staged.prefill.cut()
    await bench.all_end(staged.fillers)
    return staged


async def _expired_offer(bench: Bench, name: str, token_ids: Sequence[int]) -> None:
    """P's leg alone, until P gives it up."""
    pair = bench.pair
    answer = await bench.send_prefill(name, token_ids).wait(ANSWER_S)
    bench.note("P's leg ends well", answer is not None and answer.good, answer)
    bench.note("P holds its blocks for D", await pair.blocks_held(pair.prefill) > 0)
    await bench.note_free(pair.prefill, limit_s=LEASE_S + SLACK_S)


async def _waiting(bench: Bench, client: Call, *, some: bool) -> bool:
    """True once requests wait at P for their first step, or none; False if `client` ends before."""
    deadline = time.monotonic() + ANSWER_S
    while not client.answered and time.monotonic() < deadline:
        metrics = await bench.pair.scrape(bench.pair.prefill)
        if (metrics.value("vllm:num_requests_waiting") > 0) is some:
            return True
        await asyncio.sleep(POLL_S)
    return False


PROBES: dict[str, Probe] = {
    "a1": a1,
    "a2": a2,
    "a3": a3,
    "c": c,
    "c-late": c_late,
    "c2": c2,
    "d1": d1,
    "d2": d2,
    "e1": e1,
    "e2": e2,
    # Last, since they end P, and in this order, since b2 takes up what b leaves.
    "b": b,
    "b2": b2,
    "b3": b3,
}

RESTARTING = ("b2", "b3")
"""Probes that start P themselves where they find it dead."""

LOAD_FAILURES = ("a3", "c-late", "b")
"""Probes in which a load fails at D, so that the failure policy decides what follows."""
