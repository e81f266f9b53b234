"""The pieces that blobs are built from; each transport's blob has tests of its own beside."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvxfer.errors import RemoteFault
from kvxfer.transport.blobs import TEXT_BYTES_MAX, Reader, opened, seal, text_bytes


@given(st.binary(min_size=1, max_size=200), st.data())
def test_a_sealed_body_comes_back_whole_or_not_at_all(body: bytes, data: st.DataObject) -> None:
    blob = seal(b"TEST", 3, body)
    assert opened(b"TEST", 3, blob) == body
    at = data.draw(st.integers(0, len(blob) - 1))
    changed = bytearray(blob)
    changed[at] ^= data.draw(st.integers(1, 255))
    for damaged in (bytes(changed), blob[:at], blob + b"\0"):
        with pytest.raises(RemoteFault):
            opened(b"TEST", 3, damaged)


def test_a_reader_names_the_field_and_never_reads_past_the_end() -> None:
    reader = Reader(text_bytes("ab") + b"\x01\x02\x03")
    assert reader.text("name") == "ab"
    assert reader.bounded("count", ">H", 0, 1000) == 0x0102
    with pytest.raises(RemoteFault, match="left over"):
        reader.end()
    with pytest.raises(RemoteFault, match=r"blob tail = 2: only 1 bytes are left"):
        reader.take("tail", 2)
    with pytest.raises(RemoteFault, match="size"):
        reader.bounded("size", ">B", 4, 9)
    reader.end()


def test_text_is_ascii_and_bounded() -> None:
    assert Reader(text_bytes("x" * 300)).text("name") == "x" * TEXT_BYTES_MAX
    with pytest.raises(RemoteFault, match="must be ASCII"):
        Reader(b"\0\x01\xff").text("name")
