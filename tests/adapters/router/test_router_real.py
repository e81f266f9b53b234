"""The router before real vLLM engines, two of each kind, two of which are killed on the way.

Needs vLLM, 11 GB of memory and minutes. Every answer, however it came, must be the one that
an engine gives which is asked directly and has been sent no KV yet.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import aiohttp
import attrs
import pytest

from kvxfer_vllm.pd import engines, processes
from kvxfer_vllm.pd.check import ANSWER_TOKENS, references
from kvxfer_vllm.pd.client import COMPLETIONS, MODEL_NAME, Client, completion, tokens_of
from kvxfer_vllm.pd.engines import EngineSpec, Stack, Tuning
from kvxfer_vllm.pd.metrics import BY_SOURCE, EXTERNAL
from kvxfer_vllm.pd.model import ModelShape, write_model
from kvxfer_vllm.pd.pair import WARM_TOKENS, Setting, fresh_engine_id
from kvxfer_vllm.pd.ports import LOOPBACK, pick_ports
from kvxfer_vllm.pd.processes import Program, Running, Supervisor
from kvxfer_vllm.pd.prompts import check_prompts, prompt

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1500)]

PROMPTS = 12
SOURCE = "KVXFER_VLLM_SOURCE"
"""Folder of vLLM's source distribution: where it is given, vLLM's own proxies are run, too."""
ROUTER = "KVXFER_VLLM_ROUTER"
"""The command `vllm-router`, likewise."""
COUNTED_S = 60.0
UP_S = 600.0
"""Four engines that start at once on two busy cores need long."""


@attrs.define
class Fleet:
    """Real engines, the router before them, and what each was started as."""

    setting: Setting
    router_url: str = ""
    running: dict[str, Running] = attrs.field(factory=dict)

    async def start(self, *specs: EngineSpec) -> None:
        setting = self.setting
        for spec in specs:
            what = engines.program(spec, Stack(), Tuning(), setting.model, os.environ, setting.run)
            self.running[spec.name] = setting.supervisor.start(what)
        await asyncio.gather(*(self.until_up(spec.name, spec.url) for spec in specs))
        for spec in specs:
            warm = completion(prompt(WARM_TOKENS, "warm-up"), 4)
            assert (await setting.client.complete(spec.url, warm)).good
            processes.pin(self.running[spec.name].pid, os.sched_getaffinity(0))

    async def start_router(self, file: Path, *options: str) -> None:
        port = pick_ports(1)[0]
        argv = [sys.executable, "-m", "kvxfer_router", "--port", str(port)]
        argv += ["--engines", str(file), "--check-s", "1", *options]
        log = self.setting.run / "router.log"
        program = Program(name="router", argv=argv, env=dict(os.environ), log=log)
        self.running["router"] = self.setting.supervisor.start(program)
        self.router_url = f"http://{LOOPBACK}:{port}"
        await self.until_up("router", self.router_url)

    async def start_other(self, name: str, url: str, path: str, argv: list[str]) -> None:
        """A proxy that is not ours."""
        log = self.setting.run / f"{name}.log"
        program = Program(name=name, argv=argv, env=dict(os.environ), log=log)
        self.running[name] = self.setting.supervisor.start(program)
        await self.until_up(name, url, path)

    async def until_up(self, name: str, url: str, path: str = "/health") -> None:
        async with asyncio.timeout(UP_S), aiohttp.ClientSession() as session:
            while not await answers(session, url + path):
                assert self.running[name].alive(), name
                await asyncio.sleep(0.25)

    async def answers(
        self,
        mode: str,
        prompts: Sequence[Sequence[int]],
        then: Callable[[], None] | None = None,
        url: str = "",
    ) -> list[tuple[int, ...]]:
        """Tokens of all prompts, 4 at a time; `then` happens when a quarter has been answered."""
        url = (url or self.router_url) + COMPLETIONS
        limit, answered = asyncio.Semaphore(4), 0

        async def ask(session: aiohttp.ClientSession, token_ids: Sequence[int]) -> tuple[int, ...]:
            nonlocal answered
            body = completion(token_ids, ANSWER_TOKENS)
            headers = {"X-Kvxfer-Mode": mode}
            async with (
                limit,
                session.post(url, json=body, headers=headers) as told,
            ):
                text = await told.text()
            answered += 1
            if then is not None and answered == len(prompts) // 4:
                then()
            assert told.status == 200, text
            return tokens_of(text)

        async with aiohttp.ClientSession() as session:
            return list(await asyncio.gather(*(ask(session, one) for one in prompts)))

    async def counted(self, name: str) -> float:
        """A counter of the router, over all its labels."""
        return (await self.setting.client.metrics(self.router_url)).value(f"kvxfer_router_{name}")

    async def external_tokens(self, wanted: float, specs: Sequence[EngineSpec]) -> list[float]:
        """Prompt tokens that each of these was given and did not compute, once all are counted.

        They are published behind the answers, with the next step at the latest.
        """
        given: list[float] = []
        async with asyncio.timeout(COUNTED_S):
            while sum(given) != wanted:
                for spec in specs:
                    assert (await self.setting.client.complete(spec.url, completion([1], 1))).good
                snapshots = [await self.setting.client.metrics(spec.url) for spec in specs]
                given = [one.value(BY_SOURCE, source=EXTERNAL) for one in snapshots]
        return given


async def answers(session: aiohttp.ClientSession, url: str) -> bool:
    """True where this URL is answered by 200."""
    try:
        async with session.get(url, timeout=aiohttp.ClientTimeout(total=2)) as response:
            return response.status == 200
    except (aiohttp.ClientError, TimeoutError, OSError):
        return False


def fleet_file(path: Path, prefills: Sequence[EngineSpec], decodes: Sequence[EngineSpec]) -> Path:
    """The engines as the router reads them."""
    lines = []
    for spec in prefills:
        lines += ["[[prefill]]", f'url = "{spec.url}"', f'engine_id = "{spec.engine_id}"']
        lines += [f'kv_host = "{LOOPBACK}"', f"kv_port = {spec.kv_port}"]
    for spec in decodes:
        lines += ["[[decode]]", f'url = "{spec.url}"']
    path.write_text("\n".join(lines) + "\n")
    return path


Other = tuple[str, list[str]]
"""The path that says that a router is up, and its command."""


def others_at(
    port: int, prefills: Sequence[EngineSpec], decodes: Sequence[EngineSpec]
) -> dict[str, Other]:
    """The routers of others that are at hand."""
    found: dict[str, Other] = {}
    if SOURCE in os.environ:
        found |= proxies_of_vllm(Path(os.environ[SOURCE]), port, prefills, decodes)
    if ROUTER in os.environ:
        argv = argv_of_vllm_router(os.environ[ROUTER], port, prefills, decodes)
        found["vllm-router"] = ("/health", argv)
    return found


def proxies_of_vllm(
    source: Path, port: int, prefills: Sequence[EngineSpec], decodes: Sequence[EngineSpec]
) -> dict[str, Other]:
    toy = source / "tests/v1/kv_connector/nixl_integration/toy_proxy_server.py"
    demo = (
        source / "examples/disaggregated/disaggregated_serving/disagg_proxy_pushconnector_demo.py"
    )
    p_ports, d_ports = ([str(spec.port) for spec in some] for some in (prefills, decodes))
    first = prefills[0]
    # Both take hosts by address only; the push demo knows one P.
    toy_argv = [sys.executable, str(toy), "--host", LOOPBACK, "--port", str(port)]
    toy_argv += ["--prefiller-hosts", *[LOOPBACK] * len(p_ports), "--prefiller-ports", *p_ports]
    toy_argv += ["--decoder-hosts", *[LOOPBACK] * len(d_ports), "--decoder-ports", *d_ports]
    demo_argv = [sys.executable, str(demo), "--model", MODEL_NAME, "--port", str(port)]
    demo_argv += ["--prefill", f"{LOOPBACK}:{first.port}"]
    demo_argv += ["--decode", *(f"{LOOPBACK}:{port}" for port in d_ports)]
    demo_argv += ["--prefill-engine-id", first.engine_id, "--prefill-kv-host", LOOPBACK]
    demo_argv += ["--prefill-side-channel-port", str(first.kv_port)]
    return {"toy": ("/healthcheck", toy_argv), "demo": ("/status", demo_argv)}


def argv_of_vllm_router(
    command: str, port: int, prefills: Sequence[EngineSpec], decodes: Sequence[EngineSpec]
) -> list[str]:
    """The vllm-router project's command."""
    argv = [command, "--vllm-pd-disaggregation", "--kv-connector", "nixl"]
    argv += [word for spec in prefills for word in ("--prefill", spec.url)]
    argv += [word for spec in decodes for word in ("--decode", spec.url)]
    argv += ["--policy", "round_robin", "--host", LOOPBACK, "--port", str(port)]
    return [*argv, "--prometheus-port", str(pick_ports(1)[0])]


