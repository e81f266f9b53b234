"""Who posts, who polls, and when D is chosen.

Owns the table of ways. Invariant: two ways differ in nothing but these columns; what a
byte or a step costs is not theirs.
"""

from __future__ import annotations

from typing import Final

import attrs

from kvxfer.bench.cluster.costs import Costs


@attrs.frozen(kw_only=True)
class Way:
    """How the KV gets from P to D."""

    name: str
    pull: bool = False
    """D is chosen after P's answer and reads; else it is chosen first and P writes."""
    on_engine: bool = False
    """The engine's own thread posts, and its step waits for that."""
    step_polls: bool = True
    """The end of a transfer is seen at the initiator's next step; else by its own thread."""
    stream: bool = False
    """Chunks leave as they are computed: after the prefill the last one is left."""
    copy_bytes_per_s: float = 0.0
    """One copy kernel for all pieces, at this rate, in place of descriptors. 0: none."""
    copy_base_us: float = 0.0

    def post_s(self, costs: Costs, pieces: int) -> float:
        """Time that the posting thread is busy."""
        return self.copy_base_us / 1e6 if self.copy_bytes_per_s else costs.post_s(pieces)

    def wire_s(self, costs: Costs, tokens: int) -> float:
        """Time from posted to landed."""
        if self.copy_bytes_per_s:
            return tokens * costs.kv_token_bytes / self.copy_bytes_per_s
        return costs.wire_s(tokens)


WAYS: Final = {
    way.name: way
    for way in (
        Way(name="pull", pull=True, on_engine=True),
        Way(name="pull-thread", pull=True, step_polls=False),
        Way(name="push-steps"),
        Way(name="push", step_polls=False),
        Way(name="stream", step_polls=False, stream=True),
        # docs/benchmarks/gpu.md: 2.25 GiB of 64 KiB blocks by one copy kernel over NVLink; the
        # host's share is a prototype's (docs/benchmarks/cluster.md).
        Way(name="push-copy", step_polls=False, copy_bytes_per_s=325e9, copy_base_us=450.0),
    )
}
"""pull: D's engine thread posts READs, as vLLM does. push-steps: a thread posts WRITEs and the
engine polls them once a step, as vLLM's push does. The others post and poll on one thread."""
