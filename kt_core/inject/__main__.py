"""python -m kt_core.inject FILE: whether a rule file is right. A fault goes to standard output as an event."""

import os
import sys
from pathlib import Path

from kt_core.errors import KTError
from kt_core.events import Events
from kt_core.inject import read_rules


def main() -> int:
    """Returns the exit code."""
    events = Events(os.dup(1))
    os.dup2(2, 1)  # what a library prints is no event
    try:
        read_rules(Path(sys.argv[1]))
    except KTError as error:
        events.error(error)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
