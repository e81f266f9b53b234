"""One request on its way: its rounds, its legs, and which engines have failed it.

Owns the names under which each round runs and the rule when another round may follow.
Refuses to know HTTP. Invariant: no engine is sent the same names twice, so that nothing of
an earlier try can meet a later one (docs/design/router.md).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

import attrs

from kvxfer_router.engine import FailureKind, Leg, LegFailed, end_tasks
from kvxfer_router.intake import REQUEST_ID, ClientCall
from kvxfer_router.legs import Names
from kvxfer_router.pool import Engine, Fleet, Pool
from kvxfer_router.relay import Answer

PREFILL: Final = "prefill"
DECODE: Final = "decode"
PUSH: Final = "push"
PULL: Final = "pull"


@attrs.frozen(kw_only=True)
class Prefilled:
    """P has answered; `params` is its kv_transfer_params, if it sent any."""

    params: Mapping[str, Any] | None


@attrs.define
class Run:
    """One client's request from its first leg to its outcome.

    `order` is push, pull or decode (the plain request, to a decode engine alone).
    """

    call: ClientCall
    order: str
    fleet: Fleet
    retries_left: int
    names: Names = attrs.field()
    round_number: int = 1
    failed: set[Engine] = attrs.field(factory=set)
    """Engines that this request does not go to any more."""
    asked: dict[str, Engine] = attrs.field(factory=dict)
    """The engine of each leg of this round."""
    lost_prefill: LegFailed | None = None
    """How P failed in this round."""
    prefill: asyncio.Task[Prefilled | LegFailed] | None = None
    decode: asyncio.Task[Answer] | None = None
    legs: list[Leg] = attrs.field(factory=list)

    @names.default
    def _first_names(self) -> Names:
        return self.call.names

    @property
    def needs_known(self) -> bool:
        """True where P's coordinates must be known beforehand."""
        return self.order == PUSH

    @property
    def headers(self) -> dict[str, str]:
        """What both engines of this round get."""
        return {**self.call.headers, REQUEST_ID: self.names.request_id}

    def pool_of(self, leg: str) -> Pool:
        """Where the engines of this leg are."""
        return self.fleet.prefill if leg == PREFILL else self.fleet.decode

    def can_replace(self, leg: str, now_s: float) -> bool:
        """True if another engine may be asked in place of this round's."""
        without = self.failed | {self.asked[leg]}
        known = leg == PREFILL and self.needs_known
        return self.pool_of(leg).choose(self.call.prompt, now_s, without, known=known) is not None

    def to_replace(self, failed: LegFailed, now_s: float) -> list[str]:
        """The legs that another round would send elsewhere; empty: no other round.

        Where D's error may be the KV of P, both are. A leg that could not be sent costs no
        retry: nothing has worked on the request, and the number of engines bounds it.
        """
        if not failed.repeatable:
            return []
        if failed.kind is not FailureKind.UNREACHABLE and not self.retries_left:
            return []
        suspects = [failed.leg]
        if failed.leg == DECODE and failed.may_be_the_kv and self.order != DECODE:
            suspects.append(PREFILL)
        return [leg for leg in suspects if leg in self.asked and self.can_replace(leg, now_s)]

    def begin_round(self, failed: LegFailed, replaced: list[str]) -> None:
        """Go on elsewhere, under other names."""
        if failed.kind is not FailureKind.UNREACHABLE:
            self.retries_left -= 1
        self.failed |= {self.asked[leg] for leg in replaced}
        self._rename()

    def replace_unreached(self, leg: str) -> None:
        """Another engine takes this leg under the same names, as the next attempt."""
        self.failed.add(self.asked[leg])
        self.names = self.names.next_attempt()
        if leg == PREFILL:
            self.lost_prefill = None

    def release_prefill(self) -> asyncio.Task[Prefilled | LegFailed] | None:
        """The P leg, which from now on ends without this request."""
        self.legs = [leg for leg in self.legs if leg.name != PREFILL]
        prefill, self.prefill = self.prefill, None
        return prefill

    def go_alone(self) -> None:
        """From now on it is the plain request. D may still hold the names of an ended leg."""
        self.order = DECODE
        self._rename()

    def _rename(self) -> None:
        self.round_number += 1
        self.names = self.call.names.of_round(self.round_number)
        self.asked.clear()
        self.lost_prefill = None

    async def close(self) -> None:
        """End every leg; its engine sees its connection close."""
        for leg in self.legs:
            leg.close()
        await end_tasks(task for task in (self.prefill, self.decode) if task is not None)
        self.prefill = self.decode = None
        self.legs.clear()
