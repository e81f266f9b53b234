"""Operations: they write into the consumer's memory until they are proven not to.

Owns what happens to operations and fences, WRITEs of a producer and READs of a
consumer. Knows no protocol. Invariant: an operation leaves the list by a fact
only: it ended, it failed quietly, or the consumer has shut it out.
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

IN_FLIGHT = (Phase.POSTED, Phase.STOPPED)


# --- what a session asks for ---


def post(rig: Rig, draft: Draft, agent: int, effect: fx.Post) -> None:
    """A part may be posted: the driver queues it."""
    header = effect.grant.header
    other = rig.agent(effect.peer.key)
    read = effect.offer is not None
    work = Work(
        transfer_id=header.transfer_id,
        attempt=header.attempt,
        consumer=agent if read else other,
        consumer_life=header.sender,
        producer=other if read else agent,
        producer_life=header.receiver,
        part=rig.part_index(effect.part),
        slot=books.slot_of(draft, agent, effect.tag)
        if read
        else books.slot_in(effect.grant.tables),
        tag=effect.tag
        if effect.offer is None
        else rig.content_tags.value(books.slot_in(effect.offer.tables)),
        read=read,
    )
    cable = draft.cable(effect.link)
    dead = work.consumer_life != draft.lives[work.consumer]
    shut = dead or (cable is not None and cable.shut)
    queued = Op(
        poster=agent,
        life=draft.lives[agent],
        op=effect.op,
        link=effect.link,
        phase=Phase.QUEUED,
        shut=shut,
        aborted=False,
        tainted=False,
        work=work,
    )
    draft.ops.append(queued)


def stop(draft: Draft, agent: int, number: int) -> None:
    """Nothing more of it will be posted."""
    for index, op in enumerate(draft.ops):
        mine = op.poster == agent and op.life == draft.lives[agent] and op.op == number
        if mine and op.phase is Phase.POSTED:
            draft.ops[index] = op._replace(phase=Phase.STOPPED)


def fence(rig: Rig, draft: Draft, agent: int, peer: Peer) -> None:
    """A side wants proof that a life of a peer is shut out."""
    target = rig.agent(peer.key)
    rig.say(f"{rig.name(agent)} asks for a fence of {rig.name(target)}")
    if agent in rig.d_side or rig.config.back:
        draft.fences.append((agent, target, peer.incarnation))
        return
    # Who only writes has nothing to prove: its own operations end, here and now.
    rig.later(agent, ev.FenceResult(peer=peer, fenced=True))
    _end_writes(rig, draft, agent, target, peer.incarnation)


def _end_writes(rig: Rig, draft: Draft, agent: int, target: int, life: int) -> None:
    """Own WRITEs over links that have ended come back; what is in the network may still land."""
    for op in list(draft.ops):
        mine = op.poster == agent and op.life == draft.lives[agent] and not op.work.read
        there = (op.work.consumer, op.work.consumer_life) == (target, life)
        cable = draft.cable(op.link)
        closed = cable is None or not cable.producer_open
        if mine and there and closed and op.phase in IN_FLIGHT:
            adrift(draft, op)
            rig.later(agent, _ended(op, done=False, quiet=False))


def adrift(draft: Draft, op: Op) -> None:
    """Nobody who posted it knows of it any more; it may still write, unless it was shut out."""
    index = draft.ops.index(op)
    if op.shut:
        del draft.ops[index]
    else:
        draft.ops[index] = op._replace(phase=Phase.ADRIFT)


# --- moves ---


def claim(rig: Rig, draft: Draft, op: Op, *, taken: bool) -> None:
    """The driver comes to posting a part; the transport takes it, or nothing of it."""
    draft.ops.remove(op)
    work = op.work
    name = f"{op.name} ({work.transfer_id}/{work.attempt} part {work.part})"
    if not rig.feed(draft, op.poster, ("claim", op.op)):
        rig.say(f"{rig.name(op.poster)} drops {name}")
    elif taken:
        rig.say(f"{rig.name(op.poster)} posts {name} into slot {work.slot}")
        draft.ops.append(op._replace(phase=Phase.POSTED, tainted=_unreadable(rig, draft, op)))
    else:
        rig.say(f"{name} cannot be posted")
        books.written(draft, op, "")
        event = ev.OpNotPosted(op=OpId(op.op), reason=Reason.TRANSPORT_FAILED)
        rig.handle(draft, op.poster, event)


def _unreadable(rig: Rig, draft: Draft, op: Op) -> bool:
    """A READ whose source is not what was offered, from its first byte on."""
    holding = books.held(draft.holdings, op.work)
    good = holding is not None and books.final(rig, holding, op.work.part)
    return op.work.read and not (good and producer_lives(draft, op))


def producer_lives(draft: Draft, op: Op) -> bool:
    return draft.lives[op.work.producer] == op.work.producer_life


def taint(draft: Draft, producer: int, tag: str | None) -> None:
    """P's engine writes something else over an offer, or over all of them: what reads it now
    reads a mixture.
    """
    for index, op in enumerate(draft.ops):
        there = op.work.read and op.work.producer == producer and op.phase in IN_FLIGHT
        if there and tag in (None, op.work.tag):
            draft.ops[index] = op._replace(tainted=True)


def end(rig: Rig, draft: Draft, op: Op, *, done: bool, quiet: bool) -> None:
    """A posted part ends where it was posted; its bytes are there, or perhaps, or not all."""
    how = "is done" if done else "fails quietly" if quiet else "fails, nobody knows how"
    rig.say(f"{op.name} {how}")
    if not op.shut:
        books.written(draft, op, books.content(draft, op) if done else "")
        if done and not op.work.read:
            _notice(rig, draft, op)
    if done or quiet or op.shut:
        draft.ops.remove(op)
    else:
        adrift(draft, op)
    rig.handle(draft, op.poster, _ended(op, done=done, quiet=quiet))


def _notice(rig: Rig, draft: Draft, op: Op) -> None:
    work = op.work
    header = Header(
        transfer_id=TransferId(work.transfer_id),
        attempt=Attempt(work.attempt),
        sender=Incarnation(op.life),
        receiver=Incarnation(work.consumer_life),
    )
    part = rig.parts(work.producer)[work.part % rig.config.parts]
    number = rig.agents.messages.of(Done(header=header, part=part))
    cable = draft.cable(op.link)
    if cable is not None and cable.consumer_open:
        draft.put(cable._replace(notices=(*cable.notices, number)))
    elif rig.config.roaming:
        draft.strays.append((work.consumer, work.producer, number))


def answer_fence(rig: Rig, draft: Draft, index: int, *, fenced: bool) -> None:
    """The transport of one side answers a fence: the peer is shut out, or it cannot tell."""
    asker, target, life = draft.fences.pop(index)
    rig.say(f"{rig.name(asker)}'s fence of {rig.name(target)}: {'proven' if fenced else 'not'}")
    _abort_reads(draft, asker, target, life)
    if fenced:
        _shut_out(draft, asker, target, life)
    _end_writes(rig, draft, asker, target, life)
    peer = Peer(rig.key(target), Incarnation(life))
    rig.handle(draft, asker, ev.FenceResult(peer=peer, fenced=fenced))


def _abort_reads(draft: Draft, consumer: int, producer: int, life: int) -> None:
    for index, op in enumerate(draft.ops):
        if _over_ended_link(draft, op, consumer, producer, life) and op.phase in IN_FLIGHT:
            draft.ops[index] = op._replace(aborted=op.work.read)


def _shut_out(draft: Draft, consumer: int, producer: int, life: int) -> None:
    """What came over links that have ended at the consumer lands no more."""
    for cable in list(draft.cables):
        ends = (cable.consumer, cable.producer, cable.producer_life)
        if ends == (consumer, producer, life) and not cable.consumer_open:
            shut_cable(draft, cable.link)
    for index, op in enumerate(draft.ops):
        if _over_ended_link(draft, op, consumer, producer, life):
            draft.ops[index] = op._replace(shut=True)
    forget_shut(draft)


def _over_ended_link(draft: Draft, op: Op, consumer: int, producer: int, life: int) -> bool:
    work = op.work
    cable = draft.cable(op.link)
    closed = cable is None or not cable.consumer_open
    between = (work.consumer, work.producer, work.producer_life) == (consumer, producer, life)
    return between and closed


def shut_cable(draft: Draft, link: int) -> None:
    """Nothing that is posted over it from now on lands."""
    cable = draft.cable(link)
    if cable is not None:
        draft.put(cable._replace(shut=True))


def forget_shut(draft: Draft) -> None:
    """An operation that nobody waits for and that reaches nothing is over."""
    draft.ops = [op for op in draft.ops if not (op.shut and op.phase is Phase.ADRIFT)]


def _ended(op: Op, *, done: bool, quiet: bool) -> ev.OpEnded:
    reason = Reason.NONE if done else Reason.TRANSPORT_FAILED
    return ev.OpEnded(op=OpId(op.op), done=done, quiet=done or quiet, reason=reason)
