"""Our connector, which writes down every hook that vLLM calls on it; needs vLLM.

Owns the record. Invariant: all public methods of vLLM's connector interface are recorded,
also those that this project does not know yet.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1 import base

from kvxfer_vllm import KvxferPushConnector

RECORD: list[str] = []
"""What was called since it was last cleared, oldest first."""

Detail = Callable[[tuple[Any, ...], Any], str]

DETAILS: dict[str, Detail] = {
    "get_num_new_matched_tokens": lambda given, result: f"(local={given[1]}) -> {result}",
    "update_state_after_alloc": lambda given, _: (
        f"(blocks={[len(group) for group in given[1].get_block_ids()]}, external={given[2]})"
    ),
    "request_finished_all_groups": lambda given, result: (
        f"({given[0].status.name}, blocks={[len(group) for group in given[1]]}) -> hold={result[0]}"
    ),
    "update_connector_output": lambda given, _: f"({_reports(given[0])})",
}
"""What of the arguments and the answer decides what comes next."""


def _reports(output: Any) -> str:
    named = ("finished_sending", "finished_recving", "failed_recving", "invalid_block_ids")
    found = [name for name in named if getattr(output, name, None)]
    return ", ".join(found)


class HookRecorder(KvxferPushConnector):
    """The same, watched."""


def _recorded(name: str) -> Callable[..., Any]:
    def hook(self: Any, *given: Any, **named: Any) -> Any:
        place = len(RECORD)
        RECORD.append(name)
        result = getattr(super(HookRecorder, self), name)(*given, **named)
        if name in DETAILS:
            RECORD[place] = name + DETAILS[name](given, result)
        return result

    return hook


for _interface in (base.KVConnectorBase_V1, base.SupportsHMA):
    for _name, _ in inspect.getmembers(_interface, inspect.isfunction):
        if not _name.startswith("_"):
            setattr(HookRecorder, _name, _recorded(_name))
