"""Prefixes on disk: found again, never wrong, never in anybody's way."""

import errno
import os
import random
import subprocess
import sys
import threading
from pathlib import Path

import killed
import pytest
import tinymodel
import torch
from reader import Reader, answer_to

from kt_core import kernels
from kt_core.engine.disk import Folder, kept_of, keys_of
from kt_core.engine.disk import folder as folder_module
from kt_core.engine.engine import Engine
from kt_core.types import Decision, ModelFiles, ModelSpec, Plan, ServerSettings

PAGE = 4
TOKENS = list(range(3, 24))  # five pages and one token
KEYS = keys_of(TOKENS, PAGE, 0, b"")
PAYLOAD = 40


def payload(number):
    return bytes(random.Random(number).randrange(256) for _ in range(PAYLOAD))


def new(path, limit=1 << 20, identity=b"a model"):
    return Folder(path, identity, PAYLOAD, limit)


def put(folder, keys=KEYS, first=0):
    for number, key in enumerate(keys, first):
        assert folder.write(key, [payload(number)[:10], payload(number)[10:]], lambda: False)


def got(folder, key):
    found = folder.read(key, bytearray())
    return None if found is None else bytes(found)


def files(path):
    return sorted(Path(where, name) for where, _, names in os.walk(path) for name in names)


# --- files


def test_pages_are_found_again_by_all_their_tokens(tmp_path):
    put(new(tmp_path))
    other = new(tmp_path)  # another server, or the same one after a restart
    assert [got(other, key) for key in KEYS] == [payload(number) for number in range(5)]
    assert not other.write(KEYS[0], [payload(7)], lambda: False)  # each page once
    assert [got(other, key) for key in keys_of([4, *TOKENS[1:]], PAGE, 0, b"")] == [None] * 5
    assert got(new(tmp_path, identity=b"another model"), KEYS[0]) is None
    assert all(file.stat().st_mode & 0o77 == 0 for file in files(tmp_path))


def test_no_flipped_bit_is_served(tmp_path):
    put(new(tmp_path), KEYS[:1])
    (file,) = files(tmp_path)
    whole = file.read_bytes()
    for bit in range(8 * len(whole)):
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        file.write_bytes(changed)
        assert got(new(tmp_path), KEYS[0]) is None, bit
        assert not file.exists()
    file.write_bytes(whole)
    assert got(new(tmp_path), KEYS[0]) == payload(0)


def test_no_other_length_is_served(tmp_path):
    put(new(tmp_path), KEYS[:1])
    (file,) = files(tmp_path)
    whole = file.read_bytes()
    for changed in (*(whole[:length] for length in range(len(whole))), whole + b"\0", whole * 2):
        file.write_bytes(changed)
        assert got(new(tmp_path), KEYS[0]) is None


def test_a_page_in_the_place_of_another_is_not_served(tmp_path):
    put(new(tmp_path))
    places = {key.path: file for key in KEYS for file in files(tmp_path) if file.name == key.path.hex()}
    for key, other in zip(KEYS, (*KEYS[1:], KEYS[0]), strict=True):
        places[key.path].write_bytes(places[other.path].read_bytes())
    foreign = new(tmp_path / "b", identity=b"another model")
    put(foreign)
    assert [got(new(tmp_path), key) for key in KEYS[:4]] == [None] * 4
    target = places[KEYS[0].path]
    target.write_bytes(next(f for f in files(tmp_path / "b") if f.name == target.name).read_bytes())
    assert got(new(tmp_path), KEYS[0]) is None


def test_what_was_used_least_recently_goes(tmp_path):
    put(new(tmp_path / "one"), KEYS[:1])
    size = files(tmp_path / "one")[0].stat().st_size
    new(tmp_path / "one").flush()
    put(new(tmp_path, identity=b"an old model"))
    folder = new(tmp_path, limit=8 * size)
    put(folder, KEYS[:3])
    assert len(files(tmp_path)) == 8 and sum(f.stat().st_size for f in files(tmp_path)) <= 8 * size
    folder.touch(key.path for key in KEYS[2::-1])  # the beginning most recently
    other = keys_of([40] * 21, PAGE, 0, b"")
    put(folder, other, 10)
    put(folder, keys_of([50] * 9, PAGE, 0, b""), 20)
    assert sum(f.stat().st_size for f in files(tmp_path)) <= 8 * size
    assert got(new(tmp_path, identity=b"an old model"), KEYS[0]) is None
    found = [got(folder, key) is not None for key in KEYS[:3]]
    assert found == sorted(found, reverse=True) and not all(found)  # the end of a prefix before its beginning
    assert [f.name for f in tmp_path.iterdir() if f.name != "one"] == [folder._own.name]  # nothing of the old model


