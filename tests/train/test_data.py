"""Data sets of every kind, and where their answers stand among the tokens."""

import copy
import json

import pytest
import tinymodel
from hypothesis import given
from hypothesis import strategies as st

from kt_core.errors import BadData, NotFound, Unsupported, UsageError
from kt_core.train.data import Sample, load, load_pairs
from kt_core.train.encode import IGNORED, Encoded, collate, encode, encode_all, pack

TURNS = [("user", "hello"), ("assistant", "the world"), ("user", "stop"), ("assistant", "go")]
MESSAGES = tuple({"role": role, "content": text} for role, text in TURNS)


def file(folder, name, rows):
    path = folder / name
    text = "".join(json.dumps(row) + "\n" for row in rows) if name.endswith("l") else json.dumps(rows)
    path.write_text(text)
    return str(path)


def test_alpaca(tmp_path):
    rows = [
        {"instruction": "stop", "input": "", "output": "go", "history": [["hello", "the world"]], "system": "be brief"}
    ]
    found = load(file(tmp_path, "a.json", [*rows, {"instruction": "add", "input": "1 2", "output": "3"}]), "")
    assert found[0].messages == ({"role": "system", "content": "be brief"}, *MESSAGES)
    assert found[1].messages[0]["content"] == "add\n1 2"


def test_sharegpt_and_messages(tmp_path):
    rows = [
        {
            "conversations": [{"from": {"user": "human", "assistant": "gpt"}[r], "value": v} for r, v in TURNS],
            "tools": "[]",
        }
    ]
    assert load(file(tmp_path, "s.jsonl", rows), "")[0].messages == MESSAGES
    rows = [{"messages": list(MESSAGES), "system": "x"}]
    assert load(file(tmp_path, "m.jsonl", rows), "")[0].messages == ({"role": "system", "content": "x"}, *MESSAGES)


def test_plain_text(tmp_path):
    (tmp_path / "t.txt").write_text("one\n\ntwo\n")
    assert [s.text for s in load(str(tmp_path / "t.txt"), "")] == ["one", "two"]
    assert load(file(tmp_path, "c.jsonl", [{"text": "one"}]), "")[0].text == "one"


def test_dataset_info(tmp_path):
    rows = [{"talk": [{"who": "me", "says": "hello"}, {"who": "you", "says": "the world"}]}] * 3
    file(tmp_path, "t.json", rows)
    tags = {"role_tag": "who", "content_tag": "says", "user_tag": "me", "assistant_tag": "you"}
    info = {
        "talks": {"file_name": "t.json", "formatting": "sharegpt", "columns": {"messages": "talk"}, "tags": tags},
        "two": {"file_name": "t.json", "formatting": "sharegpt", "columns": {"messages": "talk"}, "tags": tags, "num_samples": 2},
        "text": {"file_name": "c.jsonl", "columns": {"prompt": "text"}},
        "far": {"script_url": "somebody/something"},
        "lost": {"file_name": "lost.json"},
    }  # fmt: skip
    file(tmp_path, "c.jsonl", [{"text": "one"}])
    (tmp_path / "dataset_info.json").write_text(json.dumps(info))
    found = load("talks, two", str(tmp_path))
    assert len(found) == 5
    assert found[0].messages == MESSAGES[:2]
    assert len(load(["talks"], str(tmp_path), 1)) == 1
    assert load("text", str(tmp_path))[0].text == "one"
    for name, error, says in (
        ("far", UsageError, "neither a file"),
        ("lost", NotFound, "lost.json"),
        ("none", NotFound, "far, lost, talks"),
        (str(tmp_path / "x.json"), NotFound, "x.json"),
    ):
        with pytest.raises(error, match=says):
            load(name, str(tmp_path))
    with pytest.raises(NotFound, match="dataset_info"):
        load("talks", str(tmp_path / "elsewhere"))


def test_pairs_of_answers(tmp_path):
    talk = [{"from": "human", "value": "hello"}]
    row = {"conversations": talk, "chosen": {"from": "gpt", "value": "yes"}, "rejected": {"from": "gpt", "value": "no"}}
    plain = {"instruction": "hello", "input": "", "chosen": "yes", "rejected": "no"}
    for rows in ([row], [plain]):
        (pair,) = load_pairs(file(tmp_path, "p.json", rows), "")
        for sample, answer in ((pair.chosen, "yes"), (pair.rejected, "no")):
            assert [m["content"] for m in sample.messages] == ["hello", answer]
    with pytest.raises(BadData, match="Sample 1 of"):
        load_pairs(file(tmp_path, "p.json", [{"instruction": "x", "output": "y"}]), "")
    last = encode(Sample(MESSAGES), tinymodel.tokenizer(), last=True)
    assert text_of([label for label in last.labels if label != IGNORED]) == "go<|end|>"


@pytest.mark.parametrize(
    "row",
    [
        3,
        {"instruction": "x"},
        {"instruction": "x", "output": 3},
        {"conversations": [{"from": "martian", "value": "x"}]},
        {"conversations": [{"from": "human", "value": "x"}]},
        {"conversations": []},
    ],
    ids=str,
)
def test_rows_with_mistakes_are_named(tmp_path, row):
    good = {"instruction": "x", "output": "y"}
    with pytest.raises(BadData, match="Sample 2 of"):
        load(file(tmp_path, "bad.json", [good, row]), "")


