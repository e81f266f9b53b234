"""The two legs of a push request, sent to the engines without a router between.

Owns their bodies, since probes cut one leg, delay one, or cross two. Knows the fields of
vLLM's P/D contract, which kvxfer's connector and the in-tree ones share. Invariant: both
legs of one name carry the same `transfer_id` and the same X-Request-Id.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import attrs

from kvxfer_vllm.pd.client import Body, completion
from kvxfer_vllm.pd.ports import LOOPBACK


@attrs.frozen(kw_only=True)
class ProducerPlace:
    """Where a decode engine finds the producer's control listener."""

    engine_id: str
    kv_port: int
    tensor_ranks: int = 1
    pipeline_ranks: int = 1


def fresh_name() -> str:
    """A name for one request, used for both legs as X-Request-Id and as transfer_id."""
    return uuid.uuid4().hex


def prefill_leg(name: str, token_ids: Sequence[int]) -> Body:
    """What P is asked: one token, and to keep the KV for somebody."""
    params = {"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": name}
    return completion(token_ids, 1, kv_transfer_params=params)


def decode_leg(
    name: str, token_ids: Sequence[int], place: ProducerPlace, answer_tokens: int
) -> Body:
    """What D is asked: `answer_tokens` tokens after a prompt whose KV comes from `place`."""
    params = {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "transfer_id": name,
        "remote_engine_id": place.engine_id,
        "remote_host": LOOPBACK,
        "remote_port": place.kv_port,
        "tp_size": place.tensor_ranks,
        "pp_size": place.pipeline_ranks,
        # In-tree push reads it though it cannot know P's own, random, request id.
        "remote_request_id": f"cmpl-{name}-0",
    }
    return completion(token_ids, answer_tokens, kv_transfer_params=params)
