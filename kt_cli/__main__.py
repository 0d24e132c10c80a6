"""The entry of `kt` and `python -m kt_cli`: what Ctrl-C does before and after the command runs."""

import os
import signal
import sys


def main() -> None:
    """Run the command line and exit with its code; with 130 on Ctrl-C, also while kt is imported."""
    caught = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # else it was ignored from the start
    if caught:
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))  # there is nothing to put in order yet
    from kt_cli.main import main as run

    try:
        if caught:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        run()
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        signal.signal(signal.SIGINT, lambda *_: None)  # the interpreter's end would tell of it in a traceback


if __name__ == "__main__":
    main()