def test_files_with_mistakes_are_named(tmp_path):
    (tmp_path / "bad.jsonl").write_text('{"instruction": "x", "output": "y"}\n{')
    with pytest.raises(BadData, match=r"bad\.jsonl:2"):
        load(str(tmp_path / "bad.jsonl"), "")
    with pytest.raises(BadData, match="not a list"):
        load(file(tmp_path, "object.json", {"a": 1}), "")


def text_of(ids):
    return tinymodel.tokenizer().decode(ids)


def test_loss_is_taken_of_answers_alone():
    encoded = encode(Sample(MESSAGES), tinymodel.tokenizer())
    whole = "<|bos|><|user|>hello<|end|><|assistant|>the world<|end|><|user|>stop<|end|><|assistant|>go<|end|>"
    assert text_of(encoded.ids) == whole
    assert text_of([label for label in encoded.labels if label != IGNORED]) == "the world<|end|>go<|end|>"
    assert all(label in (IGNORED, token) for token, label in zip(encoded.ids, encoded.labels, strict=True))
    assert encode(Sample(MESSAGES), tinymodel.tokenizer(), prompts=True).labels == encoded.ids
    plain = encode(Sample(text="hello world"), tinymodel.tokenizer())
    assert text_of(plain.labels) == "<|bos|>hello world<|end|>"


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="<|"), max_size=20), min_size=1, max_size=4))
def test_answers_of_any_text_are_found(answers):
    messages = [m for a in answers for m in ({"role": "user", "content": "x"}, {"role": "assistant", "content": a})]
    encoded = encode(Sample(tuple(messages)), tinymodel.tokenizer())
    labels = [label for label in encoded.labels if label != IGNORED]
    assert text_of(labels) == "".join(f"{answer}<|end|>" for answer in answers)


def test_turns_that_the_template_writes_otherwise_later_get_no_loss():
    tokenizer = copy.deepcopy(tinymodel.tokenizer())
    tokenizer.chat_template = (
        "{% for m in messages %}<{{ m.role }}>{% if m.role == 'user' or loop.last %}{{ m.content }}{% endif %};"
        "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    encoded = encode(Sample(MESSAGES), tokenizer)
    assert text_of([label for label in encoded.labels if label != IGNORED]) == "go;"
    tokenizer.chat_template = "{{ messages | length }}{% if add_generation_prompt %}?{% endif %}"
    with pytest.raises(BadData, match="last answer"):
        encode(Sample(MESSAGES), tokenizer)
    tokenizer.chat_template = "{{ raise_exception('no') }}"
    with pytest.raises(BadData, match="refuses a sample"):
        encode(Sample(MESSAGES), tokenizer)
    tokenizer.chat_template = None
    with pytest.raises(Unsupported, match="no chat template"):
        encode(Sample(MESSAGES), tokenizer)


def test_the_report_counts_what_was_cut_and_dropped():
    long = Sample(({"role": "user", "content": "x" * 50}, {"role": "assistant", "content": "y"}))
    rows, report = encode_all([Sample(MESSAGES), long], tinymodel.tokenizer(), 30, False)
    assert (report.samples, report.dropped, report.cut, report.rows) == (2, 1, 1, 1)
    assert report.longest > 50
    assert report.tokens == len(rows[0].ids)
    with pytest.raises(BadData, match="None of 1 samples"):
        encode_all([long], tinymodel.tokenizer(), 30, False)


@given(st.lists(st.integers(1, 20), min_size=1, max_size=30))
def test_packing_keeps_every_sample_whole(lengths):
    samples = [Encoded(tuple([i] * n), tuple([i] * n)) for i, n in enumerate(lengths)]
    rows = pack(samples, 20)
    parts = [
        (row.ids[a:b], row.labels[a:b])
        for row in rows
        for a, b in zip(row.starts, [*row.starts[1:], len(row.ids)], strict=True)
    ]
    assert sorted(ids for ids, _ in parts) == sorted(sample.ids for sample in samples)
    assert all(labels == (IGNORED, *ids[1:]) for ids, labels in parts)
    assert all(len(row.ids) <= 20 for row in rows)
    assert sum(len(row.ids) < 11 for row in rows) <= 1


def test_batches():
    rows = [Encoded((1, 2, 3), (IGNORED, 2, 3)), Encoded((4,), (4,))]
    batch = collate(rows, 9)
    assert batch["input_ids"].tolist() == [[1, 2, 3], [4, 9, 9]]
    assert batch["labels"].tolist() == [[IGNORED, 2, 3], [4, IGNORED, IGNORED]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]
    packed = collate([Encoded((1, 2, 3), (IGNORED, 2, IGNORED), (0, 2)), rows[1]], 9)
    assert packed["input_ids"].tolist() == [[1, 2, 3, 4]]
    assert packed["position_ids"].tolist() == [[0, 1, 0, 0]]
    assert packed["labels"].tolist() == [[IGNORED, 2, IGNORED, IGNORED]]
