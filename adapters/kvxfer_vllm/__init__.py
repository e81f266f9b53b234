"""vLLM adapter: a KV connector that vLLM loads by `kv_connector_module_path="kvxfer_vllm"`.

Owns the names that vLLM may ask for. Refuses to do anything at import: vLLM imports
this package in the API server, in EngineCore and in every worker, so the connector
module (which needs vLLM) is imported only when one of its classes is asked for.

The classes differ in name and in who moves the data: the producer writes (push) or the
consumer reads (pull). The consumer's class decides; a producer of either name serves both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvxfer_vllm.connector import (
        KvxferConnector,
        KvxferPullConnector,
        KvxferPushConnector,
        NixlConnector,
        NixlPullConnector,
        NixlPushConnector,
    )

__all__ = [
    "KvxferConnector",
    "KvxferPullConnector",
    "KvxferPushConnector",
    "NixlConnector",
    "NixlPullConnector",
    "NixlPushConnector",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {__all__}")
    from kvxfer_vllm import connector

    return getattr(connector, name)
