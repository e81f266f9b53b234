"""The adapter on a fake device: its own runtime library in C, tensors that answer as torch's do.

The whole way from tensors to bytes at the other engine, over UCX and over LIBFABRIC. The fake's
memory is the host's, so nixl is told 'DRAM' where it would be told 'VRAM': that one word is
what a real device changes. LIBFABRIC needs `make fabric`; elsewhere it skips with the reason.
"""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from neuron_caches import Tensor, nxdi_cache, packed_cache, paged_cache
from neuron_ends import DEADLINE_S, End, move
from neuron_fake import Device, build
from vllm_settings import settings_for

from kvxfer.driver import Initiator, Memory, ProducerAddress, Role, TransferId
from kvxfer.driver.commands import Offer, Register
from kvxfer.errors import LocalFault, TransportFault
from kvxfer.layout.geometry import BlockTable
from kvxfer.status import Status
from kvxfer.transport import neuron
from kvxfer.transport.caps import Caps
from kvxfer.transport.finding import Level
from kvxfer.transport.neuron import NeuronRuntime, RuntimeState
from kvxfer.transport.ops import TransportOps
from kvxfer.transport.registry import descriptor_of
from kvxfer_neuron import Order, place, resolve
from kvxfer_neuron.hbm import materialise
from kvxfer_neuron.worker_side import NeuronWorkerSide
from kvxfer_vllm.cache_groups import CacheGroup
from kvxfer_vllm.ledger import Report
from kvxfer_vllm.metadata import Receive, Send, StepOrders

MAPPED = neuron.MAP_VARIABLE
FABRIC = {"backends": ["LIBFABRIC"]}
MODEL: dict[str, Any] = {"layers": ("l0", "l1", "l2", "l3"), "heads": 2, "dim": 8}


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("libnrt"))


