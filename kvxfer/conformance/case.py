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


@attrs.frozen(kw_only=True)
class Case:
    """One requirement and the code that judges it.

    `failures` names the classes of failure in public systems that the case stands against
    (A late write after free at the target, B source reused under a transfer, C lost completion
    or untold failure, K blocking and head of line, M untrusted input and bounds, P shutdown
    and cancel, Q visibility). `far` cases have their end b in a process of its own.
    """

    address: str
    requirement: str
    needs: Caps
    body: Body
    failures: str
    far: bool


CASES: Final[dict[str, Case]] = {}
"""All transport cases by address; filled as the modules of `cases` are imported."""


def case(
    address: str,
    requirement: str,
    *,
    needs: Caps = Caps.WRITE,
    failures: str = "",
    far: bool = False,
) -> Callable[[Body], Body]:
    """Enter a function as the case `address`. Both ends must declare all of `needs`."""

    def enter(body: Body) -> Body:
        if address in CASES:
            raise ValueError(f"case address {address!r} is used twice")
        CASES[address] = Case(
            address=address,
            requirement=requirement,
            needs=needs | Caps.CROSS_PROCESS if far else needs,
            body=body,
            failures=failures,
            far=far,
        )
        return body

    return enter


def expect(condition: bool, text: str) -> None:
    """Fail the case with `text` unless `condition` holds."""
    if not condition:
        raise CaseFailedError(text)
