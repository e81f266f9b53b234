"""What the tests of the docs share; how pages are read is in docs_pages.py."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
