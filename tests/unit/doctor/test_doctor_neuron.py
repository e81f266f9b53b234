"""Preflight of a Neuron host: each lack has a finding of its own, with a fix."""

from __future__ import annotations

import attrs
import pytest

from kvxfer.doctor.host import look
from kvxfer.doctor.neuron import neuron_findings
from kvxfer.transport.finding import Level

GOOD = {"NEURON_RT_MAP_HBM": "1", "FI_PROVIDER": "efa", "FI_EFA_ENABLE_SHM_TRANSFER": "0"}
HOST = attrs.evolve(look(), neuron_devices=2, rdma_devices=("a efa", "b efa"))


def test_a_host_without_devices_has_nothing_to_hear() -> None:
    assert list(neuron_findings(attrs.evolve(HOST, neuron_devices=0), {})) == []


def test_a_good_host_hears_of_the_order_only() -> None:
    cards, order = neuron_findings(HOST, GOOD)
    assert (cards.level, cards.text) == (Level.FINE, "2 Neuron devices, 2 EFA cards")
    assert (order.level, order.fix.partition(";")[0]) == (Level.NOTE, "allocate the caches first")


@pytest.mark.parametrize(
    ("cards", "level"), [((), Level.PROBLEM), (("a efa", "b mlx5_core"), Level.NOTE)]
)
def test_a_card_for_each_device(cards: tuple[str, ...], level: Level) -> None:
    found = next(neuron_findings(attrs.evolve(HOST, rdma_devices=cards), GOOD))
    assert (found.level, "EFA interface" in found.fix) == (level, True)


@pytest.mark.parametrize(
    ("variable", "value", "level"),
    [
        ("NEURON_RT_MAP_HBM", None, Level.PROBLEM),
        ("NEURON_RT_MAP_HBM", "true", Level.PROBLEM),
        ("FI_PROVIDER", "tcp", Level.NOTE),
        ("FI_EFA_ENABLE_SHM_TRANSFER", None, Level.NOTE),
    ],
)
def test_the_environment_of_engines(variable: str, value: str | None, level: Level) -> None:
    environ = {k: v for k, v in (GOOD | {variable: value}).items() if v is not None}
    found = [f for f in neuron_findings(HOST, environ) if f.fix.startswith("export")]
    (one,) = found
    assert one.level is level
    assert variable in one.fix
