"""Which engines there are: from a TOML file or from the command's options.

Owns the names of the file's fields. Refuses to check values: the configuration's classes do.
Invariant: every field of the file is either used or refused by its name.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from kvxfer.errors import BadValue
from kvxfer_router.config import Coordinates, EngineSpec

_ADDRESS: Final = ("engine_id", "kv_host", "kv_port")
_SIZES: Final = ("tp_size", "pp_size")


def read_fleet(path: Path) -> tuple[tuple[EngineSpec, ...], tuple[EngineSpec, ...]]:
    """The prefill and the decode engines of a file.

    The file has one table `[[prefill]]` or `[[decode]]` per engine with `url`, and
    `dp_size` where its ranks are to be chosen here; for push a prefill engine has
    `engine_id`, `kv_host` and `kv_port`, and `tp_size` and `pp_size` where they are not 1.
    Raises BadValue, and OSError where the file cannot be read.
    """
    try:
        tables = tomllib.loads(path.read_text())
    except ValueError as bad:
        raise BadValue(str(path), None, f"is not TOML ({bad})") from None
    for name in tables:
        if name not in ("prefill", "decode"):
            raise BadValue(
                name, tables[name], "is not known; a file has [[prefill]] and [[decode]]"
            )
    return _engines("prefill", tables), _engines("decode", tables)


def _engines(kind: str, tables: Mapping[str, Any]) -> tuple[EngineSpec, ...]:
    entries = tables.get(kind, [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise BadValue(kind, entries, f"must be tables, [[{kind}]]")
    return tuple(
        spec for number, entry in enumerate(entries) for spec in _ranks(f"{kind}[{number}]", entry)
    )


def _ranks(where: str, entry: Mapping[str, Any]) -> tuple[EngineSpec, ...]:
    known = {"url": str, "dp_size": int, "engine_id": str, "kv_host": str}
    known |= dict.fromkeys(("kv_port", *_SIZES), int)
    for field, value in entry.items():
        if field not in known:
            raise BadValue(f"{where}.{field}", value, f"is not known; known are {', '.join(known)}")
        if type(value) is not known[field]:
            raise BadValue(f"{where}.{field}", value, f"must be of type {known[field].__name__}")
    if "url" not in entry:
        raise BadValue(f"{where}.url", None, "must be given")
    return engine_of(entry)


def engine_of(fields: Mapping[str, Any]) -> tuple[EngineSpec, ...]:
    """One engine from its fields, as one spec per rank that is chosen here. Raises BadValue."""
    given = [field for field in _ADDRESS if fields.get(field) is not None]
    coordinates = None
    if given:
        missing = [field for field in _ADDRESS if field not in given]
        if missing:
            raise BadValue(missing[0], None, f"must be given together with {', '.join(_ADDRESS)}")
        sizes = {field: fields[field] for field in _SIZES if fields.get(field) is not None}
        coordinates = Coordinates(**{field: fields[field] for field in _ADDRESS}, **sizes)
    spec = EngineSpec(url=fields["url"], coordinates=coordinates)
    return spec.ranks(fields.get("dp_size") or 1)


def engines_of_options(
    urls: Sequence[str], columns: Mapping[str, Sequence[Any]]
) -> tuple[EngineSpec, ...]:
    """Engines from options that are repeated: the n-th of each belongs to the n-th URL.

    `columns` has the values by field name. Raises BadValue where an option was given, but
    not as often as there are URLs.
    """
    for field, values in columns.items():
        if values and len(values) != len(urls):
            raise BadValue(field, list(values), f"must be given once for each of {len(urls)} URLs")
    return tuple(
        spec
        for number, url in enumerate(urls)
        for spec in engine_of(
            {"url": url} | {field: values[number] for field, values in columns.items() if values}
        )
    )
