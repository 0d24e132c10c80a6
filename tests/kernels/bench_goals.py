"""How far each format is from its goal: `python tests/kernels/bench_goals.py [--formats Q4_K ...] [--save FILE]`.

Runs `kt microbench moe`, one call a format, for experts of 1, 4, 16 and 64 rows and one and two threads, and prints the
share of the ceiling of each cell, what is missing to its goal, and the formats that miss most first. --from FILE ...
prints what earlier runs saved; of a cell that is in several the median share counts.
"""

import argparse
import json
import statistics
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

# Tokens of qwen3-30b-a3b (128 experts, 8 a token) -> rows of an expert.
ROWS = {1: 1, 64: 4, 256: 16, 1024: 64}
WIDE = ("BF16", "FP8_BLOCK", "FP8_CHANNEL", "MXFP8", "INT8_CHANNEL", "Q8_0")
LOW = ("Q2_K", "Q3_K", "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S")
INT8 = ("INT8_CHANNEL", "Q8_0")
FORMATS = (
    *("BF16", "FP8_BLOCK", "INT8_CHANNEL", "Q8_0", "INT4", "MXFP4", "NVFP4", "Q4_0", "Q4_1", "Q4_K", "Q5_K", "Q6_K"),
    *("IQ4_XS", "Q3_K", "Q2_K", "IQ3_S", "IQ2_XXS"),
)


def goal(format, rows):
    """Share of the ceiling to reach."""
    if rows >= 64:
        return 0.85 if format == "BF16" else 0.65 if format in INT8 else 0.75
    if rows > 1:
        return 0.8
    return 0.6 if format in LOW else 0.9 if format in WIDE else 0.88


def bf16_share(row):
    """Of 64 rows and more: what the goal of most formats counts in, the peak of bfloat16, half of int8's."""
    tflops = row["unit_tflops"]
    peak = tflops["bf16"] if "bf16" in tflops else tflops["int8"] / 2
    return row["tflops"] / peak


def share(row):
    if ROWS[row["tokens"]] >= 64 and row["format"] not in ("BF16", *INT8):
        return bf16_share(row)
    return row["share_of_ceiling"]


def run(options):
    for format in options.formats:
        command = [sys.executable, "-m", "kt_cli", "microbench", "moe", "--json", "--formats", format]
        command += ["--tokens", ",".join(map(str, options.tokens)), "--threads", ",".join(map(str, options.threads))]
        out = subprocess.run([*command, "--repeats", str(options.repeats)], capture_output=True, text=True, check=True)
        yield from json.loads(out.stdout.splitlines()[-1])["rows"]


def show(rows):
    cells = defaultdict(list)
    for row in rows:
        cells[row["format"], row["threads"], ROWS[row["tokens"]]].append(share(row))
    kinds = sorted({(threads, count) for _, threads, count in cells})
    table = []
    for format in dict.fromkeys(format for format, _, _ in cells):
        found = {kind: cells.get((format, kind[0], kind[1])) for kind in kinds}
        shares = {kind: statistics.median(values) for kind, values in found.items() if values}
        missing = {kind: goal(format, kind[1]) - value for kind, value in shares.items()}
        table.append((max(missing.values()), format, shares, missing))
    print(f"{'format':13}" + "".join(f"{f'{threads}t {count}r':>12}" for threads, count in kinds))
    for _, format, shares, missing in sorted(table, reverse=True):
        texts = [f"{shares[k]:.0%} ({-100 * missing[k]:+.0f})" if k in shares else "" for k in kinds]
        print(f"{format:13}" + "".join(f"{text:>12}" for text in texts))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--formats", nargs="+", default=FORMATS)
    parser.add_argument("--tokens", type=int, nargs="+", default=list(ROWS), choices=list(ROWS))
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--save")
    parser.add_argument("--from", nargs="+", dest="files")
    options = parser.parse_args()
    if options.files:
        rows = [json.loads(line) for name in options.files for line in Path(name).read_text().splitlines()]
    else:
        rows = list(run(options))
        if options.save:
            with Path(options.save).open("a") as file:
                file.writelines(json.dumps(row) + "\n" for row in rows)
    show(rows)


if __name__ == "__main__":
    main()
