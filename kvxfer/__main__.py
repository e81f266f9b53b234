"""`python -m kvxfer`: the same as the `kvxfer` command."""

from __future__ import annotations

from kvxfer.cli import main

if __name__ == "__main__":
    main(prog_name="kvxfer")
