"""The shim as Python calls it: loading, and the types at the border.

Owns the one place where the shim's module is imported. Refuses to decide
anything. Invariant: no C pointer is made here from a number that came from
outside.
"""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import ExtensionFileLoader
from typing import Any, Final

import attrs

from kvxfer_ucx.build import MODULE, BuildFailed, ensure_shim
from kvxfer_ucx.library import find_library

TEXT_BYTES: Final = 512

_loaded: Final[list[Shim]] = []


@attrs.frozen(kw_only=True, eq=False)
class Shim:
    """The compiled module. `lib` has the functions of shim/api.h, each without Python's lock."""

    ffi: Any
    lib: Any

    def version(self) -> str:
        """Version of the UCX that is loaded, as in '1.22.0'."""
        return self.string(self.lib.kvu_version())

    def string(self, pointer: Any) -> str:
        """Text of a C string."""
        return bytes(self.ffi.string(pointer)).decode("utf-8", errors="replace")


def load_shim() -> Shim:
    """The shim with UCX loaded behind it; once per process. Raises ImportError."""
    if _loaded:
        return _loaded[0]
    library = find_library()
    path = ensure_shim(library)
    loader = ExtensionFileLoader(MODULE, str(path))
    spec = importlib.util.spec_from_file_location(MODULE, str(path), loader=loader)
    if spec is None:
        raise BuildFailed(f"{path} is not a module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[MODULE] = module
    loader.exec_module(module)
    shim = Shim(ffi=module.ffi, lib=module.lib)
    text = shim.ffi.new("char[]", TEXT_BYTES)
    if shim.lib.kvu_load(library.path.encode(), text, TEXT_BYTES) != 0:
        raise ImportError(f"{library.path}: {shim.string(text)}")
    _loaded.append(shim)
    return shim
