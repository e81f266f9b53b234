"""A transport in a C shared library: the table of spec/kvxfer_transport.h, loaded by path.

Owns the descriptor that the entry point names. Refuses to load anything by itself:
each session names its library with the option `library`. Invariant: looking at this
package opens no library. A complete library in C is in sample/.

ctypes and not cffi: it is in the standard library, needs no compiler where kvxfer is
installed, gives the interpreter lock up during each call, and one call carries whole
columns, so its price per call (a few microseconds) is not paid per range. What cffi
would check when it is built, the layout of the structures, a test checks against the header.
"""

from __future__ import annotations

from typing import Final

from kvxfer.status import Status
from kvxfer.transport.ops import TransportDescriptor, TransportOps

NAME: Final = "capi"


def probe() -> tuple[Status, str]:
    """Always OK: which library is meant is said when a session is opened."""
    return Status.OK, "open a session with the option library=/path/to/library.so"


def load() -> TransportOps:
    """The table."""
    from kvxfer_capi.ops import OPS

    return OPS


DESCRIPTOR: Final = TransportDescriptor(
    name=NAME,
    summary="a shared library that implements spec/kvxfer_transport.h",
    probe=probe,
    load=load,
)
"""What the entry point loads."""
