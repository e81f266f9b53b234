"""Pairs whose end b lives in a process of its own.

Owns that process and the table of stand-ins through which the kit calls it.
Refuses to judge. Invariants: a call to the far end ends after `_ANSWER_S` at the
latest, also where the process is stopped or killed; no process outlives its pair.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs
import numpy.typing as npt

from kvxfer.conformance.case import NotSupportedError
from kvxfer.conformance.endpoint import Buffer, Endpoint, MakePair, Pair
from kvxfer.conformance.far_codec import pack, receive, send, unpack_answer
from kvxfer.errors import KvxferError, TransportFault
from kvxfer.status import Status
from kvxfer.transport.caps import Caps
from kvxfer.transport.ops import Memory, TransportOps
from kvxfer.transport.registry import open_transport
from kvxfer.transport.stubs import SLOTS, stub_ops

_ANSWER_S: Final = 60.0
"""Longest wait for an answer of the far end; set-up of a network may take seconds."""


class FarEndGone(KvxferError):
    """The process of end b answers no more."""


class _Process:
    """One far end and the socket to it."""

    def __init__(self, transport: str) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._child = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "kvxfer.conformance.far_end",
                    str(theirs.fileno()),
                    transport,
                ],
                pass_fds=[theirs.fileno()],
                process_group=0,  # Ctrl-C is for the kit, which ends this process
                stdin=subprocess.DEVNULL,
            )
        ours.settimeout(_ANSWER_S)
        self._link = ours

    def ask(self, name: str, *values: Any) -> Any:
        """One request. Raises `FarEndGone`, or `KvxferError` with what went wrong over there."""
        try:
            send(self._link, [name, list(values)])
            done, value = receive(self._link)
        except (OSError, EOFError) as error:
            raise FarEndGone(f"{name}: {type(error).__name__}: {error}") from error
        if not done:
            raise KvxferError(f"at the far end: {value}")
        return value

    def signal(self, number: signal.Signals) -> None:
        self._child.send_signal(number)

    def kill(self) -> None:
        """SIGKILL; returns when the process is gone."""
        self._child.kill()
        self._child.wait()
        self._link.close()


@attrs.frozen
class _FarBuffer:
    """Memory of the far end."""

    memory: Memory
    process: _Process

    def read(self, offset: int, length: int) -> bytes:
        return bytes(self.process.ask("read", self.memory.base + offset, length))

    def write(self, offset: int, data: bytes) -> None:
        self.process.ask("write", self.memory.base + offset, data)


class _Far:
    """End b of one pair; see `kvxfer.conformance.endpoint.FarControl`."""

    def __init__(self, transport: str, options: Mapping[str, Any]) -> None:
        self._transport = transport
        self._options = dict(options)
        self._process = _Process(transport)

    def endpoint(self) -> Endpoint:
        """Open a session over there."""
        process = self._process
        status, session, text = process.ask("open", pack(self._options))
        if status != Status.OK:
            raise TransportFault("open at the far end", Status(status), text)

        def memory(length: int) -> Buffer:
            return _FarBuffer(Memory(base=process.ask("memory", length), length=length), process)

        def view(base: int, length: int) -> Buffer:
            return _FarBuffer(Memory(base=base, length=length), process)

        return Endpoint(
            ops=_stand_ins(self._transport, process),
            session=session,
            memory_factory=memory,
            view=view,
            readable=lambda fd: bool(process.ask("readable", fd)),
        )

    def kill(self) -> None:
        self._process.kill()

    def stop(self) -> None:
        self._process.signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.signal(signal.SIGCONT)

    def restart(self) -> Endpoint:
        self._process = _Process(self._transport)
        return self.endpoint()

    def memory_at(self, base: int, length: int) -> Buffer:
        self._process.ask("memory_at", base, length)
        return _FarBuffer(Memory(base=base, length=length), self._process)


def _stand_ins(transport: str, process: _Process) -> TransportOps:
    """A table whose calls happen at the far end."""

    def slot(name: str) -> Callable[..., Any]:
        def call(*values: Any) -> Any:
            answer = process.ask("call", name, [pack(value) for value in values])
            return unpack_answer(name, answer)

        return call

    def poll(session: int, records: npt.NDArray[Any]) -> tuple[Status, int]:
        status, rows = process.ask("call", "poll", [session, len(records)])
        for at, row in enumerate(rows):
            records[at] = tuple(row)
        return Status(status), len(rows)

    slots = {name: slot(name) for name in SLOTS if name != "open"}
    return attrs.evolve(stub_ops(transport), **(slots | {"poll": poll}))


def _nothing() -> None:
    """Nothing needs to be done between two polls."""


def far_pair_maker(
    transport: str,
    *,
    options: Callable[[str], Mapping[str, Any]] = lambda _name: {},
    step: Callable[[], None] = _nothing,
    wrap: Callable[[TransportOps], TransportOps] = lambda ops: ops,
) -> MakePair:
    """Pairs over the transport of that name whose end b is another process of this host.

    `options(name)` gives the `open` options of the ends "a" and "c", here, and "b", there
    (plain values only). `wrap` is put around the table of this side. A transport that
    declares no CROSS_PROCESS makes the cases unsupported.
    """

    def open_here(ops: TransportOps, name: str) -> Endpoint:
        status, session = ops.open(options(name))
        if status != Status.OK:
            raise TransportFault("open", Status(status), ops.last_error(session))
        return Endpoint(ops=ops, session=session)

    def make_pair() -> Pair:
        ops = wrap(open_transport(transport))
        a = open_here(ops, "a")
        others: list[Endpoint] = []
        if Caps.CROSS_PROCESS not in ops.caps(a.session):
            ops.close(a.session)
            raise NotSupportedError("declares no CROSS_PROCESS")
        far = _Far(transport, options("b"))

        def third() -> Endpoint:
            others.append(open_here(ops, "c"))
            return others[-1]

        def close() -> None:
            # The far end first: a transport must bear that at any moment.
            far.kill()
            for endpoint in (a, *others):
                ops.close(endpoint.session)

        try:
            b = far.endpoint()
        except KvxferError:
            close()
            raise
        return Pair(a=a, b=b, step=step, close=close, third=third, far=far)

    return make_pair
