"""When a peer can provably write into our memory no more.

Owns the decision, from facts alone. Refuses to call UCX. The invariant: what the
target's own worker carries out ends with that worker; what the writer's process
carries out ends with that process, or with its word that nothing is under way
and that nothing will be. docs/design/ucx.md has the argument.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, assert_never

import attrs

from kvxfer.transport.liveness import (
    ProcessIdentity,
    Whereabouts,
    process_is_gone,
    whereabouts,
)

DRIVEN_BY_TARGET: Final = frozenset({"tcp", "self"})
"""UCX transports whose writes are carried out by the target's own worker."""


def is_driven_by_target(tls: str) -> bool:
    """True where nothing but the target's own worker can carry out a peer's write.

    The transports of the target decide: a peer can use no other towards it.
    """
    names = set(tls.split(","))
    return bool(tls) and names <= DRIVEN_BY_TARGET


@attrs.frozen(kw_only=True)
class Facts:
    """What the decision rests on; `theirs` and `cookie` are of the blob that was accepted."""

    own: ProcessIdentity
    theirs: ProcessIdentity | None
    cookie: bytes
    driven_by_target: bool


def worker_is_proof(facts: Facts, is_alive: Callable[[bytes], bool]) -> tuple[bool, str]:
    """Whether destroying our worker shuts the peer out, with a text for people.

    `is_alive(cookie)` tells whether this process still has the worker of that cookie.
    """
    if facts.driven_by_target:
        return True, "our worker, which alone carries out its writes, is destroyed"
    if facts.theirs is None:
        return False, "no blob of this peer was accepted, so nobody knows where it runs"
    where = whereabouts(facts.own, facts.theirs)
    match where:
        case Whereabouts.THIS_PROCESS:
            if is_alive(facts.cookie):
                return False, "its worker is alive in this process and has not answered yet"
            return True, "its worker in this process is destroyed"
        case Whereabouts.THIS_HOST:
            pid = facts.theirs.pid
            if process_is_gone(pid, facts.theirs.start_ticks):
                return True, f"process {pid} runs no more"
            return False, f"process {pid} on this host is alive and has not answered yet"
        case Whereabouts.OTHER_HOST:
            return True, "it is on another host and our worker is destroyed"
        case Whereabouts.UNKNOWN:
            return False, "it may share this host, cannot be seen from here, and has not answered"
        case _:
            assert_never(where)
