"""The few functions of the CUDA driver that this transport calls.

Owns the binding to libcuda by ctypes, which lets go of the interpreter lock
in each call. Refuses to know ranges and peers. Invariant: every result that is not 0 is
raised as `CudaError`, with the driver's own name for it.

The driver's interface, not the runtime's: it needs no toolkit and works beside any
framework, whose allocations and primary context it shares.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any, Final

import attrs

CUDA_VARIABLE: Final = "KVXFER_CUDA_LIBRARY"
"""Path of the driver's library, where it is not libcuda.so.1."""
IPC_HANDLE_BYTES: Final = 64

NOT_READY: Final = 600
_EVENT_BLOCKING_NO_TIMING: Final = 1 | 2
_STREAM_NON_BLOCKING: Final = 1
_IPC_LAZY_PEER_ACCESS: Final = 1
_HOST_PORTABLE: Final = 1


class CudaError(Exception):
    """A driver call failed."""

    def __init__(self, call: str, code: int, name: str) -> None:
        super().__init__(f"{call}: {name or code}")
        self.code = code


class CudaMissing(ImportError):
    """The driver, or what is needed beside it, is not here."""


class IpcHandle(ctypes.Structure):
    """An opaque name for an allocation that another process can open."""

    _fields_ = (("reserved", ctypes.c_char * IPC_HANDLE_BYTES),)


