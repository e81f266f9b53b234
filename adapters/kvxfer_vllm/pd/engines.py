"""How one vLLM engine is started: its command line and its environment.

Owns the recipe for vLLM's CPU build on loopback. Starts nothing. Invariant: a recipe
depends on its arguments only, so that an engine can be started again exactly alike.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import attrs

from kvxfer_vllm.pd.client import MODEL_NAME
from kvxfer_vllm.pd.ports import LOOPBACK
from kvxfer_vllm.pd.processes import Program

MODEL_TOKENS_MAX = 4096
LAYER_SLICES = 4
"""In `push-layers` the last chunk leaves in so many slices."""


class Policy(Enum):
    """vLLM's `kv_load_failure_policy`."""

    FAIL = "fail"
    RECOMPUTE = "recompute"


class Mode(Enum):
    """How the KV gets from P to D."""

    PUSH = "push"
    PULL = "pull"
    PUSH_STREAM = "push-stream"
    """Push by chunks, while P still computes."""
    PUSH_LAYERS = "push-layers"
    """The same, and the last chunk by slices of layers."""

    @property
    def connector(self) -> str:
        """The class to ask for where none is named."""
        return "NixlPullConnector" if self is Mode.PULL else "NixlPushConnector"

    @property
    def streams(self) -> bool:
        """KV leaves while P still computes."""
        return self in (Mode.PUSH_STREAM, Mode.PUSH_LAYERS)

    @property
    def order(self) -> str:
        """Order of a router's legs."""
        return "pull" if self is Mode.PULL else "push"


@attrs.frozen(kw_only=True)
class Stack:
    """The connector under test: a class, and the module to take it from (None: in-tree)."""

    connector: str = "NixlPushConnector"
    module: str | None = "kvxfer_vllm"
    mode: Mode = Mode.PUSH

    @property
    def is_kvxfer(self) -> bool:
        return self.module is not None

    @property
    def options(self) -> dict[str, Any]:
        """What the mode asks of `kv_connector_extra_config`."""
        if not self.is_kvxfer or not self.mode.streams:
            return {}
        layers = {"layer_slices": LAYER_SLICES} if self.mode is Mode.PUSH_LAYERS else {}
        return {"stream": True, **layers}

    @property
    def name(self) -> str:
        """For reports."""
        return self.connector if self.module is None else f"{self.module}.{self.connector}"

    def registered(self, name: str) -> tuple[str, str]:
        """Engine and pattern of the log line which says that D's registration left for P.

        kvxfer's producer says itself that it holds the registration. The in-tree
        connector's producer does not; its consumer says that it has sent it.
        """
        if self.is_kvxfer:
            return "P", rf"(grant parked|matched) .*{name}"
        return "D", f"Sent PUSH_REG for cmpl-{name}"


@attrs.frozen(kw_only=True)
class Tuning:
    """What all engines of one command share. Sizes in tokens or bytes, as named."""

    dtype: str = "float32"
    block_tokens: int = 128
    cache_bytes: int = 512 << 20
    step_tokens_max: int = 4096
    """Most tokens that one engine step computes; small values make prefill take many steps."""
    log_level: str = "INFO"
    policy: Policy = Policy.FAIL
    options: Mapping[str, Any] = attrs.field(factory=dict)
    """`kv_connector_extra_config` of both engines of a pair."""
    arguments: tuple[str, ...] = ()
    """More of the command line, of all engines."""


@attrs.frozen(kw_only=True)
class EngineShape:
    """How an engine is shared out, and its block size; None: as tuned for all."""

    tensor_ranks: int = 1
    pipeline_ranks: int = 1
    block_tokens: int | None = None

    @property
    def ranks(self) -> int:
        return self.tensor_ranks * self.pipeline_ranks


@attrs.frozen(kw_only=True)
class EngineSpec:
    """One engine. `role` None is a plain engine without a connector."""

    name: str
    port: int
    role: str | None = None
    engine_id: str = ""
    kv_port: int = 0
    shape: EngineShape = EngineShape()

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"


def program(
    spec: EngineSpec, stack: Stack, tuning: Tuning, model: Path, env: Mapping[str, str], run: Path
) -> Program:
    """The engine as a program that logs to `run`. `env` is what it inherits."""
    return Program(
        name=spec.name,
        argv=argv(spec, stack, tuning, model),
        env={**env, **environment(spec, tuning)},
        log=run / f"{spec.name}.log",
    )


def argv(spec: EngineSpec, stack: Stack, tuning: Tuning, model: Path) -> list[str]:
    """The command line, for the Python that runs this."""
    # The `vllm` command asks for a distribution of that name, which the CPU build is not.
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    options = {
        "--model": str(model),
        "--served-model-name": MODEL_NAME,
        "--host": LOOPBACK,
        "--port": str(spec.port),
        "--max-model-len": str(MODEL_TOKENS_MAX),
        "--max-num-seqs": "64",
        "--max-num-batched-tokens": str(tuning.step_tokens_max),
        "--dtype": tuning.dtype,
        "--seed": "0",
        "--block-size": str(spec.shape.block_tokens or tuning.block_tokens),
        "--tensor-parallel-size": str(spec.shape.tensor_ranks),
        "--pipeline-parallel-size": str(spec.shape.pipeline_ranks),
        "--kv-cache-memory-bytes": str(tuning.cache_bytes),
    }
    for option, value in options.items():
        command += [option, value]
    command += tuning.arguments
    # A prefix cache at D would hide whether a transfer took place.
    command += ["--enforce-eager", "--no-enable-prefix-caching", "--disable-uvicorn-access-log"]
    if spec.role is not None:
        command += ["--kv-transfer-config", json.dumps(transfer_config(spec, stack, tuning))]
    return command


def transfer_config(spec: EngineSpec, stack: Stack, tuning: Tuning) -> dict[str, Any]:
    """vLLM's KVTransferConfig for this engine."""
    options = {**stack.options, **tuning.options}
    config: dict[str, Any] = {
        "kv_connector": stack.connector,
        "kv_role": _role(spec, options),
        "engine_id": spec.engine_id,
        "kv_buffer_device": "cpu",
        "kv_load_failure_policy": tuning.policy.value,
    }
    if stack.module is not None:
        config["kv_connector_module_path"] = stack.module
    if options:
        config["kv_connector_extra_config"] = options
    return config


def _role(spec: EngineSpec, options: Mapping[str, Any]) -> str | None:
    """A producer that reads back is a consumer, too."""
    reads_back = spec.role == "kv_producer" and options.get("bidirectional_kv_xfer")
    return "kv_both" if reads_back else spec.role


def environment(spec: EngineSpec, tuning: Tuning) -> dict[str, str]:
    """Variables on top of the inherited ones: one thread, loopback, no calls home."""
    variables = {
        "OMP_NUM_THREADS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_HOST_IP": LOOPBACK,
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_LOGGING_LEVEL": tuning.log_level,
        "NIXL_LOG_LEVEL": "WARN",
    }
    if spec.role is not None:
        variables["VLLM_NIXL_SIDE_CHANNEL_HOST"] = LOOPBACK
        variables["VLLM_NIXL_SIDE_CHANNEL_PORT"] = str(spec.kv_port)
    return variables
