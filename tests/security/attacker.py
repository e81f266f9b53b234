"""Who attacks: a raw control connection, and a relay that changes what goes through it.

The pair under attack is that of the driver's tests; `fetch` moves a block between its two agents
and looks at every byte.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from kvxfer.core.ids import Incarnation, Role
from kvxfer.core.messages import Hello, Message, Proof, Welcome
from kvxfer.driver import Key, KeyRing, Landed, LetGo, ProducerAddress, Timings
from kvxfer.driver.results import Result, Sent
from kvxfer.errors import RemoteFault
from kvxfer.limits import Limits
from kvxfer.wire.codec import decode, encode
from kvxfer.wire.framing import FrameReader, frame
from kvxfer.wire.seal import LinkKeys, Opener, Sealer

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit" / "driver"))
from driver_rig import Side, address, offer, register, until

LIMITS = Limits()
WAIT_S = 60.0
QUICK = Timings(
    transfer_deadline_ms=60_000,
    offer_lease_ms=60_000,
    handshake_ms=30_000,
    renew_ms=100,
    renew_misses_max=600,
)
"""Renewals come soon, and a busy machine is not taken for a silent peer."""
SECRET, OTHER_SECRET = b"\x11" * 32, b"\x22" * 32
RING = KeyRing((Key("k", SECRET),))
IMPOSTOR = KeyRing((Key("k", OTHER_SECRET),))
"""The right name, another secret."""


def fetch(p: Side, d: Side, tid: str, block: int) -> None:
    """One transfer of a block, into the block of the same number, byte for byte."""
    d.block(block)[:] = 0
    register(d, p, tid, block)
    offer(p, tid, block)
    found = d.collect(2)
    assert [type(result) for result in found] == [Landed, LetGo], found
    assert np.array_equal(d.block(block), p.block(block))
    assert p.block(block).any()
    told: list[Result] = []
    until(lambda: Sent in {type(r) for r in told if r.tag == tid} or told.extend(p.agent.take()))


@attrs.define(eq=False)
class Attacker:
    """A control connection of nobody's making."""

    host: str
    port: int
    engine_id: str = "M"
    expected: str = "P"
    source: str = "127.0.0.1"
    socket: socket.socket = attrs.field(init=False)
    hello: Hello = attrs.field(init=False)
    keys: LinkKeys | None = None
    sealer: Sealer | None = None
    _opener: Opener | None = None
    _reader: FrameReader = attrs.field(factory=lambda: FrameReader(LIMITS))
    _welcome: bytes = b""

    def __attrs_post_init__(self) -> None:
        self.socket = socket.create_connection(
            (self.host, self.port), timeout=WAIT_S, source_address=(self.source, 0)
        )
        self.hello = Hello(
            version_min=1,
            version_max=1,
            engine_id=self.engine_id,
            rank=0,
            incarnation=Incarnation(secrets.randbits(63) + 1),
            role=Role.CONSUMER,
            features=0,
            expected_engine_id=self.expected,
            expected_rank=0,
            nonce=secrets.token_bytes(32),
            key_ids=("k",),
        )

    def raw(self, data: bytes) -> None:
        """Bytes as they are; that the other side has closed meanwhile is fine."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.socket.sendall(data)

    def send(self, message: Message) -> None:
        payload = encode(message)
        self.raw(frame(self.sealer.seal(payload) if self.sealer else payload))

    def frames(self) -> bytes | None:
        """The next frame, None at the end of the connection."""
        while (payload := self._reader.pop()) is None:
            try:
                data = self.socket.recv(1 << 16)
            except ConnectionResetError:
                return None
            if not data:
                return None
            self._reader.push(data)
        return payload

    def receive(self) -> Message | None:
        payload = self.frames()
        if payload is None:
            return None
        if self._opener is not None:
            payload = self._opener.open(payload)
        message = decode(payload, LIMITS)
        if isinstance(message, Welcome):
            self._welcome = payload
        return message

    def greet(self, secret: bytes = SECRET) -> tuple[Welcome, Proof]:
        """HELLO, and what P answers; the keys of `secret` are there then."""
        self.send(self.hello)
        welcome, proof = self.receive(), self.receive()
        assert isinstance(welcome, Welcome)
        assert isinstance(proof, Proof)
        self.keys = LinkKeys.derive(secret, encode(self.hello), self._welcome)
        return welcome, proof

    def prove(self, secret: bytes = SECRET) -> None:
        """The whole of phase 1; with another secret it will be refused."""
        _, proof = self.greet(secret)
        assert self.keys is not None
        self.send(Proof(mac=self.keys.dialler_proof))
        self.sealer = Sealer(self.keys.dialler_seal)
        if secret == SECRET:
            assert proof.mac == self.keys.acceptor_proof
            self._opener = Opener(self.keys.acceptor_seal)

    def ended(self) -> bool:
        """Wait for the end of the connection, whatever comes before it. False: it goes on."""
        try:
            while self.frames() is not None:
                pass
        except TimeoutError:
            return False
        except RemoteFault:
            return True
        return True

    def close(self) -> None:
        self.socket.close()


def toward(side: Side, **changes: Any) -> Attacker:
    """An attacker at an agent's door."""
    assert side.agent.address is not None
    return Attacker(*side.agent.address, **changes)


Meddle = Callable[[str, int, bytes], list[bytes]]
"""(direction, number of the frame in it, its payload) to the payloads that go on."""


@attrs.define(eq=False)
class Relay:
    """A man in the middle: takes connections for an agent and passes frames on, or others."""

    host: str
    port: int
    meddle: Meddle
    seen: dict[str, list[bytes]] = attrs.field(factory=lambda: {"out": [], "back": []})
    _listener: socket.socket = attrs.field(init=False)
    _open: list[socket.socket] = attrs.field(factory=list)

    def __attrs_post_init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> tuple[str, int]:
        return self._listener.getsockname()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection((self.host, self.port))
                self._open += [near, far]
                for pair in (("out", near, far), ("back", far, near)):
                    threading.Thread(target=self._pass, args=pair, daemon=True).start()

    def _pass(self, direction: str, source: socket.socket, target: socket.socket) -> None:
        reader, number = FrameReader(LIMITS), 0
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                reader.push(data)
                while (payload := reader.pop()) is not None:
                    self.seen[direction].append(payload)
                    for changed in self.meddle(direction, number, payload):
                        target.sendall(frame(changed))
                    number += 1
        # Each way ends for itself, as in a network: what is on the other one still arrives.
        for end, how in ((source, socket.SHUT_RD), (target, socket.SHUT_WR)):
            with contextlib.suppress(OSError):
                end.shutdown(how)

    def close(self) -> None:
        for one in (self._listener, *self._open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()


def through(p: Side, middle: Relay) -> tuple[ProducerAddress, ...]:
    host, port = middle.address
    return (attrs.evolve(address(p)[0], host=host, port=port),)


def fetch_through(p: Side, d: Side, middle: Relay, tid: str, block: int) -> None:
    register(d, p, tid, block, producers=through(p, middle))
    offer(p, tid, block)
    found = d.collect(2)
    assert [type(result) for result in found] == [Landed, LetGo], found
    assert (d.block(block) == p.block(block)).all()
    p.collect(1)