@pytest.fixture
def device(library: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    """The runtime as a well-set-up engine has it."""
    monkeypatch.setenv(neuron.LIBRARY_VARIABLE, str(library))
    monkeypatch.setenv(MAPPED, "1")
    device = Device.of(library)
    device.up()
    yield device
    device.down()


def test_a_tensor_is_found_where_the_runtime_has_it(device: Device) -> None:
    array = device.zeros((4, 8))
    tensor = device.tensor(array)
    memory = resolve("l0", tensor)
    assert memory == Memory(base=array.ctypes.data, length=64, kind="neuron", device=0)
    assert memory.keepalive is tensor
    placed = place("l0", device.tensor(array[1:]))
    assert (placed.address, placed.memory.base) == (array[1:].ctypes.data, array.ctypes.data)
    assert (placed.shape, placed.strides, placed.dtype) == ((3, 8), (16, 2), "uint16")


def test_host_memory_is_what_it_says(device: Device) -> None:
    tensor = Tensor(device.zeros((2, 2)))
    assert resolve("l0", tensor).kind == "dram"


class TestEachMistakeHasItsOwnError:
    """Every text names the cache and what to change."""

    def test_memory_that_is_not_mapped(
        self, device: Device, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv(MAPPED)
        tensor = device.tensor(device.zeros((2, 2)))
        with pytest.raises(LocalFault, match="l0 has no address: NEURON_RT_MAP_HBM is not set"):
            resolve("l0", tensor)
        monkeypatch.setenv(MAPPED, "yes")
        with pytest.raises(LocalFault, match="NEURON_RT_MAP_HBM is 'yes'; set it to 1 before"):
            resolve("l0", tensor)

    def test_a_variable_that_was_set_too_late(
        self, device: Device, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv(MAPPED)
        device.zeros((1,))
        monkeypatch.setenv(MAPPED, "1")
        with pytest.raises(LocalFault, match="was not when this process allocated its first"):
            resolve("l0", device.tensor(device.zeros((2, 2))))

    def test_a_view_with_gaps(self, device: Device) -> None:
        with pytest.raises(LocalFault, match=r"not contiguous, shape \(2, 2\), strides \(4, 1\)"):
            resolve("l0", device.tensor(device.zeros((2, 4))[:, :2]))

    def test_a_device_of_another_kind(self, device: Device) -> None:
        tensor = device.tensor(device.zeros((2, 2)))
        tensor.device.type = "cuda"
        with pytest.raises(LocalFault, match="l0 is on device 'cuda': 'neuron' expected"):
            resolve("l0", tensor)

    def test_a_runtime_that_is_not_up(self, device: Device) -> None:
        tensor = device.tensor(device.zeros((2, 2)))
        device.library.nrt_close()
        with pytest.raises(LocalFault, match=r"not up in this process .* before the connector"):
            resolve("l0", tensor)

    def test_a_library_that_is_not_there(
        self, device: Device, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tensor = device.tensor(device.zeros((2, 2)))
        monkeypatch.setattr(NeuronRuntime, "find", lambda: None)
        with pytest.raises(LocalFault, match=r"libnrt.so.1 cannot be loaded here .*KVXFER_LIBNRT"):
            resolve("l0", tensor)


def test_what_the_runtime_says_of_itself(device: Device, library: Path) -> None:
    runtime = NeuronRuntime.find()
    assert runtime is not None
    assert runtime.path == str(library)
    assert runtime.state() is RuntimeState.UP
    assert runtime.efa_of(device.zeros((1,)).ctypes.data) == "0000:00:1d.0"
    assert runtime.efa_of(0) == ""
    device.library.nrt_close()
    assert NeuronRuntime.state_here() is RuntimeState.DOWN


def test_a_path_that_is_not_there_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neuron, "SONAME", "libnrt-of-nowhere.so.1")
    monkeypatch.setattr(neuron, "INSTALLED", "/nowhere/libnrt.so.1")
    monkeypatch.setenv(neuron.LIBRARY_VARIABLE, "/nowhere/else.so")
    assert NeuronRuntime.state_here() is RuntimeState.MISSING


def test_reading_an_element_waits_for_what_was_started() -> None:
    asked = []

    class Reading:
        shape = (2, 3, 4)

        def __getitem__(self, place: tuple[int, ...]) -> Any:
            asked.append(place)
            return self

        def item(self) -> int:
            asked.append(())
            return 0

    materialise(Reading())
    assert asked == [(0, 0, 0), ()]


# --- the transport ---


@pytest.fixture
def nixl() -> TransportOps:
    status, text = descriptor_of("nixl").probe()
    if status != Status.OK:
        pytest.skip(text)
    return descriptor_of("nixl").load()


@pytest.fixture
def open_or_skip(nixl: TransportOps) -> Iterator[Callable[[dict[str, Any]], int]]:
    sessions = []

    def make(options: dict[str, Any]) -> int:
        status, session = nixl.open(options)
        if status != Status.OK:
            text = nixl.last_error(0)
            assert os.environ.get("KVXFER_FABRIC") != "required", text
            pytest.skip(text)
        sessions.append(session)
        return session

    yield make
    for session in sessions:
        nixl.close(session)


@pytest.fixture
def as_host_memory(nixl: TransportOps, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one word that a real device changes; and UCX may then carry it, too."""
    from kvxfer_nixl import kinds

    monkeypatch.setitem(kinds.NAMES, "neuron", "DRAM")
    monkeypatch.setattr(kinds, "NEURON_BACKENDS", {"LIBFABRIC", "UCX"})
    monkeypatch.setattr(kinds, "cuda_is_here", lambda: False)


def registered(ops: TransportOps, session: int, device: Device) -> tuple[Status, str]:
    memory = resolve("l0", device.tensor(device.zeros((64,))))
    return ops.register_region(session, memory)[0], ops.last_error(session)


def test_ucx_says_that_it_cannot_reach_the_device(
    nixl: TransportOps, open_or_skip: Callable[..., int], device: Device
) -> None:
    session = open_or_skip({})
    assert Caps.MEM_NEURON not in nixl.caps(session)
    status, text = registered(nixl, session, device)
    assert status == Status.OP_INVALID
    assert "UCX cannot reach it; open the session with backends = ['LIBFABRIC']" in text


def test_libfabric_over_tcp_says_that_it_cannot_either(
    nixl: TransportOps, open_or_skip: Callable[..., int], device: Device
) -> None:
    status, text = registered(nixl, open_or_skip(FABRIC), device)
    assert status == Status.OP_INVALID
    assert "takes no device memory, only EFA does" in text


def test_an_agent_that_was_made_before_the_runtime_was_up(
    nixl: TransportOps, open_or_skip: Callable[..., int], device: Device, as_host_memory: None
) -> None:
    device.library.nrt_close()
    session = open_or_skip({})
    assert Caps.MEM_NEURON not in nixl.caps(session)
    device.up()
    status, text = registered(nixl, session, device)
    assert status == Status.OP_INVALID
    assert "not up in this process" in text
    assert "allocate the caches before the agent is made" in text


def test_nvidia_devices_come_first(
    nixl: TransportOps,
    open_or_skip: Callable[..., int],
    device: Device,
    as_host_memory: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from kvxfer_nixl import kinds

    monkeypatch.setattr(kinds, "cuda_is_here", lambda: True)
    status, text = registered(nixl, open_or_skip({}), device)
    assert status == Status.OP_INVALID
    assert "nixl takes the NVIDIA devices of this host" in text


@pytest.mark.parametrize("options", [{}, FABRIC], ids=["UCX", "LIBFABRIC"])
def test_an_agent_takes_device_memory_and_says_so(
    options: dict[str, Any],
    nixl: TransportOps,
    open_or_skip: Callable[..., int],
    device: Device,
    as_host_memory: None,
) -> None:
    session = open_or_skip(options)
    assert Caps.MEM_NEURON in nixl.caps(session)
    assert registered(nixl, session, device)[0] == Status.OK
    assert nixl.peer_create(session)[0] == Status.OK


# --- the whole way ---

BLOCKS = [5, 17, 2, 9, 11, 3, 1, 15, 12, 6, 13, 4, 10]
"""Of 16 tokens: 208."""


@pytest.mark.parametrize("initiator", list(Initiator))
@pytest.mark.parametrize("kind", ["lines", "vLLM Neuron"])
@pytest.mark.parametrize("options", [{}, FABRIC], ids=["UCX", "LIBFABRIC"])
def test_a_device_and_a_host_engine_hand_requests_to_each_other(
    options: dict[str, Any],
    kind: str,
    initiator: Initiator,
    open_or_skip: Callable[..., int],
    device: Device,
    as_host_memory: None,
) -> None:
    open_or_skip(options)
    if kind == "lines":
        form = {"order": Order.LINES, "usable": 3, "spare": 1, "tokens": 256}
        cache, blocks = nxdi_cache(**form, **MODEL, device=device), [1]
    else:
        cache = paged_cache(**MODEL, blocks=9, tokens=32, device=device)
        blocks = [4, 8, 1, 3, 7, 6, 2]
    assert {memory.kind for memory in cache.memories} == {"neuron"}
    host = packed_cache(**MODEL, blocks=18, tokens=16)
    cache.fill(1)
    host.fill(2)
    ends = [End.start("neuron", cache, "nixl", options), End.start("host", host, "nixl", options)]
    try:
        move(*ends, blocks, BLOCKS, (0, 205), initiator)
        host.fill(3)
        move(*reversed(ends), BLOCKS, blocks, (0, 205), initiator)
    finally:
        for end in ends:
            end.agent.close()


@pytest.mark.parametrize("initiator", list(Initiator))
@pytest.mark.parametrize("options", [{}, FABRIC], ids=["UCX", "LIBFABRIC"])
def test_the_worker_sides_of_two_engines_on_devices(
    options: dict[str, Any],
    initiator: Initiator,
    open_or_skip: Callable[..., int],
    device: Device,
    as_host_memory: None,
) -> None:
    """What vLLM's workers get is tensors and orders; what comes back is request ids."""
    open_or_skip(options)
    p, p_tensors = worker_side("p", Role.PRODUCER, device, options)
    d, d_tensors = worker_side("d", Role.CONSUMER, device, options)
    try:
        here, there, tokens = [5, 2, 8], [1, 7, 3], 70
        for number, tensor in enumerate(p_tensors):
            chance = np.random.default_rng(number)
            tensor.array[...] = chance.integers(0, 1 << 16, tensor.shape, np.uint16)
        host, port = p.agent.address or ("", 0)
        producer = ProducerAddress(engine_id="p", rank=0, host=host, port=port)
        transfer = TransferId("r:t")
        register = Register(
            transfer_id=transfer,
            producers=(producer,),
            tables=(table(there),),
            token_start=0,
            token_stop=tokens,
            tag="r-d",
            initiator=initiator,
        )
        offer = Offer(transfer_id=transfer, tables=(table(here),), token_count=tokens, tag="r-p")
        d.deliver(StepOrders(step=1, orders=(Receive(request_id="r-d", register=register),)))
        p.deliver(StepOrders(step=1, orders=(Send(request_id="r-p", offer=offer),)))
        assert report_of(d).received == {"r-d"}
        assert report_of(p).sent == {"r-p"}
        for source, target in zip(p_tensors, d_tensors, strict=True):
            # 70 tokens are two blocks of 32 and 6 tokens of a third.
            expected = np.zeros_like(target.array)
            expected[:, there] = source.array[:, here]
            expected[:, there[-1], :, tokens % 32 :] = 0
            assert np.array_equal(target.array, expected)
    finally:
        p.close()
        d.close()


def worker_side(
    name: str, role: Role, device: Device, options: dict[str, Any]
) -> tuple[NeuronWorkerSide, list[Any]]:
    settings = settings_for(
        engine_id=name,
        role=role,
        port=0,
        transport="nixl",
        transport_options=options,
        offer_lease_ms=60_000,
    )
    group = CacheGroup(layers=MODEL["layers"], tokens_per_block=32, manager_blocks=9)
    side = NeuronWorkerSide(settings, (group,), 2)
    tensors = [device.tensor(device.zeros((2, 9, 2, 32, 8))) for _ in MODEL["layers"]]
    side.register_caches(dict(zip(MODEL["layers"], tensors, strict=True)))
    return side, tensors


def table(blocks: list[int]) -> BlockTable:
    return BlockTable(group=0, first_token=0, blocks=np.array(blocks, np.int64))


def report_of(side: NeuronWorkerSide) -> Report:
    """The first report that says anything."""
    end = time.monotonic() + DEADLINE_S
    while True:
        report = side.take_report()
        if report.sent or report.received:
            assert not report.failed
            return report
        assert time.monotonic() < end, "nothing was reported"
        side.agent.wait(1.0)


def test_an_agent_over_ucx_does_not_start_on_device_memory(
    nixl: TransportOps, device: Device
) -> None:
    cache = paged_cache(**MODEL, blocks=3, tokens=4, device=device)
    with pytest.raises(TransportFault, match="memory kind = 'neuron': UCX cannot reach it"):
        End.start("neuron", cache, "nixl", {})


def test_doctor_tries_the_runtime_where_there_are_devices(
    nixl: TransportOps, device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The package has a function of that name, too.
    diagnose = importlib.import_module("kvxfer_nixl.diagnose")
    (tmp_path / "neuron0").touch()
    monkeypatch.setattr(diagnose, "_DEVICES", str(tmp_path))
    fabric, runtime = (f for f in diagnose.diagnose() if f.subject != "nixl UCX")
    if os.environ.get("KVXFER_FABRIC") == "required":
        assert (fabric.level, fabric.text.split()[:2]) == (Level.FINE, ["libfabric", "2.5"])
    else:
        assert (fabric.level, "docs/fabric.md" in fabric.fix) == (Level.PROBLEM, True)
    assert runtime.level is Level.FINE
    monkeypatch.setattr(NeuronRuntime, "find", lambda: None)
    *_, runtime = diagnose.diagnose()
    assert (runtime.level, neuron.LIBRARY_VARIABLE in runtime.fix) == (Level.PROBLEM, True)
