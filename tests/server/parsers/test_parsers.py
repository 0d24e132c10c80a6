"""Every style's canned answers, however they are cut; and any text at all."""

import time
from pathlib import Path

import pytest
from answers import CASES
from canned import TOOLS, m, parsed, style
from hypothesis import given, settings
from hypothesis import strategies as st

from kt_core.errors import UsageError
from kt_core.server.parsers import STYLES, THINKERS, Call, choose
from kt_core.server.parsers.values import typed

CANNED = [
    pytest.param(names, case, id=f"{names[0]}-{case.name}-{i}")
    for names, cases in CASES.items()
    for i, case in enumerate(cases)
]


@pytest.mark.parametrize(("names", "case"), CANNED)
def test_canned_answers_at_every_cut(names, case):
    found = style(*names)
    assert parsed(found, [case.answer], case.prompt_end) == case.meaning
    assert parsed(found, list(case.answer), case.prompt_end) == case.meaning
    step = 1 + len(case.answer) // 100
    for cut in range(1, len(case.answer), step):
        assert parsed(found, [case.answer[:cut], case.answer[cut:]], case.prompt_end) == case.meaning, cut


def pieces_of(names):
    """Texts made of a style's marks, of its calls and their parts, and of anything."""
    marks = style(*names).parser(TOOLS).marks
    parts = [case.answer for case in CASES[names] if len(case.answer) < 300]
    parts += [part[i:] for part in parts[:4] for i in (7, 20)]  # without the beginning
    words = [
        "a",
        " ",
        "\n",
        "{",
        "}",
        '"',
        "\\",
        "[",
        "]",
        ">",
        "city",
        '{"name": "time-now", "arguments": {}}',
        "é",
        "🙂",
    ]
    # Nothing that another part could complete to a mark: that would be a mark only once the text between is gone.
    whole = st.sampled_from([*marks, *parts, *words])
    return st.lists(whole | st.text(alphabet=st.characters(exclude_characters="<[]")), max_size=12)


@pytest.mark.parametrize("names", CASES)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_text_gives_the_same_at_any_cut_and_no_mark_leaks(names, data):
    text = "".join(data.draw(pieces_of(names)))
    found, marks = style(*names), style(*names).parser(TOOLS).marks
    start = data.draw(st.sampled_from(["", f"{found.thinking.open}\n" if found.thinking else ""]))
    whole = parsed(found, [text], start)
    assert parsed(found, list(text), start) == whole
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert parsed(found, pieces, start) == whole
    for mark in marks:
        assert mark not in whole.text and mark not in whole.reasoning


@settings(max_examples=60, deadline=None)
@given(text=st.text(), names=st.sampled_from(list(CASES)))
def test_text_without_marks_comes_as_it_is(text, names):
    if "{" in text or any(mark in text for mark in style(*names).parser(TOOLS).marks):
        return
    assert parsed(style(*names), list(text)) == m(text)


@pytest.mark.parametrize("names", CASES)
def test_no_mark_begins_with_another(names):
    """Else a mark would not be known when it is complete."""
    marks = set(style(*names).parser(TOOLS).marks)
    assert not [(a, b) for a in marks for b in marks if a != b and b.startswith(a)]


