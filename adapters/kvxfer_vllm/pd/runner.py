"""Runs probes one after the other on one pair.

Owns the pair's tuning for probes, the order, and that one probe's failure stops no
other. Invariant: each probe that was asked for gives exactly one report.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import click

from kvxfer.errors import BadValue, KvxferError
from kvxfer_vllm.pd.bench import DEADLINE_S, LEASE_S, Bench
from kvxfer_vllm.pd.engines import Policy, Stack, Tuning
from kvxfer_vllm.pd.pair import Pair, Setting
from kvxfer_vllm.pd.probes import LOAD_FAILURES, PROBES, RESTARTING
from kvxfer_vllm.pd.report import ProbeReport

STEP_TOKENS_MAX = 512
"""Small steps: P is then busy for seconds, and abort finds it in the middle."""


def chosen(names: Sequence[str], policy: Policy) -> tuple[str, ...]:
    """The probes to run, in their order.

    Without names all of them, or for recompute those that the policy matters to. Raises
    BadValue for an unknown name.
    """
    for name in names:
        if name not in PROBES:
            raise BadValue("probe", name, f"one of {', '.join(PROBES)}")
    wanted = set(names or (LOAD_FAILURES if policy is Policy.RECOMPUTE else PROBES))
    return tuple(name for name in PROBES if name in wanted)


def tuning_for(policy: Policy, dtype: str) -> Tuning:
    """How the engines of a probed pair are started."""
    return Tuning(
        dtype=dtype,
        step_tokens_max=STEP_TOKENS_MAX,
        log_level="DEBUG",
        policy=policy,
        options={
            "kvxfer_deadline_s": DEADLINE_S,
            # The in-tree push connector's name for it: there it only logs a warning.
            "push_registration_timeout": DEADLINE_S,
            "kv_lease_duration": LEASE_S,
        },
    )


async def run_probes(
    setting: Setting, stack: Stack, dtype: str, policy: Policy, names: Sequence[str]
) -> list[ProbeReport]:
    """Start a pair, run the probes, end the pair. Prints each report's line when it is there."""
    pair = await Pair.start(setting, stack, tuning_for(policy, dtype))
    reports = []
    for name in names:
        setting.say(f"{name} ({policy.value}): {PROBES[name].__doc__}")
        report = await run_probe(pair, policy, name)
        click.echo(report.line())
        reports.append(report)
    pair.end()
    return reports


async def run_probe(pair: Pair, policy: Policy, name: str) -> ProbeReport:
    """One probe. P is started again first, if it is dead and the probe does not see to it."""
    started_s = time.monotonic()
    bench = Bench(pair, policy)
    try:
        if not pair.producer_alive and name not in RESTARTING:
            await pair.restart_producer(pair.prefill.engine_id)
        await bench.begin()
        await PROBES[name](bench)
    except KvxferError as fault:
        bench.note("the probe runs to its end", False, f"{type(fault).__name__}: {fault}")
    finally:
        await bench.end()
    return ProbeReport(
        probe=name,
        policy=policy.value,
        findings=tuple(bench.findings),
        seconds=time.monotonic() - started_s,
    )
