"""Makes vllm_tiny_engines.py and vllm_real_moves.py importable for the tests beside it."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
