"""One nixl agent: the only module that calls into nixl.

Owns a native agent, its registrations and its end. Refuses to decide anything:
errors of nixl leave here as they are raised, `kvxfer_nixl.peer` judges them.
Invariant: after `destroy` said True the native agent does not exist any more,
with it its UCX worker, sockets and registrations; nobody else held it alive.

Which calls can wait for a peer (nixl 1.5.1, UCX 1.23, progress thread off): none
waits for an answer. `post`, `state` and `collect` run the worker until it has
nothing to do, so they take as long as data keeps flowing: a post of 64 MiB over
process_vm_writev copies all of it before it returns. `create` took 20 ms (half a
second for the first one in a process), `destroy` 4 ms, also while the peer was
stopped or killed. docs/design/nixl-fence.md has the measurements.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import logging
import os
import uuid
import weakref
from collections.abc import Callable
from typing import Any, ClassVar, Final

import attrs
import numpy as np

from kvxfer.transport.ops import U64
from kvxfer_nixl.kinds import NAMES, kinds_of, no_neuron
from kvxfer_nixl.regions import Place

UCX: Final = "UCX"
LIBFABRIC: Final = "LIBFABRIC"

UCX_OPTIONS: Final = {
    # A peer that dies while nothing is in flight is noticed after a second, not 20.
    "KEEPALIVE_INTERVAL": "1s",
}
"""Settings of UCX for each agent; a UCX_* variable in the environment goes before them.

Shared memory for messages (POSIX_ERROR_HANDLING=y) stays off: over it a writer is not
told that the target has destroyed its agent, and a first post then never ends.
"""

DRIVEN_BY_TARGET: Final = frozenset({"tcp", "self"})
"""UCX transports whose writes are carried out by the target's own worker."""
FABRIC_DRIVEN_BY_TARGET: Final = frozenset({"tcp", "sockets"})
"""The same for providers of libfabric."""

_agents_alive: Final[set[str]] = set()
"""Names of the native agents that exist in this process."""


def load_library() -> Any:
    """nixl's API module. Raises ImportError where it is not there.

    Importing nixl sets up logging to standard output at level INFO and changes a
    process-wide switch of `logging`; both are put back, unless NIXL_LOG_LEVEL is set.
    UCX, loaded later, would also write there: it is told to use standard error.
    """
    os.environ.setdefault("UCX_LOG_FILE", "stderr")
    raise_exceptions = logging.raiseExceptions
    api = importlib.import_module("nixl._api")
    logging.raiseExceptions = raise_exceptions
    if "NIXL_LOG_LEVEL" not in os.environ:
        logging.getLogger("nixl").setLevel(logging.WARNING)
    return api


def build_of(api: Any) -> str:
    """Distribution that holds the binary part, as in 'nixl-cu12'."""
    return str(api.__name__.partition(".")[0].replace("_", "-"))


def library_version(api: Any) -> str:
    """Version of the binary part, as in '1.5.1'."""
    return importlib.metadata.version(build_of(api))


def agent_is_alive(name: str) -> bool:
    """True where the native agent of this name exists in this process."""
    return name in _agents_alive


def effective_tls(option: str | None) -> str:
    """The UCX_TLS value that an agent will run with; empty where UCX chooses."""
    return os.environ.get("UCX_TLS", option or "")


def is_driven_by_target(backend: str, tls: str) -> bool:
    """True where nothing but the target's own worker can carry out a peer's write.

    The transports of the target decide: a peer can use no other towards it. libfabric
    is told its provider by FI_PROVIDER; where that is not set, it may be any.
    """
    if backend == LIBFABRIC:
        return os.environ.get("FI_PROVIDER", "") in FABRIC_DRIVEN_BY_TARGET
    names = set(tls.split(","))
    return backend == UCX and bool(tls) and names <= DRIVEN_BY_TARGET


