"""Reading the pages: their code blocks, their command lines.

A page's Python is all of its ```python blocks in order, with what an HTML comment
`<!-- python ... -->` adds for the reader of the tests alone. A block after a comment
`<!-- fragment: why -->` is not run, only compiled.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import attrs

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

_BLOCK = re.compile(
    r"^(?:<!-- fragment: (?P<why>.+?) -->\n+)?```python\n(?P<shown>.*?)^```$"
    r"|^<!-- python\n(?P<hidden>.*?)^-->$",
    re.MULTILINE | re.DOTALL,
)
_FENCE = re.compile(r"^```(?P<language>\S*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_SHELL = ("", "console", "bash", "sh", "shell")
_PROGRAM = re.compile(r"(\S*/)?(kvxfer|kvxfer-router|python\d?)$")


@attrs.frozen
class Block:
    """One piece of Python of a page; `why` says why it is not run."""

    number: int
    code: str
    why: str


@attrs.frozen
class Line:
    """One command: its words. `whole`: from a block, so complete as it stands."""

    words: tuple[str, ...]
    whole: bool


def name(page: Path) -> str:
    """For the names of tests."""
    return str(page.relative_to(ROOT))


def python_blocks(text: str) -> list[Block]:
    """In the order of the page."""
    found = enumerate(_BLOCK.finditer(text), 1)
    return [
        Block(number, block["shown"] or block["hidden"] or "", block["why"] or "")
        for number, block in found
    ]


def shell_text(text: str) -> list[str]:
    """The text of each block that holds commands: fenced ones and those indented by four."""
    fenced = [block["text"] for block in _FENCE.finditer(text) if block["language"] in _SHELL]
    indented = re.findall(r"(?:^(?: {4}.*)?\n)+", _FENCE.sub("", text), re.MULTILINE)
    return fenced + [re.sub(r"^ {4}", "", block, flags=re.MULTILINE) for block in indented]


def commands(text: str) -> Iterator[Line]:
    """The command lines of a page that start a program of this repository."""
    for block in shell_text(text):
        for line in logical_lines(block):
            for words in split(line):
                yield Line(words, whole=True)
    for code in re.findall(r"`((?:kvxfer|kvxfer-router) [^`]+)`", _FENCE.sub("", text)):
        for words in split(code):
            yield Line(words, whole=False)


def logical_lines(block: str) -> Iterator[str]:
    """Lines, joined where a backslash or an open quote says that they go on."""
    held = ""
    for raw in block.splitlines():
        held += raw.removeprefix("$ ") if not held else "\n" + raw
        if held.endswith("\\"):
            held = held[:-1]
            continue
        if not _quotes_closed(held):
            continue
        # A remark set off by spaces is not part of the command.
        yield re.split(r"(?<=\S) {3,}(?=[a-zA-Z])", held)[0] if "\n" not in held else held
        held = ""


def _quotes_closed(line: str) -> bool:
    try:
        shlex.split(line, comments=True)
    except ValueError:
        return False
    return True


def split(line: str) -> Iterator[tuple[str, ...]]:
    """The commands of one line, those of other programs left out."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    for word in [*lexer, ";"]:
        if set(word) - set("();<>|&"):
            words.append(word)
            continue
        while words and re.match(r"[A-Z_]+=", words[0]):
            words.pop(0)
        if words and _PROGRAM.match(words[0]):
            yield tuple(words)
        words = []
