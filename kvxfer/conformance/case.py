"""What a case is, and how it says its verdict.

Owns the list of transport cases and the three ways out of a case other than
passing. Refuses to run anything. Invariant: addresses are unique, so a verdict
can be cited.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeAlias

import attrs

from kvxfer.transport.caps import Caps

if TYPE_CHECKING:
    from kvxfer.conformance.rig import Rig


class CaseFailedError(Exception):
    """The subject broke the requirement of the case."""


class NotSupportedError(Exception):
    """The subject says that it cannot do this, here."""


class NonStrictError(Exception):
    """The subject kept the requirement in a way that peers should not rely on."""


Body: TypeAlias = Callable[["Rig"], None]


@attrs.frozen
class Case:
    """One requirement and the code that judges it."""

    address: str
    requirement: str
    needs: Caps
    body: Body


CASES: Final[dict[str, Case]] = {}
"""All transport cases by address; filled as the modules of `cases` are imported."""


def case(address: str, requirement: str, *, needs: Caps = Caps.WRITE) -> Callable[[Body], Body]:
    """Enter a function as the case `address`. Both ends must declare all of `needs`."""

    def enter(body: Body) -> Body:
        if address in CASES:
            raise ValueError(f"case address {address!r} is used twice")
        CASES[address] = Case(address, requirement, needs, body)
        return body

    return enter


def expect(condition: bool, text: str) -> None:
    """Fail the case with `text` unless `condition` holds."""
    if not condition:
        raise CaseFailedError(text)
