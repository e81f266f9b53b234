"""Settings of the adapter: what the operator wrote into vLLM's configuration.

Owns the keys of `kv_connector_extra_config`. Keys of the in-tree nixl connectors
that mean the same here are read; the others are left alone, so that an existing
configuration starts unchanged. Invariant: a wrong value stops the start with a
text that names the key; nothing is corrected in silence.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from kvxfer.driver import Initiator, Role, TlsFiles
from kvxfer.errors import BadValue
from kvxfer.layout.orders import ORDERS

ROLES = {
    "kv_producer": Role.PRODUCER,
    "kv_consumer": Role.CONSUMER,
    "kv_both": Role.BOTH,
}

MODES = {"push": Initiator.PRODUCER, "pull": Initiator.CONSUMER}
"""Who moves the data: P writes, or D reads."""

WHOLE_PAGES = "LBHNC"
"""Pages in one piece, in an order that all of vLLM's backends have (CPU has no other)."""

PORT_STEP = 64
"""Between the listeners of two ranks of an engine: engines of up to so many data-parallel
replicas, which vLLM gives ports one by one, lie between them."""

DEADLINE_S = 60.0
LEASE_S = 30.0
KEPT_S = 480.0
LOAD_TOKENS_MIN = 64
SLICES_MAX = 1024
"""More parts than these a consumer does not make, for all tokens together (spec 6.4)."""
SECONDS_MAX = 86_400.0
PORT_MAX = 65_535


