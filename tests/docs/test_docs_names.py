"""Counters, reasons and steps that the operator's pages name are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from docs_pages import ROOT

from kvxfer.core.ids import Reason
from kvxfer_router.metrics import Metrics
from kvxfer_vllm.stats import COUNTERS, GAUGES

SOURCES = "\n".join(
    path.read_text(encoding="utf-8")
    for room in ("core", "driver")
    for path in sorted((ROOT / "kvxfer" / room).rglob("*.py"))
)
TROUBLE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
STUCK = (ROOT / "docs" / "howto" / "debug-a-stuck-transfer.md").read_text(encoding="utf-8")
IN_TREE = {
    "vllm:nixl_xfer_time_seconds",
    "vllm:nixl_post_time_seconds",
    "vllm:nixl_bytes_transferred",
    "vllm:nixl_num_descriptors",
    "vllm:nixl_num_failed_transfers_total",
    "vllm:nixl_num_failed_notifications_total",
    "vllm:nixl_num_kv_expired_reqs_total",
    "vllm:nixl_num_notifications_after_expiry_total",
}
"""As vLLM 0.32 exports them; vLLM is not in the environment of this test."""
REASONS = {reason.name for reason in Reason} - {"NONE", "UNREGISTERED"}


def agent_counters() -> set[str]:
    """What the rooms count under a literal name, and the two families by reason."""
    plain = re.findall(r"count(?:er)?s\[([^\]]*)\]", SOURCES)
    names = {name for key in plain for name in re.findall(r'"(\w+)"', key)}
    by_reason = {f"{kind}_{r.lower()}" for r in REASONS for kind in ("lost", "unsent")}
    return names | by_reason | set(re.findall(r'outcome = "(\w+)" if', SOURCES)) | {"lost"}


def prometheus_names() -> set[str]:
    ours = {f"vllm:kvxfer_{name}_total" for name in COUNTERS}
    ours |= {f"vllm:kvxfer_{name}" for name in GAUGES}
    return (
        ours | IN_TREE | set(re.findall(r"^# TYPE (\S+)", Metrics().text().decode(), re.MULTILINE))
    )


def tables(text: str) -> list[list[str]]:
    """Cells of every row of every table."""
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows]


def symptom_names() -> list[str]:
    """The names in the second column of the symptom tables, labels left off."""
    part = TROUBLE.partition("## Symptoms")[2].partition("\n## ")[0]
    cells = " ".join(row[1] for row in tables(part))
    return [re.sub(r"\{.*\}", "", name) for name in re.findall(r"`([^`]+)`", cells)]


def test_every_counter_that_a_symptom_names_exists() -> None:
    named = [name for name in symptom_names() if name not in REASONS]
    assert len(named) > 25
    assert set(named) - agent_counters() - prometheus_names() == set()


def test_every_counter_of_an_agent_is_explained_and_no_other() -> None:
    part = TROUBLE.partition("## Counters of an agent")[2]
    named = {name for row in tables(part) for name in re.findall(r"`(\w+)`", row[0])}
    assert named - agent_counters() == set()
    families = {name for name in agent_counters() if name.startswith(("lost_", "unsent_"))}
    # Metrics and security may have pages of their own.
    pages = [ROOT / "docs" / f"{page}.md" for page in ("observe", "security")]
    further = " ".join(page.read_text(encoding="utf-8") for page in pages if page.exists())
    assert {n for n in agent_counters() - families - named if n not in further} == set()


def test_every_reason_has_a_row() -> None:
    part = TROUBLE.partition("## Reasons")[2].partition("\n## ")[0]
    assert [row[0].strip("`") for row in tables(part)[1:]] == [
        reason.name for reason in Reason if reason.name in REASONS
    ]


@pytest.mark.parametrize("page", ["troubleshooting.md", "howto/debug-a-stuck-transfer.md"])
def test_words_in_capitals_are_reasons_flags_or_messages(page: str) -> None:
    known = "\n".join(
        (ROOT / path).read_text(encoding="utf-8")
        for path in ("spec/registries.md", "kvxfer/transport/caps.py", "docs/vllm.md")
    )
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    words = set(re.findall(r"`([A-Z]{3,}(?:_[A-Z]+)*)`", text))
    assert [word for word in words if word not in known] == []


def test_steps_of_a_transfer_are_those_that_are_recorded() -> None:
    recorded = set(
        re.findall(r'"([a-z ]+)"', " ".join(re.findall(r"trace\(.*?\n?.*?\)\n", SOURCES)))
    )
    part = STUCK.partition("## 3.")[2].partition("\n## ")[0]
    cells = " ".join(" ".join(row[:2]) for row in tables(part)[1:])
    named = set(re.findall(r"`([a-z ]+)`", cells)) | {"let go"}
    assert len(named) > 8
    assert named - recorded - {"lost", "cancelled"} == set()


def test_a_page_that_goes_out_of_date_is_found() -> None:
    assert "vllm:kvxfer_no_such_total" not in prometheus_names()
    assert "no_such" not in agent_counters()
    assert Path(ROOT / "docs" / "troubleshooting.md").exists()
