"""Prefixes in the CPU's memory, of a model whose pages are elsewhere."""

import threading
import time

import killed
import pytest
import tinymodel
import torch
from test_disk import KEYS, PAGE, PAYLOAD, TOKENS, got, new, payload, put

from kt_core.engine.disk import Folder, Host, keys_of
from kt_core.engine.engine import Engine

ROOM = 3


def host(below=None, pages=ROOM):
    return Host(pages * PAYLOAD, PAYLOAD, below)


def test_the_least_recently_used_goes_first():
    kept = host()
    put(kept, KEYS[:3])
    assert not kept.write(KEYS[0], [payload(9)], lambda: False)  # it is there
    assert got(kept, KEYS[0]) == payload(0)  # and used
    put(kept, KEYS[3:4], 3)
    assert [got(kept, key) for key in KEYS[:4]] == [payload(0), None, payload(2), payload(3)]
    kept.touch([KEYS[2].path, KEYS[0].path])
    put(kept, KEYS[4:], 4)
    assert [got(kept, key) for key in KEYS] == [payload(0), None, payload(2), None, payload(4)]
    assert len(kept) == ROOM and kept.expect(KEYS[0].path) and not kept.expect(KEYS[1].path)


def test_only_the_very_tokens_find_a_page():
    kept = host()
    put(kept, KEYS[:1])
    other = keys_of([4, *TOKENS[1:]], PAGE, 0, b"")[0]
    assert got(kept, other) is None
    # As if digests were equal
    for wrong in (type(other)(KEYS[0].path, b"", other.tokens), type(other)(KEYS[0].path, b"other", KEYS[0].tokens)):
        assert got(kept, wrong) is None
    assert not kept.write(KEYS[1], [payload(1)], lambda: True) and got(kept, KEYS[1]) is None  # evicted meanwhile
    kept.forget([KEYS[0].path])
    assert got(kept, KEYS[0]) is None


def test_what_files_have_comes_into_memory(tmp_path):
    below = new(tmp_path)
    kept = host(below)
    put(kept)  # all on disk, three of them here
    assert len(kept) == ROOM and [got(new(tmp_path), key) for key in KEYS] == [payload(n) for n in range(5)]
    assert got(kept, KEYS[0]) == payload(0) and kept.expect(KEYS[1].path)
    below.flush()
    assert got(kept, KEYS[0]) == payload(0) and got(kept, KEYS[1]) is None
    assert kept.write(KEYS[0], [payload(0)], lambda: False)  # what the files have lost is written again
    assert kept.flush() == ROOM + 1 and got(kept, KEYS[0]) is None


def test_no_room_at_all():
    kept = host(pages=0)
    put(kept, KEYS[:1])
    assert len(kept) == 0 and got(kept, KEYS[0]) is None


def test_many_threads():
    kept, failed = host(pages=2), []

    def read():
        for _ in range(300):
            for number, key in enumerate(KEYS):
                if got(kept, key) not in (None, payload(number)):
                    failed.append(number)

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(300):
        for number, key in enumerate(KEYS):
            kept.write(key, [payload(number)], lambda: False)
    for thread in threads:
        thread.join()
    assert not failed


@pytest.mark.parametrize("below", [False, True])
def test_evicted_pages_come_back(tmp_path, below):
    """Pages for one sequence at a time: each prompt takes those of the one before, and what comes back gives the same answer."""
    first, second = (torch.randint(4, 290, (200,), generator=torch.Generator().manual_seed(n)).tolist() for n in (6, 7))
    runner = tinymodel.runner(512)
    folder = Folder(tmp_path, b"tiny", runner.page_bytes, 1 << 30) if below else None
    kept = Host(1 << 30, runner.page_bytes, folder)
    engine = Engine(runner, tinymodel.tokenizer(), pages=8, disk=kept)
    answers = []
    for prompt in (first, second, first, second):
        chunks = list(engine.submit(killed.ask(prompt, 300)))
        answers.append([t for c in chunks for t in c.tokens])
        assert chunks[-1].usage.cached_tokens == (192 if len(answers) > 2 else 0)
        until(lambda: len(kept) == 7 * min(len(answers), 2))  # else the next takes their places first
    engine.close(5)
    assert answers[:2] == answers[2:]


def until(condition, seconds=10.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)
