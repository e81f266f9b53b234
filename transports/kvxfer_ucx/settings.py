"""Options of `open`, and what UCX is told.

Owns the names, their checks and the settings that must not be left to chance.
Refuses to load UCX. Invariant: what is needed for correctness cannot be changed
from the environment, what is taste can.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

import attrs

from kvxfer.errors import BadValue

FIXED: Final = {
    # Else a put in PEER mode becomes messages that the target carries out, and a target
    # whose writer dies in the middle of one aborts.
    "RNDV_THRESH": "inf",
    # Else shared memory is left out in PEER mode, or a peer on this host is unreachable.
    "POSIX_ERROR_HANDLING": "y",
    "SYSV_ERROR_HANDLING": "y",
}
"""Settings that go before the environment."""

PREFERRED: Final = {
    # A peer that dies while nothing is in flight is known within a second, not 20.
    "KEEPALIVE_INTERVAL": "300ms",
    "MAX_RMA_RAILS": "2",
}
"""Settings that a UCX_* variable of the environment replaces."""

_TEXT_CHARS_MAX: Final = 256
_MAPPED: Final = frozenset({"posix", "sysv"})
"""Transports that reach memory which both processes map."""


@attrs.frozen(kw_only=True)
class Settings:
    """What `open` was asked for. Empty texts leave the choice to UCX and its environment."""

    tls: str
    net_devices: str

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Settings:
        """Raises `BadValue` with the option, the value and the bound."""
        known = [field.name for field in attrs.fields(cls)]
        unknown = sorted(str(key) for key in options if key not in known)
        if unknown:
            raise BadValue("options", unknown, f"known are {known}")
        return cls(**{name: _text(name, options.get(name)) for name in known})

    @property
    def shared_only(self) -> bool:
        """True where nothing but shared memory is allowed: only memory of UCX's own is reached."""
        names = set(self.effective_tls().split(","))
        return names <= _MAPPED | {"self"} and bool(names & _MAPPED)

    @property
    def can_read(self) -> bool:
        """True where a transport is allowed that reads without messages of the target."""
        names = set(self.effective_tls().split(","))
        return self.shared_only or not names <= _MAPPED | {"tcp", "self"}

    def effective_tls(self) -> str:
        """The list of transports that UCX will work with; empty where it chooses."""
        return self.tls or os.environ.get("UCX_TLS", "")

    def for_ucx(self) -> dict[str, str]:
        """Names and values for UCX's configuration, without the prefix UCX_."""
        chosen = {k: v for k, v in PREFERRED.items() if f"UCX_{k}" not in os.environ}
        given = {"TLS": self.tls, "NET_DEVICES": self.net_devices}
        return chosen | {k: v for k, v in given.items() if v} | FIXED


def _text(name: str, value: object) -> str:
    if value is None:
        return ""
    if not isinstance(value, str) or not value.isascii() or not value.isprintable():
        raise BadValue(name, value, f"text as in UCX_{name.upper()}, for example 'tcp,self'")
    if not 0 < len(value) <= _TEXT_CHARS_MAX or "=" in value or " " in value:
        raise BadValue(name, value, f"1 to {_TEXT_CHARS_MAX} characters, no blank and no '='")
    return value
