"""Operations: posted by P, they write into D's memory until they are proven not to.

Owns what happens to operations and fences. Knows no protocol. Invariant: an
operation leaves the list by a fact only: it ended, it failed quietly, or the
consumer has shut it out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvxfer.core import effects as fx
from kvxfer.core import events as ev
from kvxfer.core.ids import Attempt, Incarnation, OpId, Peer, Reason, TransferId
from kvxfer.core.messages import Done, Header
from kvxfer.testing.explore import books
from kvxfer.testing.explore.state import Draft, Op, Phase, Work

if TYPE_CHECKING:
    from kvxfer.testing.explore.rig import Rig


def post(rig: Rig, draft: Draft, agent: int, effect: fx.Post) -> None:
    header = effect.grant.header
    work = Work(
        transfer_id=header.transfer_id,
        attempt=header.attempt,
        consumer=rig.agent(effect.peer.key),
        consumer_life=header.sender,
        part=rig.part_index(effect.part),
        slot=books.slot_in(effect.grant.tables),
        tag=effect.tag,
    )
    cable = draft.cable(effect.link)
    shut = work.consumer_life != draft.lives[work.consumer] or (cable is not None and cable.shut)
    draft.ops.append(
        Op(agent, draft.lives[agent], effect.op, effect.link, Phase.QUEUED, shut, work)
    )


def stop(draft: Draft, agent: int, number: int) -> None:
    for index, op in enumerate(draft.ops):
        mine = op.producer == agent and op.life == draft.lives[agent] and op.op == number
        if mine and op.phase is Phase.POSTED:
            draft.ops[index] = op._replace(phase=Phase.STOPPED)


def fence(rig: Rig, draft: Draft, agent: int, peer: Peer) -> None:
    target = rig.agent(peer.key)
    rig.say(f"{rig.name(agent)} asks for a fence of {rig.name(target)}")
    if agent in rig.consumers:
        draft.fences.append((agent, target, peer.incarnation))
        return
    # Its own operations end locally; what is in the network may still land.
    rig.later(agent, ev.FenceResult(peer=peer, fenced=True))
    for op in list(draft.ops):
        mine = op.producer == agent and op.life == draft.lives[agent]
        there = (op.work.consumer, op.work.consumer_life) == (target, peer.incarnation)
        cable = draft.cable(op.link)
        closed = cable is None or not cable.producer_open
        if mine and there and closed and op.phase in (Phase.POSTED, Phase.STOPPED):
            adrift(draft, op)
            rig.later(agent, _ended(op, done=False, quiet=False))


def adrift(draft: Draft, op: Op) -> None:
    """P knows of the operation no more; it may still write, unless D has shut it out."""
    index = draft.ops.index(op)
    if op.shut:
        del draft.ops[index]
    else:
        draft.ops[index] = op._replace(phase=Phase.ADRIFT)


def _ended(op: Op, *, done: bool, quiet: bool) -> ev.OpEnded:
    reason = Reason.NONE if done else Reason.TRANSPORT_FAILED
    return ev.OpEnded(op=OpId(op.op), done=done, quiet=done or quiet, reason=reason)


def claim(rig: Rig, draft: Draft, op: Op, *, taken: bool) -> None:
    """The driver comes to posting a part; the transport takes it, or nothing of it."""
    draft.ops.remove(op)
    name = f"op {op.op} ({op.work.transfer_id}/{op.work.attempt} part {op.work.part})"
    if not rig.feed(draft, op.producer, ("claim", op.op)):
        rig.say(f"{rig.name(op.producer)} drops {name}")
    elif taken:
        rig.say(f"{rig.name(op.producer)} posts {name} into slot {op.work.slot}")
        draft.ops.append(op._replace(phase=Phase.POSTED))
    else:
        rig.say(f"{name} cannot be posted")
        books.written(draft, op, "")
        rig.handle(
            draft, op.producer, ev.OpNotPosted(op=OpId(op.op), reason=Reason.TRANSPORT_FAILED)
        )


def end(rig: Rig, draft: Draft, op: Op, *, done: bool, quiet: bool) -> None:
    """A posted part ends at its producer; its bytes are there, or perhaps, or not all."""
    how = "is done" if done else "fails quietly" if quiet else "fails, nobody knows how"
    rig.say(f"op {op.op} {how}")
    if not op.shut:
        books.written(draft, op, books.content(draft, op) if done else "")
        if done:
            _notice(rig, draft, op)
    if done or quiet or op.shut:
        draft.ops.remove(op)
    else:
        adrift(draft, op)
    rig.handle(draft, op.producer, _ended(op, done=done, quiet=quiet))


def _notice(rig: Rig, draft: Draft, op: Op) -> None:
    work = op.work
    header = Header(
        transfer_id=TransferId(work.transfer_id),
        attempt=Attempt(work.attempt),
        sender=Incarnation(op.life),
        receiver=Incarnation(work.consumer_life),
    )
    part = rig.parts(op.producer)[work.part % rig.config.parts]
    number = rig.agents.messages.of(Done(header=header, part=part))
    cable = draft.cable(op.link)
    if cable is not None and cable.consumer_open:
        draft.put(cable._replace(notices=(*cable.notices, number)))
    elif rig.config.roaming:
        draft.strays.append((work.consumer, op.producer, number))


def answer_fence(rig: Rig, draft: Draft, index: int, *, fenced: bool) -> None:
    """The transport of one side answers a fence: the peer is shut out, or it cannot tell."""
    asker, target, life = draft.fences.pop(index)
    rig.say(f"{rig.name(asker)}'s fence of {rig.name(target)}: {'proven' if fenced else 'not'}")
    if fenced:
        _shut_out(draft, asker, target, life)
    peer = Peer(rig.key(target), Incarnation(life))
    rig.handle(draft, asker, ev.FenceResult(peer=peer, fenced=fenced))


def _shut_out(draft: Draft, consumer: int, producer: int, life: int) -> None:
    """What came over links that have ended at the consumer lands no more."""
    for cable in list(draft.cables):
        ends = (cable.consumer, cable.producer, cable.producer_life)
        if ends == (consumer, producer, life) and not cable.consumer_open:
            shut_cable(draft, cable.link)
    for index, op in enumerate(draft.ops):
        cable_of = draft.cable(op.link)
        closed = cable_of is None or not cable_of.consumer_open
        if (op.work.consumer, op.producer, op.life) == (consumer, producer, life) and closed:
            draft.ops[index] = op._replace(shut=True)
    forget_shut(draft)


def shut_cable(draft: Draft, link: int) -> None:
    """Nothing that is posted over it from now on lands."""
    cable = draft.cable(link)
    if cable is not None:
        draft.put(cable._replace(shut=True))


def forget_shut(draft: Draft) -> None:
    """An operation that nobody waits for and that reaches nothing is over."""
    draft.ops = [op for op in draft.ops if not (op.shut and op.phase is Phase.ADRIFT)]
