"""The far end: what goes across, and that no process is left."""

from __future__ import annotations

import os
import socket
import threading

import numpy as np
import pytest

from kvxfer.conformance import FarEndGone, far_pair_maker
from kvxfer.conformance.case import NotSupportedError
from kvxfer.conformance.far_codec import (
    arguments,
    pack,
    pack_answer,
    receive,
    send,
    unpack,
    unpack_answer,
)
from kvxfer.conformance.rig import strided
from kvxfer.errors import KvxferError, TransportFault
from kvxfer.status import Status
from kvxfer.transport.caps import Caps
from kvxfer.transport.ops import Direction, Memory


def there(value):
    """A value after the way through a socket."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        sender = threading.Thread(target=send, args=(ours, value))
        sender.start()
        got = receive(theirs)
        sender.join(30)
    return got


@pytest.mark.parametrize(
    "value",
    [None, 7, (1 << 64) - 1, b"\0\xff", "text", {"a": 1, "b": None}, {"backends": ["LIBFABRIC"]}],
)
def test_plain_arguments_come_as_they_went(value) -> None:
    assert unpack(there(pack(value))) == value


def test_columns_memory_and_strides_come_as_they_went() -> None:
    column = np.array([0, (1 << 64) - 1, 7], dtype=np.uint64)
    assert (unpack(there(pack(column))) == column).all()
    memory = Memory(base=8, length=1 << 40, kind="cuda", device=3)
    assert unpack(there(pack(memory))) == memory
    one = strided([(1, 2, 3, 4, 5, 6)])
    found = arguments("post_strided", there([pack(v) for v in (1, 2, Direction.READ, one, None)]))
    assert found[2] is Direction.READ
    assert found[3].remote_stride.tolist() == [6]
    assert found[3].local.dtype == np.uint64


@pytest.mark.parametrize(
    ("slot", "answer"),
    [
        ("close", Status.CLOSED),
        ("caps", Caps.WRITE | Caps.CANCEL),
        ("last_error", "words"),
        ("peer_create", (Status.OK, 9, b"\0blob")),
        ("allocate_region", (Status.OK, 1, 1 << 47)),
        ("poll_notifications", (Status.OK, [(3, b"x"), (4, b"\0")])),
    ],
)
def test_answers_come_with_their_types(slot, answer) -> None:
    got = unpack_answer(slot, there(pack_answer(answer)))
    assert got == answer
    assert type(got) is type(answer)
    if isinstance(answer, tuple):
        assert [type(part) for part in got] == [type(part) for part in answer]


def test_what_the_table_does_not_know_is_not_sent() -> None:
    with pytest.raises(TypeError, match="object"):
        pack(object())


def test_a_transport_of_one_process_has_no_far_pair() -> None:
    with pytest.raises(NotSupportedError, match="CROSS_PROCESS"):
        far_pair_maker("loopback")()


class TestOverTheSample:
    @pytest.fixture
    def pair(self, cma_library: str):
        pair = far_pair_maker("capi", options=lambda _end: {"library": cma_library})()
        yield pair
        pair.close()

    def test_memory_of_the_other_process(self, pair) -> None:
        buffer = pair.b.memory_factory(4096)
        buffer.write(5, b"\0there\xff")
        assert buffer.read(4, 8) == b"\0\0there\xff"
        assert pair.b.ops.register_region(pair.b.session, buffer.memory)[0] == Status.OK

    def test_a_killed_end_is_gone_and_comes_back(self, pair) -> None:
        base = pair.b.memory_factory(4096).memory.base
        pair.far.kill()
        with pytest.raises(FarEndGone):
            pair.b.ops.caps(pair.b.session)
        endpoint = pair.far.restart()
        assert endpoint.ops.caps(endpoint.session) == pair.a.ops.caps(pair.a.session)
        again = pair.far.memory_at(base, 4096)
        assert (again.memory.base, again.read(0, 4)) == (base, bytes(4))
        with pytest.raises(KvxferError, match="no memory"):
            pair.far.memory_at(base, 4096)

    def test_no_process_is_left(self, pair) -> None:
        pid = pair.far._process._child.pid
        pair.far.stop()
        pair.close()
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_an_end_that_does_not_open_leaves_nothing(cma_library: str) -> None:
    def options(end: str) -> dict[str, str]:
        return {"library": cma_library if end == "a" else "/nowhere.so"}

    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(TransportFault, match=r"nowhere\.so"):
        far_pair_maker("capi", options=options)()
    assert len(os.listdir("/proc/self/fd")) == before
