"""What a person sees while a command works.

Owns bars and spinners, on standard error. Invariant: drawn at a terminal only; a log, a
pipe and a program get the results and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def working(text: str) -> Iterator[None]:
    """A spinner beside `text`, where it cannot be said how much is left."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    with console.status(text):
        yield


@contextmanager
def counting(text: str, total: int) -> Iterator[Callable[[], None]]:
    """A bar; what it gives is called once for each of `total` steps."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn(text), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task(text, total=total)
        yield lambda: bar.update(task, advance=1)
