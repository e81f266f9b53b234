"""One peer handle: its agent, its requests, and how both end.

Owns the judgement of what nixl says about one link. Refuses to know sessions and
handles of other peers. Invariants: each request of a peer ends exactly once; a
transfer handle is given back to nixl only when the transfer has ended, or
together with the agent; nothing is posted after a failure or a fence.
"""

from __future__ import annotations

import time
from typing import Any, Final

import attrs

from kvxfer.errors import RemoteFault
from kvxfer.status import Status
from kvxfer.transport.liveness import Whereabouts, own_identity, process_is_gone, whereabouts
from kvxfer.transport.ops import U64
from kvxfer.transport.sessions import text_of
from kvxfer_nixl.agent import NixlAgent, agent_is_alive, release
from kvxfer_nixl.blob import PeerBlob
from kvxfer_nixl.errors import status_of
from kvxfer_nixl.fence import Facts, Proof, prove
from kvxfer_nixl.hand import Hand
from kvxfer_nixl.regions import Place, Regions

EARLY_MAX: Final = 1024
"""Notifications kept that came before the blob of their sender."""

_DEAD: Final = "the agent of this peer runs no more"
_LOOK_EVERY_S: Final = 0.2
"""How often the process of a peer is looked at over a backend that does not tell of its death."""

End = tuple[int, Status]
"""A request and how it ended."""


