"""Plain JSON values into attrs classes, each value checked against its field's type.

Owns the walk over the types. Knows no report. Invariant: what comes out holds exactly
the types that the class declares, or BadValue names the first field that does not.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, get_args, get_origin, get_type_hints

import attrs

from kvxfer.errors import BadValue


def build(kind: Any, value: Any, where: str) -> Any:
    """`value` as `kind`: an attrs class, enum, tuple, dict of strings, or a plain type.

    Raises BadValue naming the field, its value and what it should be.
    """
    if attrs.has(kind):
        return _instance(kind, value, where)
    if get_origin(kind) is tuple:
        return _row(get_args(kind), value, where)
    if get_origin(kind) is dict:
        of_keys, of_values = get_args(kind)
        _expect(dict, value, where)
        return {
            build(of_keys, k, where): build(of_values, v, f"{where}.{k}") for k, v in value.items()
        }
    if issubclass(kind, Enum):
        known = [member.value for member in kind]
        if value not in known:
            raise BadValue(where, _short(value), f"one of {known}")
        return kind(value)
    _expect(kind, value, where)
    return value


def _instance(kind: Any, value: Any, where: str) -> Any:
    _expect(dict, value, where)
    hints = get_type_hints(kind)
    unknown = sorted(value.keys() - hints.keys())
    if unknown:
        raise BadValue(where, _short(unknown), f"known fields are {', '.join(hints)}")
    for field in attrs.fields(kind):
        if field.default is attrs.NOTHING and field.name not in value:
            raise BadValue(f"{where}.{field.name}", None, "must be there")
    given = {name: build(hints[name], inner, f"{where}.{name}") for name, inner in value.items()}
    try:
        return kind(**given)
    except ValueError as error:
        raise BadValue(where, _short(value), str(error)) from None


def _row(kinds: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
    _expect(list, value, where)
    if kinds[-1] is Ellipsis:
        kinds = (kinds[0],) * len(value)
    if len(kinds) != len(value):
        raise BadValue(where, _short(value), f"{len(kinds)} items")
    return tuple(build(k, v, f"{where}[{i}]") for i, (k, v) in enumerate(zip(kinds, value)))


def _expect(kind: type, value: Any, where: str) -> None:
    # bool is an int to isinstance, and no number to whoever reads a report.
    if type(value) is not kind:
        raise BadValue(where, _short(value), f"must be of type {kind.__name__}")


def _short(value: Any) -> Any:
    """A value that an error can show: a hostile file's may be of any size."""
    text = str(value)
    return value if len(text) <= 80 else text[:77] + "..."
