import sys
from pathlib import Path

TESTS = Path(__file__).parent.parent
for folder in ("parity", "weights", "programs", "engine", "server"):
    sys.path.append(str(TESTS / folder))
