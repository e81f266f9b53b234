"""Timers and tombstones: order, replacement, bounds."""

from kvxfer.core.ids import LinkId
from kvxfer.core.timers import SLACK, HandshakeTimer, Timers
from kvxfer.core.tombstones import Tombstones


def timer(n: int) -> HandshakeTimer:
    return HandshakeTimer(LinkId(n))


def test_earliest_first_whatever_the_order_of_insertion() -> None:
    timers = Timers()
    for n, deadline_ms in ((1, 30), (2, 10), (3, 20)):
        timers.set(timer(n), deadline_ms)
    fired = []
    while (key := timers.expired(30)) is not None:
        fired.append(key)
    assert fired == [timer(2), timer(3), timer(1)]
    assert len(timers) == 0


def test_a_timer_set_again_does_not_fire_with_its_old_time() -> None:
    timers = Timers()
    timers.set(timer(1), 10)
    timers.set(timer(1), 50)
    assert timers.expired(49) is None
    assert timers.next_deadline_ms() == 50
    assert timers.expired(50) == timer(1)
    assert timers.expired(1000) is None


def test_timers_that_are_set_again_do_not_pile_up() -> None:
    """[J2] A renewal every second for an hour: the heap stays as large as what is alive."""
    timers = Timers()
    for now_ms in range(3_600):
        for n in range(4):
            timers.set(timer(n), now_ms + 30)
    assert len(timers) == 4
    assert len(timers._heap) <= 2 * 4 + SLACK
    fired = []
    while (key := timers.expired(10_000)) is not None:
        fired.append(key)
    assert fired == [timer(n) for n in range(4)]


def test_a_cleared_timer_never_fires() -> None:
    timers = Timers()
    timers.set(timer(1), 10)
    timers.clear(timer(1))
    assert timers.next_deadline_ms() is None
    assert timers.expired(10) is None


def test_tombstones_are_bounded_in_number() -> None:
    stones: Tombstones[int, str] = Tombstones(count_max=3, life_ms=100)
    for n in range(10):
        stones.put(n, str(n), now_ms=0)
    assert len(stones) == 3
    assert stones.get(6, 0) is None
    assert stones.get(7, 0) == "7"


def test_tombstones_are_bounded_in_time() -> None:
    stones: Tombstones[int, str] = Tombstones(count_max=3, life_ms=100)
    stones.put(1, "a", now_ms=0)
    stones.put(2, "b", now_ms=50)
    assert stones.get(1, 99) == "a"
    assert stones.get(1, 100) is None
    assert stones.get(2, 100) == "b"
    stones.put(2, "b", now_ms=120)
    assert stones.get(2, 200) == "b"


def test_what_tombstones_forget_is_kept_in_one_value_where_that_is_wanted() -> None:
    stones: Tombstones[str, int] = Tombstones(2, 100, max)
    for number, key in ((5, "a"), (9, "a"), (3, "b"), (4, "c")):
        stones.put(key, number, 0)
    assert stones.forgotten == 9
    assert stones.get("b", 200) is None
    assert stones.forgotten == 9
    plain: Tombstones[str, int] = Tombstones(1, 100)
    plain.put("a", 1, 0)
    plain.put("b", 1, 0)
    assert plain.forgotten is None
