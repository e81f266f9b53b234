"""The connection blob: round trip, and every kind of damage."""

from __future__ import annotations

import hashlib
import struct
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvxfer.errors import RemoteFault
from kvxfer.transport.blobs import BLOB_BYTES_MAX
from kvxfer.transport.liveness import ProcessIdentity
from kvxfer.transport.ops import Memory
from kvxfer_nixl.blob import FORMAT, MAGIC, PeerBlob

_SAMPLE = PeerBlob(
    nixl_version="1.5.1",
    agent="kvxfer-0123",
    backend="UCX",
    process=ProcessIdentity(
        boot_id="5c1b", namespaces="pid:[1] time:[2]", pid=4321, start_ticks=987654
    ),
    regions=(
        Memory(base=4096, length=8192),
        Memory(base=1 << 40, length=1 << 30, kind="cuda", device=3),
    ),
    metadata=bytes(range(256)),
)


def _region(base: int, length: int, **where: Any) -> Memory:
    return Memory(base=base, length=length, **where)


def _sealed(body: bytes) -> bytes:
    """A blob whose header fits `body`, as only an attacker or a bug would make it."""
    return struct.pack(">4sHI32s", MAGIC, FORMAT, len(body), hashlib.sha256(body).digest()) + body


def _body(blob: bytes) -> bytes:
    return blob[struct.calcsize(">4sHI32s") :]


@pytest.mark.parametrize(
    "regions", [(), (_region(1, 1),), _SAMPLE.regions], ids=["none", "one", "two"]
)
def test_round_trip(regions: tuple[Memory, ...]) -> None:
    blob = attrs.evolve(_SAMPLE, regions=regions)
    assert PeerBlob.decode(blob.encode()) == blob


def test_every_truncation_is_refused() -> None:
    blob = _SAMPLE.encode()
    for length in range(len(blob)):
        with pytest.raises(RemoteFault):
            PeerBlob.decode(blob[:length])


def test_every_changed_byte_is_refused() -> None:
    blob = _SAMPLE.encode()
    for at in range(len(blob)):
        changed = bytearray(blob)
        changed[at] ^= 0x41
        with pytest.raises(RemoteFault):
            PeerBlob.decode(bytes(changed))


def test_trailing_bytes_are_refused() -> None:
    with pytest.raises(RemoteFault, match="length"):
        PeerBlob.decode(_SAMPLE.encode() + b"\0")
    with pytest.raises(RemoteFault, match="left over"):
        PeerBlob.decode(_sealed(_body(_SAMPLE.encode()) + b"\0"))


def test_another_format_and_another_magic_are_named() -> None:
    blob = _SAMPLE.encode()
    with pytest.raises(RemoteFault, match=rf"blob\.format = {FORMAT + 1}"):
        PeerBlob.decode(blob[:4] + struct.pack(">H", FORMAT + 1) + blob[6:])
    with pytest.raises(RemoteFault, match=r"blob\.magic"):
        PeerBlob.decode(b"LOOP" + blob[4:])


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"regions": (_region(0, 1),)}, "region"),
        ({"regions": (_region(1, 0),)}, "region"),
        ({"regions": (_region(1 << 63, (1 << 63) + 1),)}, "region"),
        ({"regions": (_region(1, 1),) * 4097}, "region count"),
        ({"regions": (_region(1, 1, device=1 << 16),)}, "device"),
        ({"metadata": b""}, "agent"),
        ({"agent": ""}, "agent"),
        ({"metadata": bytes(BLOB_BYTES_MAX)}, "length"),
    ],
)
def test_values_out_of_bounds_are_refused(change: dict[str, object], field: str) -> None:
    with pytest.raises(RemoteFault, match=field):
        PeerBlob.decode(attrs.evolve(_SAMPLE, **change).encode())


@pytest.mark.parametrize("pid", [0, 1 << 31, (1 << 64) - 1])
def test_a_pid_that_no_kernel_gives_is_refused(pid: int) -> None:
    process = attrs.evolve(_SAMPLE.process, pid=pid)
    with pytest.raises(RemoteFault, match=r"blob\.pid"):
        PeerBlob.decode(attrs.evolve(_SAMPLE, process=process).encode())


@pytest.mark.parametrize("value", [None, 7, "text", bytearray(b"x" * 100)])
def test_what_is_not_bytes_is_refused(value: object) -> None:
    with pytest.raises(RemoteFault, match="must be bytes"):
        PeerBlob.decode(value)  # type: ignore[arg-type]


@given(st.binary(max_size=400))
def test_decoding_is_total_behind_a_right_digest(body: bytes) -> None:
    try:
        blob = PeerBlob.decode(_sealed(body))
    except RemoteFault:
        return
    assert PeerBlob.decode(blob.encode()) == blob


@given(st.integers(0, len(_body(_SAMPLE.encode())) - 1), st.integers(1, 255))
def test_a_resealed_change_is_refused_or_read_as_it_stands(at: int, flip: int) -> None:
    body = bytearray(_body(_SAMPLE.encode()))
    body[at] ^= flip
    try:
        blob = PeerBlob.decode(_sealed(bytes(body)))
    except RemoteFault:
        return
    assert blob != _SAMPLE
    assert blob.encode() == _sealed(bytes(body))