@attrs.define(kw_only=True, eq=False)
class Peer:
    """State between `peer_create` and `peer_destroy`. `error` is the latest text."""

    handle: int
    driven_by_target: bool
    nixl_version: str
    backend: str
    theirs: PeerBlob | None = None
    failed: bool = False
    fence_tried: bool = False
    proof: Proof = Proof.NONE
    error: str = ""
    _agent: NixlAgent | Hand | None
    _leaving: NixlAgent | Hand | None = None
    """The agent after its end was asked for, while it is not gone in fact."""
    _regions: Regions = attrs.field(factory=lambda: Regions.of(()))
    _open: dict[int, Any] = attrs.field(factory=dict)
    _given_up: list[Any] = attrs.field(factory=list)
    """Transfers of a failed link whose end nixl does not tell; they go with the agent."""
    _early: list[tuple[str, bytes]] = attrs.field(factory=list)
    _look_again_s: float = 0.0

    # The link.

    def connect(self, blob: bytes) -> Status:
        """Take the other side's blob. PEER_BLOB changes nothing."""
        try:
            theirs = PeerBlob.decode(blob)
            self._check_partner(theirs)
        except RemoteFault as fault:
            return self._refuse(Status.PEER_BLOB, str(fault))
        if self._agent is None or self.failed or self.fence_tried:
            return self._refuse(Status.PEER_FAILED, "the link has failed or was fenced")
        if self.theirs is not None:
            if self.theirs == theirs:
                return Status.OK
            return self._refuse(Status.OP_INVALID, f"connected to {self.theirs.agent} already")
        try:
            self._agent.connect(theirs.metadata, theirs.agent)
        except Exception as error:  # noqa: BLE001 - native parser; anything it says refuses the blob
            return self._refuse(Status.PEER_BLOB, text_of(error))
        self._regions = Regions.of(theirs.regions)
        self.theirs = theirs
        return Status.OK

    def _check_partner(self, theirs: PeerBlob) -> None:
        if _release_of(theirs.nixl_version) != _release_of(self.nixl_version):
            bound = f"this side has {self.nixl_version}: major and minor must be the same"
            raise RemoteFault("blob.nixl_version", theirs.nixl_version, bound)
        if theirs.backend != self.backend:
            raise RemoteFault("blob.backend", theirs.backend, f"this side has {self.backend}")
        if self._agent is not None and theirs.agent == self._agent.name:
            raise RemoteFault("blob.agent", theirs.agent, "is this peer's own blob")

    def post_status(self) -> Status:
        """OK where something can be posted to this peer now."""
        if not self.failed and self._died_unseen():
            self._fail(_DEAD)
        if self.failed or self.fence_tried or self._agent is None:
            return self._refuse(Status.PEER_FAILED, "the link has failed or was fenced")
        if self.theirs is None:
            return self._refuse(Status.PEER_NOT_CONNECTED, "no blob of this peer was accepted")
        return Status.OK

    # Memory.

    def register(self, base: int, length: int, place: Place) -> None:
        """Make a new region of the session usable as the local end; a refusal costs the link."""
        if self._agent is None:
            return
        try:
            self._agent.register(base, length, place)
        except Exception as error:  # noqa: BLE001 - without the region posts would be half right
            self._fail(text_of(error))

    def deregister(self, base: int, length: int, place: Place) -> None:
        """Take a registration back; what goes wrong costs the link, never the session."""
        if self._agent is None:
            return
        try:
            self._agent.deregister(base, length, place)
        except Exception as error:  # noqa: BLE001 - the region is refused by the session from now on
            self._fail(text_of(error))

    # Operations.

    def post(
        self,
        request: int,
        operation: str,
        columns: tuple[U64, U64, U64],
        place: Place,
        notify: bytes,
    ) -> tuple[Status, list[End]]:
        """Post ranges whose local side, at `place`, is checked.

        Gives a never-posted status, or OK and early ends.
        """
        status = self.post_status()
        agent = self._agent
        if status != Status.OK or agent is None:
            return status, []
        there, at = self._regions.find(columns[1], columns[2])
        if there is None:
            text = f"remote range {at} is outside the regions in the peer's blob"
            return self._refuse(Status.REGION_BOUNDS, text), []
        try:
            handle = agent.prepare(operation, columns, notify, (place, there))
        except Exception as error:  # noqa: BLE001 - mapped; nothing is posted yet
            status = status_of(error)
            if status == Status.REGION_BOUNDS:
                # Both ends were checked above: nixl has forgotten the peer after a failure.
                self._fail(text_of(error))
                status = Status.PEER_FAILED
            return self._refuse(status, text_of(error)), []
        self._open[request] = handle
        return Status.OK, self._start(agent, request, handle)

    def _start(self, agent: NixlAgent | Hand, request: int, handle: Any) -> list[End]:
        try:
            state = agent.post(handle)
        except Exception as error:  # noqa: BLE001 - some ranges may be under way: the request is not quiet
            self._fail(text_of(error))
            return self.end_all(Status.OP_UNKNOWN)
        return self._ended(request, handle, state)

    def _ended(self, request: int, handle: Any, state: str) -> list[End]:
        if state == "PROC":
            return []
        if state == "DONE":
            del self._open[request]
            release(handle)
            return [(request, Status.OK)]
        self._fail(f"nixl ended a transfer with {state}")
        return self.end_all(Status.OP_UNKNOWN)

    def notify(self, payload: bytes) -> Status:
        """Send a notification alone."""
        status = self.post_status()
        if status != Status.OK or self._agent is None:
            return status
        try:
            self._agent.notify(payload)
        except Exception as error:  # noqa: BLE001 - mapped; the link cannot be used any more
            self._fail(text_of(error))
            return Status.PEER_FAILED
        return Status.OK

    # Progress.

    def check(self) -> list[End]:
        """Drive the link and tell which requests have ended."""
        ends: list[End] = []
        if self._died_unseen():
            self._fail(_DEAD)
            return self.end_all(Status.OP_UNKNOWN)
        for request, handle in list(self._open.items()):
            if request not in self._open or self._agent is None:
                continue
            try:
                state = self._agent.state(handle)
            except Exception as error:  # noqa: BLE001 - any failure of the link ends all its requests
                self._fail(text_of(error))
                return ends + self.end_all(Status.OP_UNKNOWN)
            ends += self._ended(request, handle, state)
        return ends

    def _died_unseen(self) -> bool:
        """True where the backend would not say that the peer is dead, and it is."""
        agent, theirs, now = self._agent, self.theirs, time.monotonic()
        if agent is None or agent.tells_death or theirs is None or now < self._look_again_s:
            return False
        self._look_again_s = now + _LOOK_EVERY_S
        match whereabouts(own_identity(), theirs.process):
            case Whereabouts.THIS_PROCESS:
                return not agent_is_alive(theirs.agent)
            case Whereabouts.THIS_HOST:
                return process_is_gone(theirs.process.pid, theirs.process.start_ticks)
            case _:
                return False

    def collect(self) -> list[bytes]:
        """Drive the link and take the notifications of the peer that have come."""
        if self._agent is None:
            return []
        try:
            came = self._agent.collect()
        except Exception as error:  # noqa: BLE001 - what cannot be read is lost with the link
            self._fail(text_of(error))
            return []
        if came:
            self._early += [(name, payload) for name, all_ in came.items() for payload in all_]
        if self.theirs is None:
            del self._early[EARLY_MAX:]
            return []
        # Anyone who knows the worker's address may send; only the peer counts.
        wanted = [payload for name, payload in self._early if name == self.theirs.agent]
        self._early.clear()
        return wanted

    # The end.

    def fence(self) -> tuple[Status, list[End]]:
        """Destroy the agent and look for proof. Ends of requests come beside the status.

        Requests still open end as OP_FAILED only where the other side is gone:
        bytes that were handed to a socket may else still arrive there.
        """
        self.fence_tried = True
        if self.proof is not Proof.NONE:
            return Status.OK, []
        self._destroy_agent()
        facts = Facts(
            own=own_identity(),
            theirs=None if self.theirs is None else self.theirs.process,
            remote_agent="" if self.theirs is None else self.theirs.agent,
            driven_by_target=self.driven_by_target,
            agent_destroyed=self._leaving is None,
        )
        self.proof, text = prove(facts, agent_is_alive)
        quiet = self.proof is Proof.GONE
        ends = self.end_all(Status.OP_FAILED if quiet else Status.OP_UNKNOWN)
        if self.proof is Proof.NONE:
            return self._refuse(Status.NOT_FENCED, text), ends
        return Status.OK, ends

    def destroy(self) -> list[End]:
        """Drop the agent; what was open ends as not proven quiet."""
        self._destroy_agent()
        return self.end_all(Status.OP_UNKNOWN)

    def _destroy_agent(self) -> None:
        if self._agent is not None:
            handles = [*self._open.values(), *self._given_up]
            self._open = dict.fromkeys(self._open)
            self._given_up.clear()
            while handles:
                release(handles.pop())
            self._agent, self._leaving = None, self._agent
        if self._leaving is not None and self._leaving.destroy():
            self._leaving = None

    def end_all(self, status: Status) -> list[End]:
        """End every open request with `status`; their transfers go with the agent."""
        ends = [(request, status) for request in self._open]
        self._given_up += [handle for handle in self._open.values() if handle is not None]
        self._open.clear()
        return ends

    def _fail(self, text: str) -> None:
        self.failed = True
        self.error = f"peer {self.handle}: {text}"

    def _refuse(self, status: Status, text: str) -> Status:
        self.error = f"peer {self.handle}: {text}"
        return status


def _release_of(version: str) -> list[str]:
    """Major and minor number."""
    return version.split(".")[:2]
