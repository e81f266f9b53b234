"""The `kvxfer-router` command.

Owns options and the running of the server until a signal. Refuses to know
requests. Invariant: a wrong option ends with its name and a status of 2 before
anything listens; SIGINT and SIGTERM end the process within the drain bound.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from typing import Any

import click
from aiohttp import web

from kvxfer.errors import BadValue
from kvxfer_router.app import build_runner
from kvxfer_router.config import Coordinates, Mode, OnPrefillFailure, RouterConfig


@click.command(context_settings={"show_default": True})
@click.option(
    "--mode",
    type=click.Choice([mode.value for mode in Mode]),
    default=Mode.PUSH.value,
    help="Order of the legs: push sends both at once, pull sends P's first.",
)
@click.option("--host", default="127.0.0.1", help="Address to listen on.")
@click.option("--port", default=8000, help="Port to listen on; 0 takes a free one.")
@click.option("--prefill", "prefill_url", required=True, help="Base URL of the prefill engine.")
@click.option("--decode", "decode_url", required=True, help="Base URL of the decode engine.")
@click.option("--prefill-engine-id", help="P's engine id (push).")
@click.option("--prefill-kv-host", help="Host of P's KV control listener, as D reaches it (push).")
@click.option("--prefill-kv-port", type=int, help="Port of P's KV control listener (push).")
@click.option("--prefill-tp-size", default=1, help="P's tensor-parallel size.")
@click.option("--prefill-pp-size", default=1, help="P's pipeline-parallel size.")
@click.option(
    "--on-prefill-failure",
    type=click.Choice([policy.value for policy in OnPrefillFailure]),
    default=OnPrefillFailure.FAIL.value,
    help="fail: an error. decode: D computes the prompt alone.",
)
@click.option("--max-body-mib", "body_mib_max", default=64, help="Largest request body, in MiB.")
@click.option("--connect-timeout-s", default=5.0, help="Bound on connecting to an engine.")
@click.option("--idle-timeout-s", default=600.0, help="Longest silence of an engine in one leg.")
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
    header X-Kvxfer-Mode (push or pull) overrides --mode for one request.
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
    prefill_engine_id: str | None,
    prefill_kv_host: str | None,
    prefill_kv_port: int | None,
    prefill_tp_size: int,
    prefill_pp_size: int,
    **same_names: Any,
) -> RouterConfig:
    """The options as a checked configuration; `same_names` are fields of it. Raises BadValue."""
    address = {
        "--prefill-engine-id": prefill_engine_id,
        "--prefill-kv-host": prefill_kv_host,
        "--prefill-kv-port": prefill_kv_port,
    }
    missing = [option for option, value in address.items() if value is None]
    if missing and len(missing) < len(address):
        raise BadValue(missing[0], None, f"must be given together with {', '.join(address)}")
    coordinates = None
    if (
        prefill_engine_id is not None
        and prefill_kv_host is not None
        and prefill_kv_port is not None
    ):
        coordinates = Coordinates(
            engine_id=prefill_engine_id,
            kv_host=prefill_kv_host,
            kv_port=prefill_kv_port,
            tp_size=prefill_tp_size,
            pp_size=prefill_pp_size,
        )
    return RouterConfig(
        mode=Mode(mode),
        coordinates=coordinates,
        on_prefill_failure=OnPrefillFailure(on_prefill_failure),
        **same_names,
    )


async def serve(config: RouterConfig) -> None:
    """Serve until SIGINT or SIGTERM. Raises OSError when the port is taken."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    runner = build_runner(config)
    await runner.setup()
    try:
        await web.TCPSite(runner, config.host, config.port).start()
        host, port = runner.addresses[0][:2]
        click.echo(
            f"kvxfer-router: {config.mode.value} on http://{host}:{port}, "
            f"P {config.prefill_url}, D {config.decode_url}"
        )
        await stop.wait()
    finally:
        await runner.cleanup()
