"""Planted at the producer that writes: pins, pairing, the last look, telling.

Owns the faults. Invariant: each is one cell or one method.
"""

from __future__ import annotations

from typing import Any

import attrs

from kvxfer.core.attempts import Attempts
from kvxfer.core.context import Context
from kvxfer.core.ids import Part
from kvxfer.core.memory import AttemptMemory
from kvxfer.core.messages import Cancelled, Failed
from kvxfer.core.operations import Operations
from kvxfer.core.producer import Producer
from kvxfer.core.senders import Senders
from kvxfer.core.sends import Send, Source
from kvxfer.core.serving import ServingSide
from kvxfer.core.tables import (
    SEND,
    SOURCE,
    SendAction,
    SendEvent,
    SendState,
    SourceAction,
    SourceEvent,
    SourceState,
)
from kvxfer.core.timers import GrantTimer
from kvxfer.testing.planted.fault import Fault, both, cell, method

_S, _SE, _SA = SourceState, SourceEvent, SourceAction
_N, _NE, _NA = SendState, SendEvent, SendAction


def _always_idle(_original: Any) -> Any:
    def check_idle(self: Any, transfer_id: Any) -> None:
        source = self.sources.get(transfer_id)
        if source is not None:
            self._fire(source, SourceEvent.IDLE, source.reason)

    return check_idle


def _cancelled_at_once(original: Any) -> Any:
    def cancel(self: Any, link: Any, cancel: Any, served: Any) -> None:
        original(self, link, cancel, served)
        if isinstance(served, Send):
            self.ctx.send(link.id, Cancelled(header=self.ctx.reply(cancel.header)))

    return cancel


def _drained_at_first(_original: Any) -> Any:
    def check_ended(self: Any, send: Any) -> None:
        if send.state is SendState.DRAINING:
            self._fire(send, SendEvent.DRAINED, send.reason)
        elif not send.ops and not send.waiting:
            self._fire(send, SendEvent.PARTS_ENDED, send.reason)

    return check_ended


def _assumes_quiet(original: Any) -> Any:
    def op_ended(self: Any, owner: Any, part: Any, event: Any) -> None:
        original(self, owner, part, attrs.evolve(event, quiet=True))

    return op_ended


def _matches_by_prefix(original: Any) -> Any:
    def match_all(self: Any, source: Any) -> None:
        original(self, source)
        for served in list(self.attempts.live.values()):
            if served.key.transfer_id.startswith(source.transfer_id):
                self._try_match(source, served)

    return match_all


def _source_by_prefix(original: Any) -> Any:
    def source_of(self: Any, transfer_id: Any) -> Any:
        like = [name for name in self.sources if transfer_id.startswith(name)]
        return original(self, like[0] if like else transfer_id)

    return source_of


def _no_digest(original: Any) -> Any:
    def mismatch(self: Any, served: Any, *, check_digest: bool) -> Any:
        return original(self, served, check_digest=check_digest and False)

    return mismatch


def _tells_twice(original: Any) -> Any:
    def tell_end(self: Any, source: Any, reason: Any) -> None:
        original(self, source, reason)
        self.ctx.emit(self.ctx.out[-1])

    return tell_end


def _revives(original: Any) -> Any:
    def renew(self: Any, link: Any, renew: Any, served: Any) -> None:
        if isinstance(served, Send) and served.state is SendState.DRAINING:
            served.state = SendState.SENDING
        original(self, link, renew, served)

    return renew


def _never_lengthens(original: Any) -> Any:
    def extend(self: Any, served: Any, lease_ms: int) -> None:
        if not served.lease_until_ms:
            original(self, served, lease_ms)

    return extend


