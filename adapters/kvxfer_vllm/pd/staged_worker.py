"""vLLM's CPU worker for an engine of several pipeline stages that is started without compiling.

Owns one omission of vLLM 0.32: a stage behind the first makes its buffer for what the stage
before sends in its warm-up run, and on CPU there is none without compilation; the first
step then fails. Invariant: nothing else of vLLM's worker is changed.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.worker.cpu_worker import CPUWorker


class StagedWorker(CPUWorker):
    """Named in `--worker-cls`."""

    def compile_or_warm_up_model(self) -> Any:
        """One run without a cache makes the buffer; the seed is set again behind it."""
        self.model_runner.profile_run()
        return super().compile_or_warm_up_model()
