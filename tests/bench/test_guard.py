"""`make bench`: what it takes from a run, and which earlier line it compares with."""

import json
from pathlib import Path

import guard

LINE = {"date": "2026-01-02", "commit": "b", "cpu": "x", "usable_cpus": 2, "gpus": [], "tier": "avx2"}


def test_the_newest_line_of_the_same_kind_of_machine(tmp_path: Path) -> None:
    before = [{**LINE, "commit": "1"}, {**LINE, "commit": "2"}, {**LINE, "tier": "amx"}, {**LINE, "usable_cpus": 4}]
    file = tmp_path / "figures.jsonl"
    assert guard.lines(file) == []
    file.write_text("".join(json.dumps(line) + "\n" for line in before))
    found = guard.newest(guard.lines(file), LINE)
    assert found is not None and found["commit"] == "2"
    assert guard.newest(before[2:], LINE) is None


def test_figures_and_ratios() -> None:
    rows = [
        {"format": "Q8_0", "tokens": 1, "limit": "memory", "gbps": 30.0, "tflops": 0.1},
        {"format": "Q8_0", "tokens": 512, "limit": "compute", "gbps": 1.0, "tflops": 0.7},
    ]
    figures = guard.kernels({"rows": rows})
    assert figures == {"moe Q8_0 1": 30.0, "moe Q8_0 512": 0.7}
    text = guard.report({**LINE, "figures": figures}, {**LINE, "figures": {"moe Q8_0 1": 20.0}})
    assert "1.50" in text and text.count("\n") == 2
    assert "beside" not in guard.report({**LINE, "figures": figures}, None)