@pytest.mark.parametrize("names", CASES)
def test_an_answer_that_repeats_itself_takes_no_long_time(names):
    """Each call that is none costs another look at what follows it, which must not add up."""
    started = time.process_time()
    answer = next(case.answer for case in CASES[names] if case.name == "call")
    for part in (answer[: len(answer) // 2], answer[:-1], answer):
        parsed(style(*names), [part] * 600)
    assert time.process_time() - started < 4


def test_a_call_goes_out_with_its_last_mark():
    parser = style("hermes", "think").parser(TOOLS)
    assert parser.push('<tool_call>{"name": "time-now", "arguments": {}}') == []
    (call,) = parser.push("</tool_call>")
    assert (call.name, call.arguments) == ("time-now", "{}") and call.id.startswith("call_")


def test_text_is_held_back_only_where_a_mark_may_begin():
    parser = style("hermes", "think").parser(TOOLS)
    sent = [[event.text for event in parser.push(piece)] for piece in ("a", " b", " <to", "do>", "\n", "c")]
    assert sent == [["a"], [" b"], [], [" <todo>"], [], ["\nc"]]
    assert [event.text for event in parser.push("<tool_call> is a mark")] == [" is a mark"]


def test_ids():
    def ids(name, text):
        parser = style(name, "none").parser(TOOLS)
        return [event.id for event in parser.push(text) + parser.finish() if isinstance(event, Call)]

    (mistral,) = ids("mistral", "[TOOL_CALLS]time-now[ARGS]{}")
    assert len(mistral) == 9 and mistral.isalnum()
    assert ids("mistral", "[TOOL_CALLS]time-now[CALL_ID]abcdefghi[ARGS]{}") == ["abcdefghi"]
    kimi = "<|tool_call_begin|>functions.time-now:3<|tool_call_argument_begin|>{}<|tool_call_end|>"
    assert ids("kimi-k2", kimi) == ["functions.time-now:3"]


def test_a_broken_call_is_logged(caplog):
    parsed(style("hermes", "none"), ["<tool_call>{bad}</tool_call>"])
    assert "hermes" in caplog.text and "bad" not in caplog.text


def test_without_tools_calls_are_text():
    """A model that explains a markup must be able to."""
    text = 'Write <tool_call>{"name": "f"}</tool_call>.'
    assert choose("", "hermes", "none").parser([]) is None
    assert parsed(choose("", "hermes", "think"), [text], tools=[]) == m(text)


def test_a_continued_thought():
    found = style("hermes", "think")
    assert parsed(found, [" more</think>yes"], "<think>I", answer="<think>I") == m("yes", "more")
    assert parsed(found, [" more"], "</think>yes", answer="<think>I</think>yes") == m(" more")
    assert parsed(style("harmony", "harmony"), [" more"], "", answer="yes") == m(" more")
    call = '{"name": "time-now", "parameters": {}}'
    assert parsed(style("llama", "none"), [call], "", answer="It is: ") == m(call)


@pytest.mark.parametrize(
    ("text", "schema", "value"),
    [
        ("5", {"type": "string"}, "5"), ("5", {"type": "integer"}, 5), (" 5\n", {"type": "number"}, 5),
        ("5.0", {"type": "integer"}, 5), ("5.5", {"type": "integer"}, "5.5"), ("x", {"type": "integer"}, "x"),
        ("true", {"type": "boolean"}, True), ("True", {"type": "boolean"}, True), ("1", {"type": "boolean"}, "1"),
        ("null", {"type": ["string", "null"]}, None), ("a", {"type": ["string", "null"]}, "a"),
        ('{"a": [1]}', {"type": "object"}, {"a": [1]}), ("[1", {"type": "array"}, "[1"), ("", {"type": "array"}, ""),
        ("5", {"anyOf": [{"type": "integer"}, {"type": "string"}]}, 5), ("5", {"enum": ["5", "6"]}, "5"),
        ("5", {"enum": [5, "6"]}, 5), ("5", None, 5), ("x", None, "x"), ("NaN", None, "NaN"), ("1e999", None, "1e999"),
        ("5", {"$ref": "#"}, 5), ("9" * 5000, None, "9" * 5000), ("[" * 9999, None, "[" * 9999),
    ],
    ids=lambda v: repr(v)[:20],
)  # fmt: skip
def test_values_have_the_type_of_the_schema(text, schema, value):
    found = typed(text, schema)
    assert found == value and type(found) is type(value)


def test_choosing():
    qwen = '<tool_call>{"name": ...}</tool_call> <think></think>'
    found = choose(qwen)
    assert (found.calls.name, found.thinking.name) == ("hermes", "think")
    found = choose(qwen, "none", "none")
    assert found.calls is None and found.thinking is None and found.parser(TOOLS) is None
    assert choose(qwen, "kimi-k2").calls.name == "kimi-k2"
    assert choose("plain").parser(TOOLS) is None
    with pytest.raises(UsageError, match="qwen3-coder"):
        choose(qwen, "qwen")
    with pytest.raises(UsageError, match="mistral"):
        choose(qwen, "auto", "thoughts")


def test_names_are_different_and_documented():
    page = (Path(__file__).parents[3] / "docs" / "parsers.md").read_text(encoding="utf-8")
    for known in (STYLES, THINKERS):
        assert len({style.name for style in known}) == len(known)
        assert not [style.name for style in known if f"| `{style.name}` |" not in page]
    assert {style.name for style in STYLES} == {calls for calls, _ in CASES}
