"""The Neuron connector in vLLM's own servers, on CPU, with Neuron's cache shape imitated.

vLLM's kernels compute on a cache (2, blocks, heads, block, dim), see neuron_cpu_engine.py; at
both engines, or at one, and the other keeps vLLM's own. Needs vLLM and minutes.
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


PAIRS = [
    ("both", "push"),
    ("both", "pull"),
    ("both", "push-stream"),
    ("kv_producer", "push"),
    ("kv_producer", "pull"),
    ("kv_consumer", "push"),
]
"""Which engine is Neuron's, and the mode."""


@pytest.mark.parametrize(("side", "mode"), PAIRS)
def test_every_answer_is_the_plain_engines_and_comes_by_transfer(
    tmp_path: Path, side: str, mode: str
) -> None:
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    sides = {} if side == "both" else {"KVXFER_NEURON_SIDE": side}
    done = subprocess.run(
        [
            *(sys.executable, "-m", "kvxfer_vllm.pd", "--connector-module", "neuron_cpu_engine"),
            *("--run-dir", str(tmp_path), "check", "--mode", mode, "--requests", f"{REQUESTS}"),
        ],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": path, **sides},
    )
    verdict = json.loads(done.stdout.splitlines()[-1])
    assert verdict["good"], verdict
    assert verdict["identical"] == REQUESTS
    neuron = {"both": "PD", "kv_producer": "P", "kv_consumer": "D"}[side]
    for name in "PD":
        logs = "".join(log.read_text() for log in tmp_path.rglob(f"{name}.log"))
        shaped = "Neuron's cache, planes ['k', 'v'], " in logs
        assert shaped == (name in neuron), f"{name}: Neuron's cache {shaped}"
