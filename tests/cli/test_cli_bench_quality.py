"""`kt bench quality`: a table for a person, figures for a program, refusals before anything is loaded."""

import sys
from pathlib import Path

import pytest
from cli_runner import Run

sys.path[:0] = [str(Path(__file__).parent.parent / folder) for folder in ("weights", "engine")]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import tiny_models
    from tinymodel import tokenizer

    path = tmp_path_factory.mktemp("model") / "tiny"
    tiny_models.model("qwen3moe", vocab_size=len(tokenizer())).save_pretrained(path)
    tokenizer().save_pretrained(path)
    (path.parent / "text").write_text("the quick brown fox " * 30)
    return path


def test_two_names_of_one_model(kt: Run, model: Path) -> None:
    (model.parent / "other").symlink_to(model)
    text = str(model.parent / "text")
    more = ("--tokens", "64", "--window", "32", "--threads", "1")
    done = kt("bench", "quality", str(model.parent / "other"), "--vs", str(model), "--text", text, *more, "--json")
    assert done.code == 0, done.err
    first, second = done.json["rows"]
    assert second["kl_divergence"] == 0 and second["top1"] == 1 and first["perplexity"] == second["perplexity"]


def questions(model: Path) -> Path:
    file = model.parent / "questions.jsonl"
    file.write_text('{"question": "the quick", "choices": ["brown fox", "dog"], "answer": "A"}\n')
    return file


def test_questions_without_a_text(kt: Run, model: Path) -> None:
    done = kt(
        "bench",
        "quality",
        str(model),
        "--questions",
        str(questions(model)),
        "--window",
        "64",
        "--threads",
        "1",
        "--json",
    )
    assert done.code == 0, done.err
    (row,) = done.json["rows"]
    assert row["accuracy"] in (0, 1) and "perplexity" not in row and done.json["text"] == ""


@pytest.mark.full
def test_a_table_for_people(kt: Run, model: Path) -> None:
    text, more = str(model.parent / "text"), ("--tokens", "64", "--window", "32", "--threads", "1")
    shown = kt("bench", "quality", str(model), "--text", text, *more)
    header, row = (line.split("  ") for line in shown.out.splitlines())
    assert "PERPLEXITY" in shown.out and "KL" not in shown.out and len(header) and "tiny" in row[0]


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (["MODEL"], 2, "--text"),
        (["MODEL"], 2, "--questions"),
        (["MODEL", "--questions", "QUESTIONS", "--vs", "MODEL"], 2, "--vs needs --text"),
        (["MODEL", "--text", "QUESTIONS", "--window", "64"], 2, "too short"),
        (["MODEL", "--text", "nowhere"], 4, "nowhere"),
        (["MODEL", "--text", "TEXT", "--window", "64", "--tokens", "32"], 2, "64 tokens"),
        (["MODEL", "--text", "TEXT", "--questions", "TEXT"], 5, "Line 1"),
        (["MODEL", "--text", "TEXT"], 3, "--window 256 or less"),
        (["nothing", "--text", "TEXT"], 4, "nothing"),
        (["MODEL", "--text", "TEXT", "--vs", "nothing"], 4, "nothing"),
    ],
)
def test_refusals(kt: Run, model: Path, args: list[str], code: int, words: str) -> None:
    given = {"MODEL": str(model), "TEXT": str(model.parent / "text"), "QUESTIONS": str(questions(model))}
    done = kt("bench", "quality", *(given.get(word, word) for word in args))
    assert done.code == code, done.err
    assert words in done.err and done.out == ""
