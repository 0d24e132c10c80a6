"""`kt bench`: requests of known lengths, figures of their times, the named limit, saved runs, reports."""

import argparse
import asyncio
import contextlib
import csv
import json
import os
import random
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy
import outside
import pytest
from timed_server import TimedServer

from kt_cli import bench_report, client, main, output
from kt_core.bench.serving import (
    Case,
    Conditions,
    Sample,
    Server,
    energy,
    likely_limit,
    parse_lengths,
    plot,
    requests,
    saved,
    summary,
)
from kt_core.bench.serving.figures import PERCENTS, percentile
from kt_core.bench.serving.workload import Length, words
from kt_core.errors import BadData, KTError, NotFound, UsageError
from kt_core.machine import probe


def kt(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kt_cli", *args], capture_output=True, text=True, timeout=120, check=False
    )


@pytest.fixture(autouse=True)
def homes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for kind in ("STATE", "CONFIG", "CACHE"):
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(tmp_path / kind))
    monkeypatch.setenv("KT_LANG", "en")
    yield
    output.reset()


def test_percentiles_are_numpys() -> None:
    chance = random.Random(1)
    for count in (1, 2, 3, 10, 97):
        values = [chance.random() for _ in range(count)]
        for percent in (0, 50, 90, 99, 100):
            assert percentile(values, percent) == pytest.approx(float(numpy.percentile(values, percent)))


@pytest.mark.parametrize(
    ("text", "lengths"),
    [("512", [(512, 512)]), ("64, 128", [(64, 64), (128, 128)]), ("5-9,7,5-9", [(5, 9), (7, 7)])],
)
def test_lengths(text: str, lengths: list[tuple[int, int]]) -> None:
    assert [(length.low, length.high) for length in parse_lengths(text, "--prompt")] == lengths


@pytest.mark.parametrize("text", ["", "0", "9-5", "a", "1-", "-1", "1,,2", "²"])
def test_no_lengths(text: str) -> None:
    with pytest.raises(UsageError):
        parse_lengths(text, "--prompt")


def test_prompts_have_no_common_beginning() -> None:
    chance = random.Random(0)
    assert len({words(8, chance) for _ in range(64)}) == 64


def test_each_run_has_prompts_of_its_own_unless_a_seed_is_given() -> None:
    case = Case(Length(20, 20), Length(1, 1), 1, 0, 1)
    with TimedServer() as server:
        server.tokenizes = False  # texts tell more than the lengths of their words
        for seed in (None, None, 5, 5):
            Server(server.url, "timed", seed=seed).run(case, lambda done: None)
        first, second, third, fourth = [body["prompt"] for body in server.bodies]
    assert first != second and third == fourth


def test_figures_are_the_timetables() -> None:
    """Against the server's own timetable, and what the definitions say of exact times."""
    case = Case(Length(20, 20), Length(6, 6), concurrency=3, depth=0, repeats=2)
    with TimedServer(wait=0.2, gap=0.05) as server:
        samples = Server(server.url, "timed").run(case, lambda done: None)
        assert server.most_at_once == 3
        assert [len(body["prompt"]) for body in server.bodies] == [20] * 6
        assert len({tuple(body["prompt"]) for body in server.bodies}) == 6
    row = summary(case, samples)
    assert (row.requests, row.failed) == (6, 0)
    assert 0.2 <= row.first_token[0] < 0.35
    assert 0.05 <= row.between_tokens[0] < 0.08
    assert row.prefill_rate == pytest.approx(20 / row.first_token[0], rel=0.3)
    assert 12 < row.decode_rate <= 20
    assert row.request[0] >= row.first_token[0] + 5 * 0.05


