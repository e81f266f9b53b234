"""The matrix of kinds: its list, its verdicts, and what it sees of stand-in engines."""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import attrs
import pytest

from kvxfer.errors import BadValue
from kvxfer_vllm.config import port_of_rank
from kvxfer_vllm.pd import engines, kind_check
from kvxfer_vllm.pd.client import Client
from kvxfer_vllm.pd.engines import EngineShape, EngineSpec, Mode, Stack, Tuning, argv
from kvxfer_vllm.pd.kind_check import (
    KindReport,
    ModeReport,
    kinds_line,
    run_kind,
    run_mode,
    tuning_of,
)
from kvxfer_vllm.pd.kinds import KINDS, Kind, picked
from kvxfer_vllm.pd.pair import Pair, Setting
from kvxfer_vllm.pd.ports import pick_ports
from kvxfer_vllm.pd.processes import Supervisor
from kvxfer_vllm.pd.prompts import prompt
from kvxfer_vllm.pd.tiny import scale_of

FAKE = Path(__file__).with_name("pd_fake_engine.py")
PROMPTS = [prompt(length, "test") for length in (5, 1, 40, 300)]
EXPECTED = [tuple((sum(token_ids) + i) % 2000 for i in range(32)) for token_ids in PROMPTS]
PUSH = ModeReport(
    mode="push",
    requests=3,
    identical=3,
    tokens_wanted=345,
    tokens_moved=345,
    tokens_computed=0,
    bytes_received=9,
    bytes_read=0,
    streamed=0,
    sliced=0,
    seconds=1.0,
)
REPORT = KindReport(kind="k", modes=(PUSH,), sensitive=2, controls=2, seconds=1.0)


def test_kinds_are_picked_by_name() -> None:
    assert picked(()) == KINDS
    assert [kind.name for kind in picked(["latent", "blocks"])] == ["blocks", "latent"]
    with pytest.raises(BadValue, match="one of blocks, "):
        picked(["dense"])


def test_an_engine_is_started_as_its_kind_says() -> None:
    spec = EngineSpec(name="P", port=1, shape=EngineShape(tensor_ranks=2, block_tokens=64))
    command = argv(spec, Stack(), Tuning(), Path("model"))
    for option, value in (("--tensor-parallel-size", "2"), ("--block-size", "64")):
        assert command[command.index(option) + 1] == value


def test_all_engines_of_a_kind_take_its_arguments() -> None:
    """vLLM's own choice for latents and its workers of several stages do not do here."""
    for name, pair in (
        ("latent", ("--attention-backend", "CPU_MLA")),
        ("latent-tp-2-1", ("--compilation-config", '{"custom_ops": ["none"]}')),
        ("pp-2-1", ("--worker-cls", "kvxfer_vllm.pd.staged_worker.StagedWorker")),
    ):
        (kind,) = picked([name])
        command = argv(EngineSpec(name="P", port=1), Stack(), tuning_of(kind, "float32"), Path("m"))
        at = command.index(pair[0])
        assert tuple(command[at : at + 2]) == pair


def test_the_ports_of_all_ranks_are_free() -> None:
    ports = pick_ports(3, ranks=2)
    assert len({port_of_rank(port, rank) for port in ports for rank in (0, 1)}) == 6


@pytest.mark.parametrize(
    "changes",
    [
        {"identical": 2},
        {"requests": 0, "identical": 0},
        {"tokens_moved": 344},
        {"tokens_computed": 1},
        {"bytes_received": 0},
        {"bytes_read": 9},
        {"streamed": 1},
        {"sliced": 1},
        {"mode": "push-layers", "streamed": 2},
        {"mode": "push-stream"},
        {"mode": "pull"},
    ],
)
def test_a_mode_is_good_only_if_all_came_the_way_it_says(changes: dict[str, object]) -> None:
    assert PUSH.good
    assert attrs.evolve(PUSH, mode="pull", bytes_read=9).good
    assert attrs.evolve(PUSH, mode="push-stream", streamed=2).good
    assert attrs.evolve(PUSH, mode="push-layers", streamed=2, sliced=2).good
    assert not attrs.evolve(PUSH, **changes).good


