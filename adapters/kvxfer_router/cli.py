"""The `kvxfer-router` command.

Owns options and the running of the server until a signal. Refuses to know
requests. Invariant: a wrong option ends with its name and a status of 2 before
anything listens; SIGINT and SIGTERM end the process within the drain bound.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

import click
from aiohttp import web

from kvxfer.errors import BadValue
from kvxfer_router.app import SHARED, build_runner
from kvxfer_router.config import EngineSpec, Mode, OnPrefillFailure, RouterConfig
from kvxfer_router.engine import end_tasks
from kvxfer_router.fleet_file import engines_of_options, read_fleet


@click.command(context_settings={"show_default": True})
@click.option(
    "--mode",
    type=click.Choice([mode.value for mode in Mode]),
    default=Mode.PUSH.value,
    help="Order of the legs: push sends both at once, pull sends P's first, auto goes by load.",
)
@click.option("--host", default="127.0.0.1", help="Address to listen on.")
@click.option("--port", default=8000, help="Port to listen on; 0 takes a free one.")
@click.option(
    "--engines",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="TOML file with the engines, in place of the options below.",
)
@click.option("--prefill", multiple=True, help="Base URL of a prefill engine; repeatable.")
@click.option("--decode", multiple=True, help="Base URL of a decode engine; repeatable.")
@click.option("--prefill-engine-id", multiple=True, help="Engine id of the n-th P (push).")
@click.option(
    "--prefill-kv-host",
    multiple=True,
    help="Host of the n-th P's KV control listener, as D reaches it (push).",
)
@click.option("--prefill-kv-port", multiple=True, type=int, help="Port of that listener (push).")
@click.option("--prefill-tp-size", multiple=True, type=int, help="The n-th P's tensor ranks.")
@click.option("--prefill-pp-size", multiple=True, type=int, help="The n-th P's pipeline ranks.")
@click.option(
    "--prefill-dp-size", multiple=True, type=int, help="The n-th P's data-parallel ranks."
)
@click.option("--decode-dp-size", multiple=True, type=int, help="The n-th D's, to choose here.")
@click.option(
    "--on-prefill-failure",
    type=click.Choice([policy.value for policy in OnPrefillFailure]),
    default=OnPrefillFailure.DECODE.value,
    help="decode: without any P, D computes the prompt alone. fail: an error.",
)
@click.option("--retries", default=1, help="How often a request that failed goes elsewhere.")
@click.option(
    "--auto-push-tokens",
    "auto_push_tokens_max",
    default=16384,
    help="Work waiting at P up to which the mode auto is push, in tokens.",
)
@click.option("--max-requests", "requests_max", default=4096, help="Most requests open at a time.")
@click.option("--max-body-mib", "body_mib_max", default=64, help="Largest request body, in MiB.")
@click.option("--max-header-bytes", "header_bytes_max", default=16384, help="Longest header line.")
@click.option("--body-timeout-s", default=60.0, help="Longest time for a request to come in.")
@click.option("--connect-timeout-s", default=5.0, help="Bound on connecting to an engine.")
@click.option("--idle-timeout-s", default=600.0, help="Longest silence of an engine in one leg.")
@click.option("--check-s", default=5.0, help="Time between two health checks of an engine.")
@click.option("--trailing-s", default=30.0, help="How long a P leg may outlive D's whole answer.")
@click.option("--drain-s", default=30.0, help="At shutdown, the wait for open requests.")
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    help="Least level that is logged.",
)
def main(log_level: str, **options: Any) -> None:
    """Send each request to a prefill and a decode engine, and stream the answer.

    Speaks OpenAI's HTTP API. A request with several prompts or answers is one
    that no single transfer can serve: it goes to the decode engine alone. The
    header X-Kvxfer-Mode (push, pull or auto) overrides --mode for one request.
    """
    logging.basicConfig(
        level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    try:
        config = config_of(**options)
    except BadValue as bad:
        raise click.UsageError(str(bad)) from bad
    try:
        asyncio.run(serve(config))
    except OSError as error:
        raise click.ClickException(f"cannot listen on {config.host}:{config.port}: {error}") from (
            error
        )


def config_of(
    *,
    mode: str,
    on_prefill_failure: str,
    engines: Path | None,
    prefill: tuple[str, ...],
    decode: tuple[str, ...],
    decode_dp_size: tuple[int, ...],
    **others: Any,
) -> RouterConfig:
    """The options as a checked configuration. Raises BadValue.

    `others` are columns of the prefill engines, by their options, and fields of the
    configuration.
    """
    columns = {
        name.removeprefix("prefill_"): others.pop(name)
        for name in list(others)
        if name.startswith("prefill_")
    }
    if engines is not None:
        if prefill or decode or decode_dp_size or any(columns.values()):
            raise BadValue("--engines", str(engines), "names all engines; no option may add to it")
        prefills, decodes = read_fleet(engines)
    else:
        prefills = engines_of_options(prefill, columns)
        decodes = engines_of_options(decode, {"dp_size": decode_dp_size})
    return RouterConfig(
        mode=Mode(mode),
        prefills=prefills,
        decodes=decodes,
        on_prefill_failure=OnPrefillFailure(on_prefill_failure),
        **others,
    )


async def serve(config: RouterConfig) -> None:
    """Serve until SIGINT or SIGTERM, then drain. Raises OSError when the port is taken.

    While it drains, the router still listens, and refuses what comes. A second signal
    ends the drain at once.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    runner = build_runner(config)
    await runner.setup()
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        await web.TCPSite(runner, config.host, config.port).start()
        host, port = runner.addresses[0][:2]
        click.echo(
            f"kvxfer-router: {config.mode.value} on http://{host}:{port}, "
            f"P {_names(config.prefills)}, D {_names(config.decodes)}"
        )
        await stop.wait()
        stop.clear()
        await _drain_until(runner.app[SHARED].drain(), stop)
    finally:
        await runner.cleanup()


async def _drain_until(drain: Coroutine[Any, Any, None], stop: asyncio.Event) -> None:
    """Drain, but no longer than to the next signal."""
    draining = asyncio.ensure_future(drain)
    again = asyncio.ensure_future(stop.wait())
    await asyncio.wait({draining, again}, return_when=asyncio.FIRST_COMPLETED)
    await end_tasks([draining, again])


def _names(specs: Sequence[EngineSpec]) -> str:
    return " ".join(spec.name for spec in specs)
