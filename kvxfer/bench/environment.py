"""Where a figure comes from: machine, versions, revision, date.

Owns the record that stands beside every measured number. Knows no benchmark.
Invariant: nothing here names the machine, a user or a path; what cannot be found out
is said to be unknown.
"""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

import kvxfer

UNKNOWN = "unknown"


def environment() -> dict[str, str | int | float]:
    """Versions, processor, load and revision, for the JSON of a benchmark."""
    return {
        "kvxfer": kvxfer.__version__,
        "revision": revision(Path(kvxfer.__file__)),
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": cpu_name(),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0,
        "load_1min": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else 0.0,
    }


def cpu_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's name as the system gives it."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == "model name" and value.strip():
            return value.strip()
    return platform.processor() or UNKNOWN


def revision(source: Path) -> str:
    """The commit that `source` was read from, with -dirty where files differ from it.

    Only where git tracks that very file: a package that was installed below some other
    checkout has no revision of that checkout.
    """
    if _git(source.parent, "ls-files", "--error-unmatch", source.name) is None:
        return UNKNOWN
    found = _git(source.parent, "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*")
    return found or UNKNOWN


def _git(folder: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(
            ("git", "-C", str(folder), *words),
            capture_output=True,
            text=True,
            check=False,
            timeout=20,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
