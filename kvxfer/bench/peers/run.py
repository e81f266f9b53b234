"""The rounds: one peer, all peers, and all with one that stands still, in turns.

Owns the order and the skipping of what cannot run here. Invariant: the arms of one
transport and role live side by side for all rounds, so each round compares like with like.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import attrs

from kvxfer.bench.environment import environment
from kvxfer.bench.peers.arm import Arm, Carried, Load
from kvxfer.bench.peers.memory import bytes_of
from kvxfer.bench.peers.pool import Shape
from kvxfer.bench.peers.report import (
    ARMS,
    MANY,
    ONE,
    STOPPED,
    PeersReport,
    Samples,
    aims_of,
    row_of,
)
from kvxfer.driver import Role
from kvxfer.errors import BadValue, KvxferError

TRANSPORTS = ("loopback", "ucx")
ROLES = (Role.PRODUCER, Role.CONSUMER)


def run_peers(
    *,
    rounds: int = 5,
    peers: int = 64,
    in_flight: int = 1000,
    requests: int = 3000,
    transports: Sequence[str] = TRANSPORTS,
    roles: Sequence[Role] = ROLES,
    shape: Shape | None = None,
    seed: int = 0,
    on_run: Callable[[str], None] = lambda _text: None,
) -> PeersReport:
    """Measure; `requests` in each run of an arm, after one run of each that warms up.

    Raises BadValue for a size out of its bound, TransportFault where bytes were wrong or
    a request did not end.
    """
    if peers < 2 or in_flight < peers or requests < in_flight or rounds < 1:
        bound = "2 <= peers <= in_flight <= requests, and a round"
        raise BadValue("peers, in_flight, requests, rounds", (peers, in_flight, requests), bound)
    shape = shape or Shape()
    rows: list[dict[str, Any]] = []
    aims: list[dict[str, Any]] = []
    for transport in transports:
        for role in roles:
            load = Load(
                transport=transport,
                hub=role,
                peers=peers,
                in_flight=in_flight,
                shape=shape,
                seed=seed,
            )
            try:
                kept = _measured(load, rounds, requests, on_run)
            except _Unusable as error:
                rows.append(_skipped(load, str(error)))
                continue
            rows += [row_of(kept, arm) for arm in ARMS]
            aims.append(aims_of(kept))
    facts = {"rounds": rounds, "peers": peers, "in_flight": in_flight, "requests": requests}
    return PeersReport(
        rows=tuple(rows),
        aims=tuple(aims),
        setting=facts | attrs.asdict(shape) | {"seed": seed},
        environment=environment(),
    )


class _Unusable(Exception):
    """This transport cannot run here."""


def _started(load: Load) -> Arm:
    try:
        return Arm.start(load)
    except BadValue:
        raise
    except (KvxferError, ImportError) as error:
        raise _Unusable(f"left out: {error}") from None


def _skipped(load: Load, reason: str) -> dict[str, Any]:
    name = f"{load.transport}, {load.hub.name.lower()}"
    return {"name": name, "transport": load.transport, "skipped": reason}


def _measured(load: Load, rounds: int, requests: int, on_run: Callable[[str], None]) -> Samples:
    where = f"{load.transport}, {load.hub.name.lower()}"
    kept = Samples(load=load)
    with contextlib.ExitStack() as stack:
        arms = {}
        for name, one in ((ONE, attrs.evolve(load, peers=1)), (MANY, load)):
            on_run(f"{where}: {name}, starting")
            arms[name] = _started(one)
            stack.callback(arms[name].close)
            arms[name].run(load.in_flight)
        for number in range(rounds):
            turn = number % len(ARMS)
            for name in (*ARMS[turn:], *ARMS[:turn]):
                on_run(f"{where}: round {number + 1}, {name}")
                kept.runs[name].append(_carried(arms, name, requests))
        for arm in arms.values():
            arm.check_bytes()
    on_run(f"{where}: memory")
    kept.memory = bytes_of(load)
    return kept


def _carried(arms: dict[str, Arm], name: str, requests: int) -> Carried:
    if name == STOPPED:
        return arms[MANY].run(requests, stopped=True)
    return arms[name].run(requests)
