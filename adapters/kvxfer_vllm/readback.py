"""Read-back: a prefill engine loads what the decode engine of the turn before still holds.

Owns the terms on both sides: what D offers when a request ends and for how long, and which
of it a later prompt at P may use. Knows no agent and no clock. Invariant: P asks only for
tokens that D says to be the beginning of this very prompt; where that cannot be told
here, the digests are compared before a byte moves.

The engines change places: D is the producer of such a transfer and P its consumer. The
name follows from D's request id, which the answer carries, so that it passes routers
which drop fields that they do not know.
"""

from __future__ import annotations

from typing import Any

import attrs

from kvxfer.driver import TransferId
from kvxfer.driver.commands import Offer
from kvxfer.errors import BadValue
from kvxfer_vllm.answers import answer
from kvxfer_vllm.config import Settings
from kvxfer_vllm.digest import prompt_digest
from kvxfer_vllm.metadata import Send
from kvxfer_vllm.names import kept_name
from kvxfer_vllm.params import TOKENS_DIGEST_KEY, Kept, Leg, LegParams
from kvxfer_vllm.prefills import FINISHED_WELL, Finished
from kvxfer_vllm.tables import BlockIds, Tables


@attrs.frozen(kw_only=True)
class Wish:
    """What P may load: tokens [0, token_stop) of its prompt, from where `source` says.

    `token_stop` 0: nothing of it is of use; D need not hold it any longer.
    """

    transfer_id: TransferId
    source: LegParams
    token_stop: int


def wish_for(kept: Kept, request: Any) -> Wish:
    """Judge at P what D says it has kept, against the new prompt."""
    source = LegParams(
        leg=Leg.CONSUME,
        remote_engine_id=kept.engine_id,
        remote_host=kept.host,
        remote_port=kept.port,
        remote_ranks=kept.ranks,
    )
    return Wish(
        transfer_id=kept_name(kept.request_id),
        source=source,
        token_stop=_usable_tokens(kept, request),
    )


def _usable_tokens(kept: Kept, request: Any) -> int:
    """All that D kept, or nothing: of a part of it there is no digest to compare."""
    if request.prompt_token_ids is None:
        return 0
    shared = int(min(kept.token_count, request.num_prompt_tokens))
    if not kept.digest:
        # D compares before a byte moves: its digest is always of all that it kept.
        return shared
    tokens = request.prompt_token_ids[:shared]
    same = len(tokens) == kept.token_count and prompt_digest(tokens) == kept.digest
    return kept.token_count if same else 0


def check_readback(settings: Settings, tables: Tables) -> None:
    """Refuse it for models whose memory of the past is more than tokens in blocks.

    When D ends a request, a step in flight may have carried a state beyond the last
    token that counts. Raises BadValue.
    """
    if settings.bidirectional and tables.left_out:
        key = "bidirectional_kv_xfer"
        raise BadValue(key, True, "false for models with windows or states")


def keep(request: Any, block_ids: BlockIds, settings: Settings, tables: Tables) -> Finished | None:
    """What follows from the end of a request at D; None where nothing of it is worth keeping.

    The last token was sampled and never computed, so that it has no KV. What the cache
    holds beyond may be a guess of a draft or a step in flight.
    """
    if request.status.name not in FINISHED_WELL or request.prompt_token_ids is None:
        return None
    token_count = min(request.num_computed_tokens, len(request.all_token_ids) - 1)
    if token_count <= 0:
        return None
    digest = prompt_digest(request.all_token_ids[:token_count])
    name = kept_name(request.request_id)
    cut = tables.cut(block_ids, 0, token_count)
    offer = Offer(
        transfer_id=name,
        tables=cut,
        token_count=token_count,
        digest=digest,
        lease_ms=settings.kept_ms,
        tag=request.request_id,
    )
    told = answer(settings, request, name, cut, token_count=token_count, to_prefill=True)
    return Finished(
        orders=(Send(request_id=request.request_id, offer=offer),),
        held=True,
        answer=told | {TOKENS_DIGEST_KEY: digest.hex()},
    )
