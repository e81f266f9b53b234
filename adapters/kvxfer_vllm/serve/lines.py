"""The command lines of a set: exactly what `up` starts, and what people can type instead.

Owns the options that a set stands for. Starts nothing. Invariant: a line depends on the
file alone, so that every host prints the same ones.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

import attrs

from kvxfer.errors import BadValue
from kvxfer_vllm.pd.engines import EngineSpec, Tuning, transfer_config
from kvxfer_vllm.pd.processes import Program
from kvxfer_vllm.serve.setfile import Engine, Kind, Member, PdSet, Router

ROLES = {Kind.PREFILL: "kv_producer", Kind.DECODE: "kv_consumer"}


@attrs.frozen(kw_only=True)
class Line:
    """One program: its words, and the variables it needs on top of the inherited ones."""

    member: Member
    words: tuple[str, ...]
    env: Mapping[str, str]

    def shell(self) -> str:
        """As a shell takes it."""
        variables = [f"{key}={shlex.quote(value)}" for key, value in self.env.items()]
        return " ".join([*variables, shlex.join(self.words)])

    def program(self, run: Path) -> Program:
        """As it is started here. Raises BadValue where the command is not installed."""
        return Program(
            name=self.member.name,
            argv=(_found(self.words[0]), *self.words[1:]),
            env={**os.environ, **self.env},
            log=run / f"{self.member.name}.log",
        )


def lines_of(pd_set: PdSet, host: str | None = None) -> list[Line]:
    """The lines of one host, or of all. Raises BadValue."""
    return [
        _router_line(pd_set, member) if isinstance(member, Router) else _engine_line(pd_set, member)
        for member in pd_set.part(host)
    ]


def _engine_line(pd_set: PdSet, engine: Engine) -> Line:
    address = pd_set.address(engine)
    words = (
        *(*pd_set.serve, pd_set.model),
        *("--host", address, "--port", str(engine.port)),
        *("--kv-transfer-config", json.dumps(_connector(pd_set, engine))),
        *engine.args,
    )
    control = {
        "VLLM_NIXL_SIDE_CHANNEL_HOST": address,
        "VLLM_NIXL_SIDE_CHANNEL_PORT": str(engine.kv_port),
    }
    return Line(member=engine, words=words, env={**control, **engine.env})


def _connector(pd_set: PdSet, engine: Engine) -> dict[str, object]:
    spec = EngineSpec(
        name=engine.name,
        port=engine.port,
        role=ROLES[engine.kind],
        engine_id=pd_set.engine_id(engine),
        kv_port=engine.kv_port,
    )
    tuning = Tuning(policy=pd_set.policy, options=pd_set.options)
    config = transfer_config(spec, pd_set.stack, tuning)
    del config["kv_buffer_device"]
    return config if pd_set.device is None else config | {"kv_buffer_device": pd_set.device}


def _router_line(pd_set: PdSet, router: Router) -> Line:
    options = [
        ("--mode", pd_set.stack.mode.order),
        ("--host", pd_set.address(router)),
        ("--port", str(router.port)),
    ]
    # The n-th id, host and port belong to the n-th prefill engine.
    for engine in pd_set.of(Kind.PREFILL):
        options += [
            ("--prefill", pd_set.url(engine)),
            ("--prefill-engine-id", pd_set.engine_id(engine)),
            ("--prefill-kv-host", pd_set.address(engine)),
            ("--prefill-kv-port", str(engine.kv_port)),
        ]
    options += [("--decode", pd_set.url(engine)) for engine in pd_set.of(Kind.DECODE)]
    words = ("kvxfer-router", *(word for option in options for word in option))
    return Line(member=router, words=(*words, *router.args), env={})


def _found(command: str) -> str:
    """The command beside this Python, which may not be on the path, or on the path."""
    beside = shutil.which(command, path=str(Path(sys.executable).parent))
    found = beside or shutil.which(command)
    if found is None:
        raise BadValue("command", command, "a program beside this Python or on PATH")
    return found
