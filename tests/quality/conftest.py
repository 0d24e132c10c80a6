"""For tiny models of other rooms' tests, and steps of making other precisions of them."""

import sys
from pathlib import Path

TESTS = Path(__file__).parent.parent
sys.path[:0] = [str(TESTS / folder) for folder in ("weights", "engine")]