def test_exact_figures() -> None:
    first = Sample(10.0, pieces=[11.0, 11.5, 12.5], ended=12.6, prompt_tokens=100, cached_tokens=50, tokens=4)
    second = Sample(10.5, pieces=[12.5], ended=12.5, prompt_tokens=100, tokens=1)
    broken = Sample(10.0, ended=14.0, error="gone")
    row = summary(Case(Length(100, 100), Length(1, 4), 2, 0, 2), [first, second, broken], 7, 2.0)
    assert (row.requests, row.failed, row.output) == (3, 1, "1-4")
    assert row.first_token == pytest.approx(numpy.percentile([1.0, 2.0], PERCENTS))
    assert row.between_tokens == pytest.approx(numpy.percentile([0.5, 1.0], PERCENTS))
    assert row.prefill_rate == pytest.approx((50 / 1.0 + 100 / 2.0) / 2)
    assert row.decode_rate == pytest.approx(3 / 1.5)
    assert row.output_rate == pytest.approx(5 / 4.0)


def test_depth_is_sent_before_every_prompt() -> None:
    case = Case(Length(4, 4), Length(2, 2), concurrency=1, depth=9, repeats=2)
    with TimedServer() as server:
        Server(server.url, "timed").run(case, lambda done: None)
        before, *asked = [body["prompt"] for body in server.bodies]
    assert len(before) == 9
    assert all(prompt[:9] == before and len(prompt) == 13 for prompt in asked)


def test_a_server_that_does_not_tokenise_gets_text() -> None:
    with TimedServer() as server:
        server.tokenizes = False
        case = Case(Length(12, 12), Length(2, 2), 1, 0, 1)
        sample = Server(server.url, "timed").run(case, lambda done: None)[0]
        assert server.bodies[0]["prompt"].count(" ") == 11
    assert sample.prompt_tokens == 12


def test_nothing_answers() -> None:
    with pytest.raises(NotFound):
        Server("http://127.0.0.1:9", "m").warm_up()
    with TimedServer() as server, pytest.raises(KTError, match="too long by far"):
        server.refuse = True
        Server(server.url, "m").warm_up()


@contextlib.contextmanager
def silent() -> Iterator[str]:
    """The address of a server that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


def test_a_silent_server_is_told_of_and_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "WAIT_SECONDS", 0.2)
    told: list[float] = []
    with silent() as url:
        for ask in (Server.warm_up, Server.info):
            told.clear()
            with pytest.raises(NotFound, match="sent nothing for 1 s") as caught:
                ask(Server(url, "m", patience=1, waits=told.append))
            assert caught.value.exit_code == 4 and [round(seconds, 1) >= 0.2 for seconds in told] == [True] * 3, told


def test_an_answer_that_stops_is_given_up_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a wait for each request of the case; words that come are no silence."""
    case = Case(Length(4, 4), Length(3, 3), concurrency=1, depth=0, repeats=3)
    with TimedServer(gap=0.4) as server:
        assert all(sample.tokens == 3 for sample in Server(server.url, "m", patience=0.8).run(case, lambda done: None))
    with TimedServer(gap=3) as server, pytest.raises(NotFound, match=r"sent nothing for 0\.5 s"):
        Server(server.url, "m", patience=0.5).run(case, lambda done: None)
    assert len(server.bodies) == 1


