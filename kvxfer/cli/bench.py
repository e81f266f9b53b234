"""`kvxfer bench`: the group of the benchmarks.

Owns the group; each benchmark has a module of its own.
"""

from __future__ import annotations

import click

from kvxfer.cli.bench_core import core_command


@click.group("bench")
def bench_command() -> None:
    """Measure what kvxfer costs on this machine."""


bench_command.add_command(core_command)
