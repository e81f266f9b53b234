"""Running the transport cases.

Owns the loop over cases and the translation of how a case ended into a verdict.
Refuses to judge by itself. Invariant: each case runs on a pair of its own, and
whatever it does, the other cases run too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import attrs

from kvxfer.conformance.case import (
    CASES,
    Case,
    CaseFailedError,
    NonStrictError,
    NotSupportedError,
)
from kvxfer.conformance.cases import (
    transport_allocate,
    transport_cancel,
    transport_death,
    transport_failures,
    transport_fence,
    transport_life,
    transport_load,
    transport_notify,
    transport_peers,
    transport_regions,
    transport_requests,
    transport_sizes,
    transport_strided,
    transport_table,
    transport_wakeup,
    transport_write,
)
from kvxfer.conformance.endpoint import Buffer, MakePair, Pair
from kvxfer.conformance.report import NO_CAPS, CaseResult, Report, Verdict
from kvxfer.conformance.rig import Limits, Rig
from kvxfer.errors import BadValue, KvxferError
from kvxfer.transport.caps import Caps

CASE_MODULES = (
    transport_table,
    transport_requests,
    transport_notify,
    transport_fence,
    transport_write,
    transport_peers,
    transport_regions,
    transport_wakeup,
    transport_cancel,
    transport_allocate,
    transport_strided,
    transport_load,
    transport_sizes,
    transport_failures,
    transport_life,
    transport_death,
)
"""Importing them fills the list of cases."""


def transport_cases() -> tuple[Case, ...]:
    """All transport cases, in the order of the rules they judge."""
    return tuple(sorted(CASES.values(), key=_order))


def check_transport(
    make_pair: MakePair,
    *,
    make_far_pair: MakePair | None = None,
    memory_factory: Callable[[int], Buffer] | None = None,
    only: Iterable[str] | None = None,
    deadline_s: float = 10.0,
    settle_s: float = 0.05,
    long: bool = False,
    name: str = "transport",
    on_result: Callable[[CaseResult], None] = lambda _result: None,
) -> Report:
    """Judge a transport against the rules of `kvxfer.transport.ops`.

    `make_pair()` gives a fresh `Pair` for each case, `make_far_pair()` one whose end b
    lives in another process (`kvxfer.conformance.far_pair_maker`); without it the cases
    that need one are unsupported. `memory_factory(length)` gives memory that both ends
    can register (default: memory of this process). `only` names addresses of cases.
    `deadline_s` bounds each wait for something that must happen (sixfold in a long run),
    `settle_s` is how long to look for what must not. `long` runs more rounds and larger
    sizes (minutes, and a few GiB of memory). `name` stands in the report where no pair
    could be made; a pair's table gives its own. `on_result` is told of each case as it ends.

    Raises `BadValue` where `only` names an unknown case. What the subject does
    wrong is in the report, never raised.
    """
    limits = Limits(deadline_s=deadline_s, settle_s=settle_s, long=long)
    results = []
    seen = _Seen(subject=name)
    for case in _wanted(only):
        result = _run(case, make_far_pair if case.far else make_pair, memory_factory, limits, seen)
        results.append(result)
        on_result(result)
    return Report(subject=seen.subject, results=tuple(results), caps=seen.caps)


@attrs.define
class _Seen:
    """What the pairs of a run say of themselves."""

    subject: str
    caps: Caps = NO_CAPS


def _run(
    case: Case,
    make: MakePair | None,
    memory_factory: Callable[[int], Buffer] | None,
    limits: Limits,
    seen: _Seen,
) -> CaseResult:
    started = time.monotonic()
    measures: dict[str, float] = {}
    if make is None:
        verdict, detail = Verdict.UNSUPPORTED, "no pair with an end in another process was given"
    else:
        try:
            pair = make()
        except NotSupportedError as error:
            verdict, detail = Verdict.UNSUPPORTED, str(error)
        except KvxferError as error:
            verdict, detail = Verdict.FAIL, f"make_pair: {error}"
        else:
            seen.subject = pair.a.ops.name
            rig = Rig(pair, memory_factory=memory_factory, limits=limits)
            verdict, detail = _close(pair, rig, *_judge(case, rig, seen))
            measures = rig.measures
    return CaseResult(
        address=case.address,
        requirement=case.requirement,
        verdict=verdict,
        detail=detail,
        measures=measures,
        failures=case.failures,
        duration_s=time.monotonic() - started,
    )


def _wanted(only: Iterable[str] | None) -> tuple[Case, ...]:
    if only is None:
        return transport_cases()
    addresses = set(only)
    unknown = sorted(addresses - CASES.keys())
    if unknown:
        raise BadValue("only", unknown, f"known cases are {', '.join(sorted(CASES))}")
    return tuple(case for case in transport_cases() if case.address in addresses)


def _judge(case: Case, rig: Rig, seen: _Seen) -> tuple[Verdict, str]:
    try:
        declared = rig.a.caps() & rig.b.caps()
        seen.caps |= declared
        lacking = case.needs & ~declared
        if lacking:
            return Verdict.UNSUPPORTED, f"declares no {_names(lacking)}"
        case.body(rig)
    except NotSupportedError as error:
        return Verdict.UNSUPPORTED, str(error)
    except NonStrictError as error:
        return Verdict.NON_STRICT, str(error)
    except CaseFailedError as error:
        return Verdict.FAIL, str(error)
    except Exception as error:  # noqa: BLE001 - a subject may break a case in any way
        return Verdict.FAIL, f"{type(error).__name__}: {error}"
    return Verdict.PASS, ""


def _close(pair: Pair, rig: Rig, verdict: Verdict, detail: str) -> tuple[Verdict, str]:
    """End the sessions; a close that misbehaves fails a case that passed so far."""
    try:
        if pair.close is not None:
            pair.close()
        else:
            for side in rig.sides:
                if not side.closed:
                    side.close()
    except Exception as error:  # noqa: BLE001 - as in `_judge`
        if verdict is not Verdict.FAIL:
            return Verdict.FAIL, f"while closing: {error}"
    return verdict, detail


def _names(caps: Caps) -> str:
    return ", ".join(flag.name or hex(flag) for flag in Caps if flag in caps)


def _order(case: Case) -> tuple[int, ...]:
    return tuple(int(number) for number in case.address[1:].split("."))
