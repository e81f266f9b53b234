"""What a person should know about nixl here.

Owns the texts. Invariant: nothing is said of a backend that was not tried.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from kvxfer.status import Status
from kvxfer.transport.finding import Finding, Level
from kvxfer.transport.sessions import Refused
from kvxfer_nixl.agent import LIBFABRIC
from kvxfer_nixl.session import Session

_RDMA_FOLDER = "/sys/class/infiniband"


def diagnose() -> Iterator[Finding]:
    """UCX works where this is called; the rest is tried here."""
    if os.path.isdir(_RDMA_FOLDER) and os.listdir(_RDMA_FOLDER):
        yield Finding(
            level=Level.NOTE,
            subject="nixl UCX",
            text="RDMA devices are here; whether the UCX inside nixl's wheel uses them shows only "
            "with UCX_LOG_LEVEL=info",
            fix="look for 'rc_mlx5' in that log; without it, install a nixl built on your UCX",
        )
    try:
        Session.open({"backends": [LIBFABRIC]}).close()
    except Refused as refused:
        missing = refused.status == Status.LIBRARY_MISSING
        yield Finding(
            level=Level.NOTE,
            subject="nixl LIBFABRIC",
            text=str(refused),
            fix="only needed for EFA: docs/fabric.md has what comes from where"
            if missing
            else "docs/fabric.md; FI_LOG_LEVEL=info shows what libfabric tried",
        )
    else:
        provider = os.environ.get("FI_PROVIDER", "")
        text = f"opens; FI_PROVIDER is {provider!r}" if provider else "opens; FI_PROVIDER is unset"
        yield Finding(level=Level.FINE, subject="nixl LIBFABRIC", text=text)
