"""How a benchmark ends that cannot be measured.

Owns the words and the exit status. Knows no benchmark. Invariant: only a fault of this
library is told in one line; anything else is a defect and shows its trace.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click


@contextmanager
def ended_by_fault(ctx: click.Context) -> Iterator[None]:
    """Exit with 2 for a value out of its bound and with 1 for any other KvxferError."""
    from kvxfer.errors import BadValue, KvxferError

    try:
        yield
    except KvxferError as error:
        click.echo(f"kvxfer bench: {error}", err=True)
        ctx.exit(2 if isinstance(error, BadValue) else 1)
