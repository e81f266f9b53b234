"""Both engines, every way in turns, every case.

Owns the two processes and the rounds. Knows no terminal. Invariants: a way that cannot
run here is a row with its reason; a request is only counted where its bytes were at D;
both processes end with the run.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any, Final

import attrs

from kvxfer.bench.environment import environment
from kvxfer.bench.handoff.report import HandoffReport, Samples, row_of, skipped_row
from kvxfer.bench.handoff.setting import Setting
from kvxfer.errors import BadValue, TransportFault
from kvxfer.status import Status

ANSWER_S: Final = 400.0
LEAVE_S: Final = 20.0
WAYS: Final = (
    ("kvxfer", "nixl"),
    ("kvxfer", "ucx"),
    ("nixl-writer", "nixl"),
    ("inline", "nixl"),
)
"""(way, transport). The last two are NIXL's own Python API."""


@attrs.frozen(kw_only=True)
class Case:
    """`layers` x `blocks` descriptors a request."""

    name: str
    layers: int
    blocks: int

    @property
    def descriptors(self) -> int:
        return self.layers * self.blocks


CASES: Final = (
    Case(name="10", layers=2, blocks=5),
    Case(name="4,096", layers=32, blocks=128),
    Case(name="65,536", layers=64, blocks=1024),
    Case(name="131,072", layers=64, blocks=2048),
)


@attrs.frozen(kw_only=True)
class Steps:
    """What the engines do besides; see `Setting`."""

    hold_ms: float = 3.0
    wait_ms: float = 7.0
    prefill_steps: int = 2
    idle_steps: int = 100


def run_handoff(
    *,
    rounds: int = 3,
    slots: int = 8,
    per_slot: int = 5,
    page_bytes: int = 512,
    seed: int = 0,
    cases: Sequence[Case] = CASES,
    ways: Sequence[tuple[str, str]] = WAYS,
    steps: Steps | None = None,
    on_run: Callable[[str], None] = lambda _text: None,
) -> HandoffReport:
    """Measure. The first request of every slot warms up and is left out of `ready_ms`.

    Raises BadValue for a size out of its bound, TransportFault where bytes were wrong.
    """
    if rounds < 1 or per_slot < 2:
        raise BadValue("rounds, per_slot", (rounds, per_slot), "at least 1 and 2")
    steps = steps or Steps()
    loops = loops_of(steps.hold_ms / 1e3)
    kept: dict[tuple[str, str, str], Samples] = {}
    skipped: dict[tuple[str, str, str], str] = {}
    for number in range(rounds):
        for case in cases:
            turn = number % len(ways)
            for way, transport in (*ways[turn:], *ways[:turn]):
                key = (case.name, way, transport)
                if key in skipped:
                    continue
                setting = Setting(
                    way=way,
                    transport=transport,
                    layers=case.layers,
                    blocks=case.blocks,
                    page_bytes=page_bytes,
                    slots=slots,
                    per_slot=per_slot,
                    prefill_steps=steps.prefill_steps,
                    hold_loops=loops,
                    wait_s=steps.wait_ms / 1e3,
                    idle_steps=steps.idle_steps,
                    seed=seed + number,
                )
                on_run(f"round {number + 1}, {case.name} descriptors, {way} over {transport}")
                try:
                    kept.setdefault(key, Samples()).add(setting, *_one(setting))
                except _Unusable as error:
                    skipped[key] = str(error)
    facts = {"slots": slots, "per_slot": per_slot, "page_bytes": page_bytes, "rounds": rounds}
    return HandoffReport(
        rows=tuple(
            skipped_row(case, way, transport, skipped[case.name, way, transport])
            if (case.name, way, transport) in skipped
            else row_of(case, way, transport, kept[case.name, way, transport])
            for case in cases
            for way, transport in ways
        ),
        setting=facts | attrs.asdict(steps),
        environment=environment(),
        seed=seed,
    )


def loops_of(hold_s: float) -> int:
    """Turns of the step's Python loop that take so long here, by the fastest of five tries."""
    tried = 100_000
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        total = 0
        for number in range(tried):
            total += number
        best = min(best, time.perf_counter() - start)
    return max(1, int(tried * hold_s / best))


class _Unusable(Exception):
    """This way cannot run here."""


def _one(setting: Setting) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """One way, once: what P and what D measured. Raises TransportFault, _Unusable."""
    with _engines() as (p, d):
        try:
            hellos = [engine.ask("make", side, setting) for engine, side in ((p, "P"), (d, "D"))]
        except TransportFault as error:
            raise _Unusable(f"left out: {error}") from None
        p.ask("connect", hellos[1])
        d.ask("connect", hellos[0])
        idle = _both(p, d, "idle")
        loaded = _both(p, d, "loaded")
        sums = _both(p, d, "checksums")
        if sums[0] != sums[1]:
            text = f"{setting.way}: the bytes at D are not those of P"
            raise TransportFault("handoff", Status.OP_FAILED, text)
        for engine in (d, p):
            engine.ask("close")
    return tuple({"idle": idle[n], "loaded": loaded[n]} for n in (0, 1))  # type: ignore[return-value]


@attrs.frozen(eq=False)
class _Child:
    link: Connection
    process: subprocess.Popen[bytes]

    def send(self, name: str, *args: Any) -> None:
        self.link.send((name, args))

    def answer(self) -> Any:
        if not self.link.poll(ANSWER_S):
            raise TransportFault("engine", Status.SESSION_FAILED, "does not answer")
        try:
            found, error = self.link.recv()
        except EOFError:
            raise TransportFault("engine", Status.SESSION_FAILED, "has died") from None
        if error:
            raise TransportFault("engine", Status.SESSION_FAILED, error)
        return found

    def ask(self, name: str, *args: Any) -> Any:
        self.send(name, *args)
        return self.answer()


def _both(p: _Child, d: _Child, name: str) -> list[Any]:
    for engine in (d, p):
        engine.send(name)
    return [p.answer(), d.answer()]


@contextlib.contextmanager
def _engines() -> Iterator[tuple[_Child, _Child]]:
    """Two processes with a link to each and one between them."""
    between = socket.socketpair()
    children: list[_Child] = []
    try:
        children += [_start(end) for end in between]
        yield children[0], children[1]
    finally:
        for end in between:
            end.close()
        for child in children:
            child.link.close()
            try:
                child.process.wait(LEAVE_S)
            except subprocess.TimeoutExpired:
                child.process.kill()
                child.process.wait()


def _start(relay: socket.socket) -> _Child:
    ours, theirs = socket.socketpair()
    with theirs:
        numbers = [theirs.fileno(), relay.fileno()]
        process = subprocess.Popen(
            [sys.executable, "-m", "kvxfer.bench.handoff.engine", *map(str, numbers)],
            pass_fds=numbers,
            # NIXL logs to stdout, where a program reads our JSON.
            stdout=2,
            env=os.environ
            | {
                "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                # Both engines are on this host; NIXL and UCX would listen everywhere.
                "UCX_NET_DEVICES": "lo",
                "OMP_NUM_THREADS": "1",
            },
        )
    return _Child(Connection(ours.detach()), process)
