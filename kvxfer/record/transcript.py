"""The steps of one transfer as a person reads them.

Owns the words. Knows no file. Invariant: the same steps give the same text, in the
form of the explorer's transcripts: numbered lines, what follows indented.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvxfer.core.ids import Part, Reason
from kvxfer.record.flight import Entry
from kvxfer.record.steps import Step


def transcript(title: str, entries: Sequence[Entry]) -> str:
    """`title`, then a line for each entry; times count from the first one."""
    origin = entries[0].step.t_ms if entries else 0.0
    lines = [title]
    for number, entry in enumerate(entries, 1):
        again = ""
        if entry.count > 1:
            again = f", {entry.count} times until {entry.last_ms - origin:.3f} ms"
        since = entry.step.t_ms - origin
        lines.append(f"{number:3d}  {since:10.3f} ms  {words(entry.step)}{again}")
    return "\n".join(lines) + "\n"


def words(step: Step) -> str:
    """One step in a line: its name, then what it is about."""
    about = []
    if step.attempt:
        about.append(f"attempt {step.attempt}")
    if step.peer is not None:
        about.append(f"peer {step.peer.engine_id}/{step.peer.rank}")
    if step.part is not None:
        about.append(part_words(step.part))
    if step.size_bytes:
        ranges = f" in {step.descriptors} ranges" if step.descriptors else ""
        about.append(f"{step.size_bytes} bytes{ranges}")
    if step.reason is not Reason.NONE:
        about.append(step.reason.name)
    if step.tag:
        about.append(f"tag {step.tag}")
    if step.detail:
        about.append(step.detail)
    return f"{step.step:<16}  {', '.join(about)}".rstrip()


def part_words(part: Part) -> str:
    """A part in a few words."""
    text = (
        f"part of rank {part.producer_rank}, group {part.group}, "
        f"tokens {part.token_start}:{part.token_stop}"
    )
    if part.layer_stop:
        text += f", layers {part.layer_start}:{part.layer_stop}"
    return text
