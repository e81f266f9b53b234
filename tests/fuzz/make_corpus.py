"""Rebuild the seeded part of tests/fuzz/corpus: `python tests/fuzz/make_corpus.py`.

Each file is an input of `fuzz_rig.run`: way, size of the pieces, bytes. Messages of
every type with the header that M's links have, and the vectors of spec/vectors,
damaged (whole, they have a test of their own). Files named `found-*` come from fuzzing
and are never removed.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import attrs

sys.path.insert(0, str(Path(__file__).parent))
from fuzz_session import PART, RUNS, hello

from kvxfer.core import messages as m
from kvxfer.core.ids import Attempt, Incarnation, Initiator, Part, Reason, TransferId
from kvxfer.wire.codec import encode
from kvxfer.wire.framing import frame

HERE = Path(__file__).parent
CORPUS = HERE / "corpus"
VECTORS = HERE.parents[1] / "spec" / "vectors" / "codec.json"


def header(name: str, attempt: int = 1, receiver: int = 2) -> m.Header:
    return m.Header(
        transfer_id=TransferId(name),
        attempt=Attempt(attempt),
        sender=Incarnation(3),
        receiver=Incarnation(receiver),
    )


def messages() -> dict[str, list[m.Message]]:
    """Conversations that a hostile peer may try; each is sent over every way."""
    bait, grant = header("bait"), header("x", receiver=1)
    part = attrs.evolve(PART, token_stop=12)
    writes = m.Grant(header=grant, digest=b"", lease_ms=1000, parts=(PART,), tables=(RUNS,))
    reads = attrs.evolve(writes, initiator=Initiator.CONSUMER, tables=())
    return {
        "hello": [hello("X", 9)],
        "hello-twice": [hello("X", 9), hello("X", 9)],
        "hello-of-m": [hello("M", 3)],
        "hello-then-grant": [hello("X", 9), writes],
        "describe-first": [m.Describe(transport="loopback", blob=b"", shard=b"")],
        "refuse": [m.Refuse(reason=Reason.NONE, detail="")],
        "bye-then-grant": [m.Bye(reason=Reason.SHUTDOWN), writes],
        "drain": [m.Drain(reason=Reason.DRAINING)],
        "grant": [writes],
        "grant-twice": [writes, writes],
        "grant-read": [reads],
        "grant-many": [attrs.evolve(writes, header=header(f"x{n}", receiver=1)) for n in range(40)],
        "grant-then-cancel": [writes, m.Cancel(header=grant, reason=Reason.NONE)],
        "grant-then-release": [writes, m.Release(header=grant, landed=True, reason=Reason.NONE)],
        "read-then-release": [reads, m.Release(header=grant, landed=True, reason=Reason.NONE)],
        "read-then-cancel": [reads, m.Cancel(header=grant, reason=Reason.NONE)],
        "renew-of-nothing": [m.Renew(header=grant, lease_ms=1 << 31, serial=7)],
        "cancel-before-grant": [m.Cancel(header=grant, reason=Reason.NONE), writes],
        "older-attempt": [
            attrs.evolve(writes, header=header("x", 9, 1)),
            attrs.evolve(writes, header=header("x", 8, 1)),
        ],
        "ack": [m.GrantAck(header=bait, serial=0, lease_ms=1 << 31)],
        "gone": [m.Gone(header=bait, reason=Reason.OFFER_EXPIRED)],
        "cancelled": [m.Cancelled(header=bait)],
        "done": [m.Done(header=bait, part=part)],
        "done-of-a-stranger": [m.Done(header=bait, part=Part(9, 9, 0, 1))],
        "failed-then-done": [
            m.Failed(header=bait, part=part, reason=Reason.NONE, quiet=False),
            m.Done(header=bait, part=part),
        ],
        "never-posted": [m.NeverPosted(header=bait, part=part, reason=Reason.NONE)],
        "offer": [m.Offer(header=bait, parts=(part,), tables=(RUNS,))],
        "of-the-good-transfer": [
            m.Done(header=header("t1"), part=part),
            m.Gone(header=header("t1"), reason=Reason.NONE),
        ],
        "of-another-life": [m.Gone(header=header("bait", receiver=77), reason=Reason.NONE)],
    }


def build() -> dict[str, bytes]:
    """Name -> input."""
    found = {}
    for name, sent in messages().items():
        stream = b"".join(frame(encode(message)) for message in sent)
        for way in range(4):
            found[f"{name}-{way}"] = bytes([way, 1 if way % 2 else 0]) + stream
        found[f"{name}-notice"] = bytes([4, 0]) + encode(sent[0])
    for vector in json.loads(VECTORS.read_text(encoding="utf-8"))["vectors"]:
        payload = bytes.fromhex(vector["hex"])
        # Each has a seed of its own, so that a new vector changes no other input.
        draw = random.Random(f"kvxfer fuzz {vector['id']}")
        if 0 < len(payload) < 200:
            head = bytes([draw.randrange(5), draw.choice((0, 1, 3))])
            found[f"damaged-{vector['id']}"] = head + damage(payload, draw)
    return {name: data for name, data in found.items() if len(data) <= 4096}


def damage(payload: bytes, draw: random.Random) -> bytes:
    """One wrong thing in a message, or in the frame around it."""
    whole = bytearray(payload)
    place = draw.randrange(len(whole))
    kind = draw.randrange(5)
    if kind == 0:
        whole[place] ^= 1 << draw.randrange(8)
    elif kind == 1:
        del whole[place:]
    elif kind == 2:
        whole.insert(place, draw.randrange(256))
    elif kind == 3:
        return frame(payload) + (len(payload) + 5).to_bytes(4, "big") + payload
    else:
        return draw.choice((b"\0\0\0\0", b"\xff\xff\xff\xff", b"\0\1\0\1")) + payload
    return frame(bytes(whole)) if whole else b"\0\0\0\0"


def main() -> None:
    CORPUS.mkdir(exist_ok=True)
    for old in CORPUS.glob("*.bin"):
        if not old.name.startswith("found-"):
            old.unlink()
    for name, data in build().items():
        (CORPUS / f"{name}.bin").write_bytes(data)


if __name__ == "__main__":
    main()
