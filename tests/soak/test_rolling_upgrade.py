"""A rolling upgrade between two minor versions, and back, with traffic on.

Agents are processes; the newer ones speak what `newer_minor.py` adds. One after the other
is drained, ended and started again in the other version at the same address.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import attrs
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from soak_rig import Fact, Peer, Traffic

from kvxfer.status import Status
from kvxfer.transport.registry import available

WAIT_S = 120.0
UNHEARD_OF = (
    "DEADLINE",
    "DIGEST_MISMATCH",
    "LAYOUT_REFUSED",
    "OUT_OF_BOUNDS",
    "PARTS_MISMATCH",
    "PROTOCOL_ERROR",
    "UNREGISTERED",
    "UNSUPPORTED",
    "VERSION_MISMATCH",
)


def usable(name: str) -> bool:
    return any(found.name == name and found.status == Status.OK for found in available())


@attrs.define
class Fleet:
    """Two producers and two consumers, by place; what stands there changes."""

    transport: str
    peers: dict[str, Peer] = attrs.field(factory=dict)
    traffic: Traffic = attrs.field(factory=Traffic)
    stopping: bool = False
    moved: asyncio.Condition = attrs.field(factory=asyncio.Condition)

    async def start(self, place: str, *, newer: bool, port: int = 0) -> None:
        self.peers[place] = await Peer.start(
            {
                "engine_id": place,
                "role": place[0],
                "transport": self.transport,
                "port": port,
                "newer": newer,
            }
        )

    async def replace(self, place: str, *, newer: bool) -> None:
        """Drain, end, start again in the other version."""
        old = self.peers[place]
        old.order("drain")
        await self.at_rest(place, drained=True)
        closed = await old.close()
        assert closed == {"order": "close", "ended": True, "left": []}, closed
        port = old.address[1] if old.address is not None else 0
        await self.start(place, newer=newer, port=port)

    async def at_rest(self, place: str, *, drained: bool = False) -> Fact:
        """What an engine says once it holds nothing."""
        async with asyncio.timeout(WAIT_S):
            while True:
                state = await self.peers[place].ask("state")
                if state["live"] == 0 and drained <= state["drained"]:
                    return state
                await asyncio.sleep(0.02)

    async def run_traffic(self, producer: str, consumer: str) -> None:
        """One transfer after the other between two places, whoever stands there."""
        number = 0
        while not self.stopping:
            number += 1
            how = {"count": 1 + number % 7, "pull": number % 3 == 0, "chunks": 1 + number % 2}
            await self.traffic.move(self.peers[producer], self.peers[consumer], **how)
            async with self.moved:
                self.moved.notify_all()
            # A refused transfer comes back at once; a router would choose another engine.
            await asyncio.sleep(0.05)

    async def landed_more(self, count: int) -> None:
        """Until `count` more transfers have landed."""
        goal = self.traffic.ends["landed"] + count
        async with asyncio.timeout(WAIT_S), self.moved:
            await self.moved.wait_for(lambda: self.traffic.ends["landed"] >= goal)


async def upgrade(transport: str) -> None:
    fleet = Fleet(transport)
    places = ("P1", "D1", "P2", "D2")
    try:
        await asyncio.gather(*(fleet.start(place, newer=False) for place in places))
        async with asyncio.TaskGroup() as group:
            for producer in ("P1", "P2"):
                for consumer in ("D1", "D2"):
                    group.create_task(fleet.run_traffic(producer, consumer))
            for newer in (True, False):
                for place in places:
                    await fleet.landed_more(5)
                    await fleet.replace(place, newer=newer)
                await fleet.landed_more(20)
                if newer:
                    states = [await fleet.peers[place].ask("state") for place in places]
                    assert all(state["newer"]["hints"] > 0 for state in states), states
                    assert all(state["newer"]["keys"] > 0 for state in states), states
                    assert sum(state["newer"]["answers"] for state in states) > 0, states
            fleet.stopping = True
        ends = fleet.traffic.ends
        assert ends["wrong"] == 0
        assert ends["landed"] >= 8 * 5 + 2 * 20
        # What met an engine on its way out was refused or cut off with it. Nothing waited for
        # its deadline, and nobody misunderstood anybody.
        assert not {f"lost {reason}" for reason in UNHEARD_OF} & set(ends), ends
        for place in places:
            state = await fleet.at_rest(place)
            assert (state["late_writes"], state["protocol_faults"]) == (0, 0), state
            assert state["blocks_held"] == 0, state
    finally:
        for peer in fleet.peers.values():
            await peer.kill()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("transport", ["ucx"])
def test_agents_of_two_minor_versions_restart_one_after_another(transport: str) -> None:
    if not usable(transport):
        pytest.skip(f"{transport} does not work here")
    asyncio.run(upgrade(transport))
