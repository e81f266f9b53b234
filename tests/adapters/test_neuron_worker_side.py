"""What the Neuron worker side does otherwise than vLLM's, with a stand-in agent."""

from __future__ import annotations

import sys
from typing import Any

import attrs
import numpy as np
import pytest
from neuron_caches import Tensor
from vllm_settings import settings_for

import kvxfer_neuron
from kvxfer.driver import TransferId
from kvxfer.driver.commands import Offer
from kvxfer.errors import BadValue, LocalFault
from kvxfer.layout.geometry import BlockTable, GroupKind
from kvxfer_neuron.marks import marks_of
from kvxfer_neuron.worker_side import NeuronWorkerSide
from kvxfer_vllm.geometry import CacheGroup
from kvxfer_vllm.metadata import Expect, Send, StepOrders

SETTINGS = settings_for(engine_id="e", port=0, offer_lease_ms=1000, deadline_ms=1000)
GROUP = CacheGroup(layers=("l0",), tokens_per_block=4, manager_blocks=3)
OFFER = Offer(
    transfer_id=TransferId("r:t"),
    tables=(BlockTable(group=0, first_token=0, blocks=np.array([1], np.int64)),),
    token_count=4,
)


class Read(Tensor):
    """A cache that notes when an element is read."""

    notes: list[str]

    def __getitem__(self, place: Any) -> Read:
        return self

    def item(self) -> int:
        self.notes.append("read")
        return 0


@attrs.define
class StandIn:
    config: Any
    notes: list[str]

    address: Any = None

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: self.notes.append(name)


def start(**marks: str) -> tuple[NeuronWorkerSide, StandIn, list[str]]:
    notes: list[str] = []
    agents: list[StandIn] = []

    def start_agent(config: Any) -> Any:
        agents.append(StandIn(config, notes))
        return agents[0]

    side = NeuronWorkerSide(SETTINGS, (GROUP,), 2, start_agent=start_agent, marks=marks)
    tensor = Read(np.zeros((2, 3, 2, 4, 5), np.uint16))
    tensor.notes = notes
    side.register_caches({"l0": tensor})
    return side, agents[0], notes


def test_the_agent_gets_k_and_v_apart() -> None:
    _, agent, _ = start()
    group = agent.config.shard.groups[0]
    assert [plane.name for plane in group.planes] == ["k", "v"]
    assert (group.kind, group.fingerprint) == (GroupKind.FULL, "uint16")


def test_what_the_operator_says_of_the_elements_is_in_the_fingerprint() -> None:
    _, agent, _ = start(scales="e4m3-240", packing="fp8_packed_kv")
    group = agent.config.shard.groups[0]
    assert (group.kind, group.fingerprint) == (GroupKind.PAGE, "uint16 e4m3-240 fp8_packed_kv")


def test_an_offer_waits_for_the_step_once_and_other_orders_do_not() -> None:
    side, _, notes = start()
    expect = Expect(request_id="r", transfer_id=TransferId("r:t"))
    side.deliver(StepOrders(step=1, orders=(expect,)))
    assert notes == ["expect"]
    two = StepOrders(step=2, orders=(Send(request_id="r", offer=OFFER),) * 2)
    side.deliver(two)
    assert notes[1:] == ["read", "offer", "offer"]
    # The second hook of the same step brings them again.
    side.deliver(two)
    assert len(notes) == 4


def test_marks_that_are_no_names() -> None:
    assert marks_of({"cache_scales": "e4m3-240", "mode": "push"}) == {"scales": "e4m3-240"}
    for key in ("cache_scales", "cache_packing"):
        with pytest.raises(BadValue, match=key):
            marks_of({key: ""})


def test_a_vllm_without_the_hooks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kvxfer_vllm.connector", None)
    monkeypatch.delitem(sys.modules, "kvxfer_neuron.connector", raising=False)
    with pytest.raises(LocalFault, match=r"needs the hooks of vLLM 0.32 or later: .*connector"):
        _ = kvxfer_neuron.KvxferNeuronPushConnector
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = kvxfer_neuron.Nothing