@attrs.frozen(kw_only=True)
class Settings:
    """Everything both sides of the connector need to know. Durations in milliseconds."""

    engine_id: str
    role: Role
    host: str
    """Where the workers of a producer listen, and what consumers are told."""
    port: int
    transport: str
    transport_options: Mapping[str, Any]
    offer_lease_ms: int
    """How long a finished prefill waits for a registration."""
    deadline_ms: int
    """How long a decode request waits for its KV before its load counts as failed."""
    check_digest: bool
    allow_unauthenticated: bool
    """Talk to other hosts without keys."""
    fail_on_load_failure: bool
    """kv_load_failure_policy "fail": a load that fails ends its request."""
    randomized_ids: bool
    """vLLM appends random digits to request ids."""
    mode: str = "push"
    """One of MODES; D's counts. P serves both, whatever its own is."""
    traces: bool = False
    """Make OpenTelemetry spans of transfers, for the tracer provider of the process."""
    record_dir: str = ""
    """Folder for a recording of every step; empty: where KVXFER_RECORD_DIR says, if it does."""
    metrics_address: tuple[str, int] | None = None
    """Where the agent of rank 0 serves its metrics; None: vLLM's own page is all."""
    split_kv: bool = False
    """K and V are described as two planes, for a peer that keeps them apart (kvxfer_neuron)."""
    bidirectional: bool = False
    """D keeps what it has when a request ends, and P of the next turn loads it (read-back)."""
    kept_ms: int = 480_000
    """How long D keeps it."""
    load_tokens_min: int = 64
    """Fewer tokens than these P computes rather than loads them from D."""
    stream_tokens: int = 0
    """P offers what is final while the prefill runs, in parts of so many tokens; 0: at its end."""
    layer_slices: int = 1
    """The last tokens leave in so many slices of the layers, while the others are computed."""
    key_file: str = ""
    """Keys that every peer has to prove; empty: those of KVXFER_KEYS, or none."""
    require_authentication: bool = True
    tls: TlsFiles | None = None
    tensor_ranks: int = 1
    pipeline_ranks: int = 1
    mode_open: bool = False
    """A request may say who moves its data: the connector's name promises nothing."""
    slots: bool = False
    """Packed pages are described slot by slot, so that engines of unlike blocks can pair."""

    def initiator_of(self, mode: str) -> Initiator:
        """Who moves the data of a request that asks for `mode`, or for nothing."""
        return MODES[mode if mode and self.mode_open else self.mode]

    def on_blocks(self, tokens_per_block: int) -> Settings:
        """The same with parts of whole blocks: what is streamed must never be written again."""
        if not self.stream_tokens:
            return self
        blocks = max(1, self.stream_tokens // tokens_per_block)
        return attrs.evolve(self, stream_tokens=blocks * tokens_per_block)


def read_settings(
    extra: Mapping[str, Any],
    *,
    engine_id: str,
    kv_role: str,
    failure_policy: str,
    host: str,
    port: int,
    data_parallel_index: int,
    randomized_ids: bool,
    named_mode: str = "",
    default_mode: str = "push",
    step_tokens: int = 0,
    tensor_ranks: int = 1,
    pipeline_ranks: int = 1,
) -> Settings:
    """Read `kv_connector_extra_config` and the side-channel address.

    `push_registration_timeout` (in-tree key) and `kvxfer_deadline_s` (ours, stronger)
    are the consumer's deadline, `kv_lease_duration` the producer's lease, in seconds.
    `bidirectional_kv_xfer` makes the engine both, whatever its `kv_role`.
    `named_mode` is what the connector's name promises, empty where it promises nothing, and
    `default_mode` then holds where no option says otherwise;
    `step_tokens` the longest chunk of a prefill.

    Raises BadValue with the key, the value and the bound.
    """
    role = ROLES.get(kv_role)
    if role is None:
        raise BadValue("kv_role", kv_role, f"one of {sorted(ROLES)}")
    deadline_key = "push_registration_timeout"
    if "kvxfer_deadline_s" in extra:
        deadline_key = "kvxfer_deadline_s"
    transport, options = _transport(extra)
    check_digest = _flag(extra, "check_prompt_digest", True)
    bidirectional = _flag(extra, "bidirectional_kv_xfer", False)
    stream, slices = _stream(extra)
    if not check_digest:
        _refuse_blind(stream=stream, bidirectional_kv_xfer=bidirectional)
    return Settings(
        engine_id=engine_id,
        role=Role.BOTH if bidirectional else role,
        host=host,
        port=port + data_parallel_index,
        transport=transport,
        transport_options=options,
        offer_lease_ms=_seconds_to_ms(extra, "kv_lease_duration", LEASE_S),
        deadline_ms=_seconds_to_ms(extra, deadline_key, DEADLINE_S),
        check_digest=check_digest,
        allow_unauthenticated=_flag(extra, "allow_unauthenticated", False),
        fail_on_load_failure=failure_policy == "fail",
        randomized_ids=randomized_ids,
        mode=_mode(extra, named_mode, default_mode),
        traces=_flag(extra, "traces", False),
        record_dir=_folder(extra, "record_dir"),
        metrics_address=_address(extra, "metrics_address", data_parallel_index),
        split_kv=_flag(extra, "split_kv", False),
        bidirectional=bidirectional,
        kept_ms=_seconds_to_ms(extra, "decoder_kv_blocks_ttl", KEPT_S),
        load_tokens_min=_count(extra, "kv_recompute_threshold", LOAD_TOKENS_MIN),
        stream_tokens=step_tokens if stream else 0,
        layer_slices=slices,
        key_file=_path(extra, "key_file"),
        require_authentication=_flag(extra, "require_authentication", True),
        tls=_tls(extra),
        tensor_ranks=tensor_ranks,
        pipeline_ranks=pipeline_ranks,
        mode_open=not named_mode,
        slots=_pages(extra) == "slots",
    )


def _transport(extra: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    name = extra.get("transport", "nixl")
    if not isinstance(name, str) or not name:
        raise BadValue("transport", name, "name of an installed kvxfer transport")
    options = extra.get("transport_options", {})
    if not isinstance(options, Mapping):
        raise BadValue("transport_options", options, "an object")
    return name, dict(options)


def port_of_rank(port: int, rank: int) -> int:
    """Where rank `rank` of the engine listens whose first rank is at `port`."""
    return port + rank * PORT_STEP


def check_parallel(**sizes: int) -> None:
    """Refuse what this version cannot serve: context parallelism.

    Raises BadValue with the name of the vLLM setting.
    """
    for name, size in sizes.items():
        if size != 1:
            raise BadValue(name, size, "1: this version serves tensor and pipeline ranks only")


def cache_order(extra: Mapping[str, Any], *, latent: bool) -> str | None:
    """The order of the cache's axes to ask vLLM for; None: whatever the backend likes best.

    `latent`: the model has latents, whose pages are in one piece in any order. Raises
    BadValue for an order that there is not.
    """
    order = extra.get("cache_order", None if latent else WHOLE_PAGES)
    if order is not None and order not in ORDERS:
        raise BadValue("cache_order", order, f"one of {', '.join(ORDERS)}")
    return order


def _pages(extra: Mapping[str, Any]) -> str:
    pages = extra.get("pages", "whole")
    if pages not in ("whole", "slots"):
        raise BadValue("pages", pages, "'whole' or 'slots'")
    return str(pages)


def _mode(extra: Mapping[str, Any], named_mode: str, default_mode: str) -> str:
    mode = extra.get("mode", named_mode or default_mode)
    allowed = (named_mode,) if named_mode else tuple(MODES)
    if mode not in allowed:
        raise BadValue("mode", mode, f"one of {allowed}, by the connector's name")
    return str(mode)


def _seconds_to_ms(extra: Mapping[str, Any], key: str, default_s: float) -> int:
    value = extra.get(key, default_s)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadValue(key, value, "a number of seconds")
    if not 0 < value <= SECONDS_MAX:
        raise BadValue(key, value, f"above 0 and at most {SECONDS_MAX:.0f} seconds")
    return max(1, round(value * 1000))


def _tls(extra: Mapping[str, Any]) -> TlsFiles | None:
    """All three files, or none of them."""
    files = {key: _path(extra, f"tls_{key}") for key in ("cert", "key", "ca")}
    missing = [f"tls_{key}" for key, path in files.items() if not path]
    if len(missing) == len(files):
        return None
    if missing:
        raise BadValue(missing[0], "", "a file, as tls_cert, tls_key and tls_ca go together")
    return TlsFiles(check_hostname=_flag(extra, "tls_check_hostname", True), **files)


def _path(extra: Mapping[str, Any], key: str) -> str:
    value = extra.get(key, "")
    if not isinstance(value, str):
        raise BadValue(key, value, "the path of a file")
    return value


def _folder(extra: Mapping[str, Any], key: str) -> str:
    value = extra.get(key, "")
    if not isinstance(value, str):
        raise BadValue(key, value, "the name of a folder")
    return value


def _address(extra: Mapping[str, Any], key: str, offset: int) -> tuple[str, int] | None:
    value = extra.get(key)
    if value is None:
        return None
    host, colon, port = value.rpartition(":") if isinstance(value, str) else ("", "", "")
    if not (host and colon and port.isascii() and port.isdigit() and 0 < int(port) < PORT_MAX):
        raise BadValue(key, value, f"host:port with a port below {PORT_MAX}")
    return host, int(port) + offset


def _count(extra: Mapping[str, Any], key: str, default: int) -> int:
    value = extra.get(key, default)
    if type(value) is not int or value < 0:
        raise BadValue(key, value, "a whole number of at least 0")
    return value


def _refuse_blind(**flags: bool) -> None:
    """Refuse what serves wrong tokens where nobody compares the prompts."""
    for key, value in flags.items():
        if value:
            raise BadValue(key, value, "false where check_prompt_digest is false")


def _stream(extra: Mapping[str, Any]) -> tuple[bool, int]:
    """Is what is final to leave early, and the last chunk in how many slices of layers."""
    stream, slices = _flag(extra, "stream", False), extra.get("layer_slices", 1)
    if type(slices) is not int or not 1 <= slices <= SLICES_MAX:
        raise BadValue("layer_slices", slices, f"a whole number from 1 to {SLICES_MAX}")
    if slices > 1 and not stream:
        raise BadValue("layer_slices", slices, "1 where stream is not true")
    return stream, slices


def _flag(extra: Mapping[str, Any], key: str, default: bool) -> bool:
    value = extra.get(key, default)
    if not isinstance(value, bool):
        raise BadValue(key, value, "true or false")
    return value
