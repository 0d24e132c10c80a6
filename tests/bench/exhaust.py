"""`kt tune`'s search beside all combinations of threads, tokens of a step and sequences, for one model.

    python tests/bench/exhaust.py NAME [--repeats 1] [--few]

Each combination is measured as `kt tune` does, and kept in a table; the search then reads that table, so both see the same numbers,
and what the machine did meanwhile favours neither. Prints the table, what the search tried, and its best over the best of all.
"""

import argparse
import itertools
import json
import sys

from kt_cli import launch
from kt_cli.commands import tune
from kt_core.bench.serving.search import Rates, Settings, best, score, search
from kt_core.machine import default_threads, probe


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--few", action="store_true", help="two chunks and three numbers of sequences")
    options = parser.parse_args()
    files, machine = launch.files_of(options.name), probe()
    usual = {"threads": default_threads(machine)[0]}
    knobs = tune.knobs(machine)
    if options.few:
        knobs |= {"chunk": [128, 512], "max_running": [4, 16]}
    table: dict[str, Rates | None] = {}
    for values in itertools.product(*([None, *choices] for choices in knobs.values())):
        settings = {name: value for name, value in zip(knobs, values, strict=True) if value is not None}
        table[key(settings)] = tune._rates(files, settings, options.repeats)
        sys.stdout.write(f"{settings or usual}: {table[key(settings)]}\n")
        sys.stdout.flush()
    base = table[key({})]
    assert base is not None
    scores = {name: score(rates, base) for name, rates in table.items() if rates}
    trials = search(knobs, lambda settings: table[key(settings)])
    most = max(scores, key=scores.__getitem__)
    found = best(trials)
    sys.stdout.write(f"all {len(table)}: {most} {scores[most]:.3f}; search, {len(trials)} tries: {found.settings}\n")
    sys.stdout.write(f"{found.score / scores[most]:.4f} of the best\n")
    return int(found.score < 0.95 * scores[most])


def key(settings: Settings) -> str:
    return json.dumps(settings, sort_keys=True)


if __name__ == "__main__":
    sys.exit(main())
