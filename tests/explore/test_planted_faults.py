"""The checks can fail: each planted fault is found, and nothing of it stays behind."""

from __future__ import annotations

import pytest

from kvxfer.core import tables
from kvxfer.core.consumer import Consumer
from kvxfer.core.machine import Table
from kvxfer.testing.explore.configs import by_name
from kvxfer.testing.planted.catalogue import FAULTS
from kvxfer.testing.planted.fault import Fault, both, method
from kvxfer.testing.planted.hunt import hunt, summary


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_planted_fault_is_found(fault: Fault) -> None:
    found = hunt(fault)
    assert found.found, f"{found.invariant} in {found.config}, {found.states} states"
    assert found.states <= fault.states_max + 100
    assert found.text.startswith(f"configuration {found.config}")
    assert found.invariant in found.text


def test_there_are_many_and_each_has_its_name() -> None:
    assert len(FAULTS) >= 30
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
    for fault in FAULTS:
        assert all(by_name(name) is not None for name in fault.configs)


def cells() -> dict[str, object]:
    found = {name: getattr(tables, name) for name in tables.__all__}
    return {name: dict(t.cells) for name, t in found.items() if isinstance(t, Table)}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_taken_out_again_whatever_happens(fault: Fault) -> None:
    before = cells(), dict(vars(Consumer))
    with pytest.raises(KeyError), fault.plant():
        raise KeyError("in between")
    assert (cells(), dict(vars(Consumer))) == before


def test_a_method_and_two_at_once_come_back() -> None:
    class Machine:
        def first(self) -> int:
            return 1

        @property
        def second(self) -> int:
            return 2

    first = method(Machine, "first", lambda original: lambda self: original(self) + 10)
    second = method(Machine, "second", lambda original: lambda self: original(self) + 10)
    with both(first, second)():
        assert (Machine().first(), Machine().second) == (11, 12)
    assert (Machine().first(), Machine().second) == (1, 2)


def test_a_fault_that_does_nothing_is_not_found() -> None:
    sound = Fault(
        name="none",
        about="nothing is wrong",
        invariants=("A1",),
        configs=("one",),
        plant=method(Consumer, "check_quiet", lambda original: original),
        states_max=500,
    )
    result = hunt(sound)
    assert not result.found
    assert summary([result])["found"] == 0
