"""Finding transports by name.

Owns the entry-point group and the report of what was found, what is missing and
why. Refuses to import any plug-in by itself: only an entry point of an installed
distribution names one. Invariant: a broken plug-in is reported, it never stops
the others from being found.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Final

import attrs

from kvxfer.errors import LocalFault, TransportFault
from kvxfer.status import Status
from kvxfer.transport import loopback
from kvxfer.transport.ops import TransportDescriptor, TransportOps

GROUP: Final = "kvxfer.transports"
"""Entry-point group; each entry point loads a `TransportDescriptor`."""

_BUILT_IN: Final = {loopback.DESCRIPTOR.name: loopback.DESCRIPTOR}
_BUILT_IN_ORIGIN: Final = "built in"


class UnknownTransport(LocalFault):
    """No transport of this name is known here."""


@attrs.frozen(kw_only=True)
class Found:
    """One transport name and whether it works here.

    `status` is OK, LIBRARY_MISSING (install something) or SESSION_FAILED (the
    plug-in itself is broken). `origin` names the distribution it came from.
    """

    name: str
    summary: str
    status: Status
    detail: str
    origin: str


@attrs.frozen
class _Entry:
    """A name, and either its descriptor or the reason why there is none."""

    name: str
    origin: str
    descriptor: TransportDescriptor | None
    status: Status
    detail: str


def available() -> list[Found]:
    """All transports that are named here, sorted by name, each with its state."""
    return [_probe(entry) for _, entry in sorted(_entries().items())]


def open_transport(name: str) -> TransportOps:
    """The table of transport `name`.

    Raises `UnknownTransport` where nothing has that name (it lists the known
    ones) and `TransportFault` where it is known and cannot be used: status
    LIBRARY_MISSING or SESSION_FAILED, with what to do in `detail`.
    """
    entry = _entry(name)
    found = _probe(entry)
    call = f"open_transport({name!r})"
    if found.status != Status.OK or entry.descriptor is None:
        raise TransportFault(call, found.status, found.detail)
    try:
        ops = entry.descriptor.load()
    except Exception as error:
        raise TransportFault(call, _status_of(error), _text_of(error)) from error
    if not isinstance(ops, TransportOps):
        raise TransportFault(
            call, Status.SESSION_FAILED, f"load() gave {type(ops).__name__}, not TransportOps"
        )
    return ops


def descriptor_of(name: str) -> TransportDescriptor:
    """What the entry point of transport `name` loads. Raises as `open_transport`."""
    entry = _entry(name)
    if entry.descriptor is None:
        raise TransportFault(f"descriptor_of({name!r})", entry.status, entry.detail)
    return entry.descriptor


def _entry(name: str) -> _Entry:
    entries = _entries()
    if name not in entries:
        known = ", ".join(sorted(entries))
        raise UnknownTransport(
            f"transport = {name!r}: known here are {known}; a plug-in is known once its "
            f"distribution is installed with an entry point of group {GROUP}"
        )
    return entries[name]


def _entries() -> dict[str, _Entry]:
    """Everything that is named here. The built-in ones need no installed distribution."""
    entries = {
        name: _Entry(name, _BUILT_IN_ORIGIN, descriptor, Status.OK, "")
        for name, descriptor in _BUILT_IN.items()
    }
    by_name: dict[str, dict[str, EntryPoint]] = {}
    for point in entry_points(group=GROUP):
        # One distribution may be seen twice (source tree and install): one value, one entry.
        by_name.setdefault(point.name, {}).setdefault(point.value, point)
    for name, points in by_name.items():
        if name not in entries:
            entries[name] = _load(name, list(points.values()))
    return entries


def _load(name: str, points: list[EntryPoint]) -> _Entry:
    origin = ", ".join(sorted(_origin(point) for point in points))
    if len(points) > 1:
        values = " and ".join(sorted(point.value for point in points))
        detail = f"two plug-ins claim this name: {values}; uninstall one"
        return _Entry(name, origin, None, Status.SESSION_FAILED, detail)
    try:
        loaded = points[0].load()
    except Exception as error:  # noqa: BLE001 - a plug-in may raise anything while it loads
        return _Entry(name, origin, None, _status_of(error), _text_of(error))
    if not isinstance(loaded, TransportDescriptor):
        detail = f"{points[0].value} is {type(loaded).__name__}, not TransportDescriptor"
        return _Entry(name, origin, None, Status.SESSION_FAILED, detail)
    if loaded.name != name:
        detail = f"the descriptor calls itself {loaded.name!r}, its entry point {name!r}"
        return _Entry(name, origin, None, Status.SESSION_FAILED, detail)
    return _Entry(name, origin, loaded, Status.OK, "")


def _probe(entry: _Entry) -> Found:
    status, detail, summary = entry.status, entry.detail, ""
    if entry.descriptor is not None:
        summary = entry.descriptor.summary
        try:
            status, detail = entry.descriptor.probe()
        except Exception as error:  # noqa: BLE001 - the same plug-in code as above
            status, detail = _status_of(error), f"probe: {_text_of(error)}"
    return Found(
        name=entry.name, summary=summary, status=status, detail=detail, origin=entry.origin
    )


def _origin(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else "unknown distribution"


def _status_of(error: Exception) -> Status:
    return Status.LIBRARY_MISSING if isinstance(error, ImportError) else Status.SESSION_FAILED


def _text_of(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
