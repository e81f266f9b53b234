"""Which pairs `kinds` starts: a model, and how its two engines are shared out.

Owns the list and what each entry should show. Starts nothing. Invariant: an entry says by
itself how many tokens of a prompt should come by transfer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import attrs

from kvxfer.errors import BadValue
from kvxfer_vllm.pd.engines import EngineShape, Mode
from kvxfer_vllm.pd.model import write_dense
from kvxfer_vllm.pd.tiny import LATENT, STATE, WINDOW, write_tiny

PLAIN = EngineShape()
TWO = EngineShape(tensor_ranks=2)


@attrs.frozen(kw_only=True)
class Kind:
    """One pair of engines."""

    name: str
    what: str
    write: Callable[[Path], None] = write_dense
    """Writes the model into a folder."""
    prefill: EngineShape = PLAIN
    decode: EngineShape = PLAIN
    left_out: int = 0
    """Tokens at the end of a prompt that D computes itself."""
    options: Mapping[str, Any] = attrs.field(factory=dict)
    """Of both engines' connectors."""
    arguments: tuple[str, ...] = ()
    """More of the engines' command lines."""
    modes: tuple[Mode, ...] = (Mode.PUSH, Mode.PULL, Mode.PUSH_STREAM)

    def by_layers(self) -> Kind:
        """The same, streamed by layers too: that goes also where a prompt is one chunk."""
        whole = tuple(mode for mode in self.modes if not mode.streams)
        return attrs.evolve(self, modes=(*whole, Mode.PUSH_LAYERS))


def _tiny(config: Mapping[str, Any]) -> Callable[[Path], None]:
    return partial(write_tiny, config=config)


REFERENCE_LATENTS = (
    # Where the CPU has AMX, vLLM prefers a backend for latents that takes bfloat16 only.
    *("--attention-backend", "CPU_MLA"),
    # vLLM 0.32's own kernels for norms and positions take a model's views of its latents for
    # rows that lie one behind the other: an answer then depends on what else is in the batch.
    *("--compilation-config", '{"custom_ops": ["none"]}'),
)
STAGED = ("--worker-cls", "kvxfer_vllm.pd.staged_worker.StagedWorker")
IN_ONE_STEP = (Mode.PUSH, Mode.PULL)
"""vLLM's CPU backend computes prompts of such models in one step: no chunk leaves before."""

KINDS = (
    Kind(
        name="blocks",
        what="dense, blocks of 128 tokens at P and of 64 at D",
        decode=EngineShape(block_tokens=64),
        options={"pages": "slots"},
    ),
    Kind(
        name="blocks-up",
        what="dense, blocks of 32 tokens at P and of 96 at D",
        prefill=EngineShape(block_tokens=32),
        decode=EngineShape(block_tokens=96),
        options={"pages": "slots"},
    ),
    Kind(name="tp-2-1", what="dense, two tensor ranks at P, one at D", prefill=TWO),
    Kind(name="tp-1-2", what="dense, one tensor rank at P, two at D", decode=TWO),
    Kind(
        name="window",
        what="sliding windows of 160 tokens beside full attention",
        write=_tiny(WINDOW),
        left_out=1,
    ),
    Kind(
        name="latent",
        what="multi-head latent attention",
        write=_tiny(LATENT),
        modes=IN_ONE_STEP,
        arguments=REFERENCE_LATENTS,
        prefill=EngineShape(block_tokens=16),
        decode=EngineShape(block_tokens=16),
    ),
    Kind(
        name="state",
        what="Mamba-2 states beside full attention",
        write=_tiny(STATE),
        left_out=1,
    ),
    Kind(
        name="window-tp-2-1",
        what="sliding windows, two tensor ranks at P, one at D",
        write=_tiny(WINDOW),
        prefill=TWO,
        left_out=1,
    ),
    Kind(
        name="latent-tp-2-1",
        what="latents, two tensor ranks at P, one at D: the second one has nothing to do",
        write=_tiny(LATENT),
        modes=IN_ONE_STEP,
        arguments=REFERENCE_LATENTS,
        prefill=EngineShape(tensor_ranks=2, block_tokens=16),
        decode=EngineShape(block_tokens=16),
    ),
    Kind(
        name="pp-2-1",
        what="dense, two pipeline stages at P, one at D",
        arguments=STAGED,
        prefill=EngineShape(pipeline_ranks=2),
    ),
)


def picked(names: Sequence[str]) -> tuple[Kind, ...]:
    """The kinds of these names in their order, all where none is named. BadValue if unknown."""
    known = [kind.name for kind in KINDS]
    for name in names:
        if name not in known:
            raise BadValue("kind", name, f"one of {', '.join(known)}")
    return tuple(kind for kind in KINDS if not names or kind.name in names)
