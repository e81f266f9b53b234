"""Finding transports: the built-in one always, others through entry points only."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kvxfer.errors import LocalFault, TransportFault
from kvxfer.status import Status
from kvxfer.transport import registry
from kvxfer.transport.loopback import OPS
from kvxfer.transport.registry import UnknownTransport, available, open_transport

GOOD = """
from kvxfer.status import Status
from kvxfer.transport.ops import TransportDescriptor
from kvxfer.transport.stubs import stub_ops

DESCRIPTOR = TransportDescriptor(
    name="sample",
    summary="a sample",
    probe=lambda: (Status.OK, "sample 1.0"),
    load=lambda: stub_ops("sample"),
)
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Make a distribution visible: its metadata and one module, on the import path."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])

    def put(dist: str, module: str, source: str, *, name: str = "sample") -> None:
        info = tmp_path / f"{dist}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {dist}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(
            f"[{registry.GROUP}]\n{name} = {module}:DESCRIPTOR\n"
        )
        (tmp_path / f"{module}.py").write_text(source)
        monkeypatch.delitem(sys.modules, module, raising=False)

    return put


def _found(name: str = "sample") -> registry.Found:
    (found,) = [entry for entry in available() if entry.name == name]
    return found


def test_the_loopback_needs_no_installed_distribution(monkeypatch) -> None:
    monkeypatch.setattr(registry, "entry_points", lambda group: ())
    (found,) = available()
    assert (found.name, found.status, found.origin) == ("loopback", Status.OK, "built in")
    assert open_transport("loopback") is OPS


def test_an_installed_plug_in_is_found_and_opened(install) -> None:
    install("sample-transport", "sample_good", GOOD)
    found = _found()
    assert found == registry.Found(
        name="sample",
        summary="a sample",
        status=Status.OK,
        detail="sample 1.0",
        origin="sample-transport",
    )
    assert open_transport("sample").name == "sample"
    names = [entry.name for entry in available()]
    assert names == sorted(names)
    assert "loopback" in names


def test_an_unknown_name_lists_the_known_ones(install) -> None:
    install("sample-transport", "sample_known", GOOD)
    with pytest.raises(UnknownTransport, match=r"'loopbock'.*loopback.*sample") as caught:
        open_transport("loopbock")
    assert isinstance(caught.value, LocalFault)


@pytest.mark.parametrize(
    ("source", "status", "says"),
    [
        ("raise RuntimeError('boom')", Status.SESSION_FAILED, "RuntimeError: boom"),
        ("import no_such_library_here", Status.LIBRARY_MISSING, "no_such_library_here"),
        ("DESCRIPTOR = 7", Status.SESSION_FAILED, "is int, not TransportDescriptor"),
        ("X = 7", Status.SESSION_FAILED, "DESCRIPTOR"),
        (GOOD.replace('name="sample"', 'name="other"'), Status.SESSION_FAILED, "'other'"),
        (
            GOOD.replace('(Status.OK, "sample 1.0")', '(Status.LIBRARY_MISSING, "install it")'),
            Status.LIBRARY_MISSING,
            "install it",
        ),
        (GOOD.replace('(Status.OK, "sample 1.0")', "1 / 0"), Status.SESSION_FAILED, "probe: Zero"),
    ],
)
def test_a_plug_in_that_cannot_work_is_reported_and_hides_no_other(
    install, source: str, status: Status, says: str
) -> None:
    install("broken-transport", "sample_broken", source)
    found = _found()
    assert found.status == status
    assert says in found.detail
    assert _found("loopback").status == Status.OK
    with pytest.raises(TransportFault, match="sample") as caught:
        open_transport("sample")
    assert caught.value.status == status
    assert says in caught.value.detail


@pytest.mark.parametrize(
    ("load", "status", "says"),
    [
        ("1 / 0", Status.SESSION_FAILED, "ZeroDivisionError"),
        ("__import__('no_such_library_here')", Status.LIBRARY_MISSING, "no_such_library_here"),
        ("None", Status.SESSION_FAILED, "gave NoneType, not TransportOps"),
    ],
)
def test_a_table_that_does_not_load_is_a_transport_fault(install, load, status, says) -> None:
    install("late-transport", "sample_late", GOOD.replace('stub_ops("sample"),', f"{load},"))
    assert _found().status == Status.OK
    with pytest.raises(TransportFault) as caught:
        open_transport("sample")
    assert caught.value.status == status
    assert says in caught.value.detail


def test_two_distributions_of_one_name_are_refused(install) -> None:
    install("first-transport", "sample_first", GOOD)
    install("second-transport", "sample_second", GOOD)
    found = _found()
    assert found.status == Status.SESSION_FAILED
    assert "sample_first:DESCRIPTOR and sample_second:DESCRIPTOR" in found.detail
    assert found.origin == "first-transport, second-transport"


def test_a_plug_in_cannot_take_the_place_of_the_loopback(install) -> None:
    source = GOOD.replace('name="sample"', 'name="loopback"')
    install("evil-transport", "sample_evil", source, name="loopback")
    assert _found("loopback").origin == "built in"
    assert open_transport("loopback") is OPS
    assert "sample_evil" not in sys.modules
