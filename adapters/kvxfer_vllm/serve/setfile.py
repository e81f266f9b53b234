"""The set file: which engines a P/D set has, and where.

Owns the reading of the TOML and every bound on it. Starts nothing. Invariant: a set that
was read can be turned into command lines on every one of its hosts, and these are the same
on all of them; every refusal names the key, the value and the bound.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import attrs

from kvxfer.errors import BadValue
from kvxfer_vllm.pd.engines import Mode, Policy, Stack
from kvxfer_vllm.pd.ports import LOOPBACK
from kvxfer_vllm.serve.table import Table

HERE = "here"
"""The one host of a file that names none."""
NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,31}", re.ASCII)
ENGINES_MAX = 256
PORT_MAX = 65_535
KV_PORTS = 16
"""Control ports from one engine of an entry to the next: its ranks count up from the first."""


class Kind(Enum):
    """What a program of a set does."""

    PREFILL = "prefill"
    DECODE = "decode"
    ROUTER = "router"


FIRST_PORTS = {Kind.PREFILL: (8100, 15600), Kind.DECODE: (8200, 17600)}
"""HTTP and control port of the first engine, where an entry names none."""


@attrs.frozen(kw_only=True)
class Engine:
    """One vLLM engine. `name` is P0, P1, ... or D0, D1, ..."""

    kind: Kind
    name: str
    host: str
    port: int
    kv_port: int
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class Router:
    """The router. It is sent to by clients, so its address is the set's."""

    host: str
    port: int
    args: tuple[str, ...] = ()
    name: str = "router"
    kind: Kind = Kind.ROUTER


Member = Engine | Router


@attrs.frozen(kw_only=True)
class PdSet:
    """What the file says. Times in seconds."""

    name: str
    model: str
    stack: Stack
    policy: Policy
    device: str | None
    """vLLM's kv_buffer_device; None leaves it to vLLM."""
    options: Mapping[str, Any]
    """kv_connector_extra_config of all engines."""
    hosts: Mapping[str, str]
    """Address of each host, by its name in the file."""
    engines: tuple[Engine, ...]
    router: Router | None
    run: Path
    serve: tuple[str, ...]
    """The words before the model."""
    start_s: float
    end_s: float
    warm_tokens: int

    @property
    def members(self) -> tuple[Member, ...]:
        return self.engines if self.router is None else (*self.engines, self.router)

    def of(self, kind: Kind) -> tuple[Engine, ...]:
        return tuple(engine for engine in self.engines if engine.kind is kind)

    def url(self, member: Member) -> str:
        return f"http://{self.address(member)}:{member.port}"

    def address(self, member: Member) -> str:
        return self.hosts[member.host]

    def engine_id(self, engine: Engine) -> str:
        """The same in each life: kvxfer tells lives apart by itself, and the router knows it."""
        return f"{self.name}-{engine.name.lower()}"

    def part(self, host: str | None) -> tuple[Member, ...]:
        """The members of one host, or all. Raises BadValue for a host that is not in the file."""
        if host is not None and host not in self.hosts:
            raise BadValue("--host", host, f"one of {', '.join(self.hosts)}")
        return tuple(member for member in self.members if host in (None, member.host))


def read_set(path: Path) -> PdSet:
    """Read and check a set file. Raises BadValue."""
    try:
        plain = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadValue("FILE", str(path), f"a file that can be read ({error.strerror})") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadValue("FILE", str(path), f"TOML in UTF-8 ({error})") from error
    return set_of(plain, path.absolute().parent)


def set_of(plain: Mapping[str, Any], folder: Path) -> PdSet:
    """The checked set of a file in `folder`. Raises BadValue."""
    top = Table("", plain)
    name = top.text("name", "pd", bound=NAME)
    hosts = top.table("hosts").texts() or {HERE: LOOPBACK}
    everywhere = (top.words("args"), top.table("env").texts())
    engines = tuple(
        engine
        for kind in (Kind.PREFILL, Kind.DECODE)
        for engine in _engines(kind, top.tables(kind.value), hosts, everywhere)
    )
    connector = top.table("connector")
    mode = Mode(top.choice("mode", Mode.PUSH.value, [mode.value for mode in Mode]))
    policies = [policy.value for policy in Policy]
    found = PdSet(
        name=name,
        model=top.text("model", None),
        stack=Stack(
            connector=connector.text("class", mode.connector),
            module=connector.text("module", "kvxfer_vllm") or None,
            mode=mode,
        ),
        policy=Policy(connector.choice("on_load_failure", Policy.FAIL.value, policies)),
        device=connector.text("device", "") or None,
        options=connector.table("options").rest(),
        hosts=hosts,
        engines=engines,
        router=_router(top, hosts),
        run=folder / top.text("run", f".kvxfer/{name}"),
        serve=top.words("serve") or ("vllm", "serve"),
        start_s=top.number("start_s", 600, 1, 86_400),
        end_s=top.number("end_s", 30, 0, 3_600),
        warm_tokens=top.whole("warm_tokens", 200, 0, 100_000),
    )
    connector.end()
    top.end()
    _check_members(found)
    return found


def _engines(
    kind: Kind,
    entries: tuple[Table, ...],
    hosts: Mapping[str, str],
    everywhere: tuple[tuple[str, ...], Mapping[str, str]],
) -> list[Engine]:
    found: list[Engine] = []
    args, env = everywhere
    for entry in entries:
        host = entry.choice("host", next(iter(hosts)), list(hosts))
        count = entry.whole("count", 1, 1, ENGINES_MAX)
        port, kv_port = (
            entry.whole(key, first, 1, PORT_MAX)
            for key, first in zip(("port", "kv_port"), FIRST_PORTS[kind], strict=True)
        )
        its_args, its_env = entry.words("args"), entry.table("env").texts()
        entry.end()
        found += [
            Engine(
                kind=kind,
                name=f"{kind.value[0].upper()}{len(found) + index}",
                host=host,
                port=port + index,
                kv_port=kv_port + KV_PORTS * index,
                args=(*args, *its_args),
                env={**env, **its_env},
            )
            for index in range(count)
        ]
    return found


def _router(top: Table, hosts: Mapping[str, str]) -> Router | None:
    if not top.has("router"):
        return None
    entry = top.table("router")
    router = Router(
        host=entry.choice("host", next(iter(hosts)), list(hosts)),
        port=entry.whole("port", 8000, 1, PORT_MAX),
        args=entry.words("args"),
    )
    entry.end()
    return router


def _check_members(found: PdSet) -> None:
    for kind in (Kind.PREFILL, Kind.DECODE):
        count = len(found.of(kind))
        if not 1 <= count <= ENGINES_MAX:
            raise BadValue(kind.value, count, f"from 1 to {ENGINES_MAX} engines in all")
    taken: dict[tuple[str, int], str] = {}
    for member in found.members:
        wanted = {"port": member.port}
        if isinstance(member, Engine):
            wanted["kv_port"] = member.kv_port
        for key, port in wanted.items():
            if port > PORT_MAX:
                raise BadValue(f"{member.name}.{key}", port, f"at most {PORT_MAX}")
            other = taken.setdefault((found.address(member), port), member.name)
            if other != member.name or (key == "kv_port" and port == member.port):
                raise BadValue(f"{member.name}.{key}", port, f"a port that {other} does not have")
