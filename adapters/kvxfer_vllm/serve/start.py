"""`up`: start one host's part of a set and wait until it serves.

Owns the start, the wait and the end of what was started where the wait fails. Invariant:
`bring_up` leaves all programs running and recorded, or none; other hosts' programs and
what was running before are left alone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import attrs

from kvxfer.errors import LocalFault
from kvxfer_vllm.pd.client import Client, completion
from kvxfer_vllm.pd.processes import Running, Supervisor
from kvxfer_vllm.serve.lines import Line, lines_of
from kvxfer_vllm.serve.records import RunFolder
from kvxfer_vllm.serve.setfile import PdSet, Router

POLL_S = 0.25
SAY_EVERY_S = 10.0
LOG_LINES = 15
WARM_ANSWER_TOKENS = 4

Say = Callable[[str], None]


@attrs.frozen(kw_only=True)
class Started:
    """A program of this call."""

    line: Line
    running: Running
    url: str
    log: Path

    @property
    def name(self) -> str:
        return self.line.member.name


async def bring_up(pd_set: PdSet, host: str | None, say: Say) -> list[Started]:
    """Start this host's part, all at once, and wait for each to serve.

    Raises BadValue where the file does not allow it, LocalFault where something of it runs
    already, or dies, or is not up within `start_s`; then all of this call are ended again.
    """
    folder = RunFolder(pd_set.run)
    lines = lines_of(pd_set, host)
    programs = [line.program(pd_set.run) for line in lines]
    with folder.locked(), Supervisor(grace_s=pd_set.end_s) as supervisor:
        _refuse_running(folder, lines)
        started = []
        for line, program in zip(lines, programs, strict=True):
            program.log.unlink(missing_ok=True)
            running = supervisor.start(program)
            folder.write(program.name, running.pid, line.shell(), program.log)
            url = pd_set.url(line.member)
            started.append(Started(line=line, running=running, url=url, log=program.log))
        try:
            await _until_all_serve(pd_set, started, say)
        except BaseException:
            folder.forget([one.name for one in started])
            raise
        supervisor.leave_running()
    return started


def _refuse_running(folder: RunFolder, lines: Sequence[Line]) -> None:
    for line in lines:
        record = folder.read(line.member.name)
        if record is not None and record.is_here and record.mark.group():
            raise LocalFault(
                f"{record.name} runs already, pid {record.mark.pid}: kvxfer pd down ends it"
            )


async def _until_all_serve(pd_set: PdSet, started: Sequence[Started], say: Say) -> None:
    begun_s = time.monotonic()
    waiting = {one.name for one in started}

    async def one_serves(client: Client, one: Started) -> None:
        await _until_up(client, one, begun_s + pd_set.start_s)
        if pd_set.warm_tokens and not isinstance(one.line.member, Router):
            await _warm(client, pd_set, one)
        waiting.discard(one.name)
        say(f"{one.name} serves at {one.url} after {time.monotonic() - begun_s:.0f} s")

    async def tell() -> None:
        while True:
            await asyncio.sleep(SAY_EVERY_S)
            passed_s = time.monotonic() - begun_s
            say(f"{passed_s:.0f} s: waiting for {', '.join(sorted(waiting))}")

    async with Client.open() as client:
        telling = asyncio.create_task(tell())
        waits = [asyncio.create_task(one_serves(client, one)) for one in started]
        try:
            # The first that fails ends the wait for all.
            await asyncio.gather(*waits)
        finally:
            for task in (telling, *waits):
                task.cancel()
            await asyncio.gather(telling, *waits, return_exceptions=True)


async def _until_up(client: Client, one: Started, deadline_s: float) -> None:
    while not await client.is_up(one.url):
        if not one.running.alive():
            raise LocalFault(f"{one.name} ended while it started\n{log_end(one.log)}")
        if time.monotonic() >= deadline_s:
            raise LocalFault(f"{one.name} is not up in time\n{log_end(one.log)}")
        await asyncio.sleep(POLL_S)


async def _warm(client: Client, pd_set: PdSet, one: Started) -> None:
    """An engine serves once it has answered: on some CPUs its first, tiny, step kills it."""
    prompt = [1] * pd_set.warm_tokens
    model = _served_name(pd_set, one)
    answer = await client.complete(one.url, completion(prompt, WARM_ANSWER_TOKENS, model=model))
    if not answer.good:
        raise LocalFault(f"{one.name} answers no request: {answer}\n{log_end(one.log)}")


def _served_name(pd_set: PdSet, one: Started) -> str:
    words = one.line.words
    option = "--served-model-name"
    return words[words.index(option) + 1] if option in words else pd_set.model


def log_end(log: Path) -> str:
    """The last lines of a log, under its name."""
    try:
        lines = log.read_text(errors="replace").splitlines()[-LOG_LINES:]
    except OSError as error:
        lines = [str(error)]
    return "\n".join([f"end of {log}:", *lines])
