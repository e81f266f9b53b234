"""Which UCX is found, and how the shim comes to be: without a compiler, without headers, twice."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

import kvxfer_ucx
from kvxfer.status import Status
from kvxfer.transport.ops import TransportOps
from kvxfer_ucx import build, library
from kvxfer_ucx.build import BuildFailed, ensure_shim, missing_for_shim, shim_path
from kvxfer_ucx.library import Library, LibraryMissing, find_library
from kvxfer_ucx.room import allocatable_bytes
from kvxfer_ucx.settings import Settings


def _fake_ucx(home: Path, *plugins: str, headers: bool = True) -> Path:
    (home / "lib" / "ucx").mkdir(parents=True)
    (home / "lib" / "libucp.so.0").touch()
    for name in plugins:
        (home / "lib" / "ucx" / f"libuct_{name}.so.0").touch()
    if headers:
        (home / "include" / "ucp" / "api").mkdir(parents=True)
        for name in ("ucp.h", "ucp_version.h"):
            (home / "include" / "ucp" / "api" / name).touch()
    return home / "lib" / "libucp.so.0"


def test_a_build_without_infiniband_says_so(tmp_path: Path) -> None:
    bare = find_library({"KVXFER_UCX": str(_fake_ucx(tmp_path / "a", "cma", "cuda"))})
    assert bare.plugins == ("cma", "cuda")
    assert "no InfiniBand" in bare.describe()
    assert "KVXFER_UCX=system" in bare.describe()
    full = find_library({"KVXFER_UCX": str(_fake_ucx(tmp_path / "b", "cma", "ib"))})
    assert "no InfiniBand" not in full.describe()


def test_what_is_asked_for_and_not_there_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(LibraryMissing, match="no such file"):
        find_library({"KVXFER_UCX": str(tmp_path / "libucp.so")})
    monkeypatch.setattr(library, "find_spec", lambda _name: None)
    monkeypatch.setattr(library.ctypes.util, "find_library", lambda _name: None)
    for asked in ("", "wheel", "system"):
        with pytest.raises(LibraryMissing, match=r"pip install 'kvxfer\[ucx\]'"):
            find_library({"KVXFER_UCX": asked})
    status, text = kvxfer_ucx.DESCRIPTOR.probe()
    assert status == Status.LIBRARY_MISSING
    assert "kvxfer[ucx]" in text


def test_what_keeps_the_shim_from_being_built_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVXFER_CACHE_DIR", str(tmp_path / "cache"))
    found = Library(path="x", origin="x", headers=_fake_ucx(tmp_path / "u").parents[1] / "include")
    assert missing_for_shim(found) == ""
    monkeypatch.setenv("CC", "no-such-compiler")
    assert "no C compiler (no-such-compiler)" in missing_for_shim(found)
    with pytest.raises(BuildFailed, match="no C compiler"):
        ensure_shim(found)
    monkeypatch.delenv("CC")
    monkeypatch.setattr(build, "_python_headers", lambda: tmp_path)
    assert "python3-dev" in missing_for_shim(found)
    monkeypatch.setattr(build, "find_spec", lambda _name: None)
    assert "cffi is missing" in missing_for_shim(found)


def test_a_compiler_that_fails_is_quoted_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVXFER_CACHE_DIR", str(tmp_path / "cache"))
    empty = Library(path="x", origin="x", headers=_fake_ucx(tmp_path / "u").parents[1] / "include")
    with pytest.raises(BuildFailed, match="error"):
        ensure_shim(empty)
    assert list((tmp_path / "cache").iterdir()) == []


def test_the_shim_is_built_once_and_is_named_after_what_it_was_made_of(
    ucx_ops: TransportOps, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = find_library()
    monkeypatch.setenv("KVXFER_CACHE_DIR", str(tmp_path / "cache"))
    path = ensure_shim(found)
    made = path.stat().st_mtime_ns
    assert ensure_shim(found) == path
    assert path.stat().st_mtime_ns == made
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    other = Library(
        path="x", origin="x", headers=_fake_ucx(tmp_path / "other").parents[1] / "include"
    )
    assert shim_path(other) != path


def test_a_shim_that_others_can_write_is_not_loaded(
    ucx_ops: TransportOps, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVXFER_CACHE_DIR", str(tmp_path / "cache"))
    found = find_library()
    path = ensure_shim(found)
    path.chmod(stat.S_IRWXU | stat.S_IWOTH)
    with pytest.raises(BuildFailed, match="run as code"):
        ensure_shim(found)


def test_memory_that_is_not_there_is_not_asked_for(tmp_path: Path, ucx_ops: TransportOps) -> None:
    # UCX reserves page by page until the system has none left.
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 99 kB\nMemAvailable:   12 kB\n")
    assert allocatable_bytes(meminfo) == 12 * 1024
    assert allocatable_bytes(tmp_path / "none", str(tmp_path / "none")) == 1 << 63
    status, session = ucx_ops.open({"tls": "posix,self"})
    assert status == Status.OK
    for length in (1 << 62, allocatable_bytes() + (1 << 30)):
        assert ucx_ops.allocate_region(session, length, "dram", 0)[0] == Status.NO_RESOURCE
    assert "are free here" in ucx_ops.last_error(session)
    assert ucx_ops.close(session) == Status.OK


def test_what_correctness_needs_cannot_be_changed_from_outside(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("UCX_RNDV_THRESH", "0")
    monkeypatch.setenv("UCX_KEEPALIVE_INTERVAL", "7s")
    told = Settings.of({"tls": "tcp"}).for_ucx()
    assert told["RNDV_THRESH"] == "inf"
    assert "KEEPALIVE_INTERVAL" not in told
    assert told["TLS"] == "tcp"
    assert "NET_DEVICES" not in told
