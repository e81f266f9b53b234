"""One cluster, one list of requests, one way: from arrivals to times.

Owns the path of a request through router, P, transfer and D. Invariant: every request
ends, and its times are in the order arrival, answer or first token, last token.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import Any

import attrs

from kvxfer.bench.cluster.costs import Costs
from kvxfer.bench.cluster.engines import Decode, Prefill, PrefixCache
from kvxfer.bench.cluster.events import Events
from kvxfer.bench.cluster.router import Router
from kvxfer.bench.cluster.trace import Request
from kvxfer.bench.cluster.ways import Way
from kvxfer.bench.harness import percentile
from kvxfer.errors import BadValue

ENGINES_MAX = 100_000


@attrs.frozen(kw_only=True)
class Fleet:
    """How many engines, and what they remember of earlier prompts."""

    prefills: int = 1
    decodes: int = 1
    policy: str = "least-loaded"
    prefix_blocks: int = 0
    """Blocks of 512 tokens that a P remembers; 0: no prefix cache."""

    def __attrs_post_init__(self) -> None:
        for name in ("prefills", "decodes"):
            if not 1 <= getattr(self, name) <= ENGINES_MAX:
                raise BadValue(name, getattr(self, name), f"from 1 to {ENGINES_MAX}")


@attrs.define(eq=False)
class Cluster:
    """Simulates; `run` gives the figures."""

    costs: Costs
    way: Way
    fleet: Fleet
    events: Events = attrs.field(factory=Events)
    router: Router = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        fleet, events, costs = self.fleet, self.events, self.costs
        self.router = Router(
            fleet.policy,
            [
                Prefill(events, costs, PrefixCache(fleet.prefix_blocks))
                for _ in range(fleet.prefills)
            ],
            [Decode(events, costs) for _ in range(fleet.decodes)],
        )

    def run(self, requests: Iterable[Request]) -> dict[str, Any]:
        """Milliseconds, and what the engines were busy with."""
        todo = list(requests)
        for request in todo:
            self.events.at(request.arrive_s, lambda one=request: self._dispatch(one))  # type: ignore[misc]
        happened = self.events.run()
        return summary(todo) | self._load(todo) | {"events": happened}

    # --- a request's way ---

    def _dispatch(self, request: Request) -> None:
        p = self.router.prefill(request)
        d = None if self.way.pull else self._choose()
        known_s = self.events.now_s + self.costs.handling_s(request.tokens)
        hit = p.cache.hit_tokens(request.prefix, request.tokens)
        p.waiting_tokens += request.tokens - hit

        def on_chunk(took: int, last: bool) -> None:
            if last:
                p.cache.add(request.prefix)
                request.answered_s = self.events.now_s + self.costs.answer_ms / 1e3
            if d is None:
                if last:
                    self.events.at(request.answered_s, lambda: self._pull(request))
            elif self.way.stream:
                # What P had already leaves with the first chunk.
                tokens = took + (hit if first_chunk.pop("hit", None) else 0)
                self._push(request, p, d, tokens, known_s, last=last)
            elif last:
                self._push(request, p, d, request.tokens, known_s, last=True)

        first_chunk = {"hit": hit}
        self.events.at(known_s, lambda: p.add(request.tokens - hit, hit, on_chunk))

    def _choose(self) -> Decode:
        d = self.router.decode()
        d.held += 1
        return d

    def _push(
        self, request: Request, p: Prefill, d: Decode, tokens: int, known_s: float, *, last: bool
    ) -> None:
        pieces = self.costs.pieces(tokens)
        start_s = max(self.events.now_s, known_s)
        posted_s = p.thread.take(start_s, self.way.post_s(self.costs, pieces))
        end_s = self._wire(p, d, posted_s, tokens)
        if not last:
            return
        if self.way.step_polls:
            # The notice leaves when P's engine looks at its transfers.
            self.events.at(end_s, lambda: p.at_poll(lambda: self._landed(request, d)))
        else:
            self.events.at(end_s, lambda: self._landed(request, d))

    def _pull(self, request: Request) -> None:
        d = self._choose()
        self.events.after(
            self.costs.handling_s(request.tokens), lambda: d.at_poll(lambda: self._read(request, d))
        )

    def _read(self, request: Request, d: Decode) -> None:
        pieces = self.costs.pieces(request.tokens)
        post_s = self.way.post_s(self.costs, pieces)
        if self.way.on_engine:
            d.stall(post_s)
            posted_s = self.events.now_s + post_s
            if self.costs.poll_pieces:
                polls = pieces / self.costs.poll_pieces
                posted_s = d.library.take(posted_s, polls * d.step_s)
        else:
            posted_s = d.thread.take(self.events.now_s, post_s)
        end_s = self._wire(None, d, posted_s, request.tokens)
        self.events.at(end_s, lambda: self._landed(request, d))

    def _wire(self, p: Prefill | None, d: Decode, from_s: float, tokens: int) -> float:
        length_s = self.way.wire_s(self.costs, tokens)
        sent_s = p.port.take(from_s, length_s) if p is not None else from_s + length_s
        return d.port.take(sent_s - length_s, length_s)

    def _landed(self, request: Request, d: Decode) -> None:
        d.at_poll(lambda: self._decode(request, d))

    def _decode(self, request: Request, d: Decode) -> None:
        to_client_s = self.costs.first_token_ms / 1e3

        def first() -> None:
            request.first_s = self.events.now_s + to_client_s

        def last() -> None:
            request.last_s = max(self.events.now_s + to_client_s, request.first_s)
            d.held -= 1

        d.join(request.output_tokens, first, last)

    def _load(self, requests: list[Request]) -> dict[str, float]:
        whole_s = max((one.last_s for one in requests), default=0.0) or 1.0
        prefills, decodes = self.router.prefills, self.router.decodes
        return {
            "prefill_busy": round(statistics.mean(one.busy_s for one in prefills) / whole_s, 4),
            "decode_stalled": round(statistics.mean(one.stalled_s for one in decodes) / whole_s, 4),
        }


def summary(requests: list[Request]) -> dict[str, Any]:
    """Percentiles over all requests, in milliseconds."""
    tpots = [one.tpot_s for one in requests if one.tpot_s is not None]
    columns = {
        "ttft": [one.ttft_s for one in requests],
        "after_prefill": [one.after_prefill_s for one in requests],
        "tpot": tpots,
    }
    found: dict[str, Any] = {"requests": len(requests)}
    for name, values in columns.items():
        for percent in (50, 90, 99):
            value = percentile(values, percent)
            found[f"{name}_ms_p{percent}"] = None if value is None else round(value * 1e3, 3)
    return found
