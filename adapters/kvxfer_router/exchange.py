"""One leg at one engine, and what its end says about that engine.

Owns the noting of every leg's end: metrics, the engine's health, what it has computed, P's
coordinates as it states them. Refuses to know the order of legs. Invariant: each leg that
was opened is noted as failed at most once, and one that was cancelled never.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

import aiohttp

from kvxfer_router.engine import FailureKind, Leg, LegFailed
from kvxfer_router.events import (
    EVENT_BYTES_MAX,
    error_of_event,
    has_whole_event,
    is_event_stream,
)
from kvxfer_router.legs import Body, coordinates_of_params, params_of_answer, prefill_body
from kvxfer_router.metrics import Metrics
from kvxfer_router.pool import Engine
from kvxfer_router.relay import Answer
from kvxfer_router.rounds import DECODE, PREFILL, Prefilled, Run

log = logging.getLogger("kvxfer.router")


class Exchanges:
    """Opens legs and takes them to their first result."""

    def __init__(self, session: aiohttp.ClientSession, metrics: Metrics) -> None:
        self._session = session
        self._metrics = metrics

    def choose(self, run: Run, name: str, *, known: bool = False) -> Engine:
        """The engine of a leg that would open now. Raises LegFailed where none may be asked.

        `known`: only an engine whose coordinates are known.
        """
        pool = run.pool_of(name)
        engine = pool.choose(run.call.prompt, time.monotonic(), run.failed, known=known)
        if engine is None:
            failed = LegFailed(name, FailureKind.NO_ENGINE, f"no {name} engine is healthy")
            self._note(run, failed)
            raise failed
        return engine

    def open(self, run: Run, name: str, *, known: bool = False) -> Leg:
        """Choose the engine of a leg and take a seat there; nothing is sent yet."""
        engine = self.choose(run, name, known=known)
        run.asked[name] = engine
        seat = run.pool_of(name).take(engine, run.call.prompt)
        leg = Leg(name, engine, seat, self._session)
        run.legs.append(leg)
        return leg

    async def prefill(self, run: Run, leg: Leg) -> Prefilled | LegFailed:
        """One whole P leg. A failure is returned, not raised."""
        body = prefill_body(run.call.path, run.call.body, run.names.transfer_id)
        try:
            answer = await leg.ask(run.call.path, run.headers, body)
        except LegFailed as failed:
            self.note_failed(run, leg.engine, failed)
            return failed
        finally:
            leg.close()
        self._note_answered(run, leg)
        params = params_of_answer(answer)
        if params is not None:
            self._adopt(leg.engine, params)
        return Prefilled(params=params)

    async def decode(self, run: Run, leg: Leg, body: Body) -> Answer:
        """One D leg up to the first bytes of its body.

        An engine sends the headers of a stream before it has computed anything; only the
        first event shows that D has what it needs, or that it failed.
        """
        try:
            response = await leg.send(run.call.path, run.headers, body)
            await leg.fail_by_status()
            first = await leg.read()
            if is_event_stream(response.headers):
                first = await _whole_event(leg, first)
                _fail_by_event(first)
        except LegFailed as failed:
            self.note_failed(run, leg.engine, failed)
            leg.close()
            raise
        self._note_answered(run, leg)
        return Answer(leg=leg, status=response.status, headers=response.headers, first=first)

    def note_failed(self, run: Run, engine: Engine, failed: LegFailed) -> None:
        """This leg brought no usable answer, or one that broke off."""
        now_s = time.monotonic()
        if failed.accuses:
            run.pool_of(failed.leg).note_failed(engine, now_s)
        elif failed.kind is FailureKind.STATUS and failed.status < 500:
            engine.health.answered(now_s)
        self._note(run, failed)

    def _note(self, run: Run, failed: LegFailed) -> None:
        if failed.leg == PREFILL:
            run.lost_prefill = failed
        self._metrics.leg_failed(failed.leg, failed.kind.value)
        log.warning("%s: %s", run.names.request_id, failed)

    def _note_answered(self, run: Run, leg: Leg) -> None:
        leg.engine.health.answered(time.monotonic())
        run.pool_of(leg.name).prefixes.learn(run.call.prompt, leg.engine)

    def _adopt(self, engine: Engine, params: Mapping[str, Any]) -> None:
        """Take P's coordinates from its own answer: a restart may have changed them."""
        stated = coordinates_of_params(params, engine.coordinates)
        if stated is None or stated == engine.coordinates:
            return
        log.warning("%s is now at %s, was at %s", engine.spec.name, stated, engine.coordinates)
        engine.coordinates = stated
        self._metrics.coordinates_adopted()


async def _whole_event(leg: Leg, first: bytes) -> bytes:
    """The stream's first event, and what came with it."""
    while not has_whole_event(first) and len(first) < EVENT_BYTES_MAX:
        more = await leg.read()
        if not more:
            break
        first += more
    return first


def _fail_by_event(first: bytes) -> None:
    """Raise what a stream that begins with an error tells."""
    told = error_of_event(first)
    if told is None:
        return
    status, text = told
    reason = f"error {status} in the first event"
    raise LegFailed(DECODE, FailureKind.STATUS, reason, status=status, text=text)
