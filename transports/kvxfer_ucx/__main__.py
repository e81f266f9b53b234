"""`python -m kvxfer_ucx`: build the shim now and say which UCX it was tried with.

Owns two lines of output. For images that have a compiler only while they are built.
"""

from __future__ import annotations

import sys

from kvxfer_ucx.binding import load_shim
from kvxfer_ucx.build import ensure_shim
from kvxfer_ucx.library import find_library


def main() -> int:
    """Exit status 0, or 1 with the reason on standard error."""
    try:
        library = find_library()
        path = ensure_shim(library)
        version = load_shim().version()
    except ImportError as error:
        sys.stderr.write(f"kvxfer_ucx: {error}\n")
        return 1
    sys.stdout.write(f"shim: {path}\nlibrary: {library.describe()} (reports {version})\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
