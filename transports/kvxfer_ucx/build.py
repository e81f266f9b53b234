"""Building the shim where it is first used.

Owns the compiler call and the cache. Refuses to load UCX. Invariants: a built
file is named after everything that it depends on, so an old one is never taken
for a new one; it appears under its name whole or not at all; a file that another
user could have written is never loaded. docs/design/ucx.md says why it is built
on first use and not shipped; `python -m kvxfer_ucx` builds it ahead of time.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import shlex
import shutil
import stat
import subprocess
import sysconfig
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from kvxfer_ucx.library import Library

MODULE: Final = "_kvxfer_ucx_shim"
FOLDER: Final = Path(__file__).with_name("shim")
CACHE_VARIABLE: Final = "KVXFER_CACHE_DIR"
COMPILE_TIMEOUT_S: Final = 120

_FLAGS: Final = ("-O2", "-g0", "-fPIC", "-shared", "-fvisibility=hidden")
_LIBRARIES: Final = ("-lpthread", "-ldl")


class BuildFailed(ImportError):
    """The shim is not there and could not be made."""


def missing_for_shim(library: Library) -> str:
    """What keeps the shim from being used with `library`; empty where nothing does."""
    if find_spec("cffi") is None:
        return "the package cffi is missing: pip install 'kvxfer[ucx]'"
    if shim_path(library).is_file():
        return ""
    if not shutil.which(_compiler()[0]):
        return (
            f"no C compiler ({_compiler()[0]}) to build the shim with: install one, or build on "
            f"a machine that has one (python -m kvxfer_ucx) and copy {shim_path(library)}"
        )
    if not (_python_headers() / "Python.h").is_file():
        return f"Python.h is not in {_python_headers()}: install Python's headers (python3-dev)"
    if library.headers is None and not _compiler_finds_headers():
        return "UCX has no headers here (Debian: libucx-dev), and the shim is built from them"
    return ""


def shim_path(library: Library) -> Path:
    """Where the shim for these headers and this source is, or will be."""
    return cache_folder() / f"ucx-shim-{_digest(library)}.abi3.so"


def cache_folder() -> Path:
    """Folder of things that kvxfer can make again; `KVXFER_CACHE_DIR` moves it."""
    named = os.environ.get(CACHE_VARIABLE)
    if named:
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "kvxfer"


def ensure_shim(library: Library) -> Path:
    """The path of a shim that is there. Raises `BuildFailed` with the compiler's words."""
    path = shim_path(library)
    if not path.is_file():
        missing = missing_for_shim(library)
        if missing:
            raise BuildFailed(missing)
        _build(library, path)
    _check_owner(path)
    return path


def declarations() -> str:
    """What cffi reads: the shim's header without its comments' need of a preprocessor."""
    return (FOLDER / "api.h").read_text(encoding="utf-8")


def _build(library: Library, path: Path) -> None:
    from cffi import FFI

    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as work:
        source, built = Path(work) / "shim_module.c", Path(work) / "shim.so"
        ffi = FFI()
        ffi.cdef(declarations())
        ffi.set_source(MODULE, '#include "shim.c"', py_limited_api=True)
        with contextlib.redirect_stdout(io.StringIO()):  # cffi tells what it generates
            ffi.emit_c_code(str(source))
        command = [
            *_compiler(),
            *_FLAGS,
            f"-I{FOLDER}",
            f"-I{_python_headers()}",
            *([f"-isystem{library.headers}"] if library.headers else []),
            str(source),
            "-o",
            str(built),
            *_LIBRARIES,
        ]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=COMPILE_TIMEOUT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise BuildFailed(f"the shim was not built: {error}") from error
        if done.returncode != 0:
            words = done.stderr.strip()[-2000:]
            raise BuildFailed(f"the shim was not built: {shlex.join(command)}\n{words}")
        built.chmod(0o700)
        built.replace(path)


def _check_owner(path: Path) -> None:
    found = path.stat()
    if found.st_uid not in (os.getuid(), 0) or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise BuildFailed(
            f"{path} belongs to user {found.st_uid}, mode {stat.filemode(found.st_mode)}: it "
            f"would be run as code; remove it, or set {CACHE_VARIABLE} to a folder of your own"
        )


def _digest(library: Library) -> str:
    parts = hashlib.sha256()
    for file in sorted(FOLDER.glob("*.[ch]")):
        parts.update(file.name.encode() + b"\0" + file.read_bytes())
    headers = library.headers and library.headers / "ucp/api/ucp_version.h"
    parts.update(headers.read_bytes() if headers else b"system headers")
    tag = (*_FLAGS, sysconfig.get_platform(), sysconfig.get_config_var("Py_GIL_DISABLED") or 0)
    parts.update(repr(tag).encode())
    return parts.hexdigest()[:16]


def _compiler() -> list[str]:
    named = os.environ.get("CC")
    if named:
        return shlex.split(named)
    for name in ("cc", "gcc", "clang"):
        if shutil.which(name):
            return [name]
    return ["cc"]


def _python_headers() -> Path:
    return Path(sysconfig.get_paths()["include"])


def _compiler_finds_headers() -> bool:
    try:
        done = subprocess.run(
            [*_compiler(), "-E", "-include", "ucp/api/ucp.h", "-x", "c", os.devnull],
            capture_output=True,
            timeout=COMPILE_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
