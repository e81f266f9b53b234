"""Rules of the specification and what pins them: requirements.toml and rules.md.

Owns the form of both files. Reads the identifiers and sentences from kvxfer-1.md, the vectors
that name a rule from the vector files, and by hand in requirements.toml only `tests` (what else
pins it, see `KINDS`) and `read` (the digest of the sentence for which they were read last).
Invariant: a sentence that changes leaves its `read` behind, so somebody looks at its tests again.
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from pathlib import Path
from typing import Any

SPEC_DIR = Path(__file__).resolve().parents[1]
SPEC = SPEC_DIR / "kvxfer-1.md"
REQUIREMENTS = SPEC_DIR / "requirements.toml"
INDEX = SPEC_DIR / "rules.md"

HEADING = re.compile(r"^#{2,4} (\d+(?:\.\d+)*)\.? (.+)$")
DEFINITION = re.compile(r"^- \[(K-[\d.]+)\] (.+)$")
LEVELS = ("MUST", "SHOULD", "MAY")
TITLE_CHARACTERS_MAX = 90

Row = dict[str, Any]


def rules(text: str) -> list[Row]:
    """Every rule of the text, in order: id, section, heading, level, sentence, digest."""
    found: list[Row] = []
    section = heading = ""
    for line in text.splitlines():
        if match := HEADING.match(line):
            section, heading = match.groups()
        elif match := DEFINITION.match(line):
            name, sentence = match.groups()
            level = next((word for word in LEVELS if re.search(rf"\b{word}\b", sentence)), "")
            found.append(
                {
                    "id": name,
                    "section": section,
                    "heading": heading,
                    "level": level,
                    "sentence": sentence,
                    "digest": hashlib.sha256(sentence.encode()).hexdigest()[:12],
                }
            )
    return found


def kept() -> dict[str, Row]:
    """What people wrote: rows of requirements.toml by id."""
    if not REQUIREMENTS.exists():
        return {}
    whole = tomllib.loads(REQUIREMENTS.read_text(encoding="utf-8"))
    return {row["id"]: row for row in whole["rule"]}


def pinned_by(files: dict[str, Any]) -> dict[str, list[str]]:
    """Rule to the vectors that name it, in the order of the files."""
    found: dict[str, list[str]] = {}
    for name, whole in files.items():
        for case in whole["vectors"]:
            if case["id"] not in whole.get("superseded", {}):
                for rule in case.get("rules", ()):
                    found.setdefault(rule, []).append(f"{name}/{case['id']}")
    return found


HEAD = """\
# What pins each rule of kvxfer-1.md. Rewritten by `python spec/generate.py`, but for `tests`
# and `read`, which are written by hand.
#
# tests    file::test, what pytest collects
#          case:ADDRESS, a case of `kvxfer conform`
#          also a whole file, where every test of it is about the rule
# vectors  part/id, cases of spec/vectors that name the rule
# read     digest of the sentence for which the tests were read; `generate.py --read ID` sets it
"""


def requirements_text(text: str, files: dict[str, Any], read: frozenset[str] = frozenset()) -> str:
    """requirements.toml with a row for every rule of `text`; `read`: ids to be marked as read."""
    old, vectors = kept(), pinned_by(files)
    rows = []
    for rule in rules(text):
        row = old.get(rule["id"], {})
        mark = rule["digest"] if {rule["id"], "all"} & read else row.get("read", "")
        lines = [
            "[[rule]]",
            f'id = "{rule["id"]}"',
            f'section = "{rule["section"]}"',
            f'level = "{rule["level"]}"',
            f"title = {_quoted(_title(rule['sentence']))}",
            f'read = "{mark}"',
            *_list("tests", row.get("tests", [])),
            *_list("vectors", vectors.get(rule["id"], [])),
        ]
        rows.append("\n".join(lines))
    return HEAD + "\n" + "\n\n".join(rows) + "\n"


def _title(sentence: str) -> str:
    if len(sentence) <= TITLE_CHARACTERS_MAX:
        return sentence
    return sentence[:TITLE_CHARACTERS_MAX].rsplit(" ", 1)[0] + " ..."


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _list(name: str, values: list[str]) -> list[str]:
    if not values:
        return [f"{name} = []"]
    return [f"{name} = [", *[f"    {_quoted(value)}," for value in values], "]"]


def index_text(text: str, files: dict[str, Any]) -> str:
    """rules.md: every rule with its level and what pins it."""
    old, vectors = kept(), pinned_by(files)
    lines = [
        "# Index of rules of kvxfer, version 1",
        "",
        "Made by `python spec/generate.py` from [kvxfer-1.md](kvxfer-1.md) and"
        " [requirements.toml](requirements.toml), which names the tests and vectors.",
        "",
        "| rule | section | level | begins | tests | vectors |",
        "|---|---|---|---|---|---|",
    ]
    for rule in rules(text):
        tests = len(old.get(rule["id"], {}).get("tests", []))
        title = _title(rule["sentence"]).replace("|", "\\|")
        place = f"{rule['section']} {rule['heading']}"
        counts = f"{tests} | {len(vectors.get(rule['id'], []))}"
        lines.append(f"| {rule['id']} | {place} | {rule['level']} | {title} | {counts} |")
    return "\n".join(lines) + "\n"