@pytest.mark.parametrize(
    "changes",
    [
        {"modes": ()},
        {"modes": (attrs.evolve(PUSH, identical=2),)},
        {"sensitive": 1},
        {"sensitive": 0, "controls": 0},
        {"leaked": 1},
        {"quarantined": 1},
        {"problem": "P ended"},
    ],
)
def test_a_kind_is_good_only_if_everything_in_it_is(changes: dict[str, object]) -> None:
    assert REPORT.good
    bad = attrs.evolve(REPORT, **changes)
    assert not bad.good
    assert json.loads(bad.line())["good"] is False
    total = json.loads(kinds_line([REPORT, bad]))
    assert (total["passed"], total["failed"], total["good"]) == (1, ["k"], False)


def test_weights_are_scaled_by_what_they_do() -> None:
    assert scale_of("model.embed_tokens.weight", 64) == 1.0
    assert scale_of("lm_head.weight", 64) == 3.0 / 8
    assert scale_of("model.layers.0.mlp.gate_proj.weight", 64) == 1.0 / 8


@pytest.mark.parametrize(
    ("fault", "identical", "moved", "computed"),
    [("", 4, 345, 0), ("wrong", 0, 345, 0), ("recomputes", 4, 0, 345)],
)
def test_what_a_mode_sees(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
    identical: int,
    moved: int,
    computed: int,
) -> None:
    def fake(spec: EngineSpec, *_: object) -> list[str]:
        return [sys.executable, str(FAKE), str(spec.port), fault if spec.name == "D" else ""]

    monkeypatch.setattr(engines, "argv", fake)

    async def main() -> ModeReport:
        with Supervisor(grace_s=5) as supervisor:
            async with Client.open() as client:
                setting = setting_of(tmp_path, supervisor, client)
                pair = await Pair.start(setting, Stack(), Tuning(), routed=False)
                return await run_mode(pair, KINDS[0], Mode.PUSH, PROMPTS, EXPECTED)

    report = asyncio.run(main())
    assert report.tokens_wanted == 345
    assert (report.identical, report.tokens_moved, report.tokens_computed) == (
        identical,
        moved,
        computed,
    )


def test_a_pair_that_does_not_start_is_a_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fake(spec: EngineSpec, *_: object) -> list[str]:
        return [sys.executable, str(FAKE), str(spec.port), "dies"]

    monkeypatch.setattr(engines, "argv", fake)

    async def main() -> KindReport:
        with Supervisor(grace_s=5) as supervisor:
            async with Client.open() as client:
                kind = Kind(name="none", what="dies")
                setting = setting_of(tmp_path, supervisor, client)
                return await run_kind(setting, kind, "float32")

    report = asyncio.run(main())
    assert not report.good
    assert "no memory for the cache" in report.problem


def test_prompts_of_a_control_differ_in_their_first_quarter_only() -> None:
    one, other = kind_check._control(300)
    assert one[:75] != other[:75]
    assert one[75:] == other[75:]


def setting_of(run: Path, supervisor: Supervisor, client: Client) -> Setting:
    return Setting(supervisor=supervisor, client=client, model=run, run=run, say=[].append)


def test_a_stage_runs_once_before_it_is_warm(monkeypatch: pytest.MonkeyPatch) -> None:
    did: list[str] = []

    class CPUWorker:
        model_runner = SimpleNamespace(profile_run=lambda: did.append("profile"))

        def compile_or_warm_up_model(self) -> str:
            did.append("warm")
            return "times"

    module = ModuleType("vllm.v1.worker.cpu_worker")
    monkeypatch.setattr(module, "CPUWorker", CPUWorker, raising=False)
    for name in ("vllm", "vllm.v1", "vllm.v1.worker"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.delitem(sys.modules, "kvxfer_vllm.pd.staged_worker", raising=False)
    worker = importlib.import_module("kvxfer_vllm.pd.staged_worker").StagedWorker()
    monkeypatch.delitem(sys.modules, "kvxfer_vllm.pd.staged_worker")
    assert worker.compile_or_warm_up_model() == "times"
    assert did == ["profile", "warm"]
