"""Neuron adapter: describes the KV caches of AWS Neuron engines and connects them to kvxfer.

Owns the names that engines use: `describe_paged`, `describe_nxdi`, `place`. Refuses to
import vLLM, torch or a Neuron package.
"""

from __future__ import annotations

from kvxfer_neuron.hbm import place, resolve
from kvxfer_neuron.lines import blocks_per_line, line_of, line_table, pseudo_blocks
from kvxfer_neuron.marks import Elements
from kvxfer_neuron.nxdi import NxdiCache, Order, describe_nxdi
from kvxfer_neuron.paged import describe_paged
from kvxfer_neuron.ranks import Place, own_holding, with_ranks
from kvxfer_neuron.tensors import Placed

__all__ = [
    "Elements",
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
