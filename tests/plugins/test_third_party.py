"""A transport of another distribution: found by its entry point, judged by the public kit.

The distribution is not installed with a package tool: the test lays out what an
installer would put on the import path, from the distribution's own pyproject.
"""

from __future__ import annotations

import shutil
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvxfer.conformance import Verdict, check_transport, pair_maker, transport_cases
from kvxfer.status import Status
from kvxfer.transport.caps import Caps
from kvxfer.transport.registry import GROUP, available, open_transport

SOURCE = Path(__file__).parent / "third_party"
MODULE = "carbon_copy_transport"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    project = tomllib.loads((SOURCE / "pyproject.toml").read_text())["project"]
    name, version = project["name"], project["version"]
    info = tmp_path / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    points = project["entry-points"][GROUP].items()
    lines = [f"[{GROUP}]", *(f"{key} = {value}" for key, value in points), ""]
    (info / "entry_points.txt").write_text("\n".join(lines))
    shutil.copy(SOURCE / f"{MODULE}.py", tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop(MODULE, None)


def test_without_its_distribution_it_is_not_known() -> None:
    assert "carbon_copy" not in {found.name for found in available()}


@pytest.mark.usefixtures("installed")
def test_it_is_found_with_its_origin() -> None:
    (found,) = [found for found in available() if found.name == "carbon_copy"]
    assert (found.status, found.detail) == (Status.OK, "carbon_copy 0.3.0")
    assert found.origin == "kvxfer-carbon-copy"


@pytest.mark.usefixtures("installed")
def test_it_conforms_but_for_what_it_declares_not_to_do() -> None:
    report = check_transport(pair_maker(open_transport("carbon_copy")), settle_s=0.0)
    assert report.subject == "carbon_copy"
    assert report.ok, report.text()
    unsupported = {r.address for r in report.results if r.verdict is Verdict.UNSUPPORTED}
    lacking = Caps.READ | Caps.WAKEUP_FD | Caps.CROSS_PROCESS
    assert unsupported == {case.address for case in transport_cases() if case.needs & lacking}
    assert report.caps & (Caps.STRIDED | Caps.CANCEL | Caps.ALLOCATE)


@pytest.mark.usefixtures("installed")
def test_the_kit_closes_every_session_that_it_opened() -> None:
    ops = open_transport("carbon_copy")
    check_transport(pair_maker(ops), settle_s=0.0)
    assert sys.modules[MODULE].sessions_open == set()