def test_foreign_and_unfinished_files(tmp_path):
    put(new(tmp_path))
    shelf = files(tmp_path)[0].parent
    (shelf / "notes.txt").write_text("not kt's")
    for name, age in (("old", 10_000), ("new", 1)):
        unfinished = shelf / f".kt-{name}"
        unfinished.write_bytes(b"half")
        os.utime(unfinished, (unfinished.stat().st_mtime - age,) * 2)
    folder = new(tmp_path)
    folder.trim()
    assert [(shelf / name).exists() for name in ("notes.txt", ".kt-old", ".kt-new")] == [True, False, True]
    assert folder.flush() == 5
    assert {f.name for f in files(tmp_path)} == {"notes.txt", ".kt-new"}


def test_a_page_that_changed_while_it_was_written_is_not_kept(tmp_path):
    assert not new(tmp_path).write(KEYS[0], [payload(0)], lambda: True)
    assert files(tmp_path) == []


# --- the engine


@pytest.fixture
def start(start, tmp_path):
    """Engines with a tier on disk."""

    def make(runner, folder=None, **options):
        return start(runner, disk=folder or Folder(tmp_path, b"reader", runner.page_bytes, 1 << 30), **options)

    return make


def written(engine):
    """Waits until all that was kept is on disk."""
    done = threading.Event()
    engine._disk._orders.put(done.set)
    assert done.wait(60)


PROMPT = list(range(3, 33))  # of seven pages and two tokens


def test_a_restart_finds_prompt_and_answer(start, caplog):
    caplog.set_level("INFO")
    first = start(Reader())
    assert killed.check(first, PROMPT, 7) == 0
    first.close(5)
    runner = Reader()
    again = start(runner)
    assert killed.check(again, PROMPT + answer_to(PROMPT, 7)[:6], 3) == 32
    assert runner.written == 4 + 2  # of 36, and two of the answer
    assert "32 of 36 prompt tokens were cached, 32 of them on disk: " not in caplog.text
    assert "32 of 36 prompt tokens were cached, 32 of them on disk" in caplog.text
    assert killed.check(again, [*PROMPT[:17], 60, 61, 62, 63, 64], 3) == 16
    assert killed.check(again, [60, *PROMPT], 3) == 0
    assert "0 of 31 prompt tokens were cached: no cached prompt goes on like this, and not on disk" in caplog.text


def test_memory_and_disk_together(start):
    first = start(Reader())
    killed.check(first, PROMPT, 1)
    first.close(5)
    runner = Reader()
    again = start(runner)
    assert killed.check(again, PROMPT[:10], 1) == 8
    assert killed.check(again, PROMPT, 1) == 28  # two pages from memory, five from disk
    assert runner.written == 2 + 2


def test_flush_forgets_both(start, tmp_path):
    first = start(Reader())
    killed.check(first, PROMPT, 7)
    assert first.flush_cache() > 0
    assert files(tmp_path) == []
    assert killed.check(first, PROMPT, 7) == 0
    first.close(5)
    assert killed.check(start(Reader()), PROMPT, 7) == 28


def test_what_led_to_bad_logits_is_forgotten(start, tmp_path):
    class Broken(Reader):
        def forward(self, step):
            rows = super().forward(step)
            return rows / 0 if 91 in step.tokens.tolist() else rows

    first = start(Broken())
    killed.check(first, PROMPT, 1)
    killed.check(first, [60] * 9, 1)
    written(first)
    assert list(first.submit(killed.ask([*PROMPT, 91], 3)))[-1].finish_reason == "error"
    first.close(5)
    again = start(Reader())
    assert killed.check(again, [60] * 9, 1) == 8
    assert killed.check(again, PROMPT, 1) == 0


