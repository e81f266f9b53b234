"""The shell of every timeline page: head, colours, legend, and what shows a bar's data.

Owns the style and the one script. Knows nothing of transfers. Invariant: the page
needs no network and no file beside it; without the script bars still have titles.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Final

_STYLE: Final = """
:root { color-scheme: light dark; --page: #fcfcfb; --ink: #22262b; --soft: #667078;
  --grid: #e3e6e8; --queued: #cfd5da; --prefill: #3d6fb4; --write: #d9730d;
  --granted: #bfdccd; --ready: #8a63c9; --decode: #2a8f62; --held: #c6393f; }
@media (prefers-color-scheme: dark) { :root { --page: #16191c; --ink: #e6e9eb; --soft: #98a2aa;
  --grid: #2b3035; --queued: #454c53; --prefill: #6b9be0; --write: #f29a45;
  --granted: #2f5745; --ready: #b294ea; --decode: #4fbd8b; --held: #ef6a6f; } }
body { background: var(--page); color: var(--ink); margin: 2rem auto; max-width: 1240px;
  padding: 0 1rem; font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.35rem; margin: 0 0 .3rem; } h2 { font-size: 1.05rem; margin: 2rem 0 .2rem; }
p { margin: .2rem 0 .6rem; max-width: 60rem; } .note, .tick, .lane { color: var(--soft); }
svg { display: block; width: 100%; height: auto; }
text { font: 10px system-ui, sans-serif; fill: var(--ink); }
.tick { text-anchor: middle; fill: var(--soft); } .lane { text-anchor: end; fill: var(--soft); }
.grid { stroke: var(--grid); stroke-width: 1; }
.queued { fill: var(--queued); background: var(--queued); }
.prefill { fill: var(--prefill); background: var(--prefill); }
.write { fill: var(--write); background: var(--write); }
.granted { fill: var(--granted); background: var(--granted); }
.ready { fill: var(--ready); background: var(--ready); }
.decode { fill: var(--decode); background: var(--decode); }
.held { fill: var(--held); background: var(--held); }
rect:hover { opacity: .7; }
.legend { display: flex; flex-wrap: wrap; gap: .3rem 1.4rem; padding: 0; list-style: none; }
.legend i { display: inline-block; width: .9rem; height: .9rem; border-radius: 2px;
  margin-right: .4rem; vertical-align: -.12rem; }
#hint { position: fixed; display: none; pointer-events: none; max-width: 30rem; z-index: 1;
  padding: .3rem .6rem; border-radius: 4px; background: var(--ink); color: var(--page);
  font-size: 13px; }
"""

_SCRIPT: Final = """
const hint = document.getElementById("hint");
for (const bar of document.querySelectorAll("rect")) {
  const title = bar.querySelector("title");
  if (!title) continue;
  const text = title.textContent;
  title.remove();
  bar.setAttribute("aria-label", text);
  bar.addEventListener("mousemove", (event) => {
    hint.textContent = text;
    hint.style.display = "block";
    const room = window.innerWidth - hint.offsetWidth - 8;
    hint.style.left = Math.max(0, Math.min(event.clientX + 12, room)) + "px";
    hint.style.top = event.clientY + 16 + "px";
  });
  bar.addEventListener("mouseleave", () => { hint.style.display = "none"; });
}
"""


def page(title: str, body: Iterable[str]) -> str:
    """A whole page. `title` is escaped; `body` is HTML."""
    return (
        "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        "<link rel='icon' href='data:,'>"
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n<body>"
        + "\n".join(body)
        + f"\n<div id='hint' role='tooltip'></div>\n<script>{_SCRIPT}</script></body></html>\n"
    )


def legend(entries: Iterable[tuple[str, str]]) -> str:
    """What each kind of bar means: (class, words)."""
    items = "".join(f"<li><i class='{kind}'></i>{escape(text)}</li>" for kind, text in entries)
    return f"<ul class='legend'>{items}</ul>"
