"""Commands that adapters bring: entry points of the group `kvxfer.commands`, or of a subgroup.

Owns finding and loading them. Knows no adapter. Invariant: an adapter's command is loaded
only when it is run or its help is asked for, and one that cannot be loaded takes no other
command with it.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

import click

GROUP = "kvxfer.commands"


class Plugins(click.Group):
    """A group with the commands of adapters beside its own, which win."""

    entry_group = GROUP

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *_points(self.entry_group)})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        own = super().get_command(ctx, cmd_name)
        point = _points(self.entry_group).get(cmd_name)
        if own is not None or point is None:
            return own
        try:
            command = point.load()
        except ImportError as error:
            return _broken(cmd_name, f"{point.value}: {error}")
        if not isinstance(command, click.Command):
            return _broken(cmd_name, f"{point.value} is no command")
        return command


class BenchPlugins(Plugins):
    """The same for `kvxfer bench`."""

    entry_group = f"{GROUP}.bench"


def _points(group: str) -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=group)}


def _broken(name: str, why: str) -> click.Command:
    """Stands in for a command that cannot be loaded: help goes on, running it says why."""

    settings = {"ignore_unknown_options": True}

    @click.command(
        name,
        context_settings=settings,
        short_help=f"(not usable: {why})",
        add_help_option=False,
    )
    @click.argument("words", nargs=-1, type=click.UNPROCESSED, expose_value=False)
    def broken() -> None:
        raise click.ClickException(f"{name} cannot be loaded: {why}")

    return broken
