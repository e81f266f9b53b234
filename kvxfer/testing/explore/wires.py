"""Control connections: they open, carry messages in order, and break at either end.

Owns what happens to cables and to what is on its way over them. Knows no
message. Invariant: a message is delivered once, in order, over an end that is
open, or never.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvxfer.core.messages import Message
from kvxfer.testing.explore.state import Cable, Draft, State

if TYPE_CHECKING:
    from kvxfer.testing.explore.rig import Rig


def send(rig: Rig, draft: Draft, agent: int, link: int, message: Message) -> None:
    cable = draft.cable(link)
    if cable is None:
        return
    number = rig.agents.messages.of(message)
    if agent == cable.consumer and cable.producer_open:
        draft.put(cable._replace(to_producer=(*cable.to_producer, number)))
    elif agent == cable.producer and cable.consumer_open:
        draft.put(cable._replace(to_consumer=(*cable.to_consumer, number)))


def close_end(rig: Rig, draft: Draft, agent: int, link: int) -> None:
    """One end of a cable is gone: what was on its way there will not arrive."""
    cable = draft.cable(link)
    if cable is None:
        return
    if agent == cable.producer:
        draft.put(cable._replace(producer_open=False, to_producer=()))
        return
    if rig.config.roaming:
        draft.strays += [(cable.consumer, cable.producer, n) for n in cable.notices]
    draft.put(cable._replace(consumer_open=False, to_consumer=(), notices=()))


def connect(rig: Rig, draft: Draft, consumer: int, producer: int) -> None:
    """Answer a dial with an open connection."""
    draft.dials.remove((consumer, producer))
    held = [link for n in draft.agents for link in rig.agents.facts[n].links]
    link = max([cable.link for cable in draft.cables] + held, default=0) + 1
    draft.cables.append(
        Cable(
            link,
            consumer,
            producer,
            draft.lives[consumer],
            draft.lives[producer],
            True,
            True,
            False,
            (),
            (),
            (),
        )
    )
    key = rig.key(producer)
    keyed = rig.config.keyed
    rig.feed(draft, producer, ("open", link, None, keyed))
    rig.feed(draft, consumer, ("open", link, (key.engine_id, key.rank), keyed))


def deliver(rig: Rig, draft: Draft, link: int, *, to_producer: bool) -> None:
    """Deliver the oldest message of one direction."""
    cable = draft.cable(link)
    assert cable is not None
    if to_producer:
        number, agent = cable.to_producer[0], cable.producer
        draft.put(cable._replace(to_producer=cable.to_producer[1:]))
    else:
        number, agent = cable.to_consumer[0], cable.consumer
        draft.put(cable._replace(to_consumer=cable.to_consumer[1:]))
    rig.say(f"{rig.name(agent)} receives {rig.show(number)}")
    rig.feed(draft, agent, ("receive", link, number))


def freeze(rig: Rig, draft: Draft) -> State:
    """Drop what nobody can notice any more, and number links in order from 1."""
    held: set[int] = set()
    for number in draft.agents:
        held |= rig.agents.facts[number].links
    draft.cables = [c for c in draft.cables if c.consumer_open or c.producer_open]
    there = {cable.link for cable in draft.cables}
    draft.ops = [op if op.link in there else op._replace(link=0) for op in draft.ops]
    links = sorted(held | there)
    if links and links[-1] != len(links):
        _renumber(rig, draft, {old: new for new, old in enumerate(links, 1)})
    return draft.freeze()


def _renumber(rig: Rig, draft: Draft, names: dict[int, int]) -> None:
    for index, number in enumerate(draft.agents):
        held = sorted(rig.agents.facts[number].links)
        if any(old != names[old] for old in held):
            mapping = tuple((old, names[old]) for old in held)
            draft.agents[index] = rig.agents.rename(number, mapping)
    draft.cables = [c._replace(link=names[c.link]) for c in draft.cables]
    draft.ops = [op._replace(link=names.get(op.link, 0)) for op in draft.ops]


def cut(rig: Rig, draft: Draft, agent: int, link: int) -> None:
    """One side learns that the connection is gone."""
    rig.say(f"{rig.name(agent)} loses link {link}")
    close_end(rig, draft, agent, link)
    rig.feed(draft, agent, ("close", link))


# --- notices: over the transport, in any order, lost or twice ---


def notify(rig: Rig, draft: Draft, link: int, index: int, *, keep: bool) -> None:
    """Deliver one notice; where it is kept, it comes again."""
    cable = draft.cable(link)
    assert cable is not None
    number = cable.notices[index]
    if not keep:
        draft.put(cable._replace(notices=cable.notices[:index] + cable.notices[index + 1 :]))
    again = ", and will be again" if keep else ""
    rig.say(f"{rig.name(cable.consumer)} is notified: {rig.show(number)}{again}")
    rig.feed(draft, cable.consumer, ("receive", link, number))


def lose(rig: Rig, draft: Draft, link: int, index: int) -> None:
    cable = draft.cable(link)
    assert cable is not None
    rig.say(f"a notice is lost: {rig.show(cable.notices[index])}")
    draft.put(cable._replace(notices=cable.notices[:index] + cable.notices[index + 1 :]))


def stray(rig: Rig, draft: Draft, index: int) -> None:
    """A notice of a cable that is gone comes in over the newest one of the same two."""
    consumer, producer, number = draft.strays.pop(index)
    links = [
        c.link
        for c in draft.cables
        if (c.consumer, c.producer) == (consumer, producer) and c.consumer_open
    ]
    rig.say(f"{rig.name(consumer)} is notified, late: {rig.show(number)}")
    rig.feed(draft, consumer, ("receive", max(links), number))