@attrs.define(kw_only=True, eq=False)
class NixlAgent:
    """A native agent with no thread of its own; its owner's calls drive it."""

    tells_death: ClassVar[bool] = True
    """UCX ends what is in flight towards a peer that died."""
    name: str
    kinds: frozenset[str]
    """Kinds of memory that the backend takes, as `Memory` names them."""
    no_neuron: str = ""
    """Why Neuron's is not among them."""
    _native: Any
    _registered: dict[tuple[int, int, Place], tuple[Any, int]] = attrs.field(factory=dict)
    """What nixl's list of a piece of memory is, and how often it is wanted: nixl takes it once."""
    remote: str = ""
    _watch: Callable[[], object] = attrs.field(default=lambda: None)

    @classmethod
    def create(cls, tls: str | None, backend: str = UCX) -> NixlAgent:
        """A new agent under a name that no other has. Raises what nixl raises."""
        api = load_library()
        name = f"kvxfer-{uuid.uuid4().hex}"
        settings = UCX_OPTIONS | ({"TLS": tls} if tls else {}) if backend == UCX else {}
        params = {"engine_config": ",".join(f"{k}={v}" for k, v in settings.items())}
        config = api.nixl_agent_config(enable_prog_thread=False, backends=[])
        _agents_alive.add(name)
        try:
            native = api.nixl_agent(name, config)
            native.create_backend(backend, params if settings else {})
            known = native.get_backend_mem_types(backend)
        except BaseException:
            _agents_alive.discard(name)
            raise
        kinds, why = kinds_of(backend, known), no_neuron(backend, known)
        return cls(name=name, kinds=kinds, no_neuron=why, native=native)

    # Memory.

    def register(self, base: int, length: int, place: Place) -> None:
        """Make memory known to nixl; may be called again for the same memory."""
        key = (base, length, place)
        listed, count = self._registered.get(key, (None, 0))
        if count == 0:
            rows = [(base, length, place.device, "")]
            listed = self._native.register_memory(rows, NAMES[place.kind])
        self._registered[key] = (listed, count + 1)

    def deregister(self, base: int, length: int, place: Place) -> None:
        """Take one `register` back."""
        key = (base, length, place)
        listed, count = self._registered.pop(key)
        if count > 1:
            self._registered[key] = (listed, count - 1)
        else:
            self._native.deregister_memory(listed)

    # The link.

    def metadata(self) -> bytes:
        """What the other side's `connect` takes."""
        return bytes(self._native.get_agent_metadata())

    def connect(self, metadata: bytes, name: str) -> None:
        """Learn how to reach the agent called `name`. Sends nothing yet."""
        added = self._native.add_remote_agent(metadata)
        told = added.decode("ascii", errors="replace") if isinstance(added, bytes) else str(added)
        if told != name:
            self._native.remove_remote_agent(told)
            raise ValueError(f"metadata is of agent {told!r}, the blob of {name!r}")
        self.remote = name

    # Operations.

    def prepare(
        self,
        operation: str,
        columns: tuple[U64, U64, U64],
        notify: bytes,
        places: tuple[Place, Place],
    ) -> Any:
        """A transfer handle; nothing is posted yet. `places` are ours and theirs."""
        local, remote, length = columns
        here, there = places
        native = self._native
        return native.initialize_xfer(
            operation,
            native.get_xfer_descs(_descriptors(local, length, here), NAMES[here.kind]),
            native.get_xfer_descs(_descriptors(remote, length, there), NAMES[there.kind]),
            self.remote,
            notify,
        )

    def post(self, handle: Any) -> str:
        """Start it. "DONE", "PROC" or "ERR"; where it raises, part of it may be on its way."""
        return str(self._native.transfer(handle))

    def state(self, handle: Any) -> str:
        """Drive the worker and look at one transfer: "DONE", "PROC" or "ERR", or it raises."""
        return str(self._native.check_xfer_state(handle))

    def notify(self, payload: bytes) -> None:
        """Send a notification alone."""
        self._native.send_notif(self.remote, payload)

    def collect(self) -> dict[str, list[bytes]]:
        """Drive the worker; notifications that came, by the name their sender gives."""
        notifications: dict[str, list[bytes]] = self._native.get_new_notifs()
        return notifications

    def destroy(self) -> bool:
        """End the native agent; True where it is gone in fact. May be asked again.

        What its worker has not carried out by now it never will. nixl keeps an agent
        alive as long as one of its transfer handles exists: release all of them first.
        """
        if self._native is not None:
            self._watch = weakref.ref(self._native.agent)
            self._native = None
            self._registered.clear()
        gone = self._watch() is None
        if gone:
            _agents_alive.discard(self.name)
        return gone


def release(handle: Any) -> None:
    """Give back the handle of a transfer that has ended, or whose agent is about to end."""
    try:
        handle.release()
    except Exception:
        # nixl refuses to free what its backend cannot cancel; the agent's end frees it.
        logging.getLogger(__name__).debug("transfer handle not released", exc_info=True)


def _descriptors(address: U64, length: U64, place: Place) -> U64:
    """nixl's (n, 3) form of n ranges: address, length in bytes, device."""
    table = np.zeros((len(address), 3), dtype=np.uint64)
    table[:, 0] = address
    table[:, 1] = length
    table[:, 2] = place.device
    return table
