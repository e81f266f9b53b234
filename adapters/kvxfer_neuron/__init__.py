"""Neuron adapter: describes the KV caches of AWS Neuron engines and connects them to kvxfer.

vLLM on Neuron loads its connector by `kv_connector_module_path="kvxfer_neuron"`. Engines
of another make use `place`, `describe_paged` and `describe_nxdi` with an agent of their
own (docs/neuron.md). Refuses to import vLLM, torch or a Neuron package at import.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvxfer_neuron.hbm import place, resolve
from kvxfer_neuron.lines import blocks_per_line, line_of, line_table, pseudo_blocks
from kvxfer_neuron.marks import Elements
from kvxfer_neuron.nxdi import NxdiCache, Order, describe_nxdi
from kvxfer_neuron.paged import describe_paged
from kvxfer_neuron.ranks import Place, own_holding, with_ranks
from kvxfer_neuron.tensors import Placed

if TYPE_CHECKING:
    from kvxfer_neuron.connector import (
        KvxferNeuronConnector,
        KvxferNeuronPullConnector,
        KvxferNeuronPushConnector,
    )

_CONNECTORS = (
    "KvxferNeuronConnector",
    "KvxferNeuronPullConnector",
    "KvxferNeuronPushConnector",
)

__all__ = [
    "Elements",
    "KvxferNeuronConnector",
    "KvxferNeuronPullConnector",
    "KvxferNeuronPushConnector",
    "NxdiCache",
    "Order",
    "Place",
    "Placed",
    "blocks_per_line",
    "describe_nxdi",
    "describe_paged",
    "line_of",
    "line_table",
    "own_holding",
    "place",
    "pseudo_blocks",
    "resolve",
    "with_ranks",
]


def __getattr__(name: str) -> Any:
    if name not in _CONNECTORS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {__all__}")
    from kvxfer_neuron import connector

    return getattr(connector, name)
