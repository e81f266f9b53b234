"""Hostile reports: each is refused by name, none ends in a traceback."""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from click.testing import CliRunner

from kvxfer.cli import main
from kvxfer.doctor.host import look
from kvxfer.doctor.pair import judge
from kvxfer.doctor.probe import Trial
from kvxfer.doctor.report import Report, read_report
from kvxfer.errors import BadValue
from kvxfer.transport.finding import Finding, Level

_FINE = Finding(level=Level.FINE, subject="net", text="fine")
_HERE = Report(
    host=attrs.evolve(look(), rdma_devices=("a0 efa",)),
    protocol=(1, 1),
    trials=(
        Trial(name="net", summary="", detail="", works=True, caps=("READ",), findings=(_FINE,)),
    ),
    findings=(_FINE,),
)
_PLAIN = _HERE.to_json()
_WRONG = (None, [], {}, 1.5, True, -1, "x", "", ["x"], [""], "y" * 9999)


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else ()
    items = enumerate(value) if isinstance(value, (list, tuple)) else items
    for key, inner in items:
        yield from _places(inner, (*path, key))


def _changed(path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(json.dumps(_PLAIN))
    inner: Any = plain
    for key in path[:-1]:
        inner = inner[key]
    if value is KeyError:
        del inner[path[-1]]
    else:
        inner[path[-1]] = copy.deepcopy(value)
    return plain


@pytest.mark.parametrize("path", list(_places(_PLAIN)), ids=str)
def test_any_value_in_any_place_is_read_or_refused(path: tuple[Any, ...]) -> None:
    for wrong in (*_WRONG, KeyError):
        with contextlib.suppress(BadValue):
            report = read_report(json.dumps(_changed(path, wrong)))
            assert judge(report, attrs.evolve(_HERE, host=attrs.evolve(_HERE.host, boot_id="b")))


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        (("host", "cpus"), "many", "report.host.cpus = 'many': must be of type int"),
        (("host", "cpus"), True, "report.host.cpus = True: must be of type int"),
        (("host", "versions"), {"net": 1}, "report.host.versions.net = 1: must be of type str"),
        (("protocol",), [1], "report.protocol = [1]: 2 items"),
        (("trials", 0, "caps"), "READ", "report.trials[0].caps = 'READ': must be of type list"),
        (("findings", 0, "level"), "bad", "report.findings[0].level = 'bad': one of ['fine', "),
        (("host", "name"), KeyError, "report.host.name = None: must be there"),
        (("host", "colour"), 1, "report.host = ['colour']: known fields are name, boot_id"),
        (("format",), 2, "this version reads 1"),
    ],
)
def test_the_refusal_names_field_value_and_bound(
    path: tuple[Any, ...], value: Any, told: str
) -> None:
    with pytest.raises(BadValue) as caught:
        read_report(json.dumps(_changed(path, value)))
    assert told in str(caught.value)


@pytest.mark.parametrize(
    "raw", [b"", b"null", b"{}", b"[" * 100_000, b'{"a":' * 50_000, b"\xed\xa0", b"1" * 5000]
)
def test_a_hostile_file_exits_2_and_is_named(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "report.json"
    path.write_bytes(raw)
    done = CliRunner().invoke(main, ["doctor", "--json", str(path)])
    assert (done.exit_code, done.stdout) == (2, "")
    assert f"{path}: " in done.stderr
