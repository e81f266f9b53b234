"""The lobby and the bucket: who has to leave, and who has to wait."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvxfer.driver.lobby import Lobby
from kvxfer.driver.rate import Bucket


def test_the_oldest_of_the_most_crowded_address_leaves() -> None:
    left: list[int] = []
    lobby = Lobby(4)
    for guest, address in enumerate(["a", "m", "m", "m"]):
        lobby.enter(address, guest, lambda guest=guest: left.append(guest))
    lobby.enter("b", 4, lambda: left.append(4))
    assert left == [1]
    lobby.enter("m", 5, lambda: left.append(5))
    assert left == [1, 2]
    assert lobby.count == 4


def test_whoever_has_finished_leaves_a_place() -> None:
    lobby = Lobby(1)
    lobby.enter("a", 1, lambda: None)
    lobby.exit("a", 1)
    lobby.exit("a", 1)
    lobby.exit("nobody", 9)
    assert lobby.count == 0
    lobby.enter("b", 2, lambda: None)
    assert lobby.count == 1


@given(st.integers(1, 5), st.lists(st.tuples(st.booleans(), st.integers(0, 3)), max_size=60))
def test_there_are_never_more_than_the_bound(bound: int, steps: list[tuple[bool, int]]) -> None:
    lobby = Lobby(bound)
    here: dict[int, str] = {}
    for guest, (enters, number) in enumerate(steps):
        address = str(number)
        if enters:
            here[guest] = address
            lobby.enter(address, guest, lambda guest=guest: here.pop(guest))
        elif here:
            gone = next(iter(here))
            lobby.exit(here.pop(gone), gone)
        assert lobby.count == len(here) <= bound


def test_a_burst_is_free_and_what_is_more_is_paid_by_waiting() -> None:
    bucket = Bucket(per_s=100, burst=10)
    assert bucket.pause_s(10, now_ms=0) == 0
    assert bucket.pause_s(5, now_ms=0) == 0.05
    assert bucket.pause_s(0, now_ms=50) == 0
    assert bucket.pause_s(1, now_ms=50) == 0.01


def test_tokens_do_not_pile_up() -> None:
    bucket = Bucket(per_s=100, burst=10)
    bucket.pause_s(1, now_ms=0)
    assert bucket.pause_s(20, now_ms=1e9) == 0.1