def test_a_silent_list_of_models(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(client, "LIST_SECONDS", 1)
    monkeypatch.setattr(output, "STILL_SECONDS", 0.1)
    with silent() as url:
        code = main.run(["bench", "--url", url])
    shown = capsys.readouterr().err
    assert code == 4 and "Still waiting for http://127" in shown and "then sent nothing for 1 s" in shown


def test_what_a_server_says_is_no_command(capsys: pytest.CaptureFixture[str]) -> None:
    with TimedServer() as server:
        server.bytes = b'data: {"error": "\\u001b]0;owned\\u0007\\u009b2Jfull\\u202e"}\n\n'
        assert main.run(["bench", "--url", server.url]) == 1
        assert main.run(["bench", "--url", server.url, "--json"]) == 1
    out, err = capsys.readouterr()
    assert "full" in err and "full" in out and not re.search("[\x1b\x07\x9b\u202e]", out + err)


GOOD = Conditions(threads=2, tier="avx2", best_tier="avx2", reads=30e9, profile_reads=32e9)


@pytest.mark.parametrize(
    ("change", "quota", "measured", "name"),
    [
        ({}, 0, 90, "bandwidth"),
        ({}, 0, 20, "unknown"),
        ({"threads": 64}, 0, 90, "threads"),
        ({}, 1.5, 50, "quota"),
        ({}, 2.5, 90, "bandwidth"),
        ({"tier": "scalar"}, 0, 5, "tier"),
        ({"reads": 12e9}, 0, 40, "memory"),
        ({"note": "memory could not be bound"}, 0, 40, "node"),
    ],
)
def test_the_named_limit(change: dict[str, object], quota: float, measured: float, name: str) -> None:
    machine = replace(probe(), limits={"quota": quota} if quota else {}, physical_cores=2, allowed_cpus=(0, 1))
    assert likely_limit(machine, replace(GOOD, **change), measured, 100.0).name == name  # type: ignore[arg-type]


def test_without_a_prediction_no_limit_is_claimed() -> None:
    machine = replace(probe(), limits={}, physical_cores=2, allowed_cpus=(0, 1))
    assert likely_limit(machine, GOOD, 90, 0.0).name == "unmeasured"


def test_reports_go_through_links_and_into_pipes(tmp_path: Path) -> None:
    """What is no file stays what it is: as root, /dev/null would be gone."""
    (tmp_path / "real.csv").touch()
    (tmp_path / "link.csv").symlink_to(tmp_path / "real.csv")
    os.mkfifo(tmp_path / "pipe.csv")
    run = {"rows": [{"prompt": "8", "decode_rate": 1.0}]}
    bench_report.check(tmp_path / "link.csv", tmp_path / "pipe.csv")
    bench_report.write(run, tmp_path / "link.csv", None)
    assert (tmp_path / "link.csv").is_symlink() and "decode_rate" in (tmp_path / "real.csv").read_text()
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit((tmp_path / "pipe.csv").read_text)
        bench_report.write(run, tmp_path / "pipe.csv", None)
        assert "decode_rate" in read.result(10)
    assert (tmp_path / "pipe.csv").is_fifo()


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"data: {not json\n\n", "no event"),
        (b"data: [1]\n\n", "no event"),
        (b'data: {"choices": null}\n\n', "no event"),
        (b'data: {"choices": [5]}\n\n', "no event"),
        (b'data: {"choices": [], "usage": [1]}\n\n', "no event"),
        (b'data: {"choices": [], "usage": {"prompt_tokens": null, "completion_tokens": 1}}\n\n', "no event"),
        (b'data: {"choices": [{"text": "a"}]}\n\ndata: [DONE]\n\n', "how many tokens"),
        (b'data: {"choices": [{"text": "a"}]}\n\n', "before its end"),
        (b"data: [DONE]\n\n", "without text"),
        (b'data: {"error": "full"}\n\n', "full"),
    ],
)
def test_answers_that_are_none_are_failures(answer: bytes, words: str) -> None:
    with TimedServer() as server:
        server.bytes = answer
        with pytest.raises(KTError) as caught:
            Server(server.url, "timed").warm_up()
    assert words in str(caught.value.lines())


def test_energy(tmp_path: Path) -> None:
    for zone, begin in (("intel-rapl:0", 100), ("intel-rapl:1", 900), ("intel-rapl:0:0", 5)):
        (tmp_path / zone).mkdir()
        (tmp_path / zone / "energy_uj").write_text(str(begin * 10**6))
        (tmp_path / zone / "max_energy_range_uj").write_text(str(1000 * 10**6))
    with energy.meter(tmp_path) as joules:
        (tmp_path / "intel-rapl:0" / "energy_uj").write_text(str(130 * 10**6))
        (tmp_path / "intel-rapl:1" / "energy_uj").write_text(str(50 * 10**6))  # ran over: 100 to the end, 50 more
        (tmp_path / "intel-rapl:0:0" / "energy_uj").write_text(str(10**9))  # a part of a package
        assert joules() == pytest.approx(30 + 150)
    with energy.meter(tmp_path / "none") as joules:
        assert joules() is None


