"""The compatibility page names the versions and transports that this repository builds with."""

from __future__ import annotations

import re
import tomllib

from docs_pages import ROOT

from kvxfer.core.messages import VERSION_MAX, VERSION_MIN

PAGE = (ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def part(title: str) -> list[list[str]]:
    """The rows of the table under a heading, without its head."""
    text = PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[1:]]


def test_every_python_that_is_declared_has_a_row() -> None:
    named = ", ".join(row[0] for row in part("Python")).split(", ")
    built = sorted(set(re.findall(r"python3\.(\d+)", MAKEFILE)), key=int)
    assert named == [f"3.{minor}" for minor in built]
    assert PROJECT["requires-python"] == f">={named[0]}"


def test_every_transport_has_a_row_and_each_row_is_one() -> None:
    named = {row[0].split("`")[1] for row in part("Transports and memory")}
    assert named == set(PROJECT["entry-points"]["kvxfer.transports"])


def test_pinned_versions_are_those_of_the_makefile() -> None:
    engines, transports = part("Engines"), part("Transports and memory")
    (vllm,) = re.findall(r"^VLLM_VERSION \?= ([\d.]+)$", MAKEFILE, re.MULTILINE)
    assert engines[0][1].startswith(f"{vllm} ")
    for variable, row in (("NIXL", "`nixl` (UCX)"), ("FABRIC", "`nixl` (LIBFABRIC)")):
        (pins,) = re.findall(rf"^{variable} := (.*)$", MAKEFILE, re.MULTILINE)
        (library,) = (cells[1] for cells in transports if cells[0] == row)
        for name, version in re.findall(r"`([\w-]+)` (\d+\.\d+\.\d+)", library):
            assert f"{name}=={version}" in pins.split()


def test_memory_kinds_are_those_that_the_matrix_shows() -> None:
    matrix = (ROOT / "docs" / "transport-matrix.md").read_text(encoding="utf-8")
    (heads,) = re.findall(r"\| flag \|(.*)\|", matrix)
    (dram,) = re.findall(r"\| MEM_DRAM \|(.*)\|", matrix)
    assert set(dram.replace(" ", "").split("|")) == {"yes"}
    shown = {head.split()[0].partition("/")[0].lower() for head in heads.split("|")}
    here = {row[0].split("`")[1]: row[2] for row in part("Transports and memory")}
    assert {name for name, cell in here.items() if cell.startswith("CI")} == (
        (shown - {"c"}) | {"capi"}
    )


def test_the_protocol_s_versions_are_those_of_the_code() -> None:
    assert [row[0] for row in part("Protocol")] == [
        str(version) for version in range(VERSION_MIN, VERSION_MAX + 1)
    ]
