"""vLLM adapter: a KV connector that vLLM loads by `kv_connector_module_path="kvxfer_vllm"`.

Owns the names that vLLM may ask for. Refuses to do anything at import: vLLM imports
this package in the API server, in EngineCore and in every worker, so the connector
module (which needs vLLM) is imported only when one of its classes is asked for.

The classes differ in name only. All of them run the push protocol (the producer
writes); legs in pull order are served by it too, since a consumer that registers
late finds the producer's offer under its lease. This adapter does not pull by
READ yet, so the name `NixlPullConnector`, which promises it, is not exported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvxfer_vllm.connector import (
        KvxferConnector,
        KvxferPushConnector,
        NixlConnector,
        NixlPushConnector,
    )

__all__ = ["KvxferConnector", "KvxferPushConnector", "NixlConnector", "NixlPushConnector"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {__all__}")
    from kvxfer_vllm import connector

    return getattr(connector, name)
