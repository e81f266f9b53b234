"""The connector's settings for tests: one engine on loopback, with what a test wants otherwise."""

from __future__ import annotations

from typing import Any

from kvxfer.driver import Role
from kvxfer_vllm.config import Settings


def settings_for(**changes: Any) -> Settings:
    values: dict[str, Any] = {
        "engine_id": "eng-P",
        "role": Role.BOTH,
        "host": "127.0.0.1",
        "port": 5610,
        "transport": "loopback",
        "transport_options": {},
        "offer_lease_ms": 30_000,
        "deadline_ms": 60_000,
        "check_digest": True,
        "allow_unauthenticated": False,
        "fail_on_load_failure": True,
        "randomized_ids": True,
    }
    return Settings(**(values | changes))
