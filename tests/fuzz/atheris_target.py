"""Coverage-guided fuzzing of the session.

    python tests/fuzz/atheris_target.py /tmp/found tests/fuzz/corpus -max_total_time=300

Needs `pip install atheris`, which is not among the project's dependencies. What it
finds interesting it adds to the first folder named; see docs/simulator.md.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).parent))

with atheris.instrument_imports(include=["kvxfer.wire", "kvxfer.core"]):
    import fuzz_session

if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    atheris.Setup(sys.argv, fuzz_session.run)
    atheris.Fuzz()
