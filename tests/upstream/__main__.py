"""Runs vLLM's own connector tests against our classes: `python tests/upstream [unit] [http]`.

Owns the order and the verdict. Knows where the parts are. Invariant: the status is 1
unless every test that applies has passed, for every class that was asked for.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import http_pair
import sdist
from kvxfer_upstream import CONNECTOR, MODEL, SELECTION

CONNECTORS = ("NixlConnector", "NixlPushConnector", "KvxferConnector")


def unit(connector: str, root: Path, model: Path) -> bool:
    """vLLM's scheduler with our scheduler side in it."""
    files = tomllib.loads(SELECTION.read_text())["files"]
    command = [sys.executable, "-m", "pytest", "-q", "-rfEX", "-p", "kvxfer_upstream"]
    # The copy lies below this repository, whose settings are not meant for it.
    command += ["-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(root)]
    command += [str(root / sdist.TESTS / "unit" / name) for name in files]
    places = [str(root), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    environment = {
        "PYTHONPATH": os.pathsep.join(place for place in places if place),
        "HF_HUB_OFFLINE": "1",
        CONNECTOR: connector,
        MODEL: str(model),
    }
    done = subprocess.run(command, cwd=root, env=os.environ | environment, check=False)
    return done.returncode == 0


@click.command()
@click.argument("parts", nargs=-1, type=click.Choice(["unit", "http"]))
@click.option("--connector", "connectors", multiple=True, default=CONNECTORS, show_default=True)
def main(parts: tuple[str, ...], connectors: tuple[str, ...]) -> None:
    """Run the parts named, both where none is, for each class."""
    root = sdist.tests_of(sdist.installed_version())
    model = http_pair.write_text_model(root.parent / "model")
    good = True
    for connector in connectors:
        for name, part in (("unit", unit), ("http", http_pair.run)):
            if name in (parts or ("unit", "http")):
                passed = part(connector, root, model)
                click.echo(f"upstream {name} with {connector}: {'good' if passed else 'BAD'}")
                good = good and passed
    sys.exit(0 if good else 1)


main()
