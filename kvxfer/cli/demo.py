"""`kvxfer demo`: the demo's options, its progress bar, its exit status.

Owns no logic of the demo. Exit status: 0 all right; 1 a token differs, something
leaked or is in quarantine, or the run broke off; 2 the command cannot run as
asked (option, missing library); 130 Ctrl-C.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console

    from kvxfer.demo.result import DemoResult
    from kvxfer.demo.workload import DemoOptions

EXIT_DIFFERS = 1
EXIT_USAGE = 2


@click.command("demo", context_settings={"show_default": True})
@click.option("--requests", default=32, help="How many requests to serve in each mode.")
@click.option("--prompt-min", default=64, help="Shortest prompt, in tokens.")
@click.option("--prompt-max", default=512, help="Longest prompt, in tokens.")
@click.option("--tokens", "answer_tokens", default=12, help="Tokens to answer per request.")
@click.option("--concurrency", default=4, help="Requests in the system at a time.")
@click.option("--seed", default=0, help="Draws weights, prompts and block order.")
@click.option(
    "--transport",
    default="loopback",
    help="Name of a transport (see `kvxfer transports`). One that can cross processes "
    "runs prefill and decode as two processes.",
)
@click.option(
    "--mode",
    type=click.Choice(["push", "pull", "stream", "both", "all"]),
    default="both",
    help="push: D registers when the request arrives, P writes when it has finished. pull: the "
    "legs one after the other, D registers when P has finished, and reads. stream: push, but "
    "P writes each chunk of the prompt when it is computed. both: push and pull.",
)
@click.option("--prefill-tp", "prefill_ranks", default=1, help="Ranks of the prefill engine.")
@click.option("--decode-tp", "decode_ranks", default=1, help="Ranks of the decode engine.")
@click.option(
    "--prefill-block-size", "prefill_block_tokens", default=16, help="Tokens per block at P."
)
@click.option(
    "--decode-block-size", "decode_block_tokens", default=16, help="Tokens per block at D."
)
@click.option(
    "--cache-order",
    default="LBHNC",
    help="Axes of both caches from the outside in: layer, block, head, slot, content.",
)
@click.option(
    "--key-file",
    default="",
    show_default="KVXFER_KEYS, or no keys",
    help="Keys that the two engines prove to each other, `id secret` a line (docs/security.md).",
)
@click.option(
    "--timeline",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Write both timelines to this HTML file.",
)
@click.option(
    "--record",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Write every step of every transfer to this file, for `kvxfer trace`.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="One line of JSON on stdout; the rest on stderr."
)
@click.pass_context
def demo_command(
    ctx: click.Context,
    /,
    timeline: Path | None,
    record: Path | None,
    as_json: bool,
    **values: Any,
) -> None:
    """Serve requests on a prefill and a decode engine, and check every token.

    A small model in numpy runs as two engines with separate memory. Its cache
    moves from one to the other through kvxfer, and the tokens are compared with
    those of one engine that did everything alone.
    """
    for name, path in (("--timeline", timeline), ("--record", record)):
        if path is not None and not path.absolute().parent.is_dir():
            raise click.BadParameter(f"{path}: no such folder", param_hint=name)
    ctx.exit(_demo(timeline, record, as_json, values))


def _demo(timeline: Path | None, record: Path | None, as_json: bool, values: dict[str, Any]) -> int:
    from kvxfer.demo.threads import use_one_matrix_thread

    use_one_matrix_thread()

    from rich.console import Console

    from kvxfer.demo.pair import DemoStopped
    from kvxfer.demo.producers import ProducerDown
    from kvxfer.errors import KvxferError

    console = Console(file=sys.stderr if as_json else sys.stdout)
    try:
        result = _recorded(console, _options(values), record)
    except (KvxferError, DemoStopped, ProducerDown) as error:
        usage = isinstance(error, KvxferError) or getattr(error, "usage", False)
        click.echo(f"kvxfer demo: {error}", err=True)
        return EXIT_USAGE if usage else EXIT_DIFFERS
    _show(console, result)
    if timeline is not None:
        from kvxfer.demo.timeline import write_timeline

        write_timeline(result, timeline)
        console.print(f"timelines: {timeline}")
    if record is not None:
        console.print(f"recording: {record}")
    if as_json:
        click.echo(json.dumps(result.summary()))
    return 0 if result.ok else EXIT_DIFFERS


def _options(values: dict[str, Any]) -> DemoOptions:
    from kvxfer.demo.workload import DemoOptions, Mode

    mode = values.pop("mode")
    named = {"both": (Mode.PUSH, Mode.PULL), "all": tuple(Mode)}
    modes = named[mode] if mode in named else (Mode(mode),)
    return DemoOptions(modes=modes, **values)


def _recorded(console: Console, options: DemoOptions, record: Path | None) -> DemoResult:
    if record is None:
        return _run(console, options)
    from tempfile import TemporaryDirectory

    from kvxfer.record.files import join_recordings

    with TemporaryDirectory() as folder:
        result = _run(console, options, folder)
        join_recordings(Path(folder), record)
    return result


def _run(console: Console, options: DemoOptions, record_dir: str = "") -> DemoResult:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from kvxfer.demo.run import phases, run_demo

    columns = (TextColumn("{task.description:>10}"), BarColumn(), MofNCompleteColumn())
    # Bars are for people at a terminal; a log or a pipe gets the tables only.
    hidden = not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=hidden) as bars:
        tasks = {name: bars.add_task(name, total=options.requests) for name in phases(options)}
        return run_demo(
            options, lambda name, done: bars.update(tasks[name], completed=done), record_dir
        )


def _show(console: Console, result: DemoResult) -> None:
    from kvxfer.cli.demo_table import request_table, summary_table

    console.print(request_table(result))
    console.print(summary_table(result))
    for line in result.failures():
        console.print(line, style="red", markup=False)
    if result.ok:
        console.print("every token is that of one engine alone; nothing leaked", style="green")
