"""The commands: `check`, `probes`, `chaos`, `up`.

Owns options, the run folder, the ends by signal and the exit status. Invariant: the
last line on standard output is the JSON verdict, progress goes to standard error, and
the status is 1 unless all is good.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import attrs
import click

from kvxfer.errors import BadValue, KvxferError
from kvxfer_vllm.pd.client import Client
from kvxfer_vllm.pd.engines import Mode, Policy, Stack, Tuning
from kvxfer_vllm.pd.model import BYTES_OF_DTYPE, ModelShape, write_dense
from kvxfer_vllm.pd.pair import Pair, Setting
from kvxfer_vllm.pd.processes import Supervisor

NO_MODULE = "none"

CHUNK_TOKENS = 512
"""In a streamed check P computes so many tokens in a step: most prompts are then several chunks."""

mode_option = click.option(
    "--mode",
    type=click.Choice([mode.value for mode in Mode]),
    default=Mode.PUSH.value,
    help="P writes, D reads, or P writes while it computes: by chunks, the last one by layers.",
)


@attrs.frozen(kw_only=True)
class Common:
    """Options that every command has."""

    connector: str | None
    module: str | None
    dtype: str
    run_dir: Path

    def stack(self, mode: str) -> Stack:
        """The connector under test, in this mode."""
        chosen = Mode(mode)
        connector = self.connector or chosen.connector
        return Stack(connector=connector, module=self.module, mode=chosen)


@click.group(context_settings={"show_default": True})
@click.option("--connector", help="Class name of the connector; by the mode where not given.")
@click.option(
    "--connector-module",
    default="kvxfer_vllm",
    help=f"Module to load it from; {NO_MODULE!r} takes vLLM's own class of that name.",
)
@click.option("--dtype", type=click.Choice(sorted(BYTES_OF_DTYPE)), default="float32")
@click.option(
    "--run-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(".pd"),
    help="Folder for the model and the logs; one command at a time may use it.",
)
@click.pass_context
def main(
    context: click.Context,
    connector: str | None,
    connector_module: str,
    dtype: str,
    run_dir: Path,
) -> None:
    """Start a real vLLM prefill/decode pair on this CPU and check or break it."""
    module = None if connector_module == NO_MODULE else connector_module
    context.obj = Common(connector=connector, module=module, dtype=dtype, run_dir=run_dir)


@main.command()
@click.option("--requests", default=50, help="Number of prompts.")
@mode_option
@click.pass_obj
def check(common: Common, requests: int, mode: str) -> None:
    """Compare the pair's answers with a plain engine's, token by token."""
    from kvxfer_vllm.pd.check import run_check

    shape = ModelShape()

    async def work() -> bool:
        async with setting_of(common, "check") as setting:
            tuning = Tuning(dtype=common.dtype)
            if Mode(mode).streams:
                tuning = attrs.evolve(tuning, step_tokens_max=CHUNK_TOKENS)
            report = await run_check(setting, common.stack(mode), tuning, shape, requests)
        click.echo(report.line())
        return report.good

    run_to_end(work())


@main.command()
@click.argument("names", nargs=-1)
@click.option("--layers", is_flag=True, help="Stream the last chunk by layers.")
@click.pass_obj
def kinds(common: Common, names: tuple[str, ...], layers: bool) -> None:
    """Pairs of every kind of cache, each in every mode; NAMES picks kinds."""
    from kvxfer_vllm.pd.kind_check import kinds_line, run_kind
    from kvxfer_vllm.pd.kinds import picked

    try:
        chosen = picked(names)
    except BadValue as bad:
        raise click.UsageError(str(bad)) from bad

    async def work() -> bool:
        reports = []
        for kind in chosen:
            async with setting_of(common, f"kinds-{kind.name}", kind.write) as setting:
                setting.say(f"{kind.name}: {kind.what}")
                reports.append(await run_kind(setting, kind, common.dtype, layers=layers))
            click.echo(reports[-1].line())
        click.echo(kinds_line(reports))
        return all(report.good for report in reports)

    run_to_end(work())


@main.command()
@click.argument("names", nargs=-1)
@click.option(
    "--policy",
    "policies",
    type=click.Choice([policy.value for policy in Policy]),
    multiple=True,
    default=[policy.value for policy in Policy],
    help="kv_load_failure_policy of the pair; may be given twice.",
)
@mode_option
@click.pass_obj
def probes(common: Common, names: tuple[str, ...], policies: tuple[str, ...], mode: str) -> None:
    """Break the pair on purpose: cut legs, kill P, reuse ids. NAMES picks probes."""
    from kvxfer_vllm.pd.report import total_line
    from kvxfer_vllm.pd.runner import chosen, run_probes

    try:
        picked = {Policy(policy): chosen(names, Policy(policy)) for policy in policies}
    except BadValue as bad:
        raise click.UsageError(str(bad)) from bad

    stack = common.stack(mode)

    async def work() -> bool:
        reports = []
        async with setting_of(common, "probes") as setting:
            for policy, some in picked.items():
                reports += await run_probes(setting, stack, common.dtype, policy, some)
        click.echo(total_line(f"{stack.name} {mode}", reports))
        return all(report.good for report in reports)

    run_to_end(work())


@main.command()
@click.option(
    "--seconds", default=90.0, help="Load with both engines up; each start of one comes on top."
)
@click.option("--rate", default=4.0, help="Requests per second.")
@click.option("--seed", default=1, help="Draws lengths, cuts and incidents.")
@click.option("--policy", type=click.Choice([policy.value for policy in Policy]), default="fail")
@click.option("--upstream", is_flag=True, help="vLLM's own connector of the mode, side by side.")
@mode_option
@click.pass_obj
def chaos(
    common: Common,
    seconds: float,
    rate: float,
    seed: int,
    policy: str,
    upstream: bool,
    mode: str,
) -> None:
    """Load a pair while engines are killed, restarted and stopped, and clients leave."""
    from kvxfer_vllm.pd.chaos import run_chaos

    stack = common.stack(mode)
    if upstream:
        stack = attrs.evolve(stack, module=None)

    async def work() -> bool:
        async with setting_of(common, "chaos") as setting:
            report = await run_chaos(
                setting,
                stack,
                Policy(policy),
                common.dtype,
                seconds=seconds,
                rate=rate,
                seed=seed,
            )
        click.echo(report.line())
        return report.good

    run_to_end(work())


@main.command()
@mode_option
@click.pass_obj
def up(common: Common, mode: str) -> None:
    """Start P, D and the router, print where they are, and keep them until Ctrl-C."""

    async def work() -> bool:
        async with setting_of(common, "up") as setting:
            pair = await Pair.start(setting, common.stack(mode), Tuning(dtype=common.dtype))
            click.echo(f"router {pair.router_url}  P {pair.prefill.url}  D {pair.decode.url}")
            await asyncio.Event().wait()
        return True

    run_to_end(work())


@contextlib.asynccontextmanager
async def setting_of(
    common: Common, command: str, write: Callable[[Path], None] = write_dense
) -> AsyncIterator[Setting]:
    run = (common.run_dir / command).absolute()
    run.mkdir(parents=True, exist_ok=True)
    for log in run.glob("*.log"):
        log.unlink()
    model = run / "model"
    write(model)
    with Supervisor() as supervisor:
        async with Client.open() as client:
            yield Setting(
                supervisor=supervisor,
                client=client,
                model=model,
                run=run,
                say=lambda line: click.echo(line, err=True),
            )


def run_to_end(work: Coroutine[Any, Any, bool]) -> None:
    """Run to the end, to a fault, or to SIGINT or SIGTERM; all three end what was started."""

    async def guarded() -> bool:
        task = asyncio.ensure_future(work)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, task.cancel)
        return await task

    try:
        good = asyncio.run(guarded())
    except asyncio.CancelledError:
        raise click.ClickException("ended by a signal") from None
    except KvxferError as fault:
        raise click.ClickException(str(fault)) from fault
    sys.exit(0 if good else 1)
