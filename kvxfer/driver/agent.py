"""The agent: what an engine holds.

Owns the writer thread and the mailbox between it and the engine. Invariants: no
call about a transfer blocks or does work that grows with the number of blocks; no
lock is held across a call; every call that waits has a bound, which holds even where
the transport does not come back.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections import deque
from collections.abc import Callable, Mapping

import attrs
import trio

from kvxfer.core.ids import Incarnation, Initiator, Reason, TransferId
from kvxfer.driver.commands import (
    Cancel,
    Command,
    Decline,
    Drain,
    Evict,
    Expect,
    Grow,
    Offer,
    ProducerAddress,
    Register,
    TransferCommand,
    Withdraw,
)
from kvxfer.driver.config import AgentConfig
from kvxfer.driver.leftovers import Closed, Leftover, leftovers_of
from kvxfer.driver.loop import Loop, clock_ms
from kvxfer.driver.metered import metered
from kvxfer.driver.pump import Pump
from kvxfer.driver.results import Landed, Result
from kvxfer.driver.watch import Meter, Outcomes, Watch
from kvxfer.errors import BadValue, LocalFault
from kvxfer.layout.geometry import BlockTable
from kvxfer.record.files import RecordingFile, header_of
from kvxfer.record.phases import READY
from kvxfer.record.steps import Step
from kvxfer.record.tap import Sink, Tap
from kvxfer.transport.registry import open_transport

STOP_S = 5.0
"""What the end of the writer thread may take beyond the time for draining. A thread that
takes longer hangs in a call of its transport."""
GAUGES = ("live", "quarantined", "links")
"""Counters that tell of now; all others go on over a sleep."""


class AgentFailed(LocalFault):
    """The writer thread has died; nothing can be transferred any more."""


@attrs.define(eq=False)
class Agent:
    """One rank's end of kvxfer. Make it with `Agent.start`."""

    config: AgentConfig
    incarnation: Incarnation = attrs.field(factory=lambda: _new_incarnation())
    address: tuple[str, int] | None = None
    """Where consumers dial, once started; None for an agent that only dials."""
    _mailbox: deque[tuple[Command, float]] = attrs.field(factory=deque)
    _results: deque[Result] = attrs.field(factory=deque)
    _arrived: threading.Event = attrs.field(factory=threading.Event)
    _ready: threading.Event = attrs.field(factory=threading.Event)
    _drained: threading.Event = attrs.field(factory=threading.Event)
    _failure: BaseException | None = None
    _counters: Mapping[str, int] = attrs.field(factory=dict)
    _counted_before: Mapping[str, int] = attrs.field(factory=dict)
    """Counters of the lives before the last sleep."""
    _answered: threading.Event = attrs.field(factory=threading.Event)
    """The writer thread has done what `leftovers` or `quiesce` waits for, or is over."""
    _left: tuple[Leftover, ...] = ()
    _asleep: bool = False
    _outcomes: Outcomes = attrs.field(factory=Outcomes)
    _pump: Pump | None = None
    _loop: Loop | None = None
    _token: trio.lowlevel.TrioToken | None = None
    _thread: threading.Thread = attrs.field(init=False)

    @classmethod
    def start(cls, config: AgentConfig) -> Agent:
        """Open the transport, register the memory, listen, and start the writer thread.

        Raises BadValue where the address is taken or a value is out of its
        bound, TransportFault where the transport or its library is missing.
        """
        agent = cls(config)
        agent._begin()
        return agent

    def _begin(self) -> None:
        name = f"kvxfer-{self.config.engine_id}-{self.config.shard.rank}"
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._thread.start()
        self._ready.wait()
        if self._failure is not None:
            self._thread.join()
            raise self._failure

    # --- producer ---

    def expect(self, transfer_id: TransferId, *, tag: str = "") -> None:
        """A prefill for this transfer starts here."""
        self._put(Expect(transfer_id=transfer_id, tag=tag))

    def offer(
        self,
        transfer_id: TransferId,
        tables: tuple[BlockTable, ...],
        token_count: int,
        *,
        digest: bytes = b"",
        lease_ms: int | None = None,
        tag: str = "",
        sealed: bool = True,
        traceparent: str = "",
    ) -> None:
        """Tokens [0, token_count) are final; hold the blocks until Sent or Unsent.

        With `sealed` False more follows by `grow`, while the prefill runs.
        """
        self._put(
            Offer(
                transfer_id=transfer_id,
                tables=tables,
                token_count=token_count,
                digest=digest,
                lease_ms=lease_ms,
                tag=tag,
                sealed=sealed,
                traceparent=traceparent,
            )
        )

    def grow(
        self,
        transfer_id: TransferId,
        tables: tuple[BlockTable, ...],
        token_count: int,
        *,
        sealed: bool = False,
        tag: str = "",
        token_ahead: int = 0,
        layers_final: int = 0,
    ) -> None:
        """More of an unsealed offer is final: tokens [0, token_count) of `tables`, all so far.

        Of the tokens after them, below `token_ahead`, the first `layers_final` layers are
        final too. Harmless where the offer has ended: its Unsent tells.
        """
        self._put(
            Grow(
                transfer_id=transfer_id,
                tables=tables,
                token_count=token_count,
                sealed=sealed,
                tag=tag,
                token_ahead=token_ahead,
                layers_final=layers_final,
            )
        )

    def withdraw(
        self,
        transfer_id: TransferId,
        reason: Reason = Reason.PRODUCER_ABORTED,
        *,
        tag: str = "",
    ) -> None:
        """The request was aborted; ends in Unsent where it was offered before.

        With the tag of `expect` or `offer`, a duplicate's abort leaves the holder alone.
        """
        self._put(Withdraw(transfer_id=transfer_id, reason=reason, tag=tag))

    # --- consumer ---

    def register(
        self,
        transfer_id: TransferId,
        *,
        producers: tuple[ProducerAddress, ...],
        tables: tuple[BlockTable, ...],
        token_start: int,
        token_stop: int,
        digest: bytes = b"",
        deadline_ms: int | None = None,
        tag: str = "",
        initiator: Initiator = Initiator.PRODUCER,
        traceparent: str = "",
    ) -> None:
        """Have the tokens put into the blocks; Landed or Lost follows, then LetGo.

        `initiator`: the producers write (push), or this agent reads (pull).
        """
        self._put(
            Register(
                transfer_id=transfer_id,
                producers=producers,
                tables=tables,
                token_start=token_start,
                token_stop=token_stop,
                digest=digest,
                deadline_ms=deadline_ms,
                tag=tag,
                initiator=initiator,
                traceparent=traceparent,
            )
        )

    def cancel(self, transfer_id: TransferId, tag: str = "") -> None:
        """The request has ended; its blocks stay untouched until LetGo."""
        self._put(Cancel(transfer_id=transfer_id, tag=tag))

    def decline(self, transfer_id: TransferId, producers: tuple[ProducerAddress, ...]) -> None:
        """Nothing is needed of this transfer; tells the producers, gives no results."""
        self._put(Decline(transfer_id=transfer_id, producers=producers))

    # --- the whole agent ---

    def drain(self) -> None:
        """Take nothing new and finish what is there; see `drained`. The agent stays up."""
        self._submit(Drain())

    def drained(self, timeout_s: float = 0.0) -> bool:
        """True once all that was there has ended; waits for it up to `timeout_s`."""
        return self._drained.wait(timeout_s)

    def leftovers(self, timeout_s: float = 1.0) -> tuple[Leftover, ...]:
        """What is not over: after `drain`, what a scale-down still waits for.

        Raises LocalFault where the writer thread does not answer within `timeout_s`.
        """
        if not self._ask(self._count_leftovers, timeout_s):
            raise LocalFault(f"the writer thread did not answer within {timeout_s} s")
        return self._left

    def evict(self, engine_id: str, rank: int | None = None) -> None:
        """End everything with a peer that is known to be gone or bad; its ranks all, or one.

        Its transfers end in Lost or Unsent at once, blocks it may write into after a fence.
        It is not shut out for good: who comes again, or is registered with again, is served.
        """
        self._submit(Evict(engine_id=engine_id, rank=rank))

    def quiesce(self, timeout_s: float = 5.0) -> tuple[Leftover, ...]:
        """Give the memory back, as for a sleep: end all, tell the peers, unregister.

        Nothing returned: no peer and no transport knows the memory any more, it may be
        unmapped; `resume` goes on from here. Otherwise what is returned may still be
        written or read, nothing was unregistered, and nothing new is taken: call again
        later, or close. Raises LocalFault where the transport does not come back in time.
        """
        if self._asleep:
            return ()

        def stop() -> None:
            assert self._loop is not None
            self._loop.stop(timeout_s, only_if_empty=True)

        answered = self._ask(stop, timeout_s + STOP_S)
        if answered and self._left:
            return self._left
        if answered:
            self._thread.join(STOP_S)
        if self._failure is not None:
            raise AgentFailed(f"writer thread died: {self._failure!r}") from self._failure
        if self._thread.is_alive():
            raise LocalFault(f"the writer thread hangs in {self.config.transport}")
        self._asleep = True
        return ()

    def resume(self, config: AgentConfig | None = None) -> None:
        """Go on after `quiesce`, as a new incarnation of the same peer at the same address.

        `config`: where the memory lies elsewhere now. Raises as `start` does, and stays
        asleep then.
        """
        if not self._asleep:
            raise LocalFault("only an agent that sleeps can resume: see quiesce")
        config = config or self.config
        mine = (self.config.engine_id, self.config.shard.rank)
        if (config.engine_id, config.shard.rank) != mine:
            raise BadValue(
                "config", (config.engine_id, config.shard.rank), f"the same peer, {mine}"
            )
        if self.address is not None:
            # Peers have been told this one.
            config = attrs.evolve(config, listen=self.address)
        before, self.config = self.config, config
        self.incarnation = _new_incarnation()
        self._mailbox.clear()
        self._drained.clear()
        self._ready.clear()
        self._counted_before = {k: n for k, n in self._counters.items() if k not in GAUGES}
        try:
            self._begin()
        except BaseException:
            self.config, self._failure = before, None
            raise
        self._asleep = False

    # --- results ---

    def take(self) -> list[Result]:
        """All results since the last call. AgentFailed once the writer thread is dead."""
        if self._arrived.is_set():
            self._arrived.clear()
        taken: list[Result] = []
        while self._results:
            taken.append(self._results.popleft())
            if isinstance(taken[-1], Landed) and self._pump is not None:
                waited_ms = clock_ms() - taken[-1].told_ms
                self._pump.watch.phases.histograms[READY].observe(waited_ms / 1e3)
        if self._failure is not None and not taken:
            raise AgentFailed(f"writer thread died: {self._failure!r}") from self._failure
        return taken

    def wait(self, timeout_s: float) -> bool:
        """Block until a result is there; False after `timeout_s`."""
        return self._arrived.wait(timeout_s)

    def counters(self) -> Mapping[str, int]:
        """Counters as of the writer thread's latest turn; at most 100 ms old while it polls."""
        return self._counters

    def outcomes(self) -> Outcomes:
        """What became of all transfers so far, of the same moment as `counters`."""
        return self._outcomes

    def events(self) -> list[Step]:
        """The latest steps of all transfers, oldest first."""
        return list(self._pump.watch.ring) if self._pump is not None else []

    def transcript(self, transfer_id: TransferId) -> str:
        """The last steps of one transfer as text, from the flight recorder."""
        return self.watch.transcript_of(transfer_id)

    @property
    def watch(self) -> Watch:
        """Outcomes, phases and costs so far, for kvxfer.observe."""
        if self._pump is None:
            raise LocalFault("the agent was not started: use Agent.start")
        return self._pump.watch

    def close(self, timeout_s: float = 5.0) -> Closed:
        """Refuse new work, drain for at most `timeout_s`, tell the peers, end the thread.

        Returns within `timeout_s` and STOP_S whatever the transport does: a thread that
        hangs in it is left behind, and does not keep the process from ending.
        """
        if self._thread.is_alive() and self._token is not None and self._loop is not None:
            with contextlib.suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._loop.stop, timeout_s)
        self._thread.join(timeout_s + STOP_S)
        closed = Closed(ended=not self._thread.is_alive(), leftovers=self._left)
        if not closed.ended:
            self.config.logger.error(
                "%s: the writer thread hangs in %s; its memory must stay mapped",
                self._thread.name,
                self.config.transport,
            )
        return closed

    # --- the writer thread ---

    def _ask(self, work: Callable[[], object], timeout_s: float) -> bool:
        """Have the writer thread do something that sets `_answered`; False after `timeout_s`."""
        if self._token is None:
            raise LocalFault("the agent was not started: use Agent.start")
        self._answered.clear()
        try:
            self._token.run_sync_soon(work)
        except trio.RunFinishedError:
            # It is over, and may have said so before we cleared the event.
            self._thread.join(timeout_s)
            return True
        return self._answered.wait(timeout_s)

    def _count_leftovers(self) -> None:
        self._left = leftovers_of(self._pump.session) if self._pump is not None else ()
        self._answered.set()

    def _put(self, command: TransferCommand) -> None:
        self._check_id(command.transfer_id)
        self._submit(command)

    def _submit(self, command: Command) -> None:
        if self._failure is not None:
            raise AgentFailed(f"writer thread died: {self._failure!r}") from self._failure
        if self._loop is None:
            raise LocalFault("the agent was not started: use Agent.start")
        self._mailbox.append((command, clock_ms()))
        # After the append: a loop that is about to rest looks into the mailbox once more.
        if not self._loop.call():
            state = "asleep: call resume" if self._asleep else "closed"
            raise LocalFault(f"the agent is {state}")

    def _check_id(self, transfer_id: object) -> None:
        bytes_max = self.config.limits.transfer_id_bytes_max
        try:
            size = len(transfer_id.encode()) if isinstance(transfer_id, str) else 0
        except UnicodeEncodeError:
            size = 0
        if not 0 < size <= bytes_max:
            raise BadValue("transfer_id", transfer_id, f"text of 1 to {bytes_max} bytes in UTF-8")

    def _main(self) -> None:
        try:
            trio.run(self._run)
        except BaseException as error:
            if self._ready.is_set():
                self.config.logger.exception("writer thread died")
            self._failure = error
        finally:
            self._ready.set()
            self._arrived.set()
            self._answered.set()

    async def _run(self) -> None:
        # What was noted goes on over a sleep, which makes a new pump.
        before = self._pump.watch if self._pump is not None else None
        # The thread's time begins anew with the thread.
        meter = Meter() if before is None else Meter(lag=before.meter.lag, turn=before.meter.turn)
        pump = Pump(
            config=self.config,
            ops=metered(open_transport(self.config.transport), meter),
            incarnation=self.incarnation,
        )
        if before is not None:
            pump.watch = before
        pump.watch.meter = meter
        listeners: list[trio.SocketListener] = []
        try:
            tls = self.config.tls.contexts() if self.config.tls is not None else None
            pump.watch.tap = self._open_tap()
            listeners += await self._listen()
            self._pump = pump
            self._loop = Loop(
                pump=pump,
                listeners=listeners,
                mailbox=self._mailbox,
                deliver=self._deliver,
                publish=self._publish,
                on_drained=self._drained.set,
                on_kept=self._count_leftovers,
                tls=tls,
            )
            self._token = trio.lowlevel.current_trio_token()
            self._publish(pump.counters())
            self._ready.set()
            await self._loop.run()
        finally:
            for listener in listeners:
                listener.socket.close()
            self._publish(pump.counters())
            self._left = leftovers_of(pump.session)
            pump.close()
            if pump.watch.tap is not None:
                pump.watch.tap.close()

    def _open_tap(self) -> Tap | None:
        """Where the steps go besides our own memory; BadValue where that cannot be opened."""
        config = self.config
        sinks: list[Sink] = list(config.sinks)
        if config.record_dir is not None:
            life = (config.engine_id, config.shard.rank, config.role, self.incarnation)
            sinks.append(RecordingFile.open(config.record_dir, header_of(*life)))
        return (
            Tap(sinks, config.logger, f"{threading.current_thread().name}-tap") if sinks else None
        )

    async def _listen(self) -> list[trio.SocketListener]:
        if self.config.listen is None:
            return []
        host, port = self.config.listen
        try:
            listeners = await trio.open_tcp_listeners(port, host=host)
        except OSError as error:
            raise BadValue("listen", f"{host}:{port}", f"a free address ({error})") from error
        # A name may stand for several addresses; a port is only promised on the first.
        for further in listeners[1:]:
            further.socket.close()
        self.address = (host, listeners[0].socket.getsockname()[1])
        return listeners[:1]

    def _deliver(self, results: list[Result]) -> None:
        self._results.extend(results)
        self._arrived.set()

    def _publish(self, counters: dict[str, int]) -> None:
        before = self._counted_before
        self._counters = {key: n + before.get(key, 0) for key, n in counters.items()}
        if self._pump is not None:
            self._outcomes = self._pump.watch.outcomes(counters)


def _new_incarnation() -> Incarnation:
    return Incarnation(secrets.randbits(64) or 1)