def _shortens(_original: Any) -> Any:
    def extend(self: Any, served: Any, lease_ms: int) -> None:
        renewed = served.lease_until_ms > 0
        served.lease_until_ms = self.ctx.now_ms + (lease_ms // 6 if renewed else lease_ms)
        self.ctx.timers.set(GrantTimer(served.peer, served.key), served.lease_until_ms)

    return extend


def _hides_failures(original: Any) -> Any:
    def send(self: Any, link: Any, message: Any) -> None:
        if not isinstance(message, Failed):
            original(self, link, message)

    return send


def _leaks_links(original: Any) -> Any:
    def forget(self: Any, served: Any) -> None:
        original(self, served)
        self._by_link.setdefault(served.link.id, {})

    return forget


def _takes_the_place(original: Any) -> Any:
    def offer(self: Any, event: Any) -> None:
        source = self.sources.get(event.transfer_id)
        if source is not None and source.state is SourceState.OFFERED:
            source.tag = event.tag
        else:
            original(self, event)

    return offer


def _grows_to_the_end(original: Any) -> Any:
    def grow(self: Any, event: Any) -> None:
        original(self, attrs.evolve(event, token_count=event.token_count + 10))

    return grow


def _forgets_the_rest(_original: Any) -> Any:
    def take_final(_self: Any, served: Any, source: Any) -> Any:
        final = tuple(part for part in served.waiting if source.is_final(part))
        left = tuple(part for part in served.waiting if not source.is_final(part))
        served.waiting = () if source.sealed else left
        return final

    return take_final


def _counts_no_layers(source: Source, part: Part) -> bool:
    ahead = source.layers_final > 0 and part.token_stop <= source.token_ahead
    return ahead or part.token_stop <= source.token_count


SENDING = (
    Fault(
        name="unpin on expiry",
        about="P frees the source when the lease of the offer is over",
        invariants=("B1",),
        configs=("consumers",),
        plant=cell(
            SOURCE, _S.OFFERED, _SE.LEASE_EXPIRED, _S.RELEASED, (_SA.STOP_SENDS, _SA.TELL_END)
        ),
    ),
    Fault(
        name="unpin on withdrawal",
        about="P frees the source when its engine takes it back",
        invariants=("B1",),
        configs=("engines",),
        plant=cell(SOURCE, _S.OFFERED, _SE.WITHDRAW, _S.RELEASED, (_SA.STOP_SENDS, _SA.TELL_END)),
    ),
    Fault(
        name="unpin when a grant lapses",
        about="P ends an attempt whose grant was not renewed, though it has posted",
        invariants=("B1", "L1"),
        configs=("one",),
        plant=cell(SEND, _N.SENDING, _NE.LEASE_EXPIRED, _N.ENDED, (_NA.SETTLE,)),
    ),
    Fault(
        name="idle without looking",
        about="P frees a closing source without looking for operations",
        invariants=("B1",),
        configs=("engines",),
        plant=method(Producer, "check_idle", _always_idle),
    ),
    Fault(
        name="CANCELLED while posted",
        about="P answers a CANCEL at once",
        invariants=("A1", "A2"),
        configs=("cancel",),
        plant=method(Producer, "_cancel", _cancelled_at_once),
    ),
    Fault(
        name="CANCELLED after the first",
        about="P answers a CANCEL when the first of two operations has ended",
        invariants=("A1", "A2", "B1"),
        configs=("parts",),
        plant=method(Senders, "_check_ended", _drained_at_first),
    ),
    Fault(
        name="claim without a look",
        about="P posts what was queued, whatever has happened since",
        invariants=("A1", "A2", "B1"),
        configs=("cancel",),
        plant=method(Operations, "claim", lambda _original: lambda _self, _op: True),
    ),
    Fault(
        name="unknown end told as quiet",
        about="P takes an operation whose end it does not know for quiet",
        invariants=("A1", "A2"),
        configs=("posts",),
        plant=method(Senders, "op_ended", _assumes_quiet),
    ),
    Fault(
        name="vouch for what is in doubt",
        about="P answers CANCELLED for an attempt with an operation of unknown end",
        invariants=("A1", "A2"),
        configs=("doubt",),
        plant=method(AttemptMemory, "vouches", lambda _original: lambda _s, _p, _k: True),
    ),
    Fault(
        name="match by prefix",
        about="P pairs an offer with every transfer whose name begins like its own",
        invariants=("E3", "E1"),
        configs=("two",),
        plant=both(
            method(Producer, "_match_all", _matches_by_prefix),
            method(Producer, "source_of", _source_by_prefix),
        ),
    ),
    Fault(
        name="digest unchecked",
        about="P serves another prompt's cache under the same name",
        invariants=("E1",),
        configs=("prompts",),
        plant=method(Source, "mismatch", _no_digest),
    ),
    Fault(
        name="tokens unchecked",
        about="P writes tokens that the offer does not cover",
        invariants=("Q1",),
        configs=("tokens",),
        plant=method(Source, "is_final", lambda _original: lambda _self, _part: True),
    ),
    Fault(
        name="source end told twice",
        about="P tells its engine twice that a source is free",
        invariants=("N2", "R1"),
        configs=("one",),
        plant=method(Producer, "_tell_end", _tells_twice),
    ),
    Fault(
        name="source end never told",
        about="P never tells its engine that a source is free",
        invariants=("L2",),
        configs=("one",),
        plant=method(
            Producer, "_tell_end", lambda _original: lambda self, source, _r: self._bury(source)
        ),
    ),
    Fault(
        name="renewal revives",
        about="P takes up an attempt again that it drains, because it is renewed",
        invariants=("B1", "C1"),
        configs=("revive",),
        plant=method(Producer, "_renew", _revives),
    ),
    Fault(
        name="renewal does not lengthen",
        about="P answers renewals and lets the lease lapse",
        invariants=("J3",),
        configs=("calm",),
        plant=method(Producer, "_extend", _never_lengthens),
    ),
    Fault(
        name="renewal shortens",
        about="P takes a renewal for a new, shorter lease",
        invariants=("J3",),
        configs=("calm",),
        plant=method(Producer, "_extend", _shortens),
    ),
    Fault(
        name="NEVER_POSTED not told",
        about="P does not say that the transport took nothing",
        invariants=("C1",),
        configs=("posts",),
        plant=method(
            ServingSide, "tell_never_posted", lambda _original: lambda _s, _a, _p, _r: None
        ),
    ),
    Fault(
        name="FAILED not told",
        about="P does not say that a part has failed",
        invariants=("C1",),
        configs=("posts",),
        plant=method(Context, "send", _hides_failures),
    ),
    Fault(
        name="table leak",
        about="P keeps an entry of a link whose attempts have ended",
        invariants=("L1",),
        configs=("one",),
        plant=method(Attempts, "forget", _leaks_links),
    ),
    Fault(
        name="second offer takes the place",
        about="P lets another offer of the same name overwrite the first",
        invariants=("L2", "N2", "B1", "E1"),
        configs=("prompts",),
        plant=method(Producer, "offer", _takes_the_place),
    ),
    Fault(
        name="served at the first consumer",
        about="P ends a source when the first of two consumer ranks has its parts",
        invariants=("J3",),
        configs=("calm",),
        plant=method(Source, "all_served", lambda _original: lambda self: bool(self.served)),
    ),
    Fault(
        name="withdrawal does not stop sends",
        about="P closes a source and leaves its sends as they are",
        invariants=("C2", "L1", "L2", "C1"),
        configs=("engines",),
        plant=cell(SOURCE, _S.OFFERED, _SE.WITHDRAW, _S.CLOSING, (_SA.CHECK_IDLE,)),
    ),
    Fault(
        name="a stream is final too early",
        about="P takes the next piece of a stream for final with this one",
        invariants=("Q1",),
        configs=("stream",),
        plant=method(Producer, "grow", _grows_to_the_end),
    ),
    Fault(
        name="a layer is final too early",
        about="P takes a layer for final because one before it is",
        invariants=("Q1",),
        configs=("layers",),
        plant=method(Source, "is_final", lambda _original: _counts_no_layers),
    ),
    Fault(
        name="a seal forgets the rest",
        about="P does not say that a sealed offer lacks parts that were granted",
        invariants=("C1",),
        configs=("stream",),
        plant=method(ServingSide, "take_final", _forgets_the_rest),
    ),
)
