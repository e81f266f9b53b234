"""What an operator asked to see of this worker: spans, a recording, a metrics page.

Owns the options `traces`, `record_dir` and `metrics_address` once they are read. Knows
no vLLM type. Invariant: what cannot be had stops the start with a text that names the
option; without these options nothing of kvxfer.observe is loaded.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from kvxfer.driver import Agent, AgentConfig
from kvxfer.errors import BadValue
from kvxfer_vllm.config import Settings

if TYPE_CHECKING:
    from kvxfer.observe import Server


def watched(config: AgentConfig, settings: Settings) -> AgentConfig:
    """The agent's configuration with a recording and with spans, where they are asked for."""
    changes: dict[str, Any] = {}
    if settings.record_dir:
        changes["record_dir"] = Path(settings.record_dir)
    if settings.traces:
        try:
            from kvxfer.observe.spans import SpanSink
        except ImportError as error:
            raise BadValue("traces", True, f"false, or install kvxfer[traces] ({error})") from error
        changes["sinks"] = (SpanSink(settings.engine_id, config.shard.rank),)
    return attrs.evolve(config, **changes)


def serve_metrics(settings: Settings, agent: Agent) -> Server | None:
    """All of the agent's metrics on a page of its own; the port goes up with the rank."""
    if settings.metrics_address is None:
        return None
    from kvxfer import observe

    host, port = settings.metrics_address
    port += agent.config.shard.rank
    try:
        return observe.serve(agent, host=host, port=port)
    except OSError as error:
        bound = f"a free address ({error})"
        raise BadValue("metrics_address", f"{host}:{port}", bound) from error
