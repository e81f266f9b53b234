"""The Python of every page runs, block after block, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from docs_pages import PAGES, ROOT, name, python_blocks

ELSEWHERE = {
    "README.md": "tests/repo/test_readme.py",
    "docs/write-a-transport.md": "tests/conformance/test_write_a_transport.py",
}
"""Pages whose blocks another test runs, and looks at what they made."""

WITH_CODE = [page for page in PAGES if "```python" in page.read_text(encoding="utf-8")]


@pytest.mark.parametrize("page", WITH_CODE, ids=name)
def test_the_code_of_a_page_runs(page: Path, tmp_path: Path) -> None:
    blocks = python_blocks(page.read_text(encoding="utf-8"))
    for block in blocks:
        compile(block.code, f"{name(page)}, block {block.number}", "exec")
    if name(page) in ELSEWHERE:
        assert Path(page).name in (ROOT / ELSEWHERE[name(page)]).read_text(encoding="utf-8")
        return
    script = tmp_path / "page.py"
    script.write_text("\n".join(block.code for block in blocks if not block.why), "utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr


def test_what_is_not_run_has_a_reason_and_what_is_run_is_seen() -> None:
    text = "\n".join(
        (
            "```python",
            "a = 1",
            "```",
            "<!-- fragment: needs a GPU -->",
            "```python",
            "b = a",
            "```",
            "<!-- python",
            "assert a == 1",
            "-->",
        )
    )
    assert [(block.code, block.why) for block in python_blocks(text)] == [
        ("a = 1\n", ""),
        ("b = a\n", "needs a GPU"),
        ("assert a == 1\n", ""),
    ]