def specs_of() -> list[EngineSpec]:
    """Two of P, two of D."""
    roles = {"P0": "kv_producer", "P1": "kv_producer", "D0": "kv_consumer", "D1": "kv_consumer"}
    ports = iter(pick_ports(2 * len(roles)))
    return [
        EngineSpec(
            name=name,
            port=next(ports),
            role=role,
            engine_id=fresh_engine_id(name),
            kv_port=next(ports),
        )
        for name, role in roles.items()
    ]


def test_two_of_each_answer_as_one_engine_does(tmp_path: Path) -> None:
    asyncio.run(asyncio.wait_for(play(tmp_path), 1400))


async def play(run: Path) -> None:
    shape = ModelShape()
    write_model(run / "model", shape)
    with Supervisor() as supervisor:
        async with Client.open() as client:
            setting = Setting(
                supervisor=supervisor, client=client, model=run / "model", run=run, say=print
            )
            await check(Fleet(setting), run)


async def check(fleet: Fleet, run: Path) -> None:
    prompts = check_prompts(PROMPTS, "router")
    specs = specs_of()
    prefills, decodes = specs[:2], specs[2:]
    await fleet.start(*specs)
    expected = await references(fleet.setting, decodes[1].url, prompts)
    await fleet.start_router(
        fleet_file(run / "fleet.toml", prefills, decodes), "--on-prefill-failure", "fail"
    )
    prompt_tokens = sum(len(one) for one in prompts)
    for number, mode in enumerate(("push", "pull", "auto"), start=1):
        assert await fleet.answers(mode, prompts) == expected, mode
        given = await fleet.external_tokens(number * prompt_tokens, decodes)
        assert all(given), "both D were given some"
    assert await fleet.counted("retries_total") == 0
    port = pick_ports(1)[0]
    url = f"http://{LOOPBACK}:{port}"
    others = others_at(port, prefills, decodes)
    for number, (name, (path, argv)) in enumerate(others.items(), start=4):
        await fleet.start_other(name, url, path, argv)
        assert await fleet.answers("", prompts, url=url) == expected, name
        await fleet.external_tokens(number * prompt_tokens, decodes)
        fleet.setting.supervisor.end(fleet.running.pop(name))
    for victim in ("P0", "D0"):
        killed = fleet.running[victim].kill
        assert await fleet.answers("push", prompts, then=killed) == expected, victim
    assert await fleet.counted("retries_total") > 0
    assert await fleet.counted("dispatches_total") == 5 * PROMPTS
    assert await fleet.counted("dispatches_live") == 0
