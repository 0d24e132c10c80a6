"""`make bench`: a fixed small set of figures, added to docs/benchmarks.jsonl, beside the last ones of the same kind of machine.

    python tests/bench/guard.py [--file FILE] [--dry]

The machine should be idle. A line holds the date, the commit, the machine, the tier and the figures; a ratio above 1 is
faster than the last line of the same CPU, threads and tier. Nothing fails: a person reads it.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
FILE = ROOT / "docs" / "benchmarks.jsonl"
KT = (sys.executable, "-m", "kt_cli")
MOE = ("microbench", "moe", "--formats", "BF16,Q8_0,Q4_K,Q6_K,INT4", "--tokens", "1,4,1024", "--repeats", "5")
SERVING = (
    "bench",
    "inference",
    "demo",
    "--prompt",
    "128,1024",
    "--output",
    "64",
    "--concurrency",
    "1,8",
    "--repeats",
    "2",
)
KIND = ("cpu", "usable_cpus", "gpus", "tier")  # what must be the same for a comparison


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file", type=Path, default=FILE)
    parser.add_argument("--dry", action="store_true", help="write nothing")
    options = parser.parse_args()
    line = {**conditions(), "figures": {**kernels(run(MOE)), **serving(run(SERVING))}}
    last = newest(lines(options.file), line)
    sys.stdout.write(report(line, last) + "\n")
    if not options.dry:
        with options.file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def run(words: tuple[str, ...]) -> dict[str, Any]:
    done = subprocess.run([*KT, *words, "--json"], stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def conditions() -> dict[str, Any]:
    from kt_core import kernels as native
    from kt_core.machine import probe, profile

    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=ROOT).stdout
    machine = profile.fingerprint(probe())
    kept = {name: machine[name] for name in ("cpu", "usable_cpus", "gpus")}
    return {"date": time.strftime("%Y-%m-%d"), "commit": commit.strip(), **kept, "tier": native.info()["chosen"]}


def kernels(document: dict[str, Any]) -> dict[str, float]:
    """GB/s where memory bounds, else TFLOP/s."""
    return {
        f"moe {row['format']} {row['tokens']}": round(row["gbps"] if row["limit"] == "memory" else row["tflops"], 4)
        for row in document["rows"]
    }


def serving(document: dict[str, Any]) -> dict[str, float]:
    names = {"prefill_rate": "prefill", "decode_rate": "decode", "output_rate": "all"}
    return {
        f"demo {row['prompt']}+{row['output']} x{row['concurrency']} {short}": round(row[name], 2)
        for row in document["rows"]
        for name, short in names.items()
    }


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(text) for text in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []


def newest(before: list[dict[str, Any]], line: dict[str, Any]) -> dict[str, Any] | None:
    return next((old for old in reversed(before) if all(old[name] == line[name] for name in KIND)), None)


def report(line: dict[str, Any], last: dict[str, Any] | None) -> str:
    title = f"{line['cpu']}, {line['tier']}, {line['commit']}" + (
        f" beside {last['commit']} of {last['date']}" if last else ""
    )
    old = last["figures"] if last else {}
    rows = [
        f"{name:32} {value:10.4g}" + (f" {value / old[name]:6.2f}" if old.get(name) else "")
        for name, value in line["figures"].items()
    ]
    return "\n".join([title, *rows])


if __name__ == "__main__":
    main()
