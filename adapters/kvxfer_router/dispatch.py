"""The order of the legs, and what follows from their failures.

Owns push, pull and plain dispatch, the retries, and the set of open dispatches. Refuses to
know the client's connection: an answer goes to a callback. Invariant: when `serve` returns
or raises, no leg of that dispatch is open, except a prefill leg that may finish behind a
complete answer, for a bounded time.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp

from kvxfer_router.config import Mode, OnPrefillFailure, RouterConfig
from kvxfer_router.engine import FailureKind, Leg, LegFailed, end_tasks
from kvxfer_router.exchange import Exchanges
from kvxfer_router.intake import ClientCall, Refused
from kvxfer_router.legs import (
    Body,
    pull_decode_body,
    push_decode_body,
    reason_not_to_split,
)
from kvxfer_router.metrics import Metrics, Outcome
from kvxfer_router.pool import Fleet
from kvxfer_router.relay import Answer
from kvxfer_router.rounds import DECODE, PREFILL, PULL, PUSH, Prefilled, Run

log = logging.getLogger("kvxfer.router")

PassOn = Callable[[Answer], Awaitable[Outcome]]


class Dispatcher:
    """Serves calls on the engines of one fleet."""

    def __init__(
        self, config: RouterConfig, session: aiohttp.ClientSession, metrics: Metrics
    ) -> None:
        self._config = config
        self._metrics = metrics
        self.fleet = Fleet.of(config)
        self._exchanges = Exchanges(session, metrics)
        self._live: set[asyncio.Task[Any]] = set()
        self._trailing: set[asyncio.Task[None]] = set()

    async def serve(self, call: ClientCall, pass_on: PassOn) -> None:
        """Send the legs in the order of the call and hand D's answer to `pass_on`.

        Raises Refused if push was asked for and no P's coordinates are known,
        and LegFailed if there is no whole answer for the client.
        """
        order = self._order(call)
        task = asyncio.current_task()
        assert task is not None
        self._live.add(task)
        try:
            await self._serve_counted(
                Run(call, order, self.fleet, self._config.retries), order, pass_on
            )
        finally:
            self._live.discard(task)

    def _order(self, call: ClientCall) -> str:
        """Push, pull or decode, for this call and the fleet as it is now."""
        not_split = reason_not_to_split(call.path, call.body)
        if not_split is not None:
            self._metrics.not_split(not_split)
            return DECODE
        if call.mode is Mode.PULL:
            return PULL
        pool = self.fleet.prefill
        if call.mode is Mode.PUSH:
            if all(engine.coordinates is None for engine in pool.engines):
                raise Refused(
                    400, "no_coordinates", "push needs P's coordinates, and none are configured"
                )
            return PUSH
        first = pool.choose(call.prompt, time.monotonic(), known=True)
        # With a queue at P, blocks of D would wait for as long, and D be chosen too early.
        early = first is not None and first.load_tokens <= self._config.auto_push_tokens_max
        return PUSH if early else PULL

    async def _serve_counted(self, run: Run, mode: str, pass_on: PassOn) -> None:
        started_s = time.monotonic()
        with self._metrics.dispatch(mode) as tally:
            try:
                answer = await self._answer(run)
                self._metrics.first_byte(mode, time.monotonic() - started_s)
                try:
                    tally.outcome = await pass_on(answer)
                except LegFailed as failed:
                    self._exchanges.note_failed(run, answer.leg.engine, failed)
                    raise
                if tally.outcome is Outcome.COMPLETED:
                    self._let_trail(run)
            finally:
                await run.close()

    async def _answer(self, run: Run) -> Answer:
        """D's answer up to its first bytes, in as many rounds as it takes and is allowed."""
        while True:
            try:
                return await self._round(run)
            except LegFailed as failed:
                lost_prefill = run.lost_prefill
                await run.close()
                replaced = run.to_replace(failed, time.monotonic())
                if replaced:
                    run.begin_round(failed, replaced)
                    self._metrics.retried(failed.leg)
                    log.warning("%s: begun anew after: %s", run.names.request_id, failed)
                elif lost_prefill is not None and self._may_go_alone(run, failed):
                    self._metrics.fell_back(run.order)
                    run.go_alone()
                    log.warning("%s: D computes the prompt alone", run.names.request_id)
                else:
                    raise

    def _may_go_alone(self, run: Run, failed: LegFailed) -> bool:
        """True where the plain request may help. What D finds wrong, it finds wrong alone, too."""
        if run.order == DECODE or self._config.on_prefill_failure is not OnPrefillFailure.DECODE:
            return False
        return failed.leg == PREFILL or failed.repeatable

    async def _round(self, run: Run) -> Answer:
        if run.order == PUSH:
            return await self._push(run)
        if run.order == PULL:
            return await self._pull(run)
        return await self._decode(run, self._exchanges.open(run, DECODE), lambda: run.call.body)

    async def _push(self, run: Run) -> Answer:
        """Both legs at once; D is chosen before P has computed anything.

        P, or D's own deadline, tells D of a failure of P, and D answers by its own policy.
        It is only cut short where the router has something better: another P, or, for a P
        that was never reached and cannot tell anybody, the plain request.
        """
        p_leg = self._exchanges.open(run, PREFILL, known=True)
        d_leg = self._exchanges.open(run, DECODE)
        coordinates = p_leg.engine.coordinates
        assert coordinates is not None

        def body() -> Body:
            return push_decode_body(run.call.path, run.call.body, run.names, coordinates)

        run.prefill = prefill = asyncio.create_task(self._exchanges.prefill(run, p_leg))
        run.decode = decode = asyncio.create_task(self._decode(run, d_leg, body))
        await asyncio.wait({prefill, decode}, return_when=asyncio.FIRST_COMPLETED)
        if not decode.done():
            failed = prefill.result()
            if isinstance(failed, LegFailed) and self._has_better(run, failed):
                raise failed
        return await decode

    def _has_better(self, run: Run, failed: LegFailed) -> bool:
        if run.to_replace(failed, time.monotonic()):
            return True
        return failed.kind is FailureKind.UNREACHABLE and self._may_go_alone(run, failed)

    async def _pull(self, run: Run) -> Answer:
        """P first; then D is chosen, and given what P answered."""
        # Without any D, P would compute and hold what nobody fetches.
        self._exchanges.choose(run, DECODE)
        while True:
            leg = self._exchanges.open(run, PREFILL)
            result = await self._exchanges.prefill(run, leg)
            if isinstance(result, Prefilled):
                break
            if not self._renew(run, result):
                raise result
        params = result.params
        if params is None:
            failed = LegFailed(PREFILL, FailureKind.ANSWER, "no kv_transfer_params in the answer")
            self._exchanges.note_failed(run, leg.engine, failed)
            raise failed
        return await self._decode(
            run,
            self._exchanges.open(run, DECODE),
            lambda: pull_decode_body(run.call.body, params, run.names.transfer_id),
        )

    async def _decode(self, run: Run, leg: Leg, body: Callable[[], Body]) -> Answer:
        """The D leg up to the first bytes of its body."""
        while True:
            try:
                return await self._exchanges.decode(run, leg, body())
            except LegFailed as failed:
                if not self._renew(run, failed):
                    raise
            leg = self._exchanges.open(run, DECODE)

    def _renew(self, run: Run, failed: LegFailed) -> bool:
        """Replace an engine that could not be reached, within the round, where there is another.

        It never heard the names of this round, so they may go to the next one.
        """
        if failed.kind is not FailureKind.UNREACHABLE:
            return False
        if not run.can_replace(failed.leg, time.monotonic()):
            return False
        run.replace_unreached(failed.leg)
        self._metrics.retried(failed.leg)
        return True

    def _let_trail(self, run: Run) -> None:
        """D's answer is whole: a prefill leg still open may end by itself."""
        prefill = run.release_prefill()
        if prefill is None or prefill.done():
            return
        task = asyncio.create_task(self._trail(prefill))
        self._trailing.add(task)
        task.add_done_callback(self._trailing.discard)

    async def _trail(self, prefill: asyncio.Task[Prefilled | LegFailed]) -> None:
        try:
            await asyncio.wait([prefill], timeout=self._config.trailing_s)
        finally:
            await end_tasks([prefill])

    async def drain(self) -> None:
        """Wait for the open dispatches, at most `drain_s`; then end what is left."""
        if self._live:
            await asyncio.wait(self._live, timeout=self._config.drain_s)
        await self.end_open()

    async def end_open(self) -> None:
        """End everything that is open, at once."""
        left = self._live | self._trailing
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left)
