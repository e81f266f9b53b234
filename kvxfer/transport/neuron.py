"""What AWS's Neuron runtime says of this process, for preflight checks and errors.

Owns the few calls into libnrt that look and change nothing (and nothing else of it: data
never moves through here). Refuses to allocate on a device. Invariant: a host without the
library is an answer, never an exception.

The calls are those of the library's public header (aws-neuron-sdk, src/libnrt/include/nrt).
"""

from __future__ import annotations

import ctypes
import os
from enum import Enum
from typing import Final

import attrs

SONAME: Final = "libnrt.so.1"
LIBRARY_VARIABLE: Final = "KVXFER_LIBNRT"
"""Path of the library, where it is neither on the loader's path nor where AWS installs it."""
INSTALLED: Final = "/opt/aws/neuron/lib/libnrt.so.1"
"""Where AWS's packages put it, which is not on the loader's path."""
MAP_VARIABLE: Final = "NEURON_RT_MAP_HBM"
"""Must be 1 before a process's first device tensor, or its tensors have no address."""

_HOST_MEMORY: Final = 1
_NO_CORE: Final = -1
_BDF_BYTES: Final = 64


class RuntimeState(Enum):
    """What the runtime is in this process."""

    MISSING = "missing"
    DOWN = "down"
    UP = "up"

    @property
    def text(self) -> str:
        """For people, after 'and'."""
        return {
            RuntimeState.MISSING: f"{SONAME} cannot be loaded here (AWS installs it as "
            f"{INSTALLED}; {LIBRARY_VARIABLE} names another path)",
            RuntimeState.DOWN: "the Neuron runtime is not up in this process (it comes up with "
            "the first tensor on a device)",
            RuntimeState.UP: "the Neuron runtime is up",
        }[self]


@attrs.frozen
class NeuronRuntime:
    """libnrt, loaded so that whoever asks for it by name later finds it."""

    path: str
    _library: ctypes.CDLL

    @classmethod
    def find(cls) -> NeuronRuntime | None:
        """The library; None where it is not here."""
        for path in filter(None, (os.environ.get(LIBRARY_VARIABLE), SONAME, INSTALLED)):
            try:
                return cls(path, ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL))
            except OSError:
                continue
        return None

    @classmethod
    def state_here(cls) -> RuntimeState:
        """The state in this process, the library missing included."""
        runtime = cls.find()
        return RuntimeState.MISSING if runtime is None else runtime.state()

    def state(self) -> RuntimeState:
        """Asked with a host allocation of one byte, which only a runtime that is up grants."""
        tensor = ctypes.c_void_p()
        size = ctypes.c_size_t(1)
        answer = self._library.nrt_tensor_allocate(
            _HOST_MEMORY, _NO_CORE, size, None, ctypes.byref(tensor)
        )
        if answer != 0:
            return RuntimeState.DOWN
        self._library.nrt_tensor_free(ctypes.byref(tensor))
        return RuntimeState.UP

    def efa_of(self, address: int) -> str:
        """PCI address of the EFA card next to the device that holds `address`; empty: none."""
        text = ctypes.create_string_buffer(_BDF_BYTES)
        size = ctypes.c_size_t(_BDF_BYTES)
        answer = self._library.nrt_get_attached_efa_bdf(
            ctypes.c_void_p(address), text, ctypes.byref(size)
        )
        return text.value.decode("ascii", "replace") if answer == 0 else ""
