"""Soak: mixed load with restarts for a long time, and what the engines hold at the end.

Run as a script; the last line on standard output is the JSON verdict. For each transport two
producers and two consumers: one of each stays for the whole run and is judged, the other is
killed, drained and ended, or sent to sleep, again and again. Memory, threads, descriptors and
tables of those that stay are read at rest after a warm-up and at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections import Counter
from typing import Any

import attrs
from soak_rig import Fact, Peer, PeerGone, Traffic

STAYING = ("P-stays", "D-stays")
LEAVING = ("P-leaves", "D-leaves")
REST_S = 60.0
SETTLE_S = 3.0
"""Libraries end threads and close descriptors of peers that have gone with a delay."""
LINK_TRIES = 5
WAYS = ("kill", "end", "sleep")
RSS_SHARE = 0.10
RSS_KIB = 16 << 10
"""Allowed growth of resident memory: allocators round up and keep what they had at a peak."""
WAIT_S_MAX = 60.0
"""Nothing waits longer: three times the transfers' own deadline, and this machine."""


@attrs.define
class Soak:
    """One transport's engines and their load."""

    transport: str
    rate: float
    restart_s: float
    rng: random.Random
    peers: dict[str, Peer] = attrs.field(factory=dict)
    traffic: Traffic = attrs.field(factory=Traffic)
    restarts: Counter[str] = attrs.field(factory=Counter)
    samples: list[dict[str, Fact]] = attrs.field(factory=list)
    late_writes: int = 0
    _moving: bool = False

    async def begin(self) -> None:
        await asyncio.gather(*(self._start(name) for name in (*STAYING, *LEAVING)))

    async def _start(self, name: str, port: int = 0) -> None:
        settings = {"engine_id": name, "role": name[0], "transport": self.transport, "port": port}
        self.peers[name] = await Peer.start(settings)

    async def run(self, seconds: float) -> None:
        """Load and restarts for so long, then wait for the end of all that was begun."""
        self._moving = True
        restarting = asyncio.create_task(self._restart_all())
        stop_s = time.monotonic() + seconds
        while time.monotonic() < stop_s:
            self._begin_one()
            await asyncio.sleep(self.rng.expovariate(self.rate))
        self._moving = False
        await restarting
        await self.traffic.settle()

    def _begin_one(self) -> None:
        draw = self.rng.random
        spoil = "cancel" if draw() < 0.1 else "withdraw" if draw() < 0.05 else ""
        self.traffic.begin(
            self.peers[self.rng.choice(("P-stays", "P-leaves"))],
            self.peers[self.rng.choice(("D-stays", "D-leaves"))],
            count=self.rng.randint(1, 32),
            pull=draw() < 0.3,
            chunks=self.rng.choice((1, 1, 2, 4)),
            spoil=spoil,
            after_s=draw() * 0.05,
        )

    async def _restart_all(self) -> None:
        turn = 0
        while True:
            for _ in range(round(self.restart_s * 10)):
                if not self._moving:
                    return
                await asyncio.sleep(0.1)
            way, name = WAYS[turn % len(WAYS)], LEAVING[turn // len(WAYS) % len(LEAVING)]
            turn += 1
            await self._restart(name, way)
            self.restarts[way] += 1

    async def _restart(self, name: str, way: str) -> None:
        peer = self.peers[name]
        port = peer.address[1] if peer.address is not None else 0
        if way == "sleep":
            await peer.ask("sleep")
            return
        if way == "kill":
            await peer.kill()
        else:
            peer.order("drain")
            stop_s = time.monotonic() + REST_S
            while not (await peer.ask("state"))["drained"] and time.monotonic() < stop_s:
                await asyncio.sleep(0.05)
            self.late_writes += (await peer.ask("state"))["late_writes"]
            await peer.close()
        await self._start(name, port)

    async def at_rest(self) -> dict[str, Fact]:
        """Figures of those that stay, once nothing is live with any and all know each other."""
        for producer in ("P-stays", "P-leaves"):
            for consumer in ("D-stays", "D-leaves"):
                # The first after a restart may be lost with what is left of the link before.
                for _ in range(LINK_TRIES):
                    end = await self.traffic.move(self.peers[producer], self.peers[consumer])
                    if end == "landed":
                        break
        stop_s = time.monotonic() + REST_S
        while True:
            states = {name: await self.peers[name].ask("state") for name in self.peers}
            if not any(state["live"] for state in states.values()) or time.monotonic() > stop_s:
                break
            await asyncio.sleep(0.1)
        await asyncio.sleep(SETTLE_S)
        self.samples.append({name: await self.peers[name].ask("state") for name in STAYING})
        return self.samples[-1]

    async def end(self) -> None:
        for peer in self.peers.values():
            if not peer.gone:
                try:
                    await peer.close()
                except (PeerGone, TimeoutError):
                    await peer.kill()


def report(soak: Soak) -> dict[str, Any]:
    """What one transport's run comes to. The first sample is the one to compare with."""
    first, last = soak.samples[0], soak.samples[-1]
    keys = ("rss_kib", "threads", "descriptors")
    tables = ("live", "quarantined", "blocks_held")
    stays = {
        name: {key: [sample[name][key] for sample in soak.samples] for key in (*keys, *tables)}
        | {"rss_kib_per_transfer": _slope(soak, name)}
        for name in STAYING
    }
    late_writes = soak.late_writes + sum(last[name]["late_writes"] for name in STAYING)
    ends = soak.traffic.ends
    good = (
        ends["landed"] > 0 == ends["wrong"] == late_writes
        and soak.traffic.waited_s_max <= WAIT_S_MAX
        and all(_back(first[name], last[name]) for name in STAYING)
    )
    return {
        "transport": soak.transport,
        "good": good,
        "transfers": sum(ends.values()),
        "ends": dict(ends.most_common()),
        "restarts": dict(soak.restarts),
        "late_writes": late_writes,
        "waited_s_max": round(soak.traffic.waited_s_max, 2),
        "stays": stays,
    }


def _back(first: Fact, last: Fact) -> bool:
    return (
        last["rss_kib"] <= first["rss_kib"] * (1 + RSS_SHARE) + RSS_KIB
        and last["threads"] <= first["threads"]
        and last["descriptors"] <= first["descriptors"]
        and last["live"] == last["quarantined"] == last["blocks_held"] == 0
    )


def _slope(soak: Soak, name: str) -> float:
    """Growth of resident memory from the first sample to the last, per transfer of all."""
    grown = soak.samples[-1][name]["rss_kib"] - soak.samples[0][name]["rss_kib"]
    return round(grown / max(1, sum(soak.traffic.ends.values())), 4)


async def run_one(
    transport: str,
    *,
    seconds: float,
    warm_s: float,
    rounds: int,
    rate: float,
    restart_s: float,
    seed: int,
) -> dict[str, Any]:
    """Warm up, then `rounds` stretches of load with a rest after each."""
    soak = Soak(transport, rate, restart_s, random.Random(seed))
    try:
        await soak.begin()
        await soak.run(warm_s)
        await soak.at_rest()
        soak.traffic.ends.clear()
        soak.restarts.clear()
        soak.traffic.waited_s_max = 0.0
        for _ in range(rounds):
            await soak.run(seconds / rounds)
            say(f"{transport}: {await soak.at_rest()}")
        return report(soak)
    finally:
        await soak.end()


def say(line: str) -> None:
    sys.stderr.write(line + "\n")


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600.0, help="of load")
    parser.add_argument("--warm-s", type=float, default=60.0, help="of load before the first look")
    parser.add_argument("--rounds", type=int, default=6, help="looks at rest")
    parser.add_argument("--rate", type=float, default=10.0, help="transfers per second, each")
    parser.add_argument("--restart-s", type=float, default=8.0, help="between two restarts, each")
    parser.add_argument("--transports", default="nixl,ucx")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    begun_s = time.monotonic()
    reports = await asyncio.gather(
        *(
            run_one(
                transport,
                seconds=options.seconds,
                warm_s=options.warm_s,
                rounds=options.rounds,
                rate=options.rate,
                restart_s=options.restart_s,
                seed=options.seed,
            )
            for transport in options.transports.split(",")
        )
    )
    good = all(one["good"] for one in reports)
    seconds = round(time.monotonic() - begun_s, 1)
    sys.stdout.write(json.dumps({"good": good, "seconds": seconds, "transports": reports}) + "\n")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
