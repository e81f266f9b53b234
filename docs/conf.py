"""The docs site: sphinx, furo and myst over the markdown of this folder.

Owns how the pages become a site, no text. Invariant: each page reads the same in a
plain markdown viewer; what leaves this folder is resolved here.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

from kvxfer import __version__

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent

project = "kvxfer"
author = "the kvxfer authors"
project_copyright = author
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_click"]
exclude_patterns = ["examples"]
myst_heading_anchors = 3

default_role = "code"
autodoc_member_order = "bysource"
autodoc_class_signature = "separated"
autodoc_typehints_format = "short"
autodoc_default_options = {"members": True, "undoc-members": True}

html_theme = "furo"
html_title = f"kvxfer {version}"
html_show_copyright = False

ELSEWHERE = {
    "reference/spec": ROOT / "spec" / "kvxfer-1.md",
    "reference/registries": ROOT / "spec" / "registries.md",
    "reference/rules": ROOT / "spec" / "rules.md",
}
"""Pages whose text lies in another folder of the repository."""

_LINK = re.compile(r"\[([^\]\n]*)\]\(([^)\s:#]+)(#[^)\s]*)?\)")


def bring(app: Sphinx, docname: str, source: list[str]) -> None:
    """Put the text of `ELSEWHERE` in place, and resolve links that leave this folder."""
    path = ELSEWHERE.get(docname)
    page = DOCS / f"{docname}.md"
    if path is not None:
        app.env.note_dependency(str(path))
        source[0] = path.read_text(encoding="utf-8")
    base = (path or page).parent
    here = page.parent

    def resolved(link: re.Match[str]) -> str:
        text, target, anchor = link.groups(default="")
        there = (base / target).resolve()
        for name, outside in ELSEWHERE.items():
            if there == outside:
                return f"[{text}]({os.path.relpath(DOCS / f'{name}.md', here)}{anchor})"
        if there.is_relative_to(DOCS):
            return f"[{text}]({os.path.relpath(there, here)}{anchor})"
        if not there.exists():
            raise ValueError(f"{docname}: {target} is not there")
        name = str(there.relative_to(ROOT))
        return text if name in text else f"{text} (`{name}`)"

    text = _LINK.sub(resolved, source[0])
    source[0] = "\n".join(line for line in text.splitlines() if not _matches_nothing(line)) + "\n"


def _matches_nothing(line: str) -> bool:
    """True for an entry of the index, a pattern, whose pages are not there (yet)."""
    return line.endswith("*") and " " not in line and not any(DOCS.glob(line + ".md"))


def setup(app: Sphinx) -> dict[str, Any]:
    # Diagrams are shown as their text: drawing them would load a script from elsewhere.
    app.add_lexer("mermaid", TextLexer)
    app.connect("source-read", bring)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
