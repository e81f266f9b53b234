"""Health checks: one task per engine asks GET /health from time to time.

Owns when an engine is checked and what counts as good. Refuses to know requests.
Invariant: a check ends within its bound, and an engine has one check open at most.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp

from kvxfer_router.config import RouterConfig
from kvxfer_router.engine import CLIENT_ERRORS, end_tasks
from kvxfer_router.health import State
from kvxfer_router.pool import Engine, Fleet, Pool

log = logging.getLogger("kvxfer.router")

CHECK_S_MIN = 0.1


async def check_once(
    pool: Pool, engine: Engine, session: aiohttp.ClientSession, timeout_s: float
) -> None:
    """Ask one engine whether it is well, and note the answer."""
    try:
        async with (
            asyncio.timeout(timeout_s),
            session.get(engine.spec.url.rstrip("/") + "/health") as response,
        ):
            good = response.status == 200
    except CLIENT_ERRORS:
        good = False
    before = engine.health.state
    pool.note_checked(engine, good, time.monotonic())
    if engine.health.state is not before:
        log.warning("%s is %s after a check", engine.spec.name, engine.health.state.value)


def pause_after(engine: Engine, config: RouterConfig) -> float:
    """Seconds until the next check: one that is out is missed by requests, so it comes soon."""
    if engine.health.state is State.OUT:
        return min(config.check_s, max(config.pause_s, CHECK_S_MIN))
    return config.check_s


async def _check_for_ever(
    pool: Pool, engine: Engine, session: aiohttp.ClientSession, config: RouterConfig
) -> None:
    while True:
        await check_once(pool, engine, session, config.check_timeout_s)
        await asyncio.sleep(pause_after(engine, config))


@asynccontextmanager
async def checking(
    fleet: Fleet, session: aiohttp.ClientSession, config: RouterConfig
) -> AsyncIterator[None]:
    """Check every engine of both pools for as long as the block runs."""
    tasks = [
        asyncio.create_task(_check_for_ever(pool, engine, session, config))
        for pool in (fleet.prefill, fleet.decode)
        for engine in pool.engines
    ]
    try:
        yield
    finally:
        await end_tasks(tasks)
