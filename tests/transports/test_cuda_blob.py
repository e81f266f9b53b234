"""The blob of the GPU transport: round trip, and every kind of damage."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvxfer.errors import RemoteFault
from kvxfer.transport.liveness import ProcessIdentity
from kvxfer_cuda.blob import REGIONS_MAX, Lent, PeerBlob

_REGION = Lent(base=4096, length=100, allocation=4096, allocation_bytes=8192, name=bytes(64))
_SAMPLE = PeerBlob(
    mail="kvxfer-cuda-01",
    process=ProcessIdentity(boot_id="b", namespaces="pid:[1]", pid=7, start_ticks=9),
    token=bytes(range(16)),
    regions=(_REGION, attrs.evolve(_REGION, base=9000, length=3288)),
)


def test_round_trip() -> None:
    for blob in (_SAMPLE, attrs.evolve(_SAMPLE, regions=())):
        assert PeerBlob.decode(blob.encode()) == blob


def test_every_truncation_and_every_tail_is_refused() -> None:
    blob = _SAMPLE.encode()
    for length in range(len(blob)):
        with pytest.raises(RemoteFault):
            PeerBlob.decode(blob[:length])
    with pytest.raises(RemoteFault, match="left over"):
        PeerBlob.decode(blob + b"\0")


@pytest.mark.parametrize(
    "region",
    [
        {"base": 0, "allocation": 0},
        {"length": 0},
        {"base": 4095},
        {"length": 8193},
        {"allocation": 1 << 63, "allocation_bytes": (1 << 63) + 1, "base": 1 << 63},
    ],
)
def test_a_region_outside_its_allocation_is_refused(region: dict[str, int]) -> None:
    blob = attrs.evolve(_SAMPLE, regions=(attrs.evolve(_REGION, **region),))
    with pytest.raises(RemoteFault, match="region"):
        PeerBlob.decode(blob.encode())


def test_bounds() -> None:
    many = attrs.evolve(_SAMPLE, regions=(_REGION,) * (REGIONS_MAX + 1))
    with pytest.raises(RemoteFault, match="count"):
        PeerBlob.decode(many.encode())
    with pytest.raises(RemoteFault, match="mail"):
        PeerBlob.decode(attrs.evolve(_SAMPLE, mail="").encode())
    with pytest.raises(RemoteFault, match="must be bytes"):
        PeerBlob.decode(None)  # type: ignore[arg-type]


@given(st.binary(max_size=300))
def test_decoding_is_total(data: bytes) -> None:
    with pytest.raises(RemoteFault):
        PeerBlob.decode(data)


@given(st.integers(0, len(_SAMPLE.encode()) - 1), st.integers(1, 255))
def test_a_changed_byte_is_refused_or_read_as_it_stands(at: int, flip: int) -> None:
    data = bytearray(_SAMPLE.encode())
    data[at] ^= flip
    try:
        blob = PeerBlob.decode(bytes(data))
    except RemoteFault:
        return
    assert blob.encode() == bytes(data)