def test_others_compute_while_pages_are_read(start, monkeypatch):
    """The disk answers only after another request has been answered as a whole."""
    first = start(Reader())
    killed.check(first, PROMPT, 1)
    first.close(5)
    gate, read = threading.Event(), Folder.read
    monkeypatch.setattr(Folder, "read", lambda *given: gate.wait(20) and read(*given))
    again = start(Reader())
    waiting = again.submit(killed.ask(PROMPT, 5))
    assert killed.check(again, [7] * 4, 9) == 0  # too short to be looked for
    stopped = again.submit(killed.ask([*PROMPT, 5], 5))
    stopped.cancel()  # its pages are somebody else's from now on, whatever the disk does
    assert [c.finish_reason for c in stopped] == ["cancelled"]
    assert {slot["state"] for slot in again.slots()["running"]} == {"loading"}
    gate.set()
    chunks = list(waiting)
    assert [t for c in chunks for t in c.tokens] == answer_to(PROMPT, 5) and chunks[-1].usage.cached_tokens == 28


def test_files_of_those_that_wait_are_asked_for(start, monkeypatch):
    first = start(Reader())
    killed.check(first, PROMPT, 1)
    first.close(5)
    asked, expect, done = [], Folder.expect, threading.Event()

    def recorded(folder, path):
        found = expect(folder, path)
        asked.append(found)
        if not found:
            done.set()
        return found

    monkeypatch.setattr(Folder, "expect", recorded)
    runner = Reader()
    runner.gate.clear()
    again = start(runner, max_running=1)
    running = again.submit(killed.ask([9] * 4, 3))
    while not again.slots()["running"]:
        pass
    queued = again.submit(killed.ask([*PROMPT, *PROMPT[:10]], 3))
    assert done.wait(20) and asked == [True] * 7 + [False]
    runner.gate.set()
    assert [t for c in running for t in c.tokens] == answer_to([9] * 4, 3)
    assert list(queued)[-1].usage.cached_tokens == 28


def test_a_disk_that_does_not_answer_is_given_up(start, monkeypatch, caplog):
    first = start(Reader())
    killed.check(first, PROMPT, 1)
    first.close(5)
    gate = threading.Event()
    monkeypatch.setattr(Folder, "read", lambda *given: gate.wait(20) and None)
    for module in ("kt_core.engine.engine", "kt_core.engine.disk.tier"):
        monkeypatch.setattr(f"{module}.PATIENCE", 0.2)
    again = start(Reader())
    jobs = [again.submit(killed.ask([*PROMPT, last], 5)) for last in (5, 6)]
    for last, stream in zip((5, 6), jobs, strict=True):
        assert [t for c in stream for t in c.tokens] == answer_to([*PROMPT, last], 5)
    gate.set()
    assert caplog.text.count("no longer kept on disk") == 1


