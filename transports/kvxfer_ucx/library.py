"""Which UCX there is on this machine.

Owns the search, its order and the words about what a build of UCX lacks. Refuses
to load anything. Invariant: the answer names one file, or says what to install.

`KVXFER_UCX` decides where it is set: `wheel` (the package libucx-cu12 or a
sibling), `system`, or the path of a libucp. Otherwise the wheel goes first,
because old system builds are slow (docs/design/ucx.md).
"""

from __future__ import annotations

import ctypes.util
import os
from collections.abc import Mapping
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import attrs

VARIABLE: Final = "KVXFER_UCX"
INSTALL: Final = "pip install 'kvxfer[ucx]' (or UCX of the system with KVXFER_UCX=system)"
SONAME: Final = "libucp.so.0"

_BUILT_IN: Final = ("tcp", "posix", "sysv", "self")
"""Transports that are part of every libuct; the others are files beside it."""


class LibraryMissing(ImportError):
    """There is no UCX where it was looked for."""


@attrs.frozen(kw_only=True)
class Library:
    """One libucp. `headers` is None where only the compiler's own search may find them."""

    path: str
    origin: str
    headers: Path | None = None
    plugins: tuple[str, ...] = ()
    """Names of the transport files that were found; empty where their folder is not known."""

    def describe(self) -> str:
        """For people: which one, what it reaches, and what it cannot reach."""
        if not self.plugins:
            return f"{self.origin}; its own ucx_info -d lists the transports"
        reach = ", ".join([*_BUILT_IN, *self.plugins])
        text = f"{self.origin}: {reach}"
        if "ib" not in self.plugins:
            text += (
                "; no InfiniBand and no RoCE in this build: for them install UCX of the system "
                f"(Debian: libucx0 and libucx-dev) and set {VARIABLE}=system"
            )
        return text


def find_library(environ: Mapping[str, str] = os.environ) -> Library:
    """The library to use. Raises `LibraryMissing` with what was asked and what to install."""
    asked = environ.get(VARIABLE, "")
    if asked not in ("", "wheel", "system"):
        return _at(Path(asked))
    found = None
    if asked in ("", "wheel"):
        found = _of_wheel()
    if found is None and asked in ("", "system"):
        found = _of_system()
    if found is None:
        where = {"wheel": "no libucx wheel", "system": "no libucp of the system"}
        raise LibraryMissing(f"{where.get(asked, 'no UCX')} is here: {INSTALL}")
    return found


def _of_wheel() -> Library | None:
    spec = find_spec("libucx")
    if spec is None or not spec.submodule_search_locations:
        return None
    home = Path(next(iter(spec.submodule_search_locations)))
    path = home / "lib" / SONAME
    if not path.is_file():
        return None
    return Library(
        path=str(path),
        origin=f"UCX {_wheel_version(home)}",
        headers=home / "include",
        plugins=_plugins(home / "lib" / "ucx"),
    )


def _wheel_version(home: Path) -> str:
    for found in distributions(path=[str(home.parent)]):
        if (found.name or "").startswith("libucx"):
            return f"{found.version} of the package {found.name}"
    return "of a wheel of unknown version"


def _of_system() -> Library | None:
    name = ctypes.util.find_library("ucp")
    if name is None:
        return None
    for folder in _system_folders():
        if (folder / name).is_file():
            return _at(folder / name)
    return Library(path=name, origin=f"UCX of the system ({name})")


def _system_folders() -> list[Path]:
    triple = f"{os.uname().machine}-linux-gnu"
    return [Path("/usr/lib") / triple, Path("/usr/lib64"), Path("/usr/local/lib"), Path("/usr/lib")]


def _at(path: Path) -> Library:
    if not path.is_file():
        raise LibraryMissing(f"{VARIABLE} = {path}: no such file; also known: wheel, system")
    headers = path.parent.parent / "include"
    return Library(
        path=str(path),
        origin=f"UCX at {path}",
        headers=headers if (headers / "ucp/api/ucp.h").is_file() else None,
        plugins=_plugins(path.parent / "ucx"),
    )


def _plugins(folder: Path) -> tuple[str, ...]:
    names = {
        file.name.removeprefix("libuct_").split(".", 1)[0] for file in folder.glob("libuct_*.so*")
    }
    return tuple(sorted(names))
