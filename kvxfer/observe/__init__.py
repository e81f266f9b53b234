"""Watching agents: Prometheus metrics, OpenTelemetry spans, pictures of recordings.

Importing this package loads neither prometheus_client nor opentelemetry: `serve` and
`AgentCollector` load the first, `kvxfer.observe.spans` the second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvxfer.observe.collector import AgentCollector, Server, serve

__all__ = ["AgentCollector", "Server", "serve"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from kvxfer.observe import collector

    return getattr(collector, name)
