"""What the engines tell the run, and the same as lines of JSON.

Owns the records between engines and run. Knows no engine. Invariant: a record
that crosses the pipe between two processes comes out equal. All times are in
milliseconds of the host's monotonic clock, which the processes of a host share.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from typing import Any, Final

import attrs


def clock_ms() -> float:
    """Monotonic milliseconds of this host."""
    return time.monotonic() * 1e3


def _rows(rows: Iterable[tuple[str, int, str, int]]) -> tuple[tuple[str, int, str, int], ...]:
    return tuple((engine, rank, host, port) for engine, rank, host, port in rows)


def _ints(numbers: Iterable[int]) -> tuple[int, ...]:
    return tuple(numbers)


@attrs.frozen(kw_only=True)
class Step:
    """One step of a transfer as the agent of a rank recorded it."""

    t_ms: float
    transfer_id: str
    rank: int
    step: str


def _steps(rows: Iterable[Step | dict[str, Any]]) -> tuple[Step, ...]:
    return tuple(row if isinstance(row, Step) else Step(**row) for row in rows)


@attrs.frozen(kw_only=True)
class Ready:
    """The prefill engine is up: (engine id, rank, host, port) of each rank."""

    addresses: tuple[tuple[str, int, str, int], ...] = attrs.field(converter=_rows)


@attrs.frozen(kw_only=True)
class Prefilled:
    """P has computed a prompt and offered it."""

    transfer_id: str
    start_ms: float
    stop_ms: float


@attrs.frozen(kw_only=True)
class Released:
    """P has got all its blocks of a transfer back; `reason` is empty where all were sent."""

    transfer_id: str
    bytes_written: int
    descriptors: int
    reason: str = ""


@attrs.frozen(kw_only=True)
class Finished:
    """D has decoded a request to its end."""

    transfer_id: str
    tokens: tuple[int, ...] = attrs.field(converter=_ints)
    admitted_ms: float
    landed_ms: float
    first_token_ms: float
    last_token_ms: float
    bytes_read: int = 0
    descriptors: int = 0
    """What D read itself; nothing where P writes."""


@attrs.frozen(kw_only=True)
class Failed:
    """D could not serve a request: its KV did not come."""

    transfer_id: str
    reason: str


@attrs.frozen(kw_only=True)
class EngineDied:
    """An engine has ended on an error; nothing more will come from it."""

    engine: str
    error: str
    usage: bool = False
    """True where the user has to change or install something, not we."""


@attrs.frozen(kw_only=True)
class EngineState:
    """What an engine still holds, and what its agents have counted and recorded."""

    blocks_held: int
    live: int
    quarantined: int
    steps: tuple[Step, ...] = attrs.field(default=(), converter=_steps)


Report = Ready | Prefilled | Released | Finished | Failed | EngineDied | EngineState

_KINDS: Final[dict[str, type[Any]]] = {
    kind.__name__: kind
    for kind in (Ready, Prefilled, Released, Finished, Failed, EngineDied, EngineState)
}


def to_line(report: Report) -> str:
    """One line of JSON, without the line's end."""
    return json.dumps({"kind": type(report).__name__, **attrs.asdict(report)})


def from_line(line: str) -> Report:
    """The record of a line that `to_line` made. ValueError where it is none."""
    fields = json.loads(line)
    kind = _KINDS.get(fields.pop("kind", ""))
    if kind is None:
        raise ValueError(f"not a report: {line[:80]!r}")
    report: Report = kind(**fields)
    return report
