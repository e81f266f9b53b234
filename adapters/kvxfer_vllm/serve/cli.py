"""`kvxfer pd`: the commands.

Owns options, output and exit status. Does no work. Exit status: 0 where all is as asked, 1
where not, 2 for an option or a file that is wrong. Invariant: what programs read goes to
standard output, what people read meanwhile to standard error.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import attrs
import click

from kvxfer.errors import BadValue, KvxferError

if TYPE_CHECKING:
    from kvxfer_vllm.serve.setfile import PdSet

Result = TypeVar("Result")

file_argument = click.argument(
    "file", type=click.Path(dir_okay=False, path_type=Path), default=Path("pd.toml")
)
host_option = click.option("--host", help="Only what runs on this host of the file.")
json_option = click.option("--json", "as_json", is_flag=True, help="One JSON document.")


@click.group("pd", context_settings={"show_default": True})
def pd_group() -> None:
    """Run a set of prefill and decode engines with a router.

    FILE is a small TOML file, pd.toml where none is named; `kvxfer pd example`
    prints one.
    """


@pd_group.command("example")
def example_command() -> None:
    """Print a set file with every key explained."""
    click.echo(Path(__file__).with_name("example.toml").read_text(encoding="utf-8"), nl=False)


@pd_group.command("lines")
@file_argument
@host_option
def lines_command(file: Path, host: str | None) -> None:
    """Print the command lines of FILE: what `up` starts, to run by hand instead."""
    with _told():
        from kvxfer_vllm.serve.lines import lines_of

        pd_set = _read(file)
        for line in lines_of(pd_set, host):
            member = line.member
            click.echo(f"# {member.name} on {member.host} ({pd_set.address(member)})")
            click.echo(line.shell())


@pd_group.command("up")
@file_argument
@host_option
def up_command(file: Path, host: str | None) -> None:
    """Start what FILE asks for, wait until all of it serves, and leave it running."""
    with _told():
        from kvxfer_vllm.serve.start import bring_up

        pd_set = _read(file)
        started = _run(lambda: bring_up(pd_set, host, _say))
        for one in started:
            click.echo(f"{one.name}  {one.url}  pid {one.running.pid}  {one.log}")


@pd_group.command("status")
@file_argument
@host_option
@json_option
@click.pass_context
def status_command(ctx: click.Context, /, file: Path, host: str | None, as_json: bool) -> None:
    """Tell what of FILE serves. Exit status 0 only if all does."""
    with _told():
        from kvxfer_vllm.serve.life import State, look

        pd_set = _read(file)
        seen = _run(lambda: look(pd_set, host))
        good = all(one.state is State.SERVES for one in seen)
        if as_json:
            programs = [one.to_plain() for one in seen]
            click.echo(json.dumps({"set": pd_set.name, "good": good, "programs": programs}))
        else:
            for one in seen:
                pid = f"pid {one.record.mark.pid}" if one.record is not None else ""
                click.echo(f"{one.member.name:8} {one.state.value:8} {one.url}  {pid}".rstrip())
    ctx.exit(0 if good else 1)


@pd_group.command("down")
@file_argument
@host_option
@click.option(
    "--grace-s",
    type=click.FloatRange(min=0),
    help="Wait before a kill; end_s of FILE if not given.",
)
@json_option
def down_command(file: Path, host: str | None, grace_s: float | None, as_json: bool) -> None:
    """End what `up` started from FILE on this machine, and nothing else."""
    with _told():
        from kvxfer_vllm.serve.life import bring_down

        pd_set = _read(file)
        ended = bring_down(pd_set, host, pd_set.end_s if grace_s is None else grace_s)
    if as_json:
        click.echo(json.dumps({"set": pd_set.name, "ended": [attrs.asdict(one) for one in ended]}))
        return
    for one in ended:
        click.echo(f"{one.name:8} {one.how:8} pid {one.pid}")
    if not ended:
        click.echo("nothing of it was started here")


def _read(file: Path) -> PdSet:
    from kvxfer_vllm.serve.setfile import read_set

    return read_set(file)


def _say(line: str) -> None:
    click.echo(line, err=True)


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except BadValue as bad:
        raise click.UsageError(str(bad)) from bad
    except KvxferError as fault:
        raise click.ClickException(str(fault)) from fault
    except ModuleNotFoundError as missing:
        raise click.ClickException(f"{missing}: needs pip install 'kvxfer[vllm]'") from missing


def _run(work: Callable[[], Awaitable[Result]]) -> Result:
    """Run to the end, or to SIGINT or SIGTERM, which end what was started meanwhile."""

    # Not needed for help, which is to come at once.
    import asyncio

    async def guarded() -> Result:
        task: asyncio.Future[Any] = asyncio.ensure_future(work())
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, task.cancel)
        found: Result = await task
        return found

    try:
        return asyncio.run(guarded())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
