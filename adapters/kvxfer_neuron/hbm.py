"""Where a cache tensor lies: the one module that asks a device.

Owns the way from a tensor to address, length, device and kind of memory, and what must be
true before. Imports neither torch nor a Neuron package: a tensor is whatever answers
`TensorLike`, the runtime is asked through `kvxfer.transport.neuron`. Invariant: an address
that leaves here is one at which the network card finds the tensor's bytes, as far as
that can be known without a transfer; else the error says what to change.
"""

from __future__ import annotations

import os
from typing import Any, Protocol

from kvxfer.driver import Memory
from kvxfer.errors import LocalFault
from kvxfer.transport.neuron import MAP_VARIABLE, NeuronRuntime, RuntimeState
from kvxfer_neuron.tensors import Placed
from kvxfer_vllm.geometry import TensorLike

DEVICE = "neuron"
HOST = "cpu"
"""What tensors are on where vLLM Neuron runs in its CPU mode."""


class DeviceLike(Protocol):
    """The part of torch.device that is read here."""

    @property
    def type(self) -> str: ...
    @property
    def index(self) -> int | None: ...


class DeviceTensor(TensorLike, Protocol):
    """The part of torch.Tensor that is read here."""

    @property
    def device(self) -> DeviceLike: ...
    def is_contiguous(self) -> bool: ...


def resolve(name: str, tensor: DeviceTensor) -> Memory:
    """All of the memory that a cache tensor lies in: address, length, kind, device.

    `name` is for errors. Raises LocalFault where the network card could not find it.
    """
    device = tensor.device
    if device.type not in (DEVICE, HOST):
        raise LocalFault(f"cache of {name} is on device {device.type!r}: {DEVICE!r} expected")
    storage = tensor.untyped_storage()
    if device.type == HOST:
        return Memory(base=storage.data_ptr(), length=storage.nbytes(), keepalive=tensor)
    if not tensor.is_contiguous():
        raise LocalFault(
            f"cache of {name} is not contiguous, shape {tuple(tensor.shape)}, strides "
            f"{tuple(tensor.stride())}: give the tensor as it was allocated, not a view of it"
        )
    state = NeuronRuntime.state_here()
    if state is not RuntimeState.UP:
        raise LocalFault(
            f"cache of {name} is on a Neuron device, and {state.text}: the caches must be "
            "allocated before the connector registers them and its agent is made"
        )
    if tensor.data_ptr() == 0:
        raise LocalFault(f"cache of {name} has no address: {_why_no_address()}")
    return Memory(
        base=storage.data_ptr(),
        length=storage.nbytes(),
        kind=DEVICE,
        device=device.index or 0,
        keepalive=tensor,
    )


def _why_no_address() -> str:
    value = os.environ.get(MAP_VARIABLE)
    if value != "1":
        said = "is not set" if value is None else f"is {value!r}"
        return f"{MAP_VARIABLE} {said}; set it to 1 before the process starts"
    return (
        f"{MAP_VARIABLE} is 1 now, but was not when this process allocated its first device "
        "tensor; set it before the process starts"
    )


def place(name: str, tensor: DeviceTensor) -> Placed:
    """A cache tensor as the descriptors want it. Raises as `resolve`."""
    size = tensor.element_size()
    return Placed(
        name=name,
        shape=tuple(tensor.shape),
        strides=tuple(step * size for step in tensor.stride()),
        element_bytes=size,
        dtype=str(tensor.dtype).removeprefix("torch."),
        address=tensor.data_ptr(),
        memory=resolve(name, tensor),
    )


def materialise(tensor: Any) -> None:
    """Wait until every step that was started has written its KV.

    Neuron runs steps behind the caller's back and has no streams to wait for; reading an
    element of a tensor that a graph writes blocks until that graph is done. Costs a copy
    of one element where nothing is running.
    """
    tensor[(0,) * len(tensor.shape)].item()
