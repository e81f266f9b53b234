"""Any bytes, in any pieces: a message or a remote fault, and the other link goes on."""

from __future__ import annotations

import sys
from pathlib import Path

import attrs
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvxfer.core.ids import Incarnation
from kvxfer.core.messages import Message
from kvxfer.wire.codec import encode
from kvxfer.wire.framing import frame

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "property"))
import fuzz_rig
import fuzz_session
from wire_strategies import MESSAGES


def fuzz(examples: int) -> settings:
    quick = [HealthCheck.too_slow]
    return settings(
        max_examples=examples, deadline=None, derandomize=True, suppress_health_check=quick
    )


HEAD = st.builds(lambda way, size: bytes([way, size]), st.integers(0, 4), st.integers(0, 63))


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """A few messages, some taken seriously for their header, some damaged."""
    whole = b""
    for message in draw(st.lists(MESSAGES, min_size=1, max_size=4)):
        payload = bytearray(encode(_addressed(draw, message)))
        for _ in range(draw(st.integers(0, 2))):
            place = draw(st.integers(0, len(payload) - 1))
            payload[place] = draw(st.integers(0, 255))
        whole += frame(bytes(payload)) if draw(st.integers(0, 9)) else bytes(payload)
    return whole


def _addressed(draw: st.DrawFn, message: Message) -> Message:
    header = getattr(message, "header", None)
    if header is None:
        return message
    name = draw(st.sampled_from(["bait", "from M", "t1", "probe", "x"]))
    header = attrs.evolve(
        header,
        transfer_id=name,
        attempt=draw(st.integers(1, 3)),
        sender=Incarnation(3),
        receiver=draw(st.sampled_from([1, 2])),
    )
    return attrs.evolve(message, header=header)


@fuzz(300)
@given(HEAD, st.binary(max_size=200))
def test_bytes_against_the_session(head: bytes, data: bytes) -> None:
    fuzz_session.run(head + data)


@fuzz(300)
@given(HEAD, streams())
def test_conversations_against_the_session(head: bytes, data: bytes) -> None:
    fuzz_session.run(head + data)


@fuzz(60)
@given(HEAD, streams() | st.binary(max_size=100))
def test_conversations_between_two_agents(head: bytes, data: bytes) -> None:
    fuzz_rig.run(head + data)


def test_a_thousand_lengths_do_not_grow_memory() -> None:
    """[M2] Frames are bounded by the limit, and by less before the peer has said who it is."""
    session = fuzz_session.make_session()
    reader = fuzz_session.FrameReader(fuzz_session.LIMITS)
    for size in range(1000):
        fuzz_session.feed(session, fuzz_session.UP, reader, (1 << 31 | size).to_bytes(4, "big"))
    assert len(reader._buffer) <= fuzz_session.LIMITS.message_bytes_max
