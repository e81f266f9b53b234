"""The end of a native agent, on which every fence rests."""

from __future__ import annotations

import os

from kvxfer.transport.ops import TransportOps
from kvxfer_nixl.agent import NixlAgent, agent_is_alive


def _descriptors_open() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_destroyed_agent_is_gone_with_its_sockets(nixl_ops: TransportOps) -> None:
    NixlAgent.create("tcp").destroy()  # The first one loads libraries that stay.
    before = _descriptors_open()
    agent = NixlAgent.create("tcp")
    assert agent_is_alive(agent.name)
    assert _descriptors_open() > before
    assert agent.destroy()
    assert not agent_is_alive(agent.name)
    assert _descriptors_open() == before


def test_an_agent_that_something_keeps_alive_is_not_called_destroyed(
    nixl_ops: TransportOps,
) -> None:
    agent = NixlAgent.create("tcp")
    keeper = agent._native.agent
    assert not agent.destroy()
    assert agent_is_alive(agent.name)
    del keeper


def test_agents_have_names_of_their_own(nixl_ops: TransportOps) -> None:
    agents = [NixlAgent.create("tcp") for _ in range(3)]
    assert len({agent.name for agent in agents}) == 3
    for agent in agents:
        assert agent.destroy()
