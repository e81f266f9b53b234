"""A Neuron device of host memory: the fake runtime library, built and driven from here."""

from __future__ import annotations

import ctypes
import math
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import numpy as np
from neuron_caches import Array, Tensor

_SOURCE = Path(__file__).with_name("fake_libnrt.c")
_ON_DEVICE = 0


def build(folder: Path) -> Path:
    """Compile the library. Raises CalledProcessError with the compiler's words."""
    path = folder / "libnrt.so.1"
    command = ["gcc", "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([*command, "-Wl,-soname,libnrt.so.1", "-o", str(path), str(_SOURCE)], check=True)
    return path


class DeviceTensor(Tensor):
    """A tensor that only the runtime can reach, unless its memory is mapped."""

    def __init__(self, array: Array, address: int, size: int) -> None:
        super().__init__(array, "neuron", 0)
        self._address, self._size = address, size

    def data_ptr(self) -> int:
        return super().data_ptr() if self._address else 0

    def untyped_storage(self) -> Any:
        return SimpleNamespace(data_ptr=lambda: self._address, nbytes=lambda: self._size)


@attrs.define(eq=False)
class Device:
    """What an engine does with the runtime; where tensors of `neuron_caches` may come from."""

    library: ctypes.CDLL
    _held: dict[int, tuple[Any, int, int]] = attrs.field(factory=dict)

    @classmethod
    def of(cls, path: Path) -> Device:
        library = ctypes.CDLL(str(path))
        library.nrt_tensor_get_va.restype = ctypes.c_void_p
        return cls(library)

    def up(self) -> None:
        assert self.library.nrt_init(1, b"", b"") == 0

    def down(self) -> None:
        """Free all tensors and close the runtime."""
        for handle, _, _ in self._held.values():
            self.library.nrt_tensor_free(ctypes.byref(handle))
        self._held.clear()
        self.library.nrt_close()

    def zeros(self, shape: Sequence[int]) -> Array:
        """An array in device memory. Here the test can look at it, mapped or not."""
        handle, size = ctypes.c_void_p(), 2 * math.prod(shape)
        answer = self.library.nrt_tensor_allocate(
            _ON_DEVICE, 0, ctypes.c_size_t(size), None, ctypes.byref(handle)
        )
        assert answer == 0
        address = self.library.nrt_tensor_get_va(handle) or 0
        real = ctypes.cast(handle, ctypes.POINTER(_Held)).contents.bytes
        flat = np.ctypeslib.as_array((ctypes.c_uint16 * (size // 2)).from_address(real))
        self._held[real] = (handle, address, size)
        return flat.reshape(tuple(shape))

    def tensor(self, array: Array) -> DeviceTensor:
        """What torch would show of an array that `zeros` gave, or of a view of it."""
        start = array.ctypes.data
        real = max(base for base in self._held if base <= start)
        _, address, size = self._held[real]
        return DeviceTensor(array, address, size)


class _Held(ctypes.Structure):
    """The fake's own record of a tensor."""

    _fields_ = (
        ("placement", ctypes.c_int),
        ("size", ctypes.c_size_t),
        ("bytes", ctypes.c_void_p),
    )
