"""What an operator sets, checked once at the start.

Owns the frozen configuration and its bounds. Refuses to know HTTP requests.
Invariant: a RouterConfig that exists can be served; every bad value was refused
with the name of its field.
"""

from __future__ import annotations

from enum import Enum
from typing import Any
from urllib.parse import urlsplit

import attrs

from kvxfer.errors import BadValue

PORT_MAX = 65535


class Mode(Enum):
    """The order of the two legs."""

    PUSH = "push"
    """Both at once: D registers its blocks while P still computes."""
    PULL = "pull"
    """P first; D is given what P answered."""


class OnPrefillFailure(Enum):
    """What a client gets when no prefill can be had from P."""

    FAIL = "fail"
    """An error (pull), or whatever D answers by its own policy (push)."""
    DECODE = "decode"
    """The plain request goes to D, which computes the prompt alone."""


def _at_least(bound: float) -> Any:
    def check(_: object, attribute: attrs.Attribute[float], value: float) -> None:
        if isinstance(value, bool) or not value >= bound:
            raise BadValue(attribute.name, value, f"must be at least {bound}")

    return check


def _not_empty(_: object, attribute: attrs.Attribute[str], value: str) -> None:
    if not value:
        raise BadValue(attribute.name, value, "must not be empty")


def _port(bound_low: int) -> Any:
    def check(_: object, attribute: attrs.Attribute[int], value: int) -> None:
        if isinstance(value, bool) or not bound_low <= value <= PORT_MAX:
            raise BadValue(attribute.name, value, f"must lie in [{bound_low}, {PORT_MAX}]")

    return check


def _engine_url(_: object, attribute: attrs.Attribute[str], value: str) -> None:
    bound = "must be http://host[:port] or https://host[:port], with no query and no fragment"
    try:
        url = urlsplit(value)
        well_formed = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError as bad:
        raise BadValue(attribute.name, value, f"{bound} ({bad})") from None
    if not well_formed or url.query or url.fragment:
        raise BadValue(attribute.name, value, bound)


@attrs.frozen(kw_only=True)
class Coordinates:
    """Where D finds P's control listener (research: kv_transfer_params, push).

    `engine_id` is P's engine id, `kv_host` and `kv_port` its control listener,
    `tp_size` and `pp_size` its numbers of tensor and pipeline ranks.
    """

    engine_id: str = attrs.field(validator=_not_empty)
    kv_host: str = attrs.field(validator=_not_empty)
    kv_port: int = attrs.field(validator=_port(1))
    tp_size: int = attrs.field(default=1, validator=_at_least(1))
    pp_size: int = attrs.field(default=1, validator=_at_least(1))


@attrs.frozen(kw_only=True)
class RouterConfig:
    """Everything the router needs. Durations are in seconds.

    `prefill_url` and `decode_url` are the bases of the engines' HTTP servers.
    `coordinates` is needed in push mode; without it P's answers to pull
    requests teach them. `idle_timeout_s` bounds the silence of an engine within
    one leg. `trailing_s` is how long the prefill leg may outlive an answer of D
    that is complete. `drain_s` bounds the wait for open requests at shutdown.
    """

    mode: Mode
    prefill_url: str = attrs.field(validator=_engine_url)
    decode_url: str = attrs.field(validator=_engine_url)
    coordinates: Coordinates | None = None
    host: str = attrs.field(default="127.0.0.1", validator=_not_empty)
    port: int = attrs.field(default=8000, validator=_port(0))
    on_prefill_failure: OnPrefillFailure = OnPrefillFailure.FAIL
    body_mib_max: int = attrs.field(default=64, validator=_at_least(1))
    connect_timeout_s: float = attrs.field(default=5.0, validator=_at_least(0.001))
    idle_timeout_s: float = attrs.field(default=600.0, validator=_at_least(0.001))
    health_timeout_s: float = attrs.field(default=5.0, validator=_at_least(0.001))
    trailing_s: float = attrs.field(default=30.0, validator=_at_least(0))
    drain_s: float = attrs.field(default=30.0, validator=_at_least(0))

    def __attrs_post_init__(self) -> None:
        if self.mode is Mode.PUSH and self.coordinates is None:
            raise BadValue(
                "coordinates",
                None,
                "push mode needs P's engine id, control host and control port beforehand",
            )
