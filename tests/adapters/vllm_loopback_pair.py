"""Two engines in one process: both sides of the connector, real agents over the loopback.

What vLLM does around the connector (planning, blocks, steps) is done here by hand; what
goes from the scheduler side to the worker side is pickled, as in vLLM.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Collection, Sequence
from enum import Enum, auto
from types import SimpleNamespace
from typing import Any

import attrs
import numpy as np
from vllm_settings import settings_for

from kvxfer.driver import Role
from kvxfer_vllm.geometry import CacheGroup
from kvxfer_vllm.ledger import Report
from kvxfer_vllm.scheduler_side import SchedulerSide
from kvxfer_vllm.tables import GroupBlocks, Tables
from kvxfer_vllm.worker_side import WorkerSide

T = 16
BLOCKS = 24
HEADS = 2
CONTENT = 8
DEADLINE_S = 20.0
TABLES = Tables(groups=(GroupBlocks(tokens_per_block=T),))


class Status(Enum):
    """Names of vLLM's request states."""

    RUNNING = auto()
    FINISHED_LENGTH_CAPPED = auto()
    FINISHED_ABORTED = auto()


def request(params: object, request_id: str, prompt: Sequence[int]) -> Any:
    return SimpleNamespace(
        request_id=request_id,
        kv_transfer_params=params,
        prompt_token_ids=list(prompt),
        num_prompt_tokens=len(prompt),
        num_computed_tokens=0,
        num_in_flight_tokens=0,
        max_tokens=1,
        status=Status.RUNNING,
    )


@attrs.define(eq=False)
class Engine:
    """One engine: its cache, and the connector's two sides."""

    memory: np.ndarray
    """By block, then layer (where there are several), head, slot and element."""
    scheduler: SchedulerSide
    worker: WorkerSide
    received: set[str] = attrs.field(factory=set)
    failed: set[str] = attrs.field(factory=set)
    sent: set[str] = attrs.field(factory=set)

    @classmethod
    def start(cls, name: str, role: Role, *, layers: int = 1, **changes: Any) -> Engine:
        settings = attrs.evolve(
            settings_for(
                engine_id=name, role=role, port=0, offer_lease_ms=10_000, deadline_ms=10_000
            ),
            **changes,
        )
        shape = (BLOCKS, layers, HEADS, T, CONTENT)
        whole = np.zeros(shape, np.uint16)
        memory = whole if layers > 1 else whole[:, 0]
        caches = {f"l{n}": tensor(whole[:, n], whole) for n in range(layers)}
        group = CacheGroup(layers=tuple(caches), tokens_per_block=T, manager_blocks=BLOCKS)
        worker = WorkerSide(settings, (group,), HEADS)
        worker.register_caches(caches)
        if worker.agent.address is not None:
            settings = attrs.evolve(settings, port=worker.agent.address[1])
        return cls(memory, SchedulerSide(settings, TABLES), worker)

    @property
    def place(self) -> dict[str, Any]:
        """What a router that sends both legs at once tells a decode engine."""
        settings = self.scheduler.settings
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_engine_id": settings.engine_id,
            "remote_host": settings.host,
            "remote_port": settings.port,
        }

    def compute(self, blocks: Sequence[int], start: int, stop: int, seed: int) -> None:
        """Write tokens [start, stop) of a prompt, as a forward pass does."""
        for token in range(start, stop):
            self.memory[blocks[token // T], ..., token % T, :] = seed * 1000 + token

    def compute_layer(
        self, layer: int, blocks: Sequence[int], start: int, stop: int, seed: int
    ) -> None:
        """One layer of it; then vLLM calls the hook."""
        for token in range(start, stop):
            self.memory[blocks[token // T], layer, :, token % T] = seed * 1000 + token
        self.worker.layer_saved(f"l{layer}")

    def tokens(self, blocks: Sequence[int], count: int) -> np.ndarray:
        """What the cache holds for the first `count` tokens."""
        return np.concatenate([np.moveaxis(self.memory[b], -2, 0) for b in blocks])[:count]

    def step(
        self,
        request: Any = None,
        tokens: int = 0,
        blocks: Sequence[int] = (),
        preempted: Collection[str] = (),
    ) -> Report:
        """One engine step; `request` has `tokens` more computed in it, not yet written."""
        scheduled = {request.request_id: tokens} if tokens else {}
        self.scheduler.follow_step(scheduled, preempted, lambda _: (list(blocks),))
        self.worker.deliver(pickle.loads(pickle.dumps(self.scheduler.take_orders())))
        if request is not None:
            request.num_computed_tokens += tokens
        report = self.worker.take_report()
        self.scheduler.reported(report.received)
        self.received |= report.received
        self.failed |= report.failed
        self.sent |= report.sent
        return report

    def until(self, condition: Callable[[], bool]) -> None:
        """Make steps until it is true."""
        end = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < end, "the condition never came true"
            self.worker.agent.wait(0.01)
            self.step()

    def park(self, leg: Any, blocks: Sequence[int]) -> None:
        """Admit a decode request into these blocks, and tell the worker."""
        self.scheduler.on_new_request(leg)
        wanted, is_async = self.scheduler.matched_tokens(leg, 0)
        assert is_async
        self.scheduler.after_alloc(leg, (blocks,), wanted)
        self.step()

    def finish(self, leg: Any, blocks: Sequence[int], status: Status) -> tuple[bool, Any]:
        leg.status = status
        return self.scheduler.request_finished(leg, (blocks,))

    def counter(self, name: str) -> int:
        return self.worker.agent.counters().get(name, 0)

    def close(self) -> None:
        self.worker.close()


def tensor(memory: np.ndarray, whole: np.ndarray | None = None) -> Any:
    """What vLLM would register for it; `whole`: the allocation that it is a view of."""
    address = int(memory.ctypes.data)
    base = memory if whole is None else whole
    start, size = int(base.ctypes.data), base.nbytes
    storage = SimpleNamespace(data_ptr=lambda: start, nbytes=lambda: size)
    return SimpleNamespace(
        shape=memory.shape,
        dtype="torch.float16",
        stride=lambda: tuple(s // memory.itemsize for s in memory.strides),
        data_ptr=lambda: address,
        element_size=lambda: memory.itemsize,
        untyped_storage=lambda: storage,
    )
