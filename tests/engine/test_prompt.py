"""Prompts: the model's template, arguments, tools, and never two begin-of-text tokens."""

import copy
from concurrent.futures import ThreadPoolExecutor, wait

import pytest
import tinymodel

from kt_core.engine import templates
from kt_core.engine.prompt import chat_text, plain_tokenizer, render, template_arguments
from kt_core.errors import UsageError
from kt_core.types import Request

USER = {"role": "user", "content": "hello"}


def with_template(template):
    tokenizer = copy.copy(tinymodel.tokenizer())
    tokenizer.chat_template = template
    return tokenizer


def test_chat_is_what_transformers_renders():
    tokenizer = tinymodel.tokenizer()
    messages = (USER, {"role": "assistant", "content": "hi"}, USER)
    expected = tokenizer.apply_chat_template(list(messages), add_generation_prompt=True, return_dict=True)["input_ids"]
    assert render(tokenizer, Request("r", messages=messages)) == expected
    assert expected.count(tokenizer.bos_token_id) == 1


def test_text_has_one_bos():
    tokenizer = tinymodel.tokenizer()
    assert render(tokenizer, Request("r", text="hello"))[:1] == [0]
    twice = render(tokenizer, Request("r", text="<|bos|>hello"))
    assert twice == render(tokenizer, Request("r", text="hello"))


def test_no_bos_where_the_tokenizer_has_none():
    tokenizer = copy.copy(tinymodel.tokenizer())
    tokenizer.bos_token = None
    ids = tokenizer("hello", add_special_tokens=False)["input_ids"]
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    tokenizer.chat_template = template
    assert render(tokenizer, Request("r", messages=(USER,))) == ids


def test_continue_final():
    messages = (USER, {"role": "assistant", "content": "I am"})
    text = chat_text(tinymodel.tokenizer(), Request("r", messages=messages, continue_final=True))
    assert text.endswith("<|assistant|>I am")


def test_tokens_pass_through():
    assert render(tinymodel.tokenizer(), Request("r", tokens=(5, 6))) == [5, 6]


@pytest.mark.parametrize("fields", [{"tokens": ()}, {"messages": ()}])
def test_empty_prompt(fields):
    tokenizer = with_template("{% for m in messages %}{{ m.content }}{% endfor %}")
    with pytest.raises(UsageError):
        render(tokenizer, Request("r", **fields))


def test_template_refusal_is_passed_on():
    with pytest.raises(UsageError, match="roles must alternate"):
        render(tinymodel.tokenizer(), Request("r", messages=(USER, USER)))


@pytest.mark.parametrize(
    "template", ["{{ messages[0].content + 1 }}", "{% for %}", "{{ missing.attribute }}", "{{ no_such_function(1) }}"]
)
def test_any_template_fault_is_an_error_of_the_request(template):
    with pytest.raises(UsageError) as e:
        render(with_template(template), Request("r", messages=(USER,)))
    assert e.value.key == "engine.template"


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages[0].content * 10**10 }}",
        "{{ 'x' * 10**10 }}",
        "{{ 'x'|center(10**10) }}",
        "{% autoescape 'x' * 10**10 %}{% endautoescape %}",
        "{% set n = namespace(x='xx') %}{% for i in range(40) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
        "{{ 'x' * 10**8 }}",
    ],
)
def test_a_template_without_bounds_is_refused_and_the_next_one_rendered(template):
    with pytest.raises(UsageError) as e:
        chat_text(with_template(template), Request("r", messages=(USER,)))
    assert e.value.key == "engine.template"
    assert chat_text(with_template("{{ messages[0].content }}"), Request("r", messages=(USER,))) == "hello"


ENDLESS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"


def test_a_template_that_takes_too_long(monkeypatch):
    templates.stop()  # the process is told its limit when it starts
    monkeypatch.setattr(templates, "CPU_SECONDS", 0.5)
    with pytest.raises(UsageError, match=r"0\.5 s"):
        chat_text(with_template(ENDLESS), Request("r", messages=(USER,)))


def test_rendering_can_be_stopped():
    """A thread that waits for it would hold up the end of the server."""
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(chat_text, with_template(ENDLESS), Request("r", messages=(USER,)))
        while not waiting.done():
            templates.stop()
            wait([waiting], 0.05)
        assert isinstance(waiting.exception(), UsageError)


