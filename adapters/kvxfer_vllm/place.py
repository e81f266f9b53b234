"""Where a worker stands among the workers of its engine.

Owns vLLM's numbering of ranks and its rule of which KV heads a tensor rank holds. Knows
no tensor. Invariant: a worker says this of itself only; what the others hold is
exchanged, never worked out.
"""

from __future__ import annotations

import attrs

from kvxfer.errors import LayoutMismatch


@attrs.frozen(kw_only=True)
class Place:
    """One worker's tensor rank and pipeline stage."""

    tensor_rank: int = 0
    tensor_size: int = 1
    stage: int = 0

    @property
    def rank(self) -> int:
        """Number of the worker in its engine; the name of its agent on the wire."""
        return self.stage * self.tensor_size + self.tensor_rank

    def heads_of(self, heads_total: int) -> tuple[int, int]:
        """(number of KV heads here, the first one), as vLLM shares `heads_total` out.

        Fewer heads than ranks: neighbouring ranks hold the same one. Raises LayoutMismatch
        where neither number divides the other.
        """
        size = self.tensor_size
        if heads_total % size == 0:
            return heads_total // size, heads_total // size * self.tensor_rank
        if size % heads_total == 0:
            return 1, self.tensor_rank * heads_total // size
        raise LayoutMismatch(f"{heads_total} KV heads cannot be shared out over {size} ranks")


ALONE = Place()
