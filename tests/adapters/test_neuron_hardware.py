"""A real Neuron device: opt-in, and never run by this project's authors.

Needs `/dev/neuron*`, torch with the `neuron` device, NIXL with LIBFABRIC over EFA, and
KVXFER_NEURON=1. Anywhere else it says what is missing and skips. One process, one core pair:
tokens written by one agent into another's cache, read back through torch and compared.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
from neuron_caches import Cache, paged_cache
from neuron_ends import End

from kvxfer.driver import Initiator, Landed, Sent, TransferId
from kvxfer.status import Status
from kvxfer.transport.caps import Caps
from kvxfer.transport.neuron import MAP_VARIABLE, NeuronRuntime, RuntimeState
from kvxfer.transport.registry import descriptor_of, open_transport

OPT_IN = "KVXFER_NEURON"
FABRIC = {"backends": ["LIBFABRIC"]}
FORM: dict[str, Any] = {"layers": ("l0", "l1"), "blocks": 9, "heads": 2, "tokens": 32, "dim": 128}
HERE, THERE, TOKENS = [4, 8, 1, 3], [2, 7, 5, 6], 100


def missing() -> str:
    """The first thing that is not here; empty where the test can run."""
    if os.environ.get(OPT_IN) != "1":
        return f"{OPT_IN} is not 1"
    devices = [p for p in Path("/dev").iterdir() if p.name.removeprefix("neuron").isdigit()]
    if not devices:
        return "no /dev/neuron*"
    if os.environ.get(MAP_VARIABLE) != "1":
        return f"{MAP_VARIABLE} is not 1"
    if NeuronRuntime.state_here() is RuntimeState.MISSING:
        return RuntimeState.MISSING.text
    try:
        importlib.import_module("torch_neuronx")
    except ImportError as error:
        return str(error)
    status, text = descriptor_of("nixl").probe()
    return text if status != Status.OK else ""


@attrs.define
class TorchDevice:
    """Tensors on the device; arrays are copies that go up and come down whole."""

    torch: Any
    index: int = 0
    tensors: dict[int, Any] = attrs.field(factory=dict)

    def zeros(self, shape: Any) -> np.ndarray:
        array = np.zeros(shape, np.uint16)
        tensor = self.torch.zeros(shape, dtype=self.torch.int16, device=f"neuron:{self.index}")
        self.tensors[int(array.ctypes.data)] = tensor
        return array

    def tensor(self, array: np.ndarray) -> Any:
        return self.tensors[int(array.ctypes.data)]

    def upload(self, cache: Cache) -> None:
        for whole, tensor in self._wholes(cache):
            tensor.copy_(self.torch.from_numpy(whole.view(np.int16)))

    def download(self, cache: Cache) -> None:
        for whole, tensor in self._wholes(cache):
            whole[...] = tensor.cpu().numpy().view(np.uint16)

    def _wholes(self, cache: Cache) -> Iterator[tuple[np.ndarray, Any]]:
        for key, _ in cache.arrays.values():
            yield key.base, self.tensors[int(key.ctypes.data)]


@pytest.mark.parametrize("initiator", list(Initiator))
def test_a_request_moves_between_two_caches_on_the_device(initiator: Initiator) -> None:
    why = missing()
    if why:
        pytest.skip(f"no Neuron hardware test here: {why}")
    torch = importlib.import_module("torch")
    devices = TorchDevice(torch), TorchDevice(torch)
    p, d = (paged_cache(**FORM, device=device) for device in devices)
    ops = open_transport("nixl")
    status, session = ops.open(FABRIC)
    assert status == Status.OK, ops.last_error(0)
    assert Caps.MEM_NEURON in ops.caps(session)
    ops.close(session)
    p.fill(1)
    d.fill(2)
    devices[0].upload(p)
    devices[1].upload(d)
    expected = {
        (layer, plane): d.with_tokens(layer, plane, THERE, 0, p.read(layer, plane, HERE)[:TOKENS])
        for layer in p.arrays
        for plane in (0, 1)
    }
    ends = [End.start(name, cache, "nixl", FABRIC) for name, cache in (("p", p), ("d", d))]
    try:
        transfer = TransferId("hardware")
        ends[1].agent.register(
            transfer,
            producers=(ends[0].address,),
            tables=(d.table(THERE),),
            token_start=0,
            token_stop=TOKENS,
            initiator=initiator,
        )
        ends[0].agent.offer(transfer, (p.table(HERE),), TOKENS)
        ends[1].until(Landed)
        ends[0].until(Sent)
        devices[1].download(d)
    finally:
        for end in ends:
            end.agent.close()
    for (layer, plane), tensor in expected.items():
        assert np.array_equal(d.arrays[layer][plane], tensor)
