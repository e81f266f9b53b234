"""The `kvxfer` command.

Owns the command line and nothing else. Ctrl-C ends every command with exit status 130
and no traceback. Invariant: importing this module and
showing help loads neither numpy nor trio; each command loads what it runs.
"""

from __future__ import annotations

from typing import Any

import click

from kvxfer import __version__
from kvxfer.cli.bench import bench_group
from kvxfer.cli.conform import conform_command
from kvxfer.cli.demo import demo_command
from kvxfer.cli.doctor import doctor_command
from kvxfer.cli.explore import explore_command
from kvxfer.cli.layout import layout_group
from kvxfer.cli.plugins import Plugins
from kvxfer.cli.sim import sim_command
from kvxfer.cli.trace import trace_command
from kvxfer.cli.transports import transports_command

EXIT_INTERRUPTED = 130


class _Interruptible(Plugins):
    """A group whose commands end with 130 on Ctrl-C, as a shell expects."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            ctx.exit(EXIT_INTERRUPTED)


@click.group(cls=_Interruptible, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="kvxfer")
def main() -> None:
    """Move KV caches from prefill to decode engines."""


main.add_command(bench_group)
main.add_command(conform_command)
main.add_command(demo_command)
main.add_command(doctor_command)
main.add_command(explore_command)
main.add_command(layout_group)
main.add_command(sim_command)
main.add_command(trace_command)
main.add_command(transports_command)
