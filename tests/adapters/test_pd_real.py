"""The real pair: vLLM's own servers with this connector. Needs vLLM and minutes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800)]

COMMAND = [sys.executable, "-m", "kvxfer_vllm.pd"]


def run(tmp_path: Path, *arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [*COMMAND, "--run-dir", str(tmp_path), *arguments],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    verdict: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert done.returncode == (0 if verdict["good"] else 1)
    return verdict


def test_every_answer_is_the_plain_engines_and_comes_by_transfer(tmp_path: Path) -> None:
    verdict = run(tmp_path, "check")
    assert verdict["good"], verdict
    assert (verdict["identical"], verdict["recomputed_requests"]) == (50, 0)


def test_a_hybrid_model_pairs_over_unlike_tensor_ranks(tmp_path: Path) -> None:
    verdict = run(tmp_path, "kinds", "window-tp-2-1")
    assert verdict["good"], verdict


@pytest.mark.parametrize("policy", ["fail", "recompute"])
def test_no_fault_leaves_a_block_a_hang_or_a_wrong_answer(tmp_path: Path, policy: str) -> None:
    verdict = run(tmp_path, "probes", "--policy", policy)
    assert verdict["failed"] == []


def test_a_signal_ends_everything_that_was_started(tmp_path: Path) -> None:
    command = [*COMMAND, "--run-dir", str(tmp_path), "up"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        _, router, _, prefill, _, decode = process.stdout.readline().split()
        for url in (router, prefill, decode):
            with urllib.request.urlopen(url + "/health", timeout=10) as answer:
                assert answer.status == 200
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(timeout=120) == 1
    for url in (router, prefill, decode):
        with pytest.raises(OSError, match="refused"):
            urllib.request.urlopen(url + "/health", timeout=10)
