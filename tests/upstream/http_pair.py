"""A real pair behind vLLM's own toy proxy, and vLLM's tests that speak HTTP to it.

Owns the start of both engines, the proxy and the tests; `kvxfer_vllm.pd` has the
recipes. Invariant: the proxy and the tests are vLLM's, read from its source distribution.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import attrs
import click
import sdist

from kvxfer_vllm.pd import engines
from kvxfer_vllm.pd.client import MODEL_NAME, Client, completion
from kvxfer_vllm.pd.engines import EngineSpec, Stack, Tuning
from kvxfer_vllm.pd.model import ModelShape, write_model
from kvxfer_vllm.pd.pair import WARM_TOKENS, fresh_engine_id
from kvxfer_vllm.pd.ports import LOOPBACK, pick_ports
from kvxfer_vllm.pd.processes import Program, Running, Supervisor
from kvxfer_vllm.pd.prompts import prompt

START_S = 400.0
TUNING = Tuning(block_tokens=32)
"""The tests' prompts are 11, 178 and 307 characters, a token each: a block, 6 and 10."""

CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def write_text_model(folder: Path) -> Path:
    """The harness's model with a tokenizer for plain text: a token for each byte."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    shape = ModelShape()
    write_model(folder, shape)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    # The model's other tokens have names of their own: no answer passes for another.
    rest = [f"<{index}>" for index in range(len(alphabet), shape.vocab)]
    vocabulary = {word: index for index, word in enumerate([*alphabet, *rest])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": rest[-1],
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1))
    return folder


def _spec(name: str, port: int, kv_port: int) -> EngineSpec:
    """vLLM's own scripts start both engines with this role."""
    engine_id = fresh_engine_id(name)
    return EngineSpec(name=name, port=port, role="kv_both", engine_id=engine_id, kv_port=kv_port)


@attrs.define
class _Set:
    """P, D, a plain engine and the proxy, on loopback."""

    supervisor: Supervisor
    stack: Stack
    root: Path
    model: Path
    ports: list[int] = attrs.field(factory=lambda: pick_ports(6))
    specs: list[EngineSpec] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        p, kv_p, d, kv_d, plain, _ = self.ports
        self.specs = [
            _spec("P", p, kv_p),
            _spec("D", d, kv_d),
            EngineSpec(name="plain", port=plain),
        ]

    async def start(self) -> None:
        logs = self.root / "logs"
        logs.mkdir(exist_ok=True)
        running: dict[str, Running] = {}
        for spec in self.specs:
            program = engines.program(spec, self.stack, TUNING, self.model, os.environ, logs)
            # The edge cases are hits in the prefix cache.
            argv = [word for word in program.argv if word != "--no-enable-prefix-caching"]
            program = attrs.evolve(program, argv=[*argv, "--enable-prefix-caching"])
            running[spec.url] = self.supervisor.start(program)
        proxy = self._proxy(logs)
        async with Client.open() as client:
            for spec in self.specs:
                await _until_up(client, spec.url, running[spec.url])
                await client.complete(spec.url, completion(prompt(WARM_TOKENS, "warm-up"), 4))
            running[self.proxy_url] = self.supervisor.start(proxy)
            await _until_up(client, self.proxy_url, running[self.proxy_url], "/healthcheck")

    @property
    def proxy_url(self) -> str:
        return f"http://{LOOPBACK}:{self.ports[5]}"

    def _proxy(self, logs: Path) -> Program:
        p, _, d, _, _, port = (str(port) for port in self.ports)
        script = self.root / sdist.TESTS / "nixl_integration/toy_proxy_server.py"
        argv = [sys.executable, str(script), "--port", port, "--host", LOOPBACK]
        argv += ["--prefiller-hosts", LOOPBACK, "--prefiller-ports", p]
        argv += ["--decoder-hosts", LOOPBACK, "--decoder-ports", d]
        return Program(name="proxy", argv=argv, env=dict(os.environ), log=logs / "proxy.log")


async def _until_up(client: Client, url: str, running: Running, path: str = "/health") -> None:
    end = asyncio.get_running_loop().time() + START_S
    while not await client.is_up(url, path):
        if not running.alive() or asyncio.get_running_loop().time() > end:
            raise click.ClickException(f"{running.name} is not up: see its log")
        await asyncio.sleep(0.25)


def run(connector: str, root: Path, model: Path) -> bool:
    """Edge cases of prefix hits, and the answers of a pair against those of one engine."""
    with Supervisor() as supervisor:
        pair = _Set(supervisor, Stack(connector=connector), root, model)
        asyncio.run(pair.start())
        return _edge_cases(pair) and _accuracy(pair)


def _edge_cases(pair: _Set) -> bool:
    p, _, d, _, _, proxy = (str(port) for port in pair.ports)
    places = {"PREFILL_PORT": p, "DECODE_PORT": d, "PROXY_PORT": proxy}
    hosts = dict.fromkeys(("PREFILL_HOST", "DECODE_HOST", "PROXY_HOST"), LOOPBACK)
    test = pair.root / sdist.TESTS / "nixl_integration/test_edge_cases.py"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += ["-c", os.devnull, "--rootdir", str(pair.root), str(test)]
    environment = os.environ | places | hosts
    return _ended_well(command, pair.root, environment)


def _accuracy(pair: _Set) -> bool:
    """The script is called twice, as vLLM's own CI does: it stores answers, then compares."""
    script = pair.root / sdist.TESTS / "nixl_integration/test_disagg_accuracy.py"
    answers = pair.root / "logs" / "answers.txt"
    plain = pair.specs[2].url
    for mode, url in (("baseline", plain), ("disagg", pair.proxy_url)):
        command = [sys.executable, str(script), "--service_url", url, "--mode", mode]
        command += ["--model_name", MODEL_NAME, "--file_name", str(answers)]
        if not _ended_well(command, pair.root, dict(os.environ)):
            return False
    return True


def _ended_well(command: list[str], folder: Path, environment: dict[str, str]) -> bool:
    done = subprocess.run(command, cwd=folder, env=environment, check=False, timeout=300)
    return done.returncode == 0
