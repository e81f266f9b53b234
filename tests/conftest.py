"""What all tests share: one thread for matrix work, no test that fails for being slow, Ctrl-C
as a terminal has it, and the sample transport in C, built once."""

from __future__ import annotations

import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from kvxfer.demo.threads import use_one_matrix_thread

# Two agents and two engines share the cores already.
use_one_matrix_thread()

# How long an example takes says how busy the machine is, nothing else. A test's own settings
# start from this profile.
settings.register_profile("kvxfer", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("kvxfer")

# A shell that starts the tests in the background has Ctrl-C ignored, by the tests' children, too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

CMA_SOURCE = Path(__file__).parents[1] / "transports" / "kvxfer_capi" / "sample"


@pytest.fixture(scope="session")
def cma_build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with libcma.so and push."""
    missing = [tool for tool in ("make", "cc") if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"no {' and no '.join(missing)} here")
    out = tmp_path_factory.mktemp("cma")
    done = subprocess.run(
        ["make", "-C", str(CMA_SOURCE), f"OUT={out}"], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture(scope="session")
def cma_library(cma_build: Path) -> str:
    """Path of the sample library."""
    return str(cma_build / "libcma.so")
