"""The options of `open`, checked.

Owns their names and bounds. Refuses to load anything. Invariant: settings that exist
are of the right types; whether this machine can carry them out shows in `Session.open`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import attrs

from kvxfer.status import Status
from kvxfer.transport.sessions import Refused
from kvxfer_nixl.agent import UCX

_OPTIONS: Final = ("backends", "ucx_tls", "preload")


@attrs.frozen(kw_only=True)
class Settings:
    """What one session runs with."""

    backend: str = UCX
    """nixl's name of it. All but UCX run on a thread for each peer."""
    tls: str | None = None
    """UCX_TLS of this session's agents; None where UCX chooses."""
    preload: tuple[str, ...] = ()
    """Libraries to be loaded before libfabric's."""

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Settings:
        """Raises `Refused` with OP_INVALID, which names the option, its value and the bound."""
        unknown = sorted(str(key) for key in options if key not in _OPTIONS)
        if unknown:
            raise Refused(Status.OP_INVALID, f"options {unknown}: known are {list(_OPTIONS)}")
        backend = _backend(options.get("backends", [UCX]))
        tls = _tls(options.get("ucx_tls"))
        if tls is not None and backend != UCX:
            raise Refused(Status.OP_INVALID, f"ucx_tls = {tls!r}: backends is [{backend!r}]")
        return cls(backend=backend, tls=tls, preload=_preload(options.get("preload", ())))


def _backend(names: Any) -> str:
    if isinstance(names, list | tuple) and len(names) == 1 and _is_name(names[0]):
        return str(names[0])
    text = f"backends = {names!r}: a list of one name, as in ['UCX'] or ['LIBFABRIC']"
    raise Refused(Status.OP_INVALID, text)


def _tls(tls: Any) -> str | None:
    if tls is None:
        return None
    if not _is_name(tls):
        raise Refused(Status.OP_INVALID, f"ucx_tls = {tls!r}: a name of UCX_TLS, as in 'tcp'")
    if set(tls) & set(",= "):
        text = f"ucx_tls = {tls!r}: one name only; set UCX_TLS in the environment for a list"
        raise Refused(Status.OP_INVALID, text)
    return str(tls)


def _preload(paths: Any) -> tuple[str, ...]:
    if isinstance(paths, list | tuple) and all(isinstance(path, str) and path for path in paths):
        return tuple(paths)
    raise Refused(Status.OP_INVALID, f"preload = {paths!r}: a list of paths of shared libraries")


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and bool(value) and value.isascii() and value.isprintable()
