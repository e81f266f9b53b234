"""The HTTP router: the third actor of the protocol.

Owns the order in which the two legs of a request reach the prefill engine P and
the decode engine D, and the names (`transfer_id`, X-Request-Id) that tie them
together. Refuses to know how KV moves: it is on no wire but HTTP. Invariant: a
leg that is open belongs to one dispatch, and ends when that dispatch ends.
"""

from __future__ import annotations

from kvxfer_router.app import build_app, build_runner
from kvxfer_router.config import Coordinates, EngineSpec, Mode, OnPrefillFailure, RouterConfig

__all__ = [
    "Coordinates",
    "EngineSpec",
    "Mode",
    "OnPrefillFailure",
    "RouterConfig",
    "build_app",
    "build_runner",
]
