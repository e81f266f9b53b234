"""A hostile peer between two real agents: what every fuzz test and the corpus drive.

P and D have a transfer between them that must land whatever the third one sends. M
is a real agent until its links are up; then its bytes are the fuzzer's. Incarnations
are P = 1, D = 2, M = 3, so that an input can carry headers that are taken seriously.
"""

from __future__ import annotations

from enum import IntEnum

import attrs

from kvxfer.core.ids import LinkId, PeerKey, Reason, Role, TransferId
from kvxfer.driver import commands as cmd
from kvxfer.limits import Limits, Timings
from kvxfer.status import Status
from kvxfer.testing.engines import ToyConsumer
from kvxfer.testing.sim.agents import TOKENS, Bench, make_bench, make_node
from kvxfer.testing.world import Node, table

LIMITS = Limits(
    transfers_max=16, grants_parked_max=16, tombstones_max=32, message_bytes_max=1 << 16
)
TIMINGS = Timings(transfer_deadline_ms=4000, offer_lease_ms=4000, grant_lease_ms=4000)
P, D, M = 1, 2, 3


class Way(IntEnum):
    """Where the fuzzer's bytes go in."""

    STRANGER = 0
    """A connection to P that has said nothing yet."""
    ANSWER = 1
    """A connection that D dialled and that has not been answered yet."""
    CONSUMER = 2
    """M's link to P, up."""
    PRODUCER = 3
    """D's link to M, up, with a registration on it."""
    NOTICE = 4
    """A notification of the transport, from M to D."""


@attrs.define(eq=False)
class Wary(ToyConsumer):
    """Takes no word of M for true: what M alone had to serve may hold anything."""

    def collect(self) -> None:
        kept = [result for result in self.node.results if result.tag != "bait"]
        self.node.results.clear()
        self.node.results.extend(kept)
        ToyConsumer.collect(self)


@attrs.frozen
class Attack:
    """One input: the first byte is the way, the second the size of the pieces."""

    way: Way
    piece_bytes: int
    """0 for all at once."""
    data: bytes

    @classmethod
    def of(cls, whole: bytes) -> Attack:
        head = whole[:2].ljust(2, b"\0")
        return cls(Way(head[0] % len(Way)), head[1] % 64, whole[2:])

    def pieces(self) -> list[bytes]:
        size = self.piece_bytes or max(1, len(self.data))
        return [self.data[at : at + size] for at in range(0, len(self.data), size)]


@attrs.define(eq=False)
class Rig:
    """Built anew for every input."""

    bench: Bench
    hostile: Node
    to_p: LinkId
    to_d: LinkId

    @classmethod
    def build(cls) -> Rig:
        bench = make_bench(1, LIMITS, TIMINGS)
        world = bench.world
        toy = bench.consumer
        bench.consumer = Wary(world, toy.node, toy.pool, TOKENS)
        hostile = make_node(world, "M", Role.BOTH)
        p, d = bench.producer.node, bench.consumer.node
        bench.register(1)
        # Both links of M come up as any would: each carries a registration.
        _register(bench, d, "M", "bait")
        _register(bench, hostile, "P", "probe")
        world.run(lambda: _granted(hostile, "probe") and _granted(d, "bait"))
        hostile.alive = False
        ends = {frozenset(line.ends): line.ends for line in world.lines}
        to_p, to_d = ends[frozenset("MP")]["P"], ends[frozenset("MD")]["D"]
        world.step()
        assert to_p in p.pump.peers.by_link
        assert to_d in d.pump.peers.by_link
        return cls(bench, hostile, to_p, to_d)

    def attack(self, attack: Attack) -> None:
        world = self.bench.world
        node, link = self._target(attack.way)
        for piece in attack.pieces():
            if attack.way is Way.NOTICE:
                self._notify(piece)
            else:
                node.pump.link_bytes(link, piece, world.now_ms)
            world.submit(node, cmd.Cancel(transfer_id=TransferId("nobody")))
        world.step()

    def _target(self, way: Way) -> tuple[Node, LinkId]:
        now_ms = self.bench.world.now_ms
        p, d = self.bench.producer.node, self.bench.consumer.node
        match way:
            case Way.STRANGER:
                p.pump.link_opened(LinkId(9001), None, now_ms)
                return p, LinkId(9001)
            case Way.ANSWER:
                d.pump.link_opened(LinkId(9002), PeerKey("X", 0), now_ms)
                return d, LinkId(9002)
            case Way.CONSUMER:
                return p, self.to_p
            case _:
                return d, self.to_d

    def _notify(self, data: bytes) -> None:
        pump = self.hostile.pump
        handles = [r.handle for r in pump.peers.by_link.values() if r.peer.key.engine_id == "D"]
        for handle in handles:
            status = pump.ops.send_notification(pump._transport, handle, data)
            assert status == Status.OK or status < 0

    def finish(self) -> None:
        """The other link's transfer goes on and lands; M goes, and nothing is left of it."""
        bench, world = self.bench, self.bench.world
        p, d = bench.producer.node, bench.consumer.node
        assert bench.prefill(1)
        world.run(lambda: bench.ended("d1"))
        assert bench.consumer.landed == {"d1": True}, bench.consumer.lost
        for node, links in ((p, (self.to_p, 9001)), (d, (self.to_d, 9002))):
            for link in links:
                node.pump.link_closed(LinkId(link), Reason.PEER_LOST, world.now_ms)
        world.submit(d, cmd.Cancel(transfer_id=TransferId("bait"), tag="bait"))
        # Whatever M had granted or offered ends by its deadline.
        world.later(30_000, lambda: None)
        world.run(lambda: world.now_ms > 29_000)
        bench.collect()
        assert bench.tables_empty(), [n.pump.counters() for n in world.nodes.values()]
        assert len(p.pump._channels) <= 1
        assert bench.producer.outcomes["p1"].tag == "p1"
        self.hostile.alive = True
        world.close()


def run(whole: bytes) -> None:
    """Everything that an input must survive. Raises where it does not."""
    rig = Rig.build()
    rig.attack(Attack.of(whole))
    rig.finish()


def _register(bench: Bench, node: Node, producer: str, name: str) -> None:
    address = cmd.ProducerAddress(engine_id=producer, rank=0, host=producer, port=1)
    # Blocks 44 to 46 belong to nobody else here.
    taken = [44, 45, 46]
    if node is bench.consumer.node:
        for number in taken:
            bench.consumer.pool.free.remove(number)
            del bench.consumer.watched[number]
    command = cmd.Register(
        transfer_id=TransferId(name),
        producers=(address,),
        tables=table(taken),
        token_start=0,
        token_stop=3 * TOKENS,
        tag=name,
    )
    bench.world.submit(node, command)


def _granted(node: Node, name: str) -> bool:
    return any(r.transfer_id == name and r.step == "granted" for r in node.pump.watch.ring)
