import sys
from pathlib import Path

for folder in ("engine", "weights"):
    sys.path.append(str(Path(__file__).parents[1] / folder))