def test_tools_that_the_template_does_not_read():
    """The model would not know of them, and nobody would know that."""
    request = Request("r", messages=(USER,), tools=({"type": "function", "function": {"name": "f"}},))
    with pytest.raises(UsageError) as e:
        render(with_template("{{ messages[0].content }}"), request)
    assert e.value.key == "engine.no_tools"
    assert render(with_template("{{ messages[0].content }}{% if tools %}!{% endif %}"), request)


def test_no_template():
    with pytest.raises(UsageError) as e:
        render(with_template(None), Request("r", messages=(USER,)))
    assert e.value.key == "engine.no_chat_template"


def test_template_with_dates_namespaces_and_loop_controls():
    template = (
        "{% set ns = namespace(n=0) %}{% for m in messages %}{% if m.role == 'tool' %}{% continue %}{% endif %}"
        "{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}{{ strftime_now('%Y')[:2] }}"
        "{% generation %}x{% endgeneration %}"
    )
    messages = (USER, {"role": "tool", "content": "t"})
    assert chat_text(with_template(template), Request("r", messages=messages)) == "120x"


def test_arguments_reach_the_template():
    tokenizer = tinymodel.tokenizer()
    on = chat_text(tokenizer, Request("r", messages=(USER,), template_args={"enable_thinking": True}))
    off = chat_text(tokenizer, Request("r", messages=(USER,), template_args={"enable_thinking": False}))
    assert off == on + "<nothink>"
    assert template_arguments(tokenizer.chat_template) == {"enable_thinking"}


@pytest.mark.parametrize("name", ["thinking", "messages", "chat_template", "tokenize", "bos_token"])
def test_unknown_arguments_are_reported(name):
    with pytest.raises(UsageError, match="enable_thinking") as e:
        render(tinymodel.tokenizer(), Request("r", messages=(USER,), template_args={name: 1}))
    assert name in str(e.value)


def test_tools_and_tool_calls():
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
    messages = (USER, {"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "tool", "content": "cold"})
    tool = {"type": "function", "function": {"name": "weather", "parameters": {}}}
    text = chat_text(tinymodel.tokenizer(), Request("r", messages=messages, tools=(tool,)))
    assert "<|assistant|>[weather:Oslo]<|end|>" in text
    assert '<|tools|>[{"type": "function"' in text


def test_threads_share_a_tokenizer():
    """transformers' own call sets truncation and padding anew each time, which fails while another thread encodes."""
    tokenizer = copy.deepcopy(tinymodel.tokenizer())
    tokenizer.backend_tokenizer.enable_truncation(5)
    tokenizer.backend_tokenizer.enable_padding(length=5)
    texts = [f"hello world {i} " * 50 for i in range(8)] + ["a"]
    expected = [tinymodel.tokenizer()(text)["input_ids"] for text in texts]
    plain_tokenizer(tokenizer)
    with ThreadPoolExecutor(8) as pool:
        for _ in range(20):
            assert list(pool.map(lambda text: render(tokenizer, Request("r", text=text)), texts)) == expected


@pytest.mark.parametrize("words", [10, 100, 10_000])
@pytest.mark.parametrize("chat", [False, True])
def test_a_text_that_may_fit_is_whole_and_a_far_longer_one_is_refused(words, chat):
    tokenizer, text = tinymodel.tokenizer(), "the quick brown fox " * words
    request = Request("r", messages=({"role": "user", "content": text},)) if chat else Request("r", text=text)
    whole = render(tokenizer, request)
    for limit in (1, 40, len(whole), len(whole) + 1):
        try:
            assert render(tokenizer, request, limit) == whole
        except UsageError as e:
            assert e.key == "engine.context_overflow" and len(whole) > limit
            assert str(limit) in str(e)


def test_text_of_long_tokens_is_not_taken_for_too_long():
    """Far more characters than common text has for its tokens."""
    tokenizer = copy.deepcopy(tinymodel.tokenizer())
    tokenizer.add_tokens(["=" * 100])
    assert len(render(tokenizer, Request("r", text="=" * 5000), 60)) == 51


def test_half_a_character_is_no_text():
    with pytest.raises(UsageError) as e:
        render(tinymodel.tokenizer(), Request("r", text="a\ud800"))
    assert e.value.key == "engine.not_text"
