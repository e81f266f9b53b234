"""The timelines in a real browser: no error, bars are drawn, hovering shows data.

Skipped where no Chromium is installed; on Debian, `apt-get install
chromium-headless-shell` is enough, and CI installs it.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from made_up import recording

from kvxfer.observe.stretches import transfers_of
from kvxfer.observe.timeline import timeline_page

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
BROWSER = next(filter(None, map(shutil.which, BROWSERS)), None)
REQUIRED = os.environ.get("KVXFER_BROWSER") == "required"
SWITCHES = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
)

pytestmark = pytest.mark.skipif(
    BROWSER is None and not REQUIRED, reason=f"no browser: none of {', '.join(BROWSERS)}"
)


@pytest.fixture
def tab(tmp_path: Path) -> Iterator[tuple[Any, list[str]]]:
    """The page in a tab, and the complaints of its console."""
    sync_api = pytest.importorskip("playwright.sync_api")
    assert BROWSER is not None, f"KVXFER_BROWSER=required, and none of {BROWSERS} is installed"
    path = tmp_path / "timeline.html"
    path.write_text(timeline_page(transfers_of(recording())), encoding="utf-8")
    complaints: list[str] = []
    asked: list[str] = []
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=SWITCHES)
        page = browser.new_page(viewport={"width": 1200, "height": 900})
        page.set_default_timeout(60_000)
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(path.as_uri())
        complaints += [f"asks for {url}" for url in asked if url != path.as_uri()]
        yield page, complaints
        browser.close()


def test_the_timeline_draws_and_answers(tab: tuple[Any, list[str]]) -> None:
    page, complaints = tab
    bars = page.locator("svg >> nth=0 >> rect")
    assert bars.count() == sum(
        len(lane.stretches) for one in transfers_of(recording()) for lane in one.lanes
    )
    for number in range(bars.count()):
        box = bars.nth(number).bounding_box()
        assert box["width"] >= 1
        assert box["height"] > 3
    colours = {
        kind: page.locator(f"rect.{kind} >> nth=0").evaluate("bar => getComputedStyle(bar).fill")
        for kind in ("queued", "granted", "write", "held")
    }
    assert len(set(colours.values())) == 4

    hint = page.locator("#hint")
    assert not hint.is_visible()
    page.locator("rect.write >> nth=0").hover()
    assert hint.is_visible()
    assert "push at P/0: written, 1 part(s), 4096 bytes in 8 ranges" in hint.inner_text()
    page.locator("h1").hover()
    assert not hint.is_visible()
    assert complaints == []
