"""The connection blob of UCX: round trip, every kind of damage, and what UCX itself is spared."""

from __future__ import annotations

import hashlib
import os
import random
import struct
import subprocess
import sys

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvxfer.errors import RemoteFault
from kvxfer.transport.blobs import BLOB_BYTES_MAX
from kvxfer.transport.liveness import ProcessIdentity
from kvxfer.transport.ops import TransportOps
from kvxfer_ucx.blob import FORMAT, MAGIC, REGIONS_MAX, PeerBlob

_KEY = struct.pack("<QB", 0b101, 0) + b"\x03abc" + b"\x00" + b"distances"


def _column(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.uint64)


_SAMPLE = PeerBlob(
    process=ProcessIdentity(
        boot_id="5c1b", namespaces="pid:[1] time:[2]", pid=4321, start_ticks=987654
    ),
    cookie=bytes(range(16)),
    address=b"\x91" + bytes(range(100)),
    handles=_column(1, 7),
    bases=_column(4096, 1 << 40),
    lengths=_column(8192, 1 << 30),
    keys=(_KEY, _KEY[:-9]),
)


def _sealed(body: bytes) -> bytes:
    """A blob whose header fits `body`, as only an attacker or a bug would make it."""
    return struct.pack(">4sHI32s", MAGIC, FORMAT, len(body), hashlib.sha256(body).digest()) + body


def _body(blob: bytes) -> bytes:
    return blob[struct.calcsize(">4sHI32s") :]


def test_round_trip() -> None:
    encoded = _SAMPLE.encode()
    decoded = PeerBlob.decode(encoded)
    assert decoded.encode() == encoded
    assert (decoded.process, decoded.cookie, decoded.keys) == (
        _SAMPLE.process,
        _SAMPLE.cookie,
        _SAMPLE.keys,
    )
    assert decoded.bases.dtype == np.uint64
    assert decoded.bases.tolist() == [4096, 1 << 40]


def test_a_side_may_lend_nothing() -> None:
    none = attrs.evolve(_SAMPLE, handles=_column(), bases=_column(), lengths=_column(), keys=())
    assert PeerBlob.decode(none.encode()).keys == ()


def test_every_truncation_and_every_changed_byte_is_refused() -> None:
    blob = _SAMPLE.encode()
    for at in range(len(blob)):
        changed = bytearray(blob)
        changed[at] ^= 0x41
        for bad in (blob[:at], bytes(changed)):
            with pytest.raises(RemoteFault):
                PeerBlob.decode(bad)


def test_a_body_cut_short_under_a_good_digest_is_refused() -> None:
    body = _body(_SAMPLE.encode())
    for length in range(len(body)):
        with pytest.raises(RemoteFault):
            PeerBlob.decode(_sealed(body[:length]))
    with pytest.raises(RemoteFault, match="left over"):
        PeerBlob.decode(_sealed(body + b"\x00"))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"process": attrs.evolve(_SAMPLE.process, pid=0)}, "pid"),
        ({"address": b""}, "address length"),
        ({"address": bytes(16385)}, "address length"),
        ({"address": b"\x92" + bytes(20)}, "address version"),
        ({"bases": _column(0, 1)}, "region"),
        ({"lengths": _column(0, 1)}, "region"),
        ({"handles": _column(0, 1)}, "region"),
        ({"bases": _column(1, (1 << 64) - 1)}, "region"),
        ({"keys": (b"", _KEY)}, "key length"),
        ({"keys": (_KEY[:8], _KEY)}, "key length"),
        ({"keys": (bytes(5000), _KEY)}, "key length"),
        ({"keys": (struct.pack("<QB", 1, 200) + b"\x00", _KEY)}, "memory type"),
        ({"keys": (struct.pack("<QB", 3, 0) + b"\x00", _KEY)}, "ends inside"),
        ({"keys": (struct.pack("<QB", 1, 0) + b"\x09abc", _KEY)}, "ends inside"),
    ],
)
def test_fields_out_of_bounds_are_named(changes: dict, named: str) -> None:
    with pytest.raises(RemoteFault, match=named):
        PeerBlob.decode(attrs.evolve(_SAMPLE, **changes).encode())


def test_counts_are_bounded_before_anything_is_built() -> None:
    body = _body(_SAMPLE.encode())
    at = body.index(_SAMPLE.address) + len(_SAMPLE.address)
    huge = body[:at] + struct.pack(">I", REGIONS_MAX + 1) + body[at + 4 :]
    with pytest.raises(RemoteFault, match="region count"):
        PeerBlob.decode(_sealed(huge))
    with pytest.raises(RemoteFault, match="length"):
        PeerBlob.decode(bytes(BLOB_BYTES_MAX + 1))


@given(st.binary(max_size=300))
def test_any_bytes_give_a_blob_or_a_fault(data: bytes) -> None:
    for blob in (data, _sealed(data)):
        try:
            PeerBlob.decode(blob)
        except RemoteFault:
            continue


@given(st.integers(min_value=0, max_value=10_000), st.integers(min_value=0, max_value=255))
def test_any_changed_byte_under_a_good_digest_gives_a_blob_or_a_fault(at: int, value: int) -> None:
    body = bytearray(_body(_SAMPLE.encode()))
    body[at % len(body)] = value
    try:
        decoded = PeerBlob.decode(_sealed(bytes(body)))
    except RemoteFault:
        return
    assert decoded.encode() == _sealed(bytes(body))


_FORGER = """
import random, sys
import attrs, numpy as np
from kvxfer.status import Status
from kvxfer.transport.ops import COMPLETION, Memory
from kvxfer_ucx import DESCRIPTOR
from kvxfer_ucx.blob import PeerBlob

chance = random.Random(int(sys.argv[1]))
ops = DESCRIPTOR.load()
options = {"net_devices": "lo"}
(_, ours), (_, theirs) = ops.open(options), ops.open(options)
memory = np.zeros(4096, dtype=np.uint8)
for session in (ours, theirs):
    ops.register_region(session, Memory(base=memory.ctypes.data, length=4096))

def damaged(data, count):
    changed = bytearray(data)
    for _ in range(count):
        changed[chance.randrange(len(changed))] = chance.randrange(256)
    return bytes(changed)

for number in range(40):
    _, peer, _ = ops.peer_create(ours)
    _, other, good = ops.peer_create(theirs)
    blob = PeerBlob.decode(good)
    address, key = blob.address, blob.keys[0]
    match number % 4:
        case 0: address = damaged(address, chance.randint(1, 4))
        case 1: address = address[: chance.randrange(1, len(address))]
        case 2: address = chance.randbytes(chance.randint(1, 300))
        case 3: key = damaged(key, chance.randint(1, 3))
    forged = attrs.evolve(blob, address=address, keys=(key,)).encode()
    if ops.peer_connect(ours, peer, forged) == Status.OK:
        column = np.array([memory.ctypes.data], dtype=np.uint64)
        ops.post_write(ours, peer, column, column, np.array([64], dtype=np.uint64), b"x")
        records = np.zeros(8, dtype=COMPLETION)
        for _ in range(50):
            ops.poll(ours, records)
    ops.peer_destroy(ours, peer)
    ops.peer_destroy(theirs, other)
ops.close(ours)
ops.close(theirs)
print("alive")
"""


def test_forged_addresses_and_keys_do_not_end_the_process(ucx_ops: TransportOps) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _FORGER, str(random.Random(5).randrange(1000))],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr[-2000:]