@attrs.define(eq=False)
class Driver:
    """One device's primary context, made current for the calling thread."""

    device: int
    _lib: Any
    _context: Any

    @classmethod
    def open(cls, device: int) -> Driver:
        """Raises CudaMissing where there is no driver, CudaError where there is no such device."""
        lib = load()
        driver = cls(device, lib, ctypes.c_void_p())
        driver.call("cuInit", 0)
        number = ctypes.c_int()
        driver.call("cuDeviceGet", ctypes.byref(number), device)
        driver.call("cuDevicePrimaryCtxRetain", ctypes.byref(driver._context), number)
        driver.make_current()
        return driver

    def close(self) -> None:
        self.call("cuDevicePrimaryCtxRelease_v2", self.device)

    def make_current(self) -> None:
        self.call("cuCtxSetCurrent", self._context)

    def call(self, name: str, *args: Any) -> None:
        code = getattr(self._lib, name)(*args)
        if code:
            raise CudaError(name, code, self._name_of(code))

    def _name_of(self, code: int) -> str:
        text = ctypes.c_char_p()
        self._lib.cuGetErrorName(code, ctypes.byref(text))
        return (text.value or b"").decode("ascii", errors="replace")

    # Memory.

    def allocate(self, length: int) -> int:
        """Zeroed device memory."""
        base = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(base), ctypes.c_size_t(length))
        self.call("cuMemsetD8_v2", base, ctypes.c_ubyte(0), ctypes.c_size_t(length))
        self.call("cuCtxSynchronize")
        return base.value

    def free(self, base: int) -> None:
        self.call("cuMemFree_v2", ctypes.c_uint64(base))

    def extent(self, address: int) -> tuple[int, int]:
        """(base, length in bytes) of the allocation that holds `address`."""
        base, length = ctypes.c_uint64(), ctypes.c_size_t()
        at = ctypes.c_uint64(address)
        self.call("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(length), at)
        return base.value, length.value

    def name_for_others(self, base: int) -> bytes:
        """What another process gives to `open_from_other`."""
        handle = IpcHandle()
        self.call("cuIpcGetMemHandle", ctypes.byref(handle), ctypes.c_uint64(base))
        return bytes(handle)

    def open_from_other(self, name: bytes) -> int:
        base = ctypes.c_uint64()
        handle = IpcHandle.from_buffer_copy(name)
        self.call("cuIpcOpenMemHandle_v2", ctypes.byref(base), handle, _IPC_LAZY_PEER_ACCESS)
        return base.value

    def close_from_other(self, base: int) -> None:
        self.call("cuIpcCloseMemHandle", ctypes.c_uint64(base))

    def pinned(self, length: int) -> int:
        """Host memory that the device reads without a copy of the driver's."""
        base = ctypes.c_void_p()
        size = ctypes.c_size_t(length)
        self.call("cuMemHostAlloc", ctypes.byref(base), size, _HOST_PORTABLE)
        assert base.value is not None
        return base.value

    def free_pinned(self, base: int) -> None:
        self.call("cuMemFreeHost", ctypes.c_void_p(base))

    def read(self, address: int, length: int) -> bytes:
        held = ctypes.create_string_buffer(length)
        self.call("cuMemcpyDtoH_v2", held, ctypes.c_uint64(address), ctypes.c_size_t(length))
        return held.raw

    def write(self, address: int, data: bytes) -> None:
        length = ctypes.c_size_t(len(data))
        self.call("cuMemcpyHtoD_v2", ctypes.c_uint64(address), data, length)

    # Work.

    def stream(self) -> Any:
        """A stream of the highest priority that waits for no other."""
        low, high, made = ctypes.c_int(), ctypes.c_int(), ctypes.c_void_p()
        self.call("cuCtxGetStreamPriorityRange", ctypes.byref(low), ctypes.byref(high))
        self.call("cuStreamCreateWithPriority", ctypes.byref(made), _STREAM_NON_BLOCKING, high)
        return made

    def drop_stream(self, stream: Any) -> None:
        self.call("cuStreamDestroy_v2", stream)

    def settle(self, stream: Any) -> None:
        """Wait until all work of the stream is over."""
        self.call("cuStreamSynchronize", stream)

    def event(self) -> Any:
        made = ctypes.c_void_p()
        self.call("cuEventCreate", ctypes.byref(made), _EVENT_BLOCKING_NO_TIMING)
        return made

    def record(self, event: Any, stream: Any) -> None:
        self.call("cuEventRecord", event, stream)

    def is_over(self, event: Any) -> bool:
        try:
            self.call("cuEventQuery", event)
        except CudaError as error:
            if error.code == NOT_READY:
                return False
            raise
        return True

    def wait(self, event: Any) -> None:
        """Sleep until the event is over."""
        self.call("cuEventSynchronize", event)

    def drop_event(self, event: Any) -> None:
        self.call("cuEventDestroy_v2", event)

    def upload(self, address: int, pinned: int, length: int, stream: Any) -> None:
        """Queue a copy of pinned host memory to the device."""
        size = ctypes.c_size_t(length)
        at = ctypes.c_uint64(address)
        self.call("cuMemcpyHtoDAsync_v2", at, ctypes.c_void_p(pinned), size, stream)

    def function(self, image: bytes, name: str) -> Any:
        module, found = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), image)
        self.call("cuModuleGetFunction", ctypes.byref(found), module, name.encode("ascii"))
        return found

    def capability(self) -> tuple[int, int]:
        """Compute capability, as in (9, 0)."""
        numbers = []
        for attribute in (75, 76):
            value = ctypes.c_int()
            self.call("cuDeviceGetAttribute", ctypes.byref(value), attribute, self.device)
            numbers.append(value.value)
        return numbers[0], numbers[1]

    def launch(
        self, function: Any, blocks: int, threads: int, stream: Any, values: tuple[int, ...]
    ) -> None:
        """Queue a kernel whose parameters are 64-bit numbers."""
        held = [ctypes.c_uint64(value) for value in values]
        params = (ctypes.c_void_p * len(held))(
            *(ctypes.cast(ctypes.byref(v), ctypes.c_void_p) for v in held)
        )
        self.call("cuLaunchKernel", function, blocks, 1, 1, threads, 1, 1, 0, stream, params, None)


def load() -> Any:
    """The driver's library. Raises CudaMissing."""
    name = os.environ.get(CUDA_VARIABLE, "libcuda.so.1")
    try:
        return ctypes.CDLL(name)
    except OSError as error:
        text = f"{name} cannot be loaded ({error}): it comes with the NVIDIA driver"
        raise CudaMissing(text) from error
