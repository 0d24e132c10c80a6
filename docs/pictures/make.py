"""Makes demo.svg, the README's picture, from a session that it runs: python docs/pictures/make.py, in kt's environment."""

import io
import re
import shlex
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

WIDTH = 100
KT = Path(sys.executable).with_name("kt")


def run(command: str) -> tuple[str, str]:
    """The standard output and error of a kt command, in colour and in English."""
    arguments = [str(KT), *shlex.split(command)[1:], "--color", "always"]
    environment = {"HOME": str(Path.home()), "PATH": "/usr/bin:/bin", "KT_LANG": "en", "LANG": "C.UTF-8"}
    done = subprocess.run(arguments, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.rstrip("\n").replace(str(Path.home()), "~"), done.stderr.rstrip("\n")


def main() -> None:
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="standard")

    def show(command: str, *outputs: str) -> None:
        console.print(Text.assemble(("$ ", "bold green"), command))
        for output in outputs:
            console.print(Text.from_ansi(output))

    ask = 'kt run demo -p "What is photosynthesis?" -t 0 --max-tokens 90'
    answer, status = run(ask)
    show(ask, answer, status.splitlines()[-1])  # a terminal erases the progress before it
    console.print()
    explain = "kt run demo --dry-run"
    plan, _ = run(explain)
    show(explain, plan)

    svg = console.export_svg(title="kt", unique_id="kt")
    svg = re.sub(r"@font-face \{.*?\}\n?", "", svg, flags=re.DOTALL)  # Rich's fonts come from the network
    svg = svg.replace("Fira Code, monospace", "monospace").replace("font-family: arial", "font-family: sans-serif")
    svg = re.sub(r"[ \t]+$", "", svg, flags=re.MULTILINE)
    Path(__file__).with_name("demo.svg").write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
