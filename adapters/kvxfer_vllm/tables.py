"""Which tokens and blocks of a request are handed over, in every cache group.

Owns the cutting of vLLM's block lists into block tables, and how many tokens of a prompt
one engine leaves to the other. Knows no request and no memory. Invariant: both engines
of a pair work the numbers out alike, from the model's cache groups alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import attrs
import numpy as np

from kvxfer.layout.geometry import BlockTable, GroupKind
from kvxfer_vllm.cache_groups import CacheGroup

BlockIds = Sequence[Sequence[int]]
"""Manager blocks of a request, by cache group."""


@attrs.frozen(kw_only=True)
class GroupBlocks:
    """One group as a scheduler sees it."""

    position: int = 0
    """Index of its list among vLLM's lists of block ids."""
    tokens_per_block: int


@attrs.frozen(kw_only=True)
class Tables:
    """The groups that are transferred, in the order of the layout descriptor."""

    groups: tuple[GroupBlocks, ...]
    grain: int = 1
    """Tokens that only mean something together: those of a block that is packed inside."""
    left_out: int = 0
    """Tokens at the end of a prompt that P does not compute and D does.

    D computes the last token of a prompt in any case. A state that has seen that token
    already would see it twice; a window that ends behind it begins one token too late.
    """
    stream_grain: int = 1
    """What is streamed ends at a multiple of so many tokens: the blocks of all groups."""

    @classmethod
    def of(cls, groups: Sequence[CacheGroup], positions: Sequence[int], *, packed: bool) -> Tables:
        """`packed`: the attention kernel arranges the inside of a block in its own way."""
        attention = [g.tokens_per_block for g in groups if g.kind is not GroupKind.STATE]
        blocks = math.lcm(*attention)
        return cls(
            groups=tuple(
                GroupBlocks(position=position, tokens_per_block=group.tokens_per_block)
                for group, position in zip(groups, positions, strict=True)
            ),
            grain=blocks if packed else 1,
            left_out=int(any(group.reach is not None for group in groups)),
            stream_grain=blocks,
        )

    def handed_over(self, prompt_tokens: int) -> int:
        """How many tokens of a prompt P computes for D; 0: the prompt is too short for it."""
        return max(prompt_tokens - self.left_out, 0)

    def cut(self, block_ids: BlockIds, token_start: int, token_stop: int) -> tuple[BlockTable, ...]:
        """The tables of all groups for tokens [token_start, token_stop).

        `block_ids` are all blocks of the request from its first token on; those that a
        window no longer needs are vLLM's null block.
        """
        return tuple(
            _table(index, g.tokens_per_block, block_ids[g.position], token_start, token_stop)
            for index, g in enumerate(self.groups)
        )


def _table(
    index: int, tokens: int, block_ids: Sequence[int], token_start: int, token_stop: int
) -> BlockTable:
    first = token_start // tokens
    blocks = block_ids[first : -(-token_stop // tokens)]
    return BlockTable(
        group=index, first_token=first * tokens, blocks=np.asarray(blocks, dtype=np.int64)
    )