@pytest.mark.parametrize("fault", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_disk_that_takes_nothing_is_left_alone(start, monkeypatch, caplog, fault):
    calls = []

    def refuse(path):
        calls.append(path)
        raise OSError(fault, os.strerror(fault))

    monkeypatch.setattr(folder_module, "_created", refuse)
    engine = start(Reader())
    for prompt in (PROMPT, [9] * 20, [8] * 20):
        assert killed.check(engine, prompt, 5) == 0
        written(engine)
    assert caplog.text.count("no longer kept on disk") == 1 and os.strerror(fault) in caplog.text
    assert len(calls) == 1


def test_a_folder_that_cannot_be(start, tmp_path, caplog):
    (tmp_path / "file").write_text("")
    engine = start(Reader(), Folder(tmp_path / "file", b"reader", Reader().page_bytes, 1 << 20))
    assert killed.check(engine, PROMPT, 5) == 0
    written(engine)
    assert caplog.text.count("no longer kept on disk") == 1


@pytest.mark.parametrize("seed", range(3))
def test_two_servers_and_few_pages(start, tmp_path, seed):
    """Each finds what the other wrote, while pages are evicted in memory and on disk, damaged, and flushed."""
    rng = random.Random(seed)
    limit = 12 * 300
    engines = [start(Reader(), Folder(tmp_path, b"reader", Reader().page_bytes, limit), pages=18) for _ in range(2)]
    hits = 0
    for _ in range(60):
        prompt = [5 + rng.randrange(2)] * rng.randrange(1, 30) + [
            rng.randrange(3, 6) for _ in range(rng.randrange(1, 9))
        ]
        streams = [engine.submit(killed.ask(prompt, 4)) for engine in engines]
        for stream in streams:
            chunks = list(stream)
            assert [t for c in chunks for t in c.tokens] == answer_to(prompt, 4)
            hits += chunks[-1].usage.cached_tokens
        if rng.random() < 0.3 and (found := files(tmp_path)):
            damaged = rng.choice(found)
            try:
                with damaged.open("r+b") as file:
                    file.seek(rng.randrange(damaged.stat().st_size + 1))
                    file.write(b"?")
            except OSError:
                pass  # deleted meanwhile
        if rng.random() < 0.1:
            rng.choice(engines).flush_cache()
    assert hits > 0


def test_killed_while_writing(start, tmp_path):
    """Answers after any number of kills are right, without an error, and what was written whole is used."""
    where = tmp_path / "pages"
    script = Path(__file__).with_name("killed.py")
    done = subprocess.run([sys.executable, script, where, "8"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    left = files(where)
    assert any(f.name.startswith(".kt-") for f in left), "the last engine was killed while it wrote"
    assert sum(f.stat().st_size for f in left) <= killed.LIMIT * 1.1
    running = killed.engine(where)
    found = [killed.check(running, prompt, 9) for prompt in killed.PROMPTS]
    running.close(5)
    assert sum(count > 0 for count in found) >= 3


# --- a real model


def test_answers_are_those_of_a_cold_engine(tmp_path):
    prompt = torch.randint(4, 290, (200,), generator=torch.Generator().manual_seed(6)).tolist()
    answers = []
    for where in ("a", "a", "b"):
        runner = tinymodel.runner(512)
        folder = Folder(tmp_path / where, b"tiny", runner.page_bytes, 1 << 30)
        engine = Engine(runner, tinymodel.tokenizer(), disk=folder)
        chunks = list(engine.submit(killed.ask(prompt, 24)))
        answers.append([t for c in chunks for t in c.tokens])
        cached = chunks[-1].usage.cached_tokens
        assert cached == (192 if len(answers) == 2 else 0)
        engine.close(5)
    assert answers[0] == answers[1] == answers[2]


# --- whose pages they are


def test_another_identity_for_whatever_changes_a_page(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    weights, config = tmp_path / "model.safetensors", tmp_path / "config.json"
    weights.write_bytes(b"weights")
    config.write_text("{}")
    files = ModelFiles("m", str(tmp_path), "safetensors", (str(weights),))
    spec = ModelSpec("f", 1, 1, 1, 64, 0, 0, 1, {}, 1, {})

    def place(runner=None, limit=1 << 20, kv_dtype="bfloat16", rules=None, shareable=True):
        values = {"prefix_disk": limit, "kv_dtype": kv_dtype, "rules": rules}
        plan = Plan(files, spec, tuple(Decision(n, v, "", "") for n, v in values.items()), {}, ServerSettings())
        found = kept_of(plan, runner or Reader(shareable=shareable))
        return found and found._own

    def changed(text):
        rules = tmp_path / "rules.yaml"
        rules.write_text(text)
        return str(rules)

    found = [place()]
    assert place() == found[0] and found[0].parent == tmp_path / "cache" / "kt" / "prefix"
    assert place(Reader(max_context=128)) == found[0]  # pages of a plain model are the same in any context
    found += [place(Reader(page=8)), place(Reader(ballast=1)), place(kv_dtype="float32")]
    found += [place(rules=changed("[]")), place(rules=changed("[{}]"))]
    kernels.set_deterministic(True)
    try:
        found.append(place())
    finally:
        kernels.set_deterministic(False)
    os.utime(weights, (1, 1))
    found.append(place())
    weights.write_bytes(b"others")
    os.utime(weights, (1, 1))
    found.append(place())
    config.write_text('{"rope_type": "longrope"}')
    found += [place(), place(Reader(max_context=128))]
    assert len(set(found)) == len(found)
    assert place(limit=0) is None and place(shareable=False) is None
