"""A kvxfer consumer in one file: sockets and cbor2, nothing of the kvxfer package.

It dials one producer, grants it blocks, counts the named parts that land, cancels, renews and
fences: all that specification 1.0 asks of a consumer with one producer rank. Section numbers are
those of spec/kvxfer-1.md. What moves the bytes is given from outside, see `Transport`.
"""

from __future__ import annotations

import secrets
import socket
import struct
from dataclasses import dataclass, field
from typing import Any, Protocol

import cbor2

HELLO, WELCOME, REFUSE, DESCRIBE, BYE = 1, 2, 3, 4, 5
GRANT, GRANT_ACK, RENEW, GONE, CANCEL, CANCELLED = 16, 17, 18, 19, 20, 21
DONE, FAILED, NEVER_POSTED = 32, 33, 34
ANSWERS = (GRANT_ACK, GONE, CANCELLED, DONE, FAILED, NEVER_POSTED)
CONSUMER = 2
CANCELLED_BY_CONSUMER, DEADLINE, PEER_LOST, PEER_SILENT = 1, 12, 13, 14
PROTOCOL_ERROR, PARTS_MISMATCH = 19, 24
MESSAGE_BYTES_MAX = 16 << 20
HANDSHAKE_S, RENEW_S, SILENCE_S, CANCEL_SILENCE_S, LEASE_MS = 10.0, 2.0, 10.0, 5.0, 30_000

Part = tuple[int, int, int, int]
"""(producer rank, group, token start, token stop): one named unit of completion (6.4)."""


class Transport(Protocol):
    """What this peer needs of a network that can be written to from outside (section 8).

    `blob` lets the other side reach our regions, `connect` takes the other side's (ValueError
    where it cannot be used), `notifications` gives what has arrived, each only after the bytes of
    its write are visible, `fence` is True only with proof that the peer can write no more (8.4).
    """

    name: str

    def blob(self) -> bytes: ...
    def connect(self, blob: bytes) -> None: ...
    def notifications(self) -> list[bytes]: ...
    def fence(self) -> bool: ...


class Refused(Exception):
    """The handshake failed. Arguments: a number of the registry of reasons, a detail."""


class Fault(Exception):
    """The other side sent what cannot be understood (5.2)."""


class Connection:
    """Messages over one TCP connection: a length of 4 bytes, then one CBOR item (5.1)."""

    def __init__(self, host: str, port: int) -> None:
        self.socket = socket.create_connection((host, port), timeout=HANDSHAKE_S)
        self.buffer = b""

    def send(self, kind: int, body: dict[int, Any]) -> None:
        data = cbor2.dumps([kind, body])
        self.socket.sendall(struct.pack(">I", len(data)) + data)

    def receive(self, timeout_s: float) -> tuple[int, dict[int, Any]] | None:
        """The next message, or None after `timeout_s`. ConnectionError at the end."""
        while (data := self._whole()) is None:
            try:
                self.socket.settimeout(timeout_s)
                more = self.socket.recv(1 << 16)
            except (TimeoutError, BlockingIOError):
                return None
            finally:
                self.socket.settimeout(HANDSHAKE_S)
            if not more:
                raise ConnectionError("the peer closed the connection")
            self.buffer += more
        return understood(data)

    def _whole(self) -> bytes | None:
        size = struct.unpack(">I", self.buffer[:4])[0] if len(self.buffer) >= 4 else 1
        if not 0 < size <= MESSAGE_BYTES_MAX:
            raise Fault(f"a message of {size} bytes")
        if len(self.buffer) < 4 + size:
            return None
        data, self.buffer = self.buffer[4 : 4 + size], self.buffer[4 + size :]
        return data


def understood(data: bytes) -> tuple[int, dict[int, Any]]:
    """Bytes to (type, fields). One that faces strangers bounds nesting and items first (5.1.9)."""
    try:
        kind, body = cbor2.loads(data)[:2]
    except Exception as error:  # noqa: BLE001 - whatever the bytes did, the peer sent them
        raise Fault(f"no message: {error}") from None
    if type(kind) is not int or type(body) is not dict:
        raise Fault("no [type, {key: value}]")
    return kind, body


def column(values: list[int]) -> cbor2.CBORTag:
    """A typed array of RFC 8746: little-endian uint32 (5.1.7)."""
    return cbor2.CBORTag(70, struct.pack(f"<{len(values)}I", *values))


