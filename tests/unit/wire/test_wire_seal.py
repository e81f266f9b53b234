"""Seals and tags by hand; the formulas themselves are in spec/vectors/seals.json."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvxfer.errors import RemoteFault
from kvxfer.wire.seal import LinkKeys, Notices, Opener, Sealer, same_proof

KEYS = LinkKeys.derive(b"s" * 32, b"hello", b"welcome")


def test_each_key_has_one_purpose() -> None:
    values = attrs.astuple(KEYS)
    assert len(set(values)) == len(values) == 5


@pytest.mark.parametrize(
    "halves", [(b"hellow", b"elcome"), (b"hello", b"welcom"), (b"", b"hellowelcome")]
)
def test_where_one_half_ends_and_the_other_begins_counts(halves: tuple[bytes, bytes]) -> None:
    assert set(attrs.astuple(LinkKeys.derive(b"s" * 32, *halves))).isdisjoint(attrs.astuple(KEYS))


def test_keys_are_not_in_what_is_printed() -> None:
    for one in (KEYS, Sealer(KEYS.notice), Opener(KEYS.notice)):
        assert repr(KEYS.dialler_seal) not in repr(one)
        assert repr(KEYS.notice) not in repr(one)


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=8))
def test_what_was_sealed_opens_in_its_order(messages: list[bytes]) -> None:
    sealer, opener = Sealer(KEYS.dialler_seal), Opener(KEYS.dialler_seal)
    assert [opener.open(sealer.seal(message)) for message in messages] == messages


@given(st.binary(max_size=40), st.data())
def test_no_bit_can_be_turned(message: bytes, data: st.DataObject) -> None:
    frame = bytearray(Sealer(KEYS.dialler_seal).seal(message))
    place = data.draw(st.integers(0, len(frame) * 8 - 1))
    frame[place // 8] ^= 1 << place % 8
    opener = Opener(KEYS.dialler_seal)
    with pytest.raises(RemoteFault, match="seal"):
        opener.open(bytes(frame))
    assert opener.count == 0


@given(st.binary(max_size=100))
def test_any_bytes_are_refused_in_order(data: bytes) -> None:
    with pytest.raises(RemoteFault):
        Opener(KEYS.dialler_seal).open(data)
    assert Notices(KEYS.notice).open(data) is None


def test_a_notice_opens_as_often_as_it_comes() -> None:
    notices = Notices(KEYS.notice)
    data = notices.seal(b"done")
    assert [notices.open(data) for _ in range(3)] == [b"done"] * 3


def test_proofs_are_compared_whole() -> None:
    assert same_proof(b"abc", b"abc")
    assert not same_proof(b"abc", b"abd")
    assert not same_proof(b"abc", b"ab")
