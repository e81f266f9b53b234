"""`python -m kvxfer_router`: the same as the `kvxfer-router` command."""

from __future__ import annotations

from kvxfer_router.cli import main

if __name__ == "__main__":
    main()
