"""The order of the legs, and what follows from their failures.

Owns push, pull and plain dispatch, P's coordinates as last learned, and the set
of open dispatches. Refuses to know the client's connection: an answer goes to a
callback. Invariant: when `serve` returns or raises, no leg of that dispatch is
open, except a prefill leg that may finish behind a complete answer, for a
bounded time.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, assert_never

import aiohttp
import attrs

from kvxfer_router.config import Mode, OnPrefillFailure, RouterConfig
from kvxfer_router.engine import FailureKind, Leg, LegFailed, end_tasks
from kvxfer_router.intake import REQUEST_ID, ClientCall, Refused
from kvxfer_router.legs import (
    Body,
    coordinates_of_params,
    params_of_answer,
    prefill_body,
    pull_decode_body,
    push_decode_body,
    reason_not_to_split,
)
from kvxfer_router.metrics import Metrics, Outcome
from kvxfer_router.relay import Answer

PREFILL: Final = "prefill"
DECODE: Final = "decode"

log = logging.getLogger("kvxfer.router")

PassOn = Callable[[Answer], Awaitable[Outcome]]


@attrs.frozen(kw_only=True)
class Prefilled:
    """P has answered; `params` is its kv_transfer_params, if it sent any."""

    params: Mapping[str, Any] | None


@attrs.define
class OpenLegs:
    """What is open for one dispatch, so that one call ends it all."""

    prefill: asyncio.Task[Prefilled | LegFailed] | None = None
    decode: asyncio.Task[Answer] | None = None
    decode_legs: list[Leg] = attrs.field(factory=list)

    async def close(self) -> None:
        """End every leg; its engine sees its connection close."""
        for leg in self.decode_legs:
            leg.close()
        await end_tasks(task for task in (self.prefill, self.decode) if task is not None)


class Dispatcher:
    """Serves calls on one pair of engines."""

    def __init__(
        self, config: RouterConfig, session: aiohttp.ClientSession, metrics: Metrics
    ) -> None:
        self._config = config
        self._session = session
        self._metrics = metrics
        self._live: set[asyncio.Task[Any]] = set()
        self._trailing: set[asyncio.Task[None]] = set()
        self.coordinates = config.coordinates

    async def serve(self, call: ClientCall, pass_on: PassOn) -> None:
        """Send the legs in the order of the call and hand D's answer to `pass_on`.

        Raises Refused if push was asked for and P's coordinates are not known,
        and LegFailed if there is no whole answer for the client.
        """
        not_split = reason_not_to_split(call.path, call.body)
        if not_split is not None:
            self._metrics.not_split(not_split)
        elif call.mode is Mode.PUSH and self.coordinates is None:
            raise Refused(
                400, "no_coordinates", "push needs P's coordinates, and none are configured"
            )
        task = asyncio.current_task()
        assert task is not None
        self._live.add(task)
        try:
            await self._serve_counted(call, DECODE if not_split else call.mode.value, pass_on)
        finally:
            self._live.discard(task)

    async def _serve_counted(self, call: ClientCall, mode: str, pass_on: PassOn) -> None:
        started_s = time.monotonic()
        open_legs = OpenLegs()
        with self._metrics.dispatch(mode) as tally:
            try:
                answer = await self._first_bytes(call, mode, open_legs)
                self._metrics.first_byte(mode, time.monotonic() - started_s)
                if answer.status >= 400:
                    self._metrics.leg_failed(DECODE, FailureKind.STATUS.value)
                tally.outcome = await pass_on(answer)
                if tally.outcome is Outcome.COMPLETED:
                    self._let_trail(open_legs)
            except LegFailed as failed:
                tally.outcome = Outcome.FAILED
                if failed.leg == DECODE:
                    self._metrics.leg_failed(DECODE, failed.kind.value)
                    log.warning("%s: %s", call.names.request_id, failed)
                raise
            finally:
                await open_legs.close()

    async def _first_bytes(self, call: ClientCall, mode: str, open_legs: OpenLegs) -> Answer:
        if mode == DECODE:
            return await self._decode(call, call.body, open_legs)
        match call.mode:
            case Mode.PUSH:
                return await self._push(call, open_legs)
            case Mode.PULL:
                return await self._pull(call, open_legs)
            case _:
                assert_never(call.mode)

    async def _push(self, call: ClientCall, open_legs: OpenLegs) -> Answer:
        """Both legs at once.

        A failure of P does not end the D leg: P, or D's own deadline, tells D,
        and D answers by its own policy. One case is settled here: a P that was
        never reached cannot tell anybody, so the plain request may go to D.
        """
        assert self.coordinates is not None
        body = push_decode_body(call.path, call.body, call.names, self.coordinates)
        open_legs.prefill = prefill = asyncio.create_task(self._prefill(call))
        open_legs.decode = decode = asyncio.create_task(self._decode(call, body, open_legs))
        await asyncio.wait({prefill, decode}, return_when=asyncio.FIRST_COMPLETED)
        if self._config.on_prefill_failure is OnPrefillFailure.DECODE and not decode.done():
            failed = prefill.result()
            if isinstance(failed, LegFailed) and failed.kind is FailureKind.UNREACHABLE:
                return await self._fall_back(call, open_legs)
        return await decode

    async def _pull(self, call: ClientCall, open_legs: OpenLegs) -> Answer:
        """P first, and D with what P answered."""
        result = await self._prefill(call)
        if isinstance(result, Prefilled) and result.params is None:
            result = LegFailed(PREFILL, FailureKind.ANSWER, "no kv_transfer_params in the answer")
            self._note_prefill_failure(call, result)
        if isinstance(result, LegFailed):
            # This holds for a request that P finds wrong, too: D will find the same.
            if self._config.on_prefill_failure is OnPrefillFailure.DECODE:
                return await self._fall_back(call, open_legs)
            raise result
        assert result.params is not None
        body = pull_decode_body(call.body, result.params, call.names.transfer_id)
        return await self._decode(call, body, open_legs)

    async def _fall_back(self, call: ClientCall, open_legs: OpenLegs) -> Answer:
        """The plain request to D, in place of the D leg if there is one.

        Under a name of its own, since D may still hold the ended leg's.
        """
        await open_legs.close()
        self._metrics.fell_back(call.mode.value)
        log.warning("%s: D computes the prompt alone", call.names.request_id)
        headers = {**call.headers, REQUEST_ID: f"{call.names.request_id}-alone"}
        return await self._decode(attrs.evolve(call, headers=headers), call.body, open_legs)

    async def _decode(self, call: ClientCall, body: Body, open_legs: OpenLegs) -> Answer:
        """One D leg up to the first bytes of its body.

        An engine sends the headers of a stream before it has computed anything;
        only the first bytes show that D has what it needs.
        """
        leg = Leg(DECODE, self._config.decode_url, self._session)
        open_legs.decode_legs.append(leg)
        response = await leg.send(call.path, call.headers, body)
        return Answer(
            leg=leg, status=response.status, headers=response.headers, first=await leg.read()
        )

    async def _prefill(self, call: ClientCall) -> Prefilled | LegFailed:
        """One whole P leg. A failure is counted here and returned, not raised."""
        leg = Leg(PREFILL, self._config.prefill_url, self._session)
        body = prefill_body(call.path, call.body, call.names.transfer_id)
        try:
            answer = await leg.ask(call.path, call.headers, body)
        except LegFailed as failed:
            self._note_prefill_failure(call, failed)
            return failed
        finally:
            leg.close()
        params = params_of_answer(answer)
        if params is not None:
            self._adopt(params)
        return Prefilled(params=params)

    def _note_prefill_failure(self, call: ClientCall, failed: LegFailed) -> None:
        self._metrics.leg_failed(PREFILL, failed.kind.value)
        log.warning("%s: %s", call.names.request_id, failed)

    def _adopt(self, params: Mapping[str, Any]) -> None:
        """Take P's coordinates from its own answer: a restart may have changed them."""
        stated = coordinates_of_params(params, self.coordinates)
        if stated is None or stated == self.coordinates:
            return
        log.warning("P's coordinates are now %s, were %s", stated, self.coordinates)
        self.coordinates = stated
        self._metrics.coordinates_adopted()

    def _let_trail(self, open_legs: OpenLegs) -> None:
        """D's answer is whole: a prefill leg still open may end by itself."""
        prefill, open_legs.prefill = open_legs.prefill, None
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
        left = self._live | self._trailing
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left)
