"""A running prefill/decode pair, with a router and a plain engine where asked for.

Owns which programs belong together, their start, their warm-up, and what can be read
from them. Refuses to judge. Invariant: `start` gives engines that have answered a
request, or raises and names the log; all programs belong to the supervisor it was given.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import attrs

from kvxfer.errors import LocalFault
from kvxfer_vllm.pd import engines, processes
from kvxfer_vllm.pd.client import Answer, Client, completion
from kvxfer_vllm.pd.engines import EngineShape, EngineSpec, Stack, Tuning
from kvxfer_vllm.pd.legs import ProducerPlace
from kvxfer_vllm.pd.metrics import Snapshot, blocks_in_use
from kvxfer_vllm.pd.ports import LOOPBACK, pick_ports
from kvxfer_vllm.pd.processes import Program, Running, Supervisor
from kvxfer_vllm.pd.prompts import prompt

START_S = 300.0
"""A quiet machine needs 40 s; one with two cores and a load of 15 was seen to need 223."""
POLL_S = 0.25
WARM_TOKENS = 200
"""vLLM skips its own warm-up in this configuration. On a CPU with AMX and bfloat16 an engine
whose very first step is one token then dies of an illegal instruction."""

Say = Callable[[str], None]


@attrs.frozen(kw_only=True)
class Setting:
    """What one command works with."""

    supervisor: Supervisor
    client: Client
    model: Path
    run: Path
    """Folder of the logs."""
    say: Say
    """Takes a line for people."""


@attrs.define
class Pair:
    """P, D and whatever was started with them."""

    setting: Setting
    stack: Stack
    tuning: Tuning
    prefill: EngineSpec
    decode: EngineSpec
    router_url: str = ""
    _running: dict[str, Running] = attrs.field(factory=dict)

    @classmethod
    async def start(
        cls,
        setting: Setting,
        stack: Stack,
        tuning: Tuning,
        beside: EngineSpec | None = None,
        shapes: tuple[EngineShape, EngineShape] = (EngineShape(), EngineShape()),
        routed: bool = True,
    ) -> Pair:
        """Start P and D with fresh ports and engine ids, `beside` with them, then a router.

        `shapes` are P's and D's.

        All engines start at once: most of their start is imports, which overlap. Raises
        LocalFault if one dies or is not up in time.
        """
        ports = pick_ports(5, shapes[0].ranks)
        pair = cls(
            setting=setting,
            stack=stack,
            tuning=tuning,
            prefill=EngineSpec(
                name="P",
                port=ports[0],
                role="kv_producer",
                engine_id=fresh_engine_id("P"),
                kv_port=ports[1],
                shape=shapes[0],
            ),
            decode=EngineSpec(
                name="D",
                port=ports[2],
                role="kv_consumer",
                engine_id=fresh_engine_id("D"),
                kv_port=ports[3],
                shape=shapes[1],
            ),
        )
        wanted = [pair.prefill, pair.decode] + ([beside] if beside is not None else [])
        await pair._start_engines(wanted)
        if routed:
            await pair._start_router(ports[4])
        return pair

    @property
    def place(self) -> ProducerPlace:
        """Where D finds P."""
        return ProducerPlace(
            engine_id=self.prefill.engine_id,
            kv_port=self.prefill.kv_port,
            tensor_ranks=self.prefill.shape.tensor_ranks,
            pipeline_ranks=self.prefill.shape.pipeline_ranks,
        )

    @property
    def producer_alive(self) -> bool:
        return self.alive(self.prefill)

    def alive(self, spec: EngineSpec) -> bool:
        running = self._running.get(spec.name)
        return running is not None and running.alive()

    def freeze(self, spec: EngineSpec, *, on: bool) -> None:
        """Stop all processes of an engine where they are, or let them go on."""
        self._running[spec.name].signal_group(signal.SIGSTOP if on else signal.SIGCONT)

    def freeze_all(self, *, on: bool) -> None:
        """The same for both engines, the router and what was started beside them.

        A router that ran on would find its engines silent and leave them out.
        """
        for running in self._running.values():
            running.signal_group(signal.SIGSTOP if on else signal.SIGCONT)

    def cpu_seconds(self, spec: EngineSpec) -> float:
        """Processor time of an engine's processes since they started."""
        return processes.cpu_seconds(self._running[spec.name].pid)

    def log(self, name: str) -> Path:
        """Where the engine called `name` logs."""
        return self.setting.run / f"{name}.log"

    def kill_producer(self) -> None:
        """Kill P with all its processes, as a crash does. D and the router are not told."""
        self.kill(self.prefill)

    def kill(self, spec: EngineSpec) -> None:
        """Kill an engine with all its processes."""
        self._running.pop(spec.name).kill()

    async def restart(self, spec: EngineSpec) -> None:
        """Start an engine again as it was, after it was killed."""
        await self._start_engines([spec])

    async def restart_producer(self, engine_id: str) -> None:
        """Start P again on the same ports, after it was killed."""
        self.prefill = attrs.evolve(self.prefill, engine_id=engine_id)
        await self._start_engines([self.prefill])

    async def router_ready(self, limit_s: float) -> bool:
        """True once the router says that it has engines of both kinds; False after `limit_s`."""
        deadline = time.monotonic() + limit_s
        while not await self.setting.client.is_up(self.router_url, "/ready"):
            if time.monotonic() >= deadline:
                return False
            await asyncio.sleep(POLL_S)
        return True

    def end(self, *names: str) -> None:
        """End these programs, all of the pair's where none is named."""
        ended = [self._running.pop(name) for name in (names or tuple(self._running))]
        self.setting.supervisor.end(*ended)

    async def nudge(self, spec: EngineSpec) -> Answer:
        """One plain token in, one out: the engine makes steps and publishes its statistics."""
        return await self.setting.client.complete(spec.url, completion([1], 1))

    async def scrape(self, spec: EngineSpec) -> Snapshot:
        return await self.setting.client.metrics(spec.url)

    async def blocks_held(self, spec: EngineSpec) -> int:
        """KV blocks in use at `spec`, read behind a step that was made just now."""
        await self.nudge(spec)
        return blocks_in_use(await self.scrape(spec))

    async def drained(self, spec: EngineSpec, limit_s: float, at_rest: int = 0) -> int:
        """Wait until `spec` holds `at_rest` blocks; how many it holds then or after `limit_s`.

        Gauges are published behind the answer, so one reading may be old: two readings
        in a row count.
        """
        deadline = time.monotonic() + limit_s
        before = await self.blocks_held(spec)
        while True:
            held = await self.blocks_held(spec)
            if max(held, before) <= at_rest or time.monotonic() >= deadline:
                return max(held, before)
            before = held
            await asyncio.sleep(POLL_S)

    async def _start_engines(self, specs: list[EngineSpec]) -> None:
        setting = self.setting
        for spec in specs:
            what = engines.program(
                spec, self.stack, self.tuning, setting.model, os.environ, setting.run
            )
            self._running[spec.name] = setting.supervisor.start(what)
        started_s = time.monotonic()
        await asyncio.gather(*(self._until_up(spec.name, spec.url) for spec in specs))
        names = ", ".join(spec.name for spec in specs)
        setting.say(f"{names} up after {time.monotonic() - started_s:.0f} s")
        for spec in specs:
            warm = completion(prompt(WARM_TOKENS, "warm-up"), 4)
            answer = await setting.client.complete(spec.url, warm)
            if not answer.good:
                raise LocalFault(f"engine {spec.name} answers no request: {answer}")
            # vLLM's workers bind themselves to the last core of each NUMA node, which P and
            # D would share, and with whatever else this machine does there.
            processes.pin(self._running[spec.name].pid, os.sched_getaffinity(0))

    async def _start_router(self, port: int) -> None:
        setting = self.setting
        setting_env = dict(os.environ)
        what = Program(
            name="router",
            argv=self._router_argv(port),
            env=setting_env,
            log=setting.run / "router.log",
        )
        self._running["router"] = setting.supervisor.start(what)
        self.router_url = f"http://{LOOPBACK}:{port}"
        await self._until_up("router", self.router_url)

    def _router_argv(self, port: int) -> list[str]:
        options = {
            "--mode": self.stack.mode.order,
            "--port": str(port),
            "--prefill": self.prefill.url,
            "--decode": self.decode.url,
            "--prefill-engine-id": self.prefill.engine_id,
            "--prefill-kv-host": LOOPBACK,
            "--prefill-kv-port": str(self.prefill.kv_port),
            # What D could compute alone would hide what the connector did not move.
            "--on-prefill-failure": "fail",
        }
        return [
            sys.executable,
            *("-m", "kvxfer_router"),
            *(word for option in options.items() for word in option),
        ]

    async def _until_up(self, name: str, url: str) -> None:
        deadline = time.monotonic() + START_S
        while not await self.setting.client.is_up(url):
            if not self._running[name].alive():
                raise LocalFault(f"{name} ended while it started; {self._log_end(name)}")
            if time.monotonic() >= deadline:
                raise LocalFault(f"{name} not up after {START_S:.0f} s; {self._log_end(name)}")
            await asyncio.sleep(POLL_S)

    def _log_end(self, name: str) -> str:
        path = self.log(name)
        lines = path.read_text(errors="replace").splitlines()[-15:]
        return "\n".join([f"end of {path}:", *lines])


def fresh_engine_id(name: str) -> str:
    """An engine id that no earlier pair had."""
    return f"{name}-{secrets.token_hex(4)}"
