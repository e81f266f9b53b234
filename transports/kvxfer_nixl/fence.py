"""When a peer can provably write into our memory no more.

Owns the decision, from facts alone. Refuses to destroy anything itself. The
invariant and the argument stand in docs/design/nixl-fence.md: what the target's
own worker carries out ends with that worker; what the writer's process carries
out ends with that process.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import assert_never

import attrs

from kvxfer.transport.liveness import ProcessIdentity, Whereabouts, process_is_gone, whereabouts


class Proof(Enum):
    """What is known of a peer after our own agent for it has been destroyed."""

    NONE = "none"
    SHUT_OUT = "shut out"
    """It reaches our memory no more. What we had sent may still arrive at its side."""
    GONE = "gone"
    """Its process or its agent exists no more, so nothing moves in either direction."""


@attrs.frozen(kw_only=True)
class Facts:
    """What the decision rests on.

    `theirs` is None where no blob of the peer has been accepted. `remote_agent`
    is the peer's agent by name. `driven_by_target` says that our own agent could
    be reached only over transports that its own worker carries out.
    """

    own: ProcessIdentity
    theirs: ProcessIdentity | None
    remote_agent: str
    driven_by_target: bool
    agent_destroyed: bool


def prove(facts: Facts, agent_is_alive: Callable[[str], bool]) -> tuple[Proof, str]:
    """The strongest proof that holds now, with a text for people."""
    if not facts.agent_destroyed:
        return Proof.NONE, "our own agent for this peer could not be destroyed"
    proof, text = _of_the_other_side(facts, agent_is_alive)
    if proof is Proof.NONE and facts.driven_by_target:
        return Proof.SHUT_OUT, "our worker, which alone carries out its writes, is destroyed"
    return proof, text


def _of_the_other_side(facts: Facts, agent_is_alive: Callable[[str], bool]) -> tuple[Proof, str]:
    theirs = facts.theirs
    if theirs is None:
        return Proof.NONE, "no blob of this peer was accepted, so nobody knows where it runs"
    where = whereabouts(facts.own, theirs)
    match where:
        case Whereabouts.THIS_PROCESS:
            if agent_is_alive(facts.remote_agent):
                return Proof.NONE, "its agent is alive in this process"
            return Proof.GONE, "its agent in this process is destroyed"
        case Whereabouts.THIS_HOST:
            if process_is_gone(theirs.pid, theirs.start_ticks):
                return Proof.GONE, f"process {theirs.pid} runs no more"
            return Proof.NONE, f"process {theirs.pid} on this host is alive and may write"
        case Whereabouts.OTHER_HOST:
            return Proof.SHUT_OUT, "it is on another host and our worker is destroyed"
        case Whereabouts.UNKNOWN:
            return Proof.NONE, "it may share this host and cannot be seen from this namespace"
        case _:
            assert_never(where)
