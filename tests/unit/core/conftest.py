"""Puts the rig of these tests, core_rig.py, where they can import it."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
