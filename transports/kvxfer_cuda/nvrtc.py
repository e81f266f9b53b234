"""Compiling the copy kernel for the GPU at hand.

Owns the binding to NVIDIA's run-time compiler. Invariant: what cannot be compiled is told
with the compiler's own log. Nothing is built at installation, so one wheel serves all GPUs.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import os
from pathlib import Path
from typing import Any, Final

from kvxfer_cuda.driver import CudaMissing

NVRTC_VARIABLE: Final = "KVXFER_NVRTC_LIBRARY"
"""Path of the compiler's library, where it is in none of the usual places."""


def find_nvrtc() -> str:
    """Path or name of the run-time compiler; raises CudaMissing."""
    named = os.environ.get(NVRTC_VARIABLE)
    if named:
        return named
    for release in ("13", "12"):
        for path in _in_wheels(release):
            return str(path)
        if found := ctypes.util.find_library("nvrtc"):
            return found
        try:
            ctypes.CDLL(f"libnvrtc.so.{release}")
        except OSError:
            continue
        return f"libnvrtc.so.{release}"
    raise CudaMissing(
        "libnvrtc is not found: it comes with torch, or pip install nvidia-cuda-nvrtc"
    )


def _in_wheels(release: str) -> list[Path]:
    """Where NVIDIA's wheels put it, for CUDA 12 and 13."""
    from importlib.metadata import PackageNotFoundError, files

    wheels = (f"nvidia-cuda-nvrtc-cu{release}", "nvidia-cuda-nvrtc")
    found: list[Path] = []
    for wheel in wheels:
        try:
            listed = files(wheel) or ()
        except PackageNotFoundError:
            continue
        found += [Path(str(f.locate())) for f in listed if f.name == f"libnvrtc.so.{release}"]
    return found


def compile_source(source: str, capability: tuple[int, int]) -> bytes:
    """Machine code of a CUDA C++ source for one compute capability. Raises CudaMissing."""
    path = find_nvrtc()
    try:
        lib = ctypes.CDLL(path)
    except OSError as error:
        raise CudaMissing(f"{path} cannot be loaded: {error}") from error
    program = ctypes.c_void_p()
    text = source.encode("ascii")
    _nvrtc(lib, "nvrtcCreateProgram", ctypes.byref(program), text, b"copy.cu", 0, None, None)
    option = f"--gpu-architecture=sm_{capability[0]}{capability[1]}".encode("ascii")
    try:
        code = lib.nvrtcCompileProgram(program, 1, (ctypes.c_char_p * 1)(option))
        if code:
            log = _fetch(lib, program, "ProgramLog").decode("utf-8", errors="replace")
            raise CudaMissing(f"{path} does not compile for {option.decode()}: {log}")
        return _fetch(lib, program, "CUBIN")
    finally:
        lib.nvrtcDestroyProgram(ctypes.byref(program))


def _fetch(lib: Any, program: Any, what: str) -> bytes:
    size = ctypes.c_size_t()
    _nvrtc(lib, f"nvrtcGet{what}Size", program, ctypes.byref(size))
    held = ctypes.create_string_buffer(size.value)
    _nvrtc(lib, f"nvrtcGet{what}", program, held)
    return held.raw


def _nvrtc(lib: Any, name: str, *args: Any) -> None:
    code = getattr(lib, name)(*args)
    if code:
        raise CudaMissing(f"{name}: error {code}")
