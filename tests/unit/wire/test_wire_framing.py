"""Framing by hand: bounds, and the same outcome however the stream is cut."""

from __future__ import annotations

import pytest

from kvxfer.errors import RemoteFault
from kvxfer.limits import Limits
from kvxfer.wire.framing import FrameReader, frame

LIMITS = Limits(message_bytes_max=8)


def fed(stream: bytes, step: int) -> tuple[list[bytes], bool]:
    """All messages of a stream read `step` bytes at a time, and whether it ended in a fault."""
    reader = FrameReader(LIMITS)
    found: list[bytes] = []
    chunks = [stream[i : i + step] for i in range(0, len(stream), step)]
    try:
        for chunk in [*chunks, b""]:
            found += reader.feed(chunk)
    except RemoteFault:
        return found, True
    return found, False


def test_the_length_is_four_bytes_big_endian() -> None:
    assert frame(b"abc") == b"\x00\x00\x00\x03abc"


@pytest.mark.parametrize("step", [1, 2, 3, 5, 7, 100])
def test_cuts_do_not_matter(step: int) -> None:
    stream = frame(b"one") + frame(b"12345678") + frame(b"x")
    assert fed(stream, step) == ([b"one", b"12345678", b"x"], False)


@pytest.mark.parametrize("step", [1, 2, 3, 5, 7, 100])
@pytest.mark.parametrize("length", [0, 9, (1 << 32) - 1])
def test_messages_before_a_bad_length_are_given_then_the_fault(step: int, length: int) -> None:
    stream = frame(b"one") + frame(b"two") + length.to_bytes(4, "big") + frame(b"lost")
    assert fed(stream, step) == ([b"one", b"two"], True)


def test_a_message_at_the_bound_passes_and_one_above_does_not() -> None:
    assert FrameReader(LIMITS).feed(frame(b"x" * 8)) == [b"x" * 8]
    with pytest.raises(RemoteFault, match=r"frame\.length = 9"):
        FrameReader(LIMITS).feed(frame(b"x" * 9))


def test_a_fault_stays() -> None:
    reader = FrameReader(LIMITS)
    for data in (frame(b""), frame(b"one")):
        with pytest.raises(RemoteFault):
            reader.feed(data)


def test_an_unfinished_message_is_kept_back() -> None:
    reader = FrameReader(LIMITS)
    assert reader.feed(frame(b"abc")[:-1]) == []
    assert reader.feed(b"c") == [b"abc"]