@pytest.mark.alone
def test_an_outside_clock_and_another_generator_agree() -> None:
    """Within 3 %: the same requests timed by a relay between, and requests of the same lengths by threads and plain sockets.

    In one of six tries: what else the machine does may meet one clock alone.
    """
    case = Case(Length(8, 8), Length(8, 8), 2, 0, 1)
    options = argparse.Namespace(prompt=8, output=8, concurrency=2, repeats=1)
    ratios = []
    with TimedServer(wait=0.3, gap=0.03) as server:
        port = int(server.url.rpartition(":")[2])
        for _ in range(6):
            relay = outside.Relay(port)
            mine = summary(case, Server(relay.url, "timed").run(case, lambda done: None)).data()
            assert len(relay.requests) == 2
            clocks = outside.figures(relay.requests), outside.generate(port, "timed", options, random.Random(1))
            ratios.append(max(abs(mine[name] / found - 1) for others in clocks for name, found in others.items()))
            if ratios[-1] <= 0.03:
                break
    assert min(ratios) <= 0.03


def test_a_connection_that_breaks_is_told_in_words() -> None:
    """Not by the names of a library's classes."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=lambda: [listening.accept()[0].close() for _ in range(2)], daemon=True).start()
        server = Server(f"http://127.0.0.1:{listening.getsockname()[1]}", "tiny")

        async def asked() -> Sample:
            async with server._client() as client:
                return await server._ask(client, "words", 1)

        error = asyncio.run(asked()).error
    assert "connection" in error and not re.search(r"[a-z]Error|httpx", error)


def test_saved_runs(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"called new\. Nothing has been saved yet\. Keep one"):
        saved.load("new")
    row = {"prompt": "8", "output": "4", "concurrency": 1, "depth": 0, **dict.fromkeys(saved.FIGURES, 10.0)}
    saved.save("old", {"rows": [row]})
    assert saved.names() == ["old"]
    assert saved.compared(saved.load("old")["rows"], [{**row, "decode_rate": 15.0}], "decode_rate") == [
        ("8+4 x1 @0", 10.0, 15.0)
    ]
    for name in ("../x", "", "a/b", ".hidden"):
        with pytest.raises(UsageError):
            saved.save(name, {"rows": []})
    with pytest.raises(NotFound, match=r"Saved: old\."):
        saved.load("new")
    lacking = {name: value for name, value in row.items() if name != "prefill_rate"}
    rows = [json.dumps({"version": 1, "rows": [one]}) for one in (lacking, {**row, "prefill_rate": "fast"}, "x")]
    odd = {"prompt": "\x1b[31m"}, {"depth": [1]}, {"decode_rate": -1}, {"decode_rate": 10**400}
    more = [json.dumps({"version": 1, "rows": [row | one]}) for one in odd]
    for text in (
        *rows,
        *more,
        more[0].replace('"\\u001b[31m"', "NaN"),
        "[" * 100000,
        '{"version": 1, "rows": {}}',
        "{",
        "[]",
        '{"rows": 3}',
        '{"version": 1, "rows": [{}]}',
        '{"version": 9, "rows": []}',
    ):
        (saved.folder() / "bad.json").write_text(text)
        with pytest.raises(BadData) as refused:
            saved.load("bad")
        assert "'" not in str(refused.value)  # a missing key's repr is no reason


def test_a_picture_names_its_axes_with_units(tmp_path: Path) -> None:
    """As text: an SVG whose letters are not drawn as paths."""
    matplotlib = pytest.importorskip("matplotlib")
    figures = {f"{name}_p{percent}": 0.1 for name in ("first_token", "between_tokens") for percent in (50, 99)}
    rates = dict.fromkeys(("prefill_rate", "decode_rate", "output_rate"), 10.0)
    row = {"prompt": "8", "output": "4", "concurrency": 1, "depth": 0, **figures, **rates}
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        drawn = plot.write(tmp_path / "a.svg", [row, row], bench_report.axes("tiny")).read_text()
    for text in (
        *("tiny: speed as clients see it", "Rates", "Times", "rate (tokens a second)", "time (milliseconds)"),
        *("prompt + output tokens, x requests at once,", "@ tokens in the cache before"),
    ):
        assert f">{text}<" in drawn, text
    assert drawn.count(">prompt + output tokens") == 2


def test_the_command(tmp_path: Path) -> None:
    with TimedServer(wait=0.02, gap=0.01) as server:
        options = ("--url", server.url, "--prompt", "8,4-6", "--output", "3", "-c", "1,2", "--repeats", "1")
        files = ("--save", "one", "--csv", str(tmp_path / "a.csv"), "--markdown", str(tmp_path / "a.md"))
        done = kt("bench", *options, *files, "--plot", str(tmp_path / "a.png"), "--json")
        assert done.returncode == 0, done.stderr
        run = json.loads(done.stdout)
        assert [(row["prompt"], row["concurrency"]) for row in run["rows"]] == [
            ("8", 1), ("8", 2), ("4-6", 1), ("4-6", 2)
        ]  # fmt: skip
        assert {"first_token_p50", "between_tokens_p99", "decode_rate"} <= set(run["rows"][0])
        assert (run["model"], run["limit"]) == ("timed", None)
        shown = kt("bench", *options, "--compare", "one", "--save", "two")
        again = json.loads(kt("bench", *options, "--compare", "one", "--json").stdout)
    assert {entry["figure"] for entry in again["compared"]} >= {"decode_rate", "first_token_p50"}
    assert "FIRST TOKEN ms" in shown.stdout and "RATIO" in shown.stdout
    with (tmp_path / "a.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 4
    assert (tmp_path / "a.md").read_text().count("\n| ") == 6
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    compared = json.loads(kt("bench", "compare", "one", "two", "--json").stdout)
    assert {entry["figure"] for entry in compared["rows"]} >= {"decode_rate", "first_token_p50"}


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (("--prompt", "0"), 2, "--prompt does not take 0"),
        (("--depth", "-1"), 2, "--depth"),
        (("--depth", "9" * 5000), 2, "--depth does not take 999"),
        (("--prompt", "9" * 5000), 2, "--prompt does not take 999"),
        (("--concurrency", "9" * 5000), 2, "whole numbers"),
        (("--seed", "9" * 4000), 2, "at most 18 digits"),
        (("--timeout", "0"), 2, "--timeout"),
        (("--depth", "0,1-2"), 2, "numbers from 0"),
        (("--compare", "none"), 4, "no saved run called none"),
        (("--plot", "x.txt"), 2, "no picture"),
        (("--plot", "none/x.png"), 4, "does not exist"),
        (("--csv", "none/x.csv"), 4, "does not exist"),
        (("--markdown", "/proc/x.md"), 1, "/proc/"),
        (("--save", "a/b"), 2, "a/b"),
        (("--concurrency", "0"), 2, "See: kt bench --help"),
        (("--concurrency", "999999999999999999"), 2, "The limit is"),
        (("--concurrency", "99999999999999999999"), 2, "at most 18 digits"),
        (("--url", "http://127.0.0.1:9"), 4, "127.0.0.1:9"),
        ((), 4, "No server runs here"),
        (("no-such-model-anywhere",), 4, "no-such-model-anywhere"),
    ],
)
def test_refusals(args: tuple[str, ...], code: int, words: str) -> None:
    done = kt("bench", *args)
    assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr
    assert words in done.stderr
