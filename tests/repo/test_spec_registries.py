"""The specification against the code: numbers, fields, identifiers.

Two-way: what the code has and the text lacks is an error, and the other way round.
"""

from __future__ import annotations

import re
from collections import Counter
from enum import IntEnum
from pathlib import Path

import pytest

from kvxfer.core.ids import Feature, Initiator, Reason, Role
from kvxfer.core.messages import MessageType
from kvxfer.layout.geometry import GroupKind
from kvxfer.status import Status
from kvxfer.transport.caps import Caps
from kvxfer.wire.schema import BY_TYPE, HEADER, Field

SPEC_DIR = Path(__file__).resolve().parents[2] / "spec"
SPEC = (SPEC_DIR / "kvxfer-1.md").read_text(encoding="utf-8")
REGISTRIES = (SPEC_DIR / "registries.md").read_text(encoding="utf-8")

HEADING = re.compile(r"^#{2,4} (\d+(?:\.\d+)*)\.? (.+)$")
DEFINITION = re.compile(r"^- \[(K-[\d.]+)\] ")
REFERENCE = re.compile(r"K-\d+(?:\.\d+)*")
KEYWORD = re.compile(r"\b(?:MUST|SHOULD)\b")


def table_rows(text: str) -> list[list[str]]:
    """Cells of every table row of `text`, without head and ruler."""
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in row] for row in rows]
    return [r for r in cells if r[0] not in ("number", "key") and set(r[0]) != {"-"}]


def section(text: str, heading: str) -> str:
    """Text from a heading to the next one."""
    _, found, rest = text.partition(f"{heading}\n")
    assert found, f"no heading {heading!r}"
    return re.split(r"^#{1,4} ", rest, maxsplit=1, flags=re.MULTILINE)[0]


def numbers_of(members: type[IntEnum]) -> dict[str, int]:
    return {member.name: int(member) for member in members}


REGISTRY = {
    "Message types": numbers_of(MessageType),
    "Reasons": numbers_of(Reason),
    "Roles": numbers_of(Role),
    "Initiators": numbers_of(Initiator),
    "Features": {str(bit.name): int(bit).bit_length() - 1 for bit in Feature},
    "Group kinds": numbers_of(GroupKind),
    "Statuses": numbers_of(Status),
    "Capability flags": {str(flag.name): int(flag).bit_length() - 1 for flag in Caps},
}


@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_registry_is_the_enum(name: str) -> None:
    rows = table_rows(section(REGISTRIES, f"## {name}"))
    assert all(len(row) == 3 and row[2] for row in rows)
    listed = [(row[1], int(row[0])) for row in rows]
    assert listed == sorted(set(listed), key=listed.index)
    assert dict(listed) == REGISTRY[name]
    assert len(listed) == len(REGISTRY[name])


def test_every_registry_is_compared() -> None:
    assert set(re.findall(r"^## (.+)$", REGISTRIES, re.MULTILINE)) == set(REGISTRY)


def test_reserved_types_are_those_without_fields() -> None:
    rows = table_rows(section(REGISTRIES, "## Message types"))
    reserved = {int(row[0]) for row in rows if row[2].startswith("reserved")}
    assert reserved == {int(t) for t in MessageType} - set(BY_TYPE)


def message_headings() -> dict[int, str]:
    found = re.findall(r"^(### 5\.\d+ ([A-Z_]+) \((\d+)\))$", SPEC, re.MULTILINE)
    names = [(int(number), name) for _, name, number in found]
    assert names == [(number, MessageType(number).name) for number, _ in names]
    return {int(number): heading for heading, _, number in found}


def test_every_message_has_its_section() -> None:
    assert set(message_headings()) == set(BY_TYPE)


def keys_of(fields: tuple[Field, ...]) -> list[tuple[int, str]]:
    return [(field.key, field.name) for field in fields]


@pytest.mark.parametrize("number", sorted(BY_TYPE))
def test_keys_of_a_message_are_those_of_the_schema(number: int) -> None:
    rows = table_rows(section(SPEC, message_headings()[number]))
    assert [(int(row[0]), row[1]) for row in rows] == keys_of(BY_TYPE[number].fields)


def test_keys_of_the_header_are_those_of_the_schema() -> None:
    rows = table_rows(section(SPEC, "### 5.3 Header"))
    assert [(int(row[0]), row[1]) for row in rows] == keys_of(HEADER)


def definitions() -> list[tuple[str, str]]:
    """(section number, identifier) of every rule, in the order of the text."""
    found = []
    number = ""
    for line in SPEC.splitlines():
        if heading := HEADING.match(line):
            number = heading.group(1)
        elif rule := DEFINITION.match(line):
            found.append((number, rule.group(1)))
    return found


def test_identifiers_are_defined_once_and_numbered_by_section() -> None:
    seen: Counter[str] = Counter()
    for number, identifier in definitions():
        seen[number] += 1
        assert identifier == f"K-{number}.{seen[number]}"
    assert seen


def test_no_identifier_in_brackets_but_its_definition() -> None:
    bracketed = re.findall(r"\[(K-[\d.]+)\]", SPEC)
    assert bracketed == [identifier for _, identifier in definitions()]


def test_every_identifier_that_is_referred_to_exists() -> None:
    assert set(REFERENCE.findall(SPEC)) == {identifier for _, identifier in definitions()}


def test_every_binding_sentence_has_an_identifier() -> None:
    body = SPEC.partition("## 1. Scope")[2]
    loose = [line for line in body.splitlines() if KEYWORD.search(line)]
    assert [line for line in loose if not DEFINITION.match(line)] == []


def test_a_rule_is_one_sentence() -> None:
    rules = [line for line in SPEC.splitlines() if DEFINITION.match(line)]
    many = [rule for rule in rules if re.search(r"\. [A-Z]", rule.split("] ", 1)[1])]
    assert many == []


def test_sections_are_numbered_without_gaps() -> None:
    tops = [int(n) for n in re.findall(r"^## (\d+)\. ", SPEC, re.MULTILINE)]
    assert tops == list(range(1, 13))
    for top in tops:
        inner = [int(n) for n in re.findall(rf"^### {top}\.(\d+) ", SPEC, re.MULTILINE)]
        assert inner == list(range(1, len(inner) + 1))
