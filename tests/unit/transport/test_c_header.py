"""spec/kvxfer_transport.h says what the Python table says: numbers, slots, answers, rules."""

from __future__ import annotations

import re
import shutil
import subprocess
from enum import IntEnum
from pathlib import Path

import pytest

from kvxfer.status import Status
from kvxfer.transport import ops
from kvxfer.transport.answers import STATUSES
from kvxfer.transport.caps import Caps
from kvxfer.transport.ops import Direction
from kvxfer.transport.stubs import SLOT_OF_CAP, SLOTS

SPEC = Path(__file__).resolve().parents[3] / "spec"
HEADER = (SPEC / "kvxfer_transport.h").read_text(encoding="utf-8")
OTHER_WORDS = {1, 3, 4, 5, 9}
"""Rules whose text speaks of the language: exceptions, arrays, integers, helper functions."""


def enumerators(name: str) -> dict[str, int]:
    (body,) = re.findall(rf"typedef enum {name} \{{(.*?)\}} {name};", HEADER, re.DOTALL)
    found = re.findall(r"KVXFER_(\w+) = (1 << \d+|-?\d+)\b", body)
    return {key: eval(value) for key, value in found}


def named(members: type[IntEnum], prefix: str = "") -> dict[str, int]:
    return {prefix + member.name: int(member) for member in members}


def test_statuses() -> None:
    assert enumerators("kvxfer_status") == named(Status)


def test_flags() -> None:
    assert enumerators("kvxfer_cap") == {f"CAP_{flag.name}": int(flag) for flag in Caps}


def test_directions() -> None:
    assert enumerators("kvxfer_direction") == named(Direction, "DIRECTION_")


def test_kinds_of_memory_are_those_that_have_a_flag() -> None:
    kinds = {name.removeprefix("MEMORY_") for name in enumerators("kvxfer_memory_kind")}
    assert kinds == {
        str(flag.name).removeprefix("MEM_") for flag in Caps if str(flag.name).startswith("MEM_")
    }


def members() -> list[tuple[str, str]]:
    """(slot, comment above it) in the order of the struct."""
    (body,) = re.findall(
        r"typedef struct kvxfer_transport \{(.*?)\} kvxfer_transport;", HEADER, re.DOTALL
    )
    return [
        (slot, comment)
        for comment, slot in re.findall(
            r"/\* ((?:(?!\*/).)*?) \*/\s+[\w *]+?\(\*(\w+)\)", body, re.DOTALL
        )
    ]


def test_slots_stand_in_the_order_of_the_table() -> None:
    assert tuple(slot for slot, _ in members()) == SLOTS


def test_each_slot_lists_the_answers_that_are_checked() -> None:
    listed = {}
    for slot, comment in members():
        words = " ".join(comment.replace("*", " ").split())
        if "Answers:" in words:
            names = re.findall(r"[A-Z_]{2,}", words.partition("Answers:")[2])
            listed[slot] = frozenset(Status[name] for name in names)
    assert listed == STATUSES


def test_the_slots_that_may_be_null_are_those_of_a_flag() -> None:
    (text,) = re.findall(r"counts as UNSUPPORTED; the slots(.*?)may be,", HEADER, re.DOTALL)
    assert set(re.findall(r"[A-Z_]{2,}", text)) == {str(cap.name) for cap in SLOT_OF_CAP}


def rules(text: str) -> dict[int, str]:
    found = re.findall(
        r"^[ *]*(\d+)\. (.*?)(?=^[ *]*\d+\. |^[ *]*$)", text, re.DOTALL | re.MULTILINE
    )
    return {
        int(n): " ".join(words.replace("*", " ").replace("`", "").split()) for n, words in found
    }


def test_the_rules_are_the_same() -> None:
    assert ops.__doc__ is not None
    python = rules(ops.__doc__.partition("Rules\n")[2].replace("k * ", "k x "))
    c = rules(HEADER.partition(" * Rules\n")[2].partition("*/")[0].replace("k * ", "k x "))
    assert sorted(c) == sorted(python) == list(range(1, 16))
    for number in set(python) - OTHER_WORDS:
        assert c[number] == python[number], f"rule {number}"


@pytest.mark.parametrize(
    ("compiler", "standard", "suffix"),
    [("gcc", "c11", "c"), ("g++", "c++11", "cc"), ("g++", "c++20", "cc")],
)
def test_it_compiles_alone_without_a_warning(tmp_path, compiler, standard, suffix) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler} here")
    source = tmp_path / f"only.{suffix}"
    source.write_text('#include "kvxfer_transport.h"\n#include "kvxfer_transport.h"\n')
    strict = ["-Wall", "-Wextra", "-pedantic", "-Werror", f"-std={standard}"]
    done = subprocess.run(
        [compiler, *strict, f"-I{SPEC}", "-c", str(source), "-o", str(tmp_path / "only.o")],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
