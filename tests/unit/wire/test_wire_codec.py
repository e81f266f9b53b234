"""The codec by hand: what it names in a fault, what it never builds, what it never sends."""

from __future__ import annotations

from array import array

import cbor2
import pytest

from kvxfer.core.ids import Attempt, Incarnation, Part, Reason, Role, TransferId
from kvxfer.core.messages import (
    BlockRuns,
    Bye,
    Column,
    Done,
    Gone,
    Grant,
    Header,
    Hello,
    Refuse,
)
from kvxfer.errors import BadValue, RemoteFault
from kvxfer.limits import Limits
from kvxfer.wire.cbor import DEPTH_MAX, decode_plain, encode_plain
from kvxfer.wire.codec import UnknownMessage, decode, encode

LIMITS = Limits()
HEADER = Header(
    transfer_id=TransferId("req-7"),
    attempt=Attempt(1),
    sender=Incarnation(11),
    receiver=Incarnation(22),
)


def grant(starts: list[int], lengths: list[int]) -> Grant:
    runs = BlockRuns(
        group=0,
        first_token=0,
        starts=Column(4, array("I", starts).tobytes()),
        lengths=Column(4, array("I", lengths).tobytes()),
    )
    parts = (Part(0, 0, 0, 16),)
    return Grant(header=HEADER, digest=b"", lease_ms=1, parts=parts, tables=(runs,))


def test_hello_is_known_by_its_first_bytes() -> None:
    hello = Hello(
        version_min=1,
        version_max=1,
        engine_id="D",
        rank=0,
        incarnation=Incarnation(5),
        role=Role.CONSUMER,
        features=0,
        expected_engine_id="",
        expected_rank=0,
    )
    assert encode(hello)[:11] == b"\x82\x01\xaa\x00\x46kvxfer"


def test_columns_are_one_byte_string_each() -> None:
    data = encode(grant(list(range(0, 2048, 2)), [1] * 1024))
    assert len(data) < 2 * 4 * 1024 + 128
    assert array("I", range(0, 2048, 2)).tobytes() in data


@pytest.mark.parametrize(
    ("limits", "field"),
    [
        (Limits(transfer_id_bytes_max=4), "GRANT.transfer_id"),
        (Limits(parts_per_edge_max=0), "GRANT.parts"),
        (Limits(groups_max=0), "GRANT.parts[0].group"),
        (Limits(blocks_per_grant_max=2), "GRANT.tables"),
        (Limits(message_bytes_max=10), "message"),
    ],
)
def test_each_limit_is_kept_and_named(limits: Limits, field: str) -> None:
    data = encode(grant([5, 9], [2, 1]))
    assert decode(data, LIMITS) == grant([5, 9], [2, 1])
    with pytest.raises(RemoteFault) as caught:
        decode(data, limits)
    assert caught.value.field == field


def test_a_view_of_memory_is_as_good_as_bytes() -> None:
    data = encode(Bye(reason=Reason.SHUTDOWN))
    assert decode(memoryview(data), LIMITS) == Bye(reason=Reason.SHUTDOWN)


def test_an_unknown_type_is_skipped_only_where_it_is_well_formed() -> None:
    with pytest.raises(UnknownMessage):
        decode(cbor2.dumps([51, {}]), LIMITS)
    for data in (cbor2.dumps([51, {}]) + b"\x00", cbor2.dumps([51, []]), b"\x82\x18\x33\xa1"):
        with pytest.raises(RemoteFault) as caught:
            decode(data, LIMITS)
        assert not isinstance(caught.value, UnknownMessage)


def test_an_unknown_reason_is_taken_and_not_passed_on() -> None:
    body = {0: "req-7", 1: 1, 2: 11, 3: 22, 16: 4000}
    gone = decode(cbor2.dumps([19, body]), LIMITS)
    assert gone == Gone(header=HEADER, reason=Reason.UNREGISTERED)
    assert cbor2.loads(encode(gone))[1][16] == Reason.NONE


def test_a_detail_is_cut_at_a_character_to_what_every_peer_accepts() -> None:
    # 1023 bytes and a character of two: the character falls out whole.
    told = decode(encode(Refuse(reason=Reason.NONE, detail="x" * 1023 + "é" * 40)), LIMITS)
    assert told == Refuse(reason=Reason.NONE, detail="x" * 1023)
    odd = decode(encode(Refuse(reason=Reason.NONE, detail="a\ud800b")), LIMITS)
    assert odd == Refuse(reason=Reason.NONE, detail="a?b")


def test_a_name_without_an_encoding_is_the_callers_fault() -> None:
    header = Header(
        transfer_id=TransferId("\ud800"),
        attempt=Attempt(1),
        sender=Incarnation(1),
        receiver=Incarnation(2),
    )
    with pytest.raises(BadValue):
        encode(Done(header=header, part=Part(0, 0, 0, 1)))


def test_a_small_message_cannot_become_a_large_object() -> None:
    count = 1 << 17
    lists = b"\x82\x05\xa2\x10\x12\x18\x63\x9a" + count.to_bytes(4, "big") + b"\x80" * count
    with pytest.raises(RemoteFault, match="item count"):
        decode(lists, LIMITS)
    with pytest.raises(RemoteFault, match="item count"):
        decode_plain(b"\x9a" + (count + 1).to_bytes(4, "big") + b"\x80" * (count + 1), LIMITS)


def test_a_full_grant_fits_the_bound_on_items() -> None:
    parts = tuple(Part(0, 0, t, t + 1) for t in range(LIMITS.parts_per_edge_max))
    column = Column(4, b"\x01\x00\x00\x00")
    tables = tuple(
        BlockRuns(group=group, first_token=0, starts=column, lengths=column)
        for group in range(LIMITS.groups_max)
    )
    full = Grant(header=HEADER, digest=bytes(64), lease_ms=1, parts=parts, tables=tables)
    assert decode(encode(full), LIMITS) == full


def nested(depth: int) -> object:
    value: object = 0
    for _ in range(depth):
        value = [value]
    return value


def test_what_is_skipped_is_bounded_in_depth_too() -> None:
    # The array of the message and its map are two levels.
    assert decode(cbor2.dumps([5, {16: 18, 99: nested(DEPTH_MAX - 2)}]), LIMITS)
    with pytest.raises(RemoteFault, match="nested"):
        decode(cbor2.dumps([5, {16: 18, 99: nested(DEPTH_MAX - 1)}]), LIMITS)


def test_plain_objects_are_bounded_in_depth() -> None:
    deepest = nested(DEPTH_MAX - 1)
    assert decode_plain(encode_plain(deepest), LIMITS) == deepest
    with pytest.raises(BadValue, match="nested"):
        encode_plain(nested(DEPTH_MAX))
    with pytest.raises(RemoteFault, match="nested"):
        decode_plain(cbor2.dumps(nested(DEPTH_MAX)), LIMITS)


@pytest.mark.parametrize("value", [1.5, {1, 2}, 1 << 64, {(1,): 2}, object(), "\ud800"])
def test_what_is_not_plain_is_the_callers_fault(value: object) -> None:
    with pytest.raises(BadValue):
        encode_plain({"key": value})
