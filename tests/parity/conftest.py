import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "weights"))  # for its writers of quantised weights
sys.path.insert(0, str(Path(__file__).parent.parent / "engine"))  # for steps made by hand
