"""The same hand-off over NIXL's Python API, in the two ways in which engines use it.

Owns the rivals: a writer thread at P whose handles the engine polls once a step (push),
and READs that D's engine thread posts itself (pull). Both use descriptor lists prepared
once for the whole pool, four threads and NIXL's own progress thread, as vLLM does
by default. Invariant: nothing here is checked that vLLM does not check, so what differs
is who posts, who polls, and when.
"""

from __future__ import annotations

import importlib
import queue
import threading
from typing import Any

import cbor2
import numpy as np

from kvxfer.bench.handoff.setting import Ids, Setting
from kvxfer.bench.handoff.ways import failed, name_of, request_of

NUM_THREADS = 4
POLL_S = 0.001
"""How often the writer looks while a finished prefill waits for its registration."""


class _Nixl:
    """An agent, its pool registered, and a prepared list for each side."""

    after_producer = False

    def __init__(self, setting: Setting, memory: np.ndarray, side: str) -> None:
        api = importlib.import_module("nixl._api")
        config = api.nixl_agent_config(num_threads=NUM_THREADS, backends=["UCX"])
        self.setting = setting
        self.base = int(memory.ctypes.data)
        self.agent = api.nixl_agent(f"handoff-{side}", config)
        self.agent.register_memory([(self.base, memory.nbytes, 0, "")], "DRAM")
        self.ids = [self._pages(ids) for ids in setting.blocks_of(side)]
        self.own_pages = self._prepared("NIXL_INIT_AGENT", self.base)
        self.peer = ""
        self.peer_pages: Any = None

    def _pages(self, blocks: Ids) -> Ids:
        """Numbers of the descriptors of these blocks in every layer. Shape (layers x blocks,)."""
        layers = np.arange(self.setting.layers, dtype=np.int64)[:, None]
        return np.asarray((layers * self.setting.pool_blocks + blocks[None, :]).ravel())

    def _prepared(self, agent: str, base: int) -> Any:
        pages = self.setting.layers * self.setting.pool_blocks
        table = np.zeros((pages, 3), dtype=np.uint64)
        table[:, 0] = base + np.arange(pages, dtype=np.uint64) * self.setting.page_bytes
        table[:, 1] = self.setting.page_bytes
        return self.agent.prep_xfer_dlist(agent, self.agent.get_xfer_descs(table, "DRAM"))

    def hello(self) -> Any:
        return bytes(self.agent.get_agent_metadata()), self.base

    def connect(self, theirs: Any) -> None:
        metadata, base = theirs
        told = self.agent.add_remote_agent(metadata)
        self.peer = told.decode() if isinstance(told, bytes) else str(told)
        self.peer_pages = self._prepared(self.peer, base)

    def post(self, operation: str, own: Ids, theirs: Ids, note: bytes) -> Any:
        handle = self.agent.make_prepped_xfer(
            operation, self.own_pages, own, self.peer_pages, theirs, note
        )
        if self.agent.transfer(handle) == "ERR":
            raise failed("NIXL refused a transfer")
        return handle

    def ended(self, handle: Any) -> bool:
        state = self.agent.check_xfer_state(handle)
        if state == "ERR":
            raise failed("a NIXL transfer failed")
        if state == "DONE":
            self.agent.release_xfer_handle(handle)
        return bool(state == "DONE")

    def notes(self) -> list[bytes]:
        return [note for notes in self.agent.get_new_notifs().values() for note in notes]

    def close(self) -> None:
        self.agent = None


class WriterProducer(_Nixl):
    """Push: a thread matches, prepares and posts; the engine polls the handles."""

    def __init__(self, setting: Setting, memory: np.ndarray) -> None:
        super().__init__(setting, memory, "P")
        self._work: queue.SimpleQueue[tuple[str, Any] | None] = queue.SimpleQueue()
        self._posted: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._open: list[tuple[str, Any]] = []
        self._broken: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="nixl-writer", daemon=True)

    def connect(self, theirs: Any) -> None:
        super().connect(theirs)
        self._thread.start()

    def start(self, slot: int, number: int) -> None:
        self._work.put((name_of(slot, number), self.ids[slot]))

    def poll(self) -> list[tuple[int, int]]:
        if self._broken is not None:
            raise self._broken
        for note in self.notes():
            self._work.put(("", note))
        while not self._posted.empty():
            self._open.append(self._posted.get())
        done = [(name, handle) for name, handle in self._open if self.ended(handle)]
        names = {name for name, _ in done}
        self._open = [one for one in self._open if one[0] not in names]
        return [request_of(name) for name in names]

    def _run(self) -> None:
        try:
            self._serve()
        except BaseException as error:  # noqa: BLE001 - the engine raises it
            self._broken = error

    def _serve(self) -> None:
        finished: dict[str, Ids] = {}
        registered: dict[str, Ids] = {}
        while True:
            try:
                item = self._work.get(timeout=POLL_S if finished else None)
            except queue.Empty:
                continue
            if item is None:
                return
            name, what = item
            if name:
                finished[name] = what
            else:
                name, blocks = cbor2.loads(what)
                registered[name] = np.frombuffer(blocks, dtype=np.int64)
            if name in finished and name in registered:
                theirs = self._pages(registered.pop(name))
                handle = self.post("WRITE", finished.pop(name), theirs, name.encode())
                self._posted.put((name, handle))

    def close(self) -> None:
        self._work.put(None)
        if self._thread.ident is not None:
            self._thread.join()
        super().close()


class WriterConsumer(_Nixl):
    """Push: registers by a notification, learns of the end by another."""

    def __init__(self, setting: Setting, memory: np.ndarray) -> None:
        super().__init__(setting, memory, "D")
        self.blocks = setting.blocks_of("D")

    def start(self, slot: int, number: int) -> None:
        note = cbor2.dumps([name_of(slot, number), self.blocks[slot].tobytes()])
        self.agent.send_notif(self.peer, note)

    def poll(self) -> list[tuple[int, int]]:
        return [request_of(note.decode()) for note in self.notes()]


class InlineProducer(_Nixl):
    """Pull: holds its blocks until D says that it has read them."""

    def __init__(self, setting: Setting, memory: np.ndarray) -> None:
        super().__init__(setting, memory, "P")

    def start(self, slot: int, number: int) -> None:
        """The answer of the prefill goes to the router: see `Way.after_producer`."""

    def poll(self) -> list[tuple[int, int]]:
        return [request_of(note.decode()) for note in self.notes()]


class InlineConsumer(_Nixl):
    """Pull: the engine's thread posts the READ and polls it."""

    after_producer = True

    def __init__(self, setting: Setting, memory: np.ndarray) -> None:
        super().__init__(setting, memory, "D")
        self._theirs = [self._pages(ids) for ids in setting.blocks_of("P")]
        self._open: list[tuple[str, Any]] = []

    def start(self, slot: int, number: int) -> None:
        name = name_of(slot, number)
        handle = self.post("READ", self.ids[slot], self._theirs[slot], name.encode())
        self._open.append((name, handle))

    def poll(self) -> list[tuple[int, int]]:
        done = {name for name, handle in self._open if self.ended(handle)}
        self._open = [one for one in self._open if one[0] not in done]
        return [request_of(name) for name in done]
