"""The record beside every figure: found out, or said to be unknown."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from kvxfer.bench.environment import UNKNOWN, cpu_name, environment, revision


def test_everything_has_a_value() -> None:
    assert all(value not in ("", None) for value in environment().values())


def test_the_processor_by_name(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\n")
    assert cpu_name(tmp_path / "cpuinfo") == "Some CPU @ 2 GHz"
    assert cpu_name(tmp_path / "missing")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text("1\n")
    for words in (
        ("init", "-q"),
        ("add", "mine.py"),
        ("-c", "user.name=a", "-c", "user.email=a@b.c", "commit", "-qm", "one"),
    ):
        subprocess.run(("git", "-C", str(tmp_path), *words), check=True, timeout=20)
    return tmp_path


def test_the_revision_of_a_tracked_file(checkout: Path) -> None:
    clean = revision(checkout / "mine.py")
    assert len(clean) == 12
    (checkout / "mine.py").write_text("2\n")
    assert revision(checkout / "mine.py") == f"{clean}-dirty"


def test_a_checkout_around_an_installed_package_is_not_its_revision(checkout: Path) -> None:
    (checkout / "installed.py").write_text("")
    assert revision(checkout / "installed.py") == UNKNOWN
