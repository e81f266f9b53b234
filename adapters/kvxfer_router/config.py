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
    """P first; D is chosen when P has answered, and given what it answered."""
    AUTO = "auto"
    """Push while the prefill engine has little to do, pull when prompts wait there."""


class OnPrefillFailure(Enum):
    """What a client gets when no prefill can be had from P."""

    FAIL = "fail"
    """An error (pull), or whatever D answers by its own policy (push)."""
    DECODE = "decode"
    """The plain request goes to a decode engine, which computes the prompt alone."""


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

    def of_rank(self, dp_rank: int) -> Coordinates:
        """The coordinates of one data-parallel rank, as vLLM derives them."""
        return attrs.evolve(
            self, engine_id=f"{self.engine_id}_dp{dp_rank}", kv_port=self.kv_port + dp_rank
        )


@attrs.frozen(kw_only=True)
class EngineSpec:
    """One engine, or one data-parallel rank of one. `url` is the base of its HTTP server.

    `coordinates` are a prefill engine's; without them it serves pull until an answer
    of its own has told them. `dp_rank` goes out as X-data-parallel-rank.
    """

    url: str = attrs.field(validator=_engine_url)
    coordinates: Coordinates | None = None
    dp_rank: int | None = attrs.field(default=None)

    @property
    def name(self) -> str:
        """For logs and /ready."""
        return self.url if self.dp_rank is None else f"{self.url} dp{self.dp_rank}"

    def ranks(self, dp_size: int) -> tuple[EngineSpec, ...]:
        """This engine as its `dp_size` data-parallel ranks, each chosen by itself.

        vLLM's ranks share the HTTP server; the engine id and the control port carry the rank.
        """
        if isinstance(dp_size, bool) or dp_size < 1:
            raise BadValue("dp_size", dp_size, "must be at least 1")
        if dp_size == 1:
            return (self,)
        return tuple(
            EngineSpec(
                url=self.url,
                dp_rank=rank,
                coordinates=self.coordinates and self.coordinates.of_rank(rank),
            )
            for rank in range(dp_size)
        )


def _engines(_: object, attribute: attrs.Attribute[Any], value: tuple[EngineSpec, ...]) -> None:
    if not value:
        raise BadValue(attribute.name, value, "must name at least one engine")
    if len({(spec.url, spec.dp_rank) for spec in value}) < len(value):
        raise BadValue(attribute.name, [spec.name for spec in value], "names an engine twice")


@attrs.frozen(kw_only=True)
class RouterConfig:
    """Everything the router needs. Durations are in seconds.

    `idle_timeout_s` bounds the silence of an engine within one leg; `body_timeout_s` how
    long a client may take to send its request. `retries` counts how often a request that
    an engine has had goes to other engines. `auto_push_tokens_max` is the work waiting at
    a prefill engine up to which `Mode.AUTO` is push. `check_s` is the time between two
    health checks of an engine; `failures_max` failures in a row take it out for `pause_s`,
    twice as long each time up to `pause_s_max`, and checks of it come every `pause_s` then
    where that is sooner. `trailing_s` is how long the prefill leg
    may outlive an answer of D that is complete. `drain_s` bounds the wait for open
    requests at shutdown.
    """

    mode: Mode
    prefills: tuple[EngineSpec, ...] = attrs.field(validator=_engines)
    decodes: tuple[EngineSpec, ...] = attrs.field(validator=_engines)
    host: str = attrs.field(default="127.0.0.1", validator=_not_empty)
    port: int = attrs.field(default=8000, validator=_port(0))
    on_prefill_failure: OnPrefillFailure = OnPrefillFailure.DECODE
    retries: int = attrs.field(default=1, validator=_at_least(0))
    auto_push_tokens_max: int = attrs.field(default=16384, validator=_at_least(0))
    requests_max: int = attrs.field(default=4096, validator=_at_least(1))
    body_mib_max: int = attrs.field(default=64, validator=_at_least(1))
    header_bytes_max: int = attrs.field(default=16384, validator=_at_least(1024))
    body_timeout_s: float = attrs.field(default=60.0, validator=_at_least(0.001))
    connect_timeout_s: float = attrs.field(default=5.0, validator=_at_least(0.001))
    idle_timeout_s: float = attrs.field(default=600.0, validator=_at_least(0.001))
    check_s: float = attrs.field(default=5.0, validator=_at_least(0.01))
    check_timeout_s: float = attrs.field(default=5.0, validator=_at_least(0.001))
    failures_max: int = attrs.field(default=3, validator=_at_least(1))
    pause_s: float = attrs.field(default=1.0, validator=_at_least(0))
    pause_s_max: float = attrs.field(default=30.0, validator=_at_least(0))
    trailing_s: float = attrs.field(default=30.0, validator=_at_least(0))
    drain_s: float = attrs.field(default=30.0, validator=_at_least(0))

    def __attrs_post_init__(self) -> None:
        if self.mode is Mode.PUSH and all(spec.coordinates is None for spec in self.prefills):
            raise BadValue(
                "coordinates",
                None,
                "push mode needs a prefill engine's id, control host and control port beforehand",
            )
