"""The Neuron connector in vLLM's own servers, on CPU, with Neuron's cache shape imitated.

vLLM's kernels compute on a cache (2, blocks, heads, block, dim), see neuron_cpu_engine.py.
Needs vLLM and minutes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

REQUESTS = 8


@pytest.mark.parametrize("mode", ["push", "pull", "push-stream"])
def test_every_answer_is_the_plain_engines_and_comes_by_transfer(tmp_path: Path, mode: str) -> None:
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [
            *(sys.executable, "-m", "kvxfer_vllm.pd", "--connector-module", "neuron_cpu_engine"),
            *("--run-dir", str(tmp_path), "check", "--mode", mode, "--requests", f"{REQUESTS}"),
        ],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": path},
    )
    verdict = json.loads(done.stdout.splitlines()[-1])
    assert verdict["good"], verdict
    assert verdict["identical"] == REQUESTS
    logs = "".join(log.read_text() for log in tmp_path.rglob("[PD].log"))
    assert logs.count("Neuron's cache, planes ['k', 'v'], ") >= 2