@dataclass
class Transfer:
    """One attempt: the request, and the one who may write for it (3.4)."""

    transfer_id: str
    attempt: int
    producer: int  # the life to which the grant went
    parts: set[Part]
    deadline_s: float
    request: str = "waiting"  # then landed or lost
    writer: str = "granted"  # then cancelling, fencing, quiet
    reason: int = 0
    ended: dict[Part, int] = field(default_factory=dict)  # by which type of message
    unquiet: set[Part] = field(default_factory=set)  # FAILED with `quiet` false: no fact (6.7.5)
    asked_s: float = 0.0
    next_s: float = 0.0

    @property
    def let_go(self) -> bool:  # both owners have: the blocks may be used again (6.10.1)
        return self.request != "waiting" and self.writer == "quiet"


class Consumer:
    """One consumer rank and its link to one producer rank."""

    def __init__(self, engine_id: str, shard: dict[str, Any], transport: Transport) -> None:
        self.me = (engine_id, shard["rank"])
        self.incarnation = secrets.randbits(64) or 1  # 3.3.1
        self.shard = cbor2.dumps(shard)
        self.transport = transport
        self.transfers: dict[tuple[str, int], Transfer] = {}
        self.attempts: dict[str, int] = {}
        self.connection: Connection | None = None
        self.producer = 0
        self.heard_s = 0.0

    def connect(self, host: str, port: int, engine_id: str, rank: int) -> dict[str, Any]:
        """Bring the link up. Gives the producer's layout descriptor. Raises Refused."""
        link = Connection(host, port)
        try:
            hello = {0: b"kvxfer", 16: 1, 17: 1, 18: self.me[0], 19: self.me[1]}
            hello |= {20: self.incarnation, 21: CONSUMER, 22: 0, 23: engine_id, 24: rank}
            link.send(HELLO, hello)
            welcome = self._expect(link, WELCOME)
            if welcome[16] != 1:
                raise self._refuse(link, 20, f"version {welcome[16]}")
            if (welcome[18], welcome[19]) != (engine_id, rank):
                raise self._refuse(link, 21, f"dialled {engine_id} {rank}")
            if not welcome[21] & 1:
                raise self._refuse(link, 23, "no producer")
            own = {16: self.transport.name, 17: self.transport.blob(), 18: self.shard}
            link.send(DESCRIBE, own)
            theirs = self._expect(link, DESCRIBE)
            if theirs[16] != self.transport.name:
                raise self._refuse(link, 22, f"transport {theirs[16]}")
            self.transport.connect(theirs[17])
        except BaseException:
            link.socket.close()
            raise
        self.connection, self.producer = link, welcome[20]
        for one in self.transfers.values():
            if one.producer == self.producer:  # 6.11.4: the same life may vouch for itself
                self._ask(one, CANCEL, {16: PEER_LOST}, 0.0)
        # Who meets unlike engines checks the descriptor and derives the edges (7.3, 7.4).
        return dict(cbor2.loads(theirs[18]))

    def _expect(self, link: Connection, kind: int) -> dict[int, Any]:
        got = link.receive(HANDSHAKE_S)
        if got is None:
            raise Refused(15, "no answer in time")
        if got[0] == REFUSE:
            raise Refused(got[1][16], got[1][17])
        if got[0] != kind:
            raise Fault(f"type {got[0]} where {kind} is due")
        return got[1]

    def _refuse(self, link: Connection, reason: int, detail: str) -> Refused:
        link.send(REFUSE, {16: reason, 17: detail})
        return Refused(reason, detail)

    def register(
        self, transfer_id: str, parts: list[Part], tables: list[Any], now_s: float, wait_s: float
    ) -> Transfer:
        """Grant the blocks of `tables` for `parts`: from now on they have two owners (6.1)."""
        attempt = self.attempts[transfer_id] = self.attempts.get(transfer_id, 0) + 1
        one = Transfer(transfer_id, attempt, self.producer, set(parts), now_s + wait_s)
        self.transfers[transfer_id, attempt] = one
        body = {16: b"", 17: LEASE_MS, 18: [list(part) for part in parts], 19: tables}
        self._ask(one, GRANT, body, now_s)
        self._settle(one)
        return one

    def cancel(self, one: Transfer, now_s: float, reason: int = CANCELLED_BY_CONSUMER) -> None:
        """The request ends; the blocks stay until the writer is quiet (6.6.1)."""
        if one.request != "waiting":
            return
        one.request, one.reason = "lost", reason
        if one.writer == "granted":
            one.writer = "cancelling"
            self._ask(one, CANCEL, {16: CANCELLED_BY_CONSUMER}, now_s)

    def _ask(self, one: Transfer, kind: int, body: dict[int, Any], now_s: float) -> None:
        if kind != RENEW:
            one.asked_s = now_s
        one.next_s = now_s + RENEW_S
        head = {0: one.transfer_id, 1: one.attempt, 2: self.incarnation, 3: self.producer}
        try:
            if self.connection is not None:
                self.connection.send(kind, {**head, **body})
        except OSError:
            self._lose(PEER_LOST)

    def turn(self, now_s: float, wait_s: float = 0.0) -> None:
        """Take in what has come, then do what is due. Call it often; it waits `wait_s` at most."""
        try:
            for payload in self.transport.notifications():
                kind, body = understood(payload)
                if kind != DONE:
                    raise Fault(f"type {kind} in a notification")
                self._message(kind, body, now_s)
            while self.connection is not None and (got := self.connection.receive(wait_s)):
                self.heard_s, wait_s = now_s, 0.0
                self._message(*got, now_s)
        except OSError:
            self._lose(PEER_LOST)
        except (Fault, KeyError, TypeError, ValueError):
            if self.connection is not None:
                self.connection.send(REFUSE, {16: PROTOCOL_ERROR, 17: ""})
            self._lose(PROTOCOL_ERROR)
        for one in list(self.transfers.values()):
            self._due(one, now_s)

    def _message(self, kind: int, body: dict[int, Any], now_s: float) -> None:
        if kind in (HELLO, WELCOME, REFUSE, DESCRIBE, BYE, GRANT, RENEW, CANCEL):
            return self._lose(PEER_LOST if kind == BYE else PROTOCOL_ERROR)  # 4.1.5, 5.2.11, 5.8.1
        if kind not in ANSWERS:
            return None  # 5.2.4: a newer minor version may say more
        one = self.transfers.get((body[0], body[1]))
        if one is None or (body[2], body[3]) != (one.producer, self.incarnation):
            return None  # 5.2.10 and 5.2.12: another life, or nothing that is held
        if kind == GRANT_ACK:
            return None  # 6.7.7: no proof of anything
        if kind in (GONE, CANCELLED):
            one.writer = "quiet"  # 6.6.7
            self.cancel(one, now_s, body.get(16, CANCELLED_BY_CONSUMER))
        else:
            self._part(one, kind, tuple(body[18][:4]), body, now_s)
        return self._settle(one)

    def _part(self, one: Transfer, kind: int, part: Any, body: Any, now_s: float) -> None:
        if part not in one.parts:
            return self.cancel(one, now_s, PARTS_MISMATCH)  # 6.4.5
        if part in one.ended:
            return None  # 6.4.4: the first end counts
        one.ended[part] = kind
        if kind == FAILED and not body[17]:
            one.unquiet.add(part)
        return None if kind == DONE else self.cancel(one, now_s, body[16])

    def _settle(self, one: Transfer) -> None:
        if one.request == "waiting" and one.ended == dict.fromkeys(one.parts, DONE):
            one.request = "landed"  # 6.4.6
        if one.ended.keys() == one.parts and not one.unquiet:
            one.writer = "quiet"  # 6.10.2
        if one.let_go:
            self.transfers.pop((one.transfer_id, one.attempt), None)

    def _due(self, one: Transfer, now_s: float) -> None:
        if one.request == "waiting" and now_s >= one.deadline_s:
            self.cancel(one, now_s, DEADLINE)  # 6.9.8: a timer ends the request, never the writer
        if one.writer == "fencing" and self.transport.fence():
            one.writer = "quiet"
        quiet_s = SILENCE_S if one.writer == "granted" else CANCEL_SILENCE_S
        if one.writer in ("granted", "cancelling"):
            if now_s - max(one.asked_s, self.heard_s) >= quiet_s:
                self._lose(PEER_SILENT)  # 6.9.7: silence is no proof, so fence
            elif now_s >= one.next_s:
                renew = one.writer == "granted"
                body = {17: LEASE_MS} if renew else {16: CANCELLED_BY_CONSUMER}
                self._ask(one, RENEW if renew else CANCEL, body, now_s)
        self._settle(one)

    def _lose(self, reason: int) -> None:
        """The link has ended: what waits fails, what was granted is fenced (6.11.1)."""
        if self.connection is not None:
            self.connection.socket.close()
        self.connection = None
        for one in self.transfers.values():
            if one.request == "waiting":
                one.request, one.reason = "lost", reason
            if one.writer in ("granted", "cancelling"):
                one.writer = "fencing"
