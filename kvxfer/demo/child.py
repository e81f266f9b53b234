"""The process of a prefill engine: `python -m kvxfer.demo.child FD`.

Owns nothing but the loop that reads commands from the socket FD and sends
reports back. Invariant: it ends when the other end of the socket is closed.
"""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

from kvxfer.core.ids import TransferId
from kvxfer.demo.cache import CacheShape
from kvxfer.demo.engines import Job
from kvxfer.demo.producers import LocalProducer
from kvxfer.demo.reports import EngineDied, Ready, Report, to_line
from kvxfer.demo.sequence import Prompt
from kvxfer.demo.setup import EngineSetup
from kvxfer.errors import KvxferError


def main(fd: int) -> int:
    """Serve until the run closes its end. Exit status 0, or 1 where the engine cannot start."""
    # The run may go at any moment, before its first word too: then nobody is left to tell.
    gone = contextlib.suppress(ConnectionError)
    with gone, socket.socket(fileno=fd) as pipe, pipe.makefile("r", encoding="utf-8") as lines:
        lock = threading.Lock()

        def send(report: Report) -> None:
            with lock:
                pipe.sendall(to_line(report).encode() + b"\n")

        first = next(lines, "")
        return _serve(_setup(json.loads(first)["setup"]), lines, send) if first else 0
    return 0


def _serve(setup: EngineSetup, lines: Iterable[str], send: Callable[[Report], None]) -> int:
    try:
        producer = LocalProducer.start(setup, send)
    except KvxferError as error:
        send(EngineDied(engine=setup.engine_id, error=str(error), usage=True))
        return 1
    try:
        send(Ready(addresses=[(p.engine_id, p.rank, p.host, p.port) for p in producer.producers]))
        for line in lines:
            _obey(producer, json.loads(line), send)
    finally:
        producer.close()
    return 0


def _obey(producer: LocalProducer, command: dict[str, Any], send: Callable[[Report], None]) -> None:
    if "prefill" in command:
        fields = command["prefill"]
        prompt = Prompt(**fields["prompt"])
        tid, streams = TransferId(fields["transfer_id"]), fields["streams"]
        producer.submit(Job(transfer_id=tid, prompt=prompt, streams=streams))
    elif "withdraw" in command:
        producer.withdraw(TransferId(command["withdraw"]["transfer_id"]))
    elif "state" in command:
        send(producer.state(**command["state"]))
    else:
        raise ValueError(f"unknown command: {sorted(command)}")


def _setup(fields: dict[str, Any]) -> EngineSetup:
    return EngineSetup(**{**fields, "cache": CacheShape(**fields["cache"])})


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
