import sys
from pathlib import Path

TESTS = Path(__file__).parent.parent
for folder in ("parity", "weights"):  # for their tiny models
    sys.path.insert(0, str(TESTS / folder))
