"""docs/write-a-transport.md: its blocks, one after the other, are a transport that conforms."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from kvxfer.conformance import Verdict
from kvxfer.transport.ops import TransportDescriptor

PAGE = Path(__file__).resolve().parents[2] / "docs" / "write-a-transport.md"


@pytest.fixture(scope="module")
def walked() -> dict[str, Any]:
    """The names that the page has made when all of it has run."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 8
    names: dict[str, Any] = {"__name__": "tutorial"}
    for number, block in enumerate(blocks, 1):
        exec(compile(block, f"{PAGE.name}, block {number}", "exec"), names)
    return names


def test_the_page_s_transport_is_judged_and_passes(walked: dict[str, Any]) -> None:
    counts = walked["report"].counts
    assert counts[Verdict.FAIL] == counts[Verdict.NON_STRICT] == 0
    assert counts[Verdict.PASS] > 50
    assert walked["SESSIONS"] == {}


def test_the_page_s_descriptor_gives_the_table(walked: dict[str, Any]) -> None:
    descriptor = walked["DESCRIPTOR"]
    assert isinstance(descriptor, TransportDescriptor)
    assert descriptor.load() is walked["OPS"]
