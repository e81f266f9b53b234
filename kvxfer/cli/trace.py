"""`kvxfer trace`: recordings as a picture, as a Perfetto file, or as text.

Owns the command's words. Everything it shows comes from the recordings.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from kvxfer.observe.stretches import Transfer

EXIT_USAGE = 2
DRAWN = 200
"""Rows of a page that a browser still scrolls well."""

_OUT = click.Path(dir_okay=False, writable=True, path_type=Path)


@click.command("trace", context_settings={"show_default": True})
@click.argument(
    "files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@click.option("--html", type=_OUT, help="Write a timeline that opens in any browser.")
@click.option("--perfetto", type=_OUT, help="Write a file for ui.perfetto.dev.")
@click.option("--transfer", "wanted", multiple=True, help="Only this transfer; may be repeated.")
@click.option("--failed", is_flag=True, help="Only transfers that ended in lost or unsent.")
@click.option("--limit", default=DRAWN, type=click.IntRange(1), help="Transfers at most.")
@click.option("--json", "as_json", is_flag=True, help="One line of JSON for each transfer.")
@click.pass_context
def trace_command(
    ctx: click.Context, /, files: tuple[Path, ...], as_json: bool, **values: Any
) -> None:
    """Show recorded transfers: as text, as an HTML timeline, as a Perfetto file.

    FILES are recordings of any number of agents, P's and D's together: what
    `kvxfer demo --record` wrote, or the files of KVXFER_RECORD_DIR.
    """
    from kvxfer.record.lines import BadRecording

    try:
        _trace(files, as_json, **values)
    except (BadRecording, OSError) as error:
        click.echo(f"kvxfer trace: {error}", err=True)
        ctx.exit(EXIT_USAGE)


def _trace(
    files: tuple[Path, ...],
    as_json: bool,
    html: Path | None,
    perfetto: Path | None,
    wanted: tuple[str, ...],
    failed: bool,
    limit: int,
) -> None:
    from kvxfer.observe.perfetto import perfetto_json
    from kvxfer.observe.stretches import transfers_of
    from kvxfer.observe.timeline import timeline_page
    from kvxfer.record.lines import read_recordings

    recording = read_recordings(files)
    found = [
        one
        for one in transfers_of(recording)
        if (not wanted or one.transfer_id in wanted)
        and (not failed or "lost" in one.outcome or "unsent" in one.outcome)
    ]
    shown, left_out = found[:limit], max(0, len(found) - limit)
    if html is not None:
        text = timeline_page(shown, left_out=left_out, dropped=recording.dropped)
        html.write_text(text, encoding="utf-8")
        click.echo(f"timeline: {html}", err=as_json)
    if perfetto is not None:
        perfetto.write_text(perfetto_json(shown), encoding="utf-8")
        click.echo(f"perfetto: {perfetto}", err=as_json)
    for one in shown:
        if as_json:
            click.echo(json.dumps(_summary(one)))
        elif html is None and perfetto is None:
            click.echo(_text(one))
    if left_out:
        click.echo(f"{left_out} more transfers are left out: see --limit", file=sys.stderr)


def _summary(one: Transfer) -> dict[str, Any]:
    agents = [lane.header.name for lane in one.lanes]
    return {
        "transfer": one.transfer_id,
        "outcome": one.outcome,
        "agents": agents,
        "elapsed_ms": round(one.stop_ms - one.start_ms, 3),
        "steps": sum(len(lane.steps) for lane in one.lanes),
    }


def _text(one: Transfer) -> str:
    """All steps of a transfer at all its agents, in the order in which they happened."""
    from kvxfer.record.transcript import words

    steps = [(step.t_ms, lane.header.name, step) for lane in one.lanes for step in lane.steps]
    steps.sort(key=lambda entry: entry[0])
    width = max(len(name) for _, name, _ in steps)
    lines = [f"transfer {one.transfer_id}: {one.outcome or 'not ended'}"]
    for number, (t_ms, name, step) in enumerate(steps, 1):
        since = t_ms - one.start_ms
        lines.append(f"{number:3d}  {since:10.3f} ms  {name:<{width}}  {words(step)}")
    return "\n".join(lines) + "\n"
