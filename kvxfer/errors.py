"""Error types: who is at fault and what ends because of it.

Owns the exception hierarchy. Refuses to know any protocol detail. Invariant: a
fault of a peer never reaches the caller as a fault of the caller, and the other
way round (h11's rule).
"""

from __future__ import annotations

import reprlib

from kvxfer.status import Status

_SHOWN = reprlib.Repr()
_SHOWN.maxstring = _SHOWN.maxother = 80
"""Shows a value of any size in bounded time: a peer may have sent it."""


class KvxferError(Exception):
    """Base of every error this library raises on purpose."""


class LocalFault(KvxferError):
    """The caller broke a rule of this library: wrong argument, wrong order."""


class BadValue(LocalFault):
    """A value is out of its bound. Names the field, the value and the bound."""

    def __init__(self, field: str, value: object, bound: str) -> None:
        super().__init__(f"{field} = {value!r}: {bound}")
        self.field = field
        self.value = value
        self.bound = bound


class RemoteFault(KvxferError):
    """A peer sent something wrong. Ends that message, transfer or link, never the process."""

    def __init__(self, field: str, value: object, bound: str) -> None:
        super().__init__(f"{field} = {_SHOWN.repr(value)}: {bound}")
        self.field = field
        self.bound = bound


class LayoutMismatch(KvxferError):
    """Two layouts cannot be served to each other; names the missing part."""


class TransportFault(KvxferError):
    """A transport call that must succeed did not."""

    def __init__(self, call: str, status: Status, detail: str = "") -> None:
        super().__init__(f"{call}: {status.name}" + (f" ({detail})" if detail else ""))
        self.call = call
        self.status = status
        self.detail = detail
