"""/tokenize, /detokenize, /apply-template."""

import pytest
import tinymodel
from live import USER, error_of


def post(server, path, **body):
    return server.http.post(path, json=body)


@pytest.mark.parametrize("text", ["hello world", "", "é 🙂", "<|end|>"])
def test_there_and_back(server, text):
    for name in ("content", "prompt"):
        found = post(server, "/tokenize", **{name: text}).json()
        assert found["tokens"] == tinymodel.tokenizer()(text)["input_ids"]
        assert found["count"] == len(found["tokens"]) and found["max_model_len"] == 1024
    for name in ("add_special", "add_special_tokens"):
        plain = post(server, "/tokenize", content=text, **{name: False}).json()["tokens"]
        assert plain == found["tokens"][1:]
    back = post(server, "/detokenize", tokens=plain).json()
    assert back == {"content": text, "prompt": text}


def test_pieces(server):
    pieces = post(server, "/tokenize", content="hello é", add_special=False, with_pieces=True).json()["tokens"]
    assert [p["id"] for p in pieces] == tinymodel.tokenizer()("hello é", add_special_tokens=False)["input_ids"]
    assert "".join(p["piece"] for p in pieces[:-2]) == "hello " and {p["piece"] for p in pieces[-2:]} == {"\ufffd"}


def test_messages_are_rendered_as_for_an_answer(server):
    fields = {"messages": [USER], "chat_template_kwargs": {"enable_thinking": False}}
    found = post(server, "/tokenize", **fields).json()
    assert found["count"] == server.chat(**fields, max_completion_tokens=1).json()["usage"]["prompt_tokens"]
    prompt = post(server, "/apply-template", **fields).json()["prompt"]
    assert prompt.endswith("<|assistant|><nothink>")
    assert post(server, "/detokenize", tokens=found["tokens"]).json()["content"] == prompt


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {}), ("/tokenize", {"content": 5}), ("/tokenize", {"content": "a", "messages": [USER]}),
        ("/tokenize", {"messages": []}), ("/tokenize", {"messages": [USER, USER]}), ("/detokenize", {}),
        ("/detokenize", {"tokens": [-1]}), ("/detokenize", {"tokens": [10**6]}), ("/detokenize", {"tokens": ["a"]}),
        ("/apply-template", {"messages": [USER, USER]}), ("/apply-template", {"messages": [USER], "chat_template_kwargs": {"no": 1}}),
    ],
    ids=str,
)  # fmt: skip
def test_refused(server, path, body):
    error_of(post(server, path, **body), 400)


def test_while_loading(serve):
    for path in ("/tokenize", "/detokenize", "/apply-template"):
        error_of(post(serve(loaded=False), path, content="a", tokens=[1], messages=[USER]), 503)
