"""`kvxfer layout`: descriptors in files, explained in words and as a picture.

Owns options and exit status. Exit status of `explain`: 0 where every group is served,
1 where one is refused, 2 where a file or an option cannot be used.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from kvxfer.layout.geometry import Shard

AT_LEAST_1 = click.IntRange(min=1)
FILE = click.Path(dir_okay=False, path_type=Path)


@click.group("layout")
def layout_group() -> None:
    """Look at KV-cache layouts."""


@layout_group.command("explain")
@click.argument("producer", type=FILE)
@click.argument("consumer", type=FILE)
@click.option("--svg", type=FILE, help="Draw one block of the consumer into this file.")
@click.option(
    "--block",
    default=0,
    type=click.IntRange(min=0),
    help="Which block of the request to draw.",
    show_default=True,
)
@click.option("--group", help="Which cache group to draw; the first one if left out.")
@click.option("--rank", type=int, help="Which consumer rank to draw; the first in the file.")
@click.option(
    "--staging",
    "staging_bytes",
    default=0,
    type=click.IntRange(min=0),
    help="Bytes of a staging buffer that the producer has, for the choice of the way.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="One JSON document on stdout; the rest on stderr."
)
@click.pass_context
def explain_command(
    ctx: click.Context,
    /,
    producer: Path,
    consumer: Path,
    svg: Path | None,
    staging_bytes: int,
    as_json: bool,
    **drawn: Any,
) -> None:
    """Say how the cache of PRODUCER lands in that of CONSUMER.

    Both are JSON files that hold a layout descriptor (specification, section 7.1) or a
    list of the descriptors of all ranks of one engine.
    """
    from rich.console import Console

    from kvxfer.errors import KvxferError
    from kvxfer.explain.files import load_shards
    from kvxfer.explain.report import explain
    from kvxfer.explain.words import show
    from kvxfer.layout.choice import Room

    try:
        producers, consumers = load_shards(producer), load_shards(consumer)
        report = explain(producers, consumers, Room(producer_bytes=staging_bytes))
        show(Console(stderr=as_json), report, producers, consumers)
        if svg is not None:
            _draw(svg, producers, consumers, **drawn)
            click.echo(f"picture: {svg}", err=as_json)
    except (KvxferError, OSError) as error:
        click.echo(f"kvxfer layout: {error}", err=True)
        ctx.exit(2)
    if as_json:
        click.echo(json.dumps(report.to_plain()))
    ctx.exit(1 if report.refused else 0)


def _draw(
    path: Path,
    producers: tuple[Shard, ...],
    consumers: tuple[Shard, ...],
    block: int,
    group: str | None,
    rank: int | None,
) -> None:
    from kvxfer.errors import BadValue
    from kvxfer.explain.picture import picture_of
    from kvxfer.explain.svg import draw

    chosen = consumers[0].rank if rank is None else rank
    shard = next((shard for shard in consumers if shard.rank == chosen), None)
    if shard is None:
        raise BadValue("--rank", rank, f"one of {[shard.rank for shard in consumers]}")
    name = shard.groups[0].name if group is None else group
    path.write_text(draw(picture_of(producers, shard, name, block)), encoding="utf-8")


@layout_group.command("make", context_settings={"show_default": True})
@click.option("--order", default="LBHNC", help="Axes from the outside in; P: planes.")
@click.option("--tp", default=1, type=click.IntRange(1, 4096), help="Ranks.")
@click.option("--layers", default=4, type=click.IntRange(1, 4096), help="Layers.")
@click.option("--heads", default=8, type=AT_LEAST_1, help="KV heads of the model.")
@click.option("--block-size", "block_tokens", default=16, type=AT_LEAST_1, help="Tokens per block.")
@click.option("--blocks", default=64, type=AT_LEAST_1, help="Blocks in the pool.")
@click.option(
    "--content",
    "content_bytes",
    default=512,
    type=AT_LEAST_1,
    help="Bytes of one token and head.",
)
@click.option("--planes", default="kv", help="Names of the content planes, with commas.")
@click.option("--base", default=1 << 44, type=click.IntRange(min=0), help="Address of rank 0.")
@click.pass_context
def make_command(ctx: click.Context, /, base: int, planes: str, tp: int, **sizes: Any) -> None:
    """Print the descriptors of an engine whose cache is laid out in ORDER.

    For trying `explain` out, and for examples: an engine describes the cache it has.
    """
    from kvxfer.errors import KvxferError
    from kvxfer.explain.files import dump_shards
    from kvxfer.layout.check import check_shard
    from kvxfer.layout.orders import engine_shards
    from kvxfer.limits import Limits

    try:
        shards = engine_shards(
            bases=[base + (rank << 40) for rank in range(tp)],
            order=sizes["order"],
            layers=[f"layer.{index}" for index in range(sizes["layers"])],
            blocks=sizes["blocks"],
            tokens_per_block=sizes["block_tokens"],
            heads_total=sizes["heads"],
            content_bytes=sizes["content_bytes"],
            planes=[name for name in planes.split(",") if name],
            null_block=0,
        )
        for shard in shards:
            check_shard(shard, Limits())
    except KvxferError as error:
        click.echo(f"kvxfer layout: {error}", err=True)
        ctx.exit(2)
    sys.stdout.write(dump_shards(shards))
