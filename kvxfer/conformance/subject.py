"""Judging an installed transport by its name, with everything that the kit has.

Owns how a named transport is made into pairs: in this process, and across two.
Refuses to judge: `check_transport` does. Invariant: what is not there is a
`KvxferError` before the first case runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from kvxfer.conformance.endpoint import pair_maker
from kvxfer.conformance.far import far_pair_maker
from kvxfer.conformance.kit import check_transport
from kvxfer.conformance.report import CaseResult, Report
from kvxfer.errors import TransportFault
from kvxfer.status import Status
from kvxfer.transport.caps import Caps
from kvxfer.transport.ops import TransportOps
from kvxfer.transport.registry import open_transport

_PAUSE_S: Final = 0.0005
"""Between two polls of a transport whose threads or peers need the processor too."""
_SETTLE_S: Final = 0.05


def check_installed(
    name: str,
    *,
    options: Mapping[str, Any] | None = None,
    only: Iterable[str] | None = None,
    long: bool = False,
    across: bool = False,
    on_result: Callable[[CaseResult], None] = lambda _result: None,
) -> Report:
    """Judge the transport `name`; every session is opened with `options`.

    `across` puts end b of every case into a process of its own, not only of those that
    need it. Raises `KvxferError` where the transport, its library or a case is not there.
    """
    given = dict(options or {})
    ops = open_transport(name)
    alone = not declared(ops, given) & Caps.CROSS_PROCESS

    def pause() -> None:
        if not alone:
            time.sleep(_PAUSE_S)

    far = far_pair_maker(name, options=lambda _end: given, step=pause)
    here = pair_maker(ops, options=lambda _end: given, step=pause)
    return check_transport(
        far if across else here,
        make_far_pair=far,
        only=only,
        long=long,
        name=name,
        # Where everything happens in the kit's own polls nothing can show up by waiting.
        settle_s=0.0 if alone else _SETTLE_S,
        on_result=on_result,
    )


def declared(ops: TransportOps, options: Mapping[str, Any]) -> Caps:
    """What a session opened with `options` declares. Raises `TransportFault` where none opens."""
    status, session = ops.open(options)
    if status != Status.OK:
        raise TransportFault(f"open({dict(options)!r})", Status(status), ops.last_error(session))
    caps = ops.caps(session)
    ops.close(session)
    return caps
