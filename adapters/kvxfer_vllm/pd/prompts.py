"""The prompts of the check: seeded token ids of chosen lengths.

Owns lengths and contents. Invariant: the same arguments give the same prompts on every
machine, and lengths on both sides of a block boundary are always among them.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from kvxfer.errors import BadValue
from kvxfer_vllm.pd.model import PLAIN_TOKENS

LENGTH_MIN = 5
LENGTH_MAX = 3000

FIXED_LENGTHS = (
    *(5, 127, 128, 129, 3000),
    *(17, 64, 255, 256, 257, 300, 383, 384, 385, 511, 512, 513, 700),
    *(1023, 1024, 1025, 1500, 2047, 2048, 2049, 2999),
)
"""Taken first, in this order: the ends of the range and the edges of 128-token blocks."""


def prompt(length: int, seed: str) -> list[int]:
    """`length` token ids. Another seed gives another prompt."""
    rng = random.Random(f"{length}/{seed}")
    return [rng.randrange(PLAIN_TOKENS) for _ in range(length)]


def prompt_lengths(count: int, seed: str) -> list[int]:
    """`count` lengths in a shuffled order; those beyond the fixed ones are log-uniform."""
    if count < 1:
        raise BadValue("requests", count, "must be at least 1")
    rng = random.Random(f"lengths/{seed}")
    lengths = list(FIXED_LENGTHS[:count])
    while len(lengths) < count:
        lengths.append(round(LENGTH_MIN * (LENGTH_MAX / LENGTH_MIN) ** rng.random()))
    rng.shuffle(lengths)
    return lengths


def check_prompts(count: int, seed: str) -> list[Sequence[int]]:
    """The prompts of one check, no two alike."""
    lengths = prompt_lengths(count, seed)
    return [prompt(length, f"{seed}/{index}") for index, length in enumerate(lengths)]
