"""The official client against the server: chat and completions, whole and streamed."""

import math

import openai
import pytest
import tinymodel
from live import USER
from tinymodel import Scripted, byte_tokens


@pytest.fixture
def client_of():
    clients = []

    def make(server, key="none"):
        clients.append(openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0, timeout=30))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


@pytest.fixture
def client(server, client_of):
    return client_of(server)


def test_models(client):
    assert [m.id for m in client.models.list()] == ["tiny/model"]
    assert client.models.retrieve("tiny/model").context_length == 1024
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_chat_equals_generate(client):
    tokenizer, model = tinymodel.tokenizer(), tinymodel.model()
    prompt = tokenizer.apply_chat_template([USER], add_generation_prompt=True, return_tensors="pt")
    out = model.generate(**prompt, do_sample=False, max_new_tokens=24, pad_token_id=1)
    expected = out[0, prompt["input_ids"].shape[1] :]
    answer = client.chat.completions.create(model="tiny/model", messages=[USER], temperature=0, max_tokens=24)
    choice = answer.choices[0]
    assert choice.message.role == "assistant"
    assert choice.message.content == tokenizer.decode(expected, skip_special_tokens=True)
    assert answer.usage.completion_tokens == len(expected)
    assert answer.usage.prompt_tokens == prompt["input_ids"].shape[1]
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.prompt_tokens_details.cached_tokens == 0


@pytest.mark.parametrize("seed", [None, 3])
def test_streamed_chat_equals_whole(client, seed):
    fields = {"model": "tiny/model", "messages": [USER], "temperature": 0 if seed is None else 1.2, "seed": seed}
    fields |= {"max_tokens": 30, "extra_body": {"ignore_eos": True}}
    whole = client.chat.completions.create(**fields)
    chunks = list(client.chat.completions.create(**fields, stream=True))
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert all(c.choices[0].delta.role is None for c in chunks[1:])
    assert [c.choices[0].finish_reason for c in chunks if c.choices[0].finish_reason] == ["length"]
    assert chunks[-1].choices[0].finish_reason == "length"
    assert len({c.id for c in chunks}) == 1 and chunks[0].object == "chat.completion.chunk"


def test_completion(client):
    fields = {"model": "tiny/model", "prompt": "the quick", "temperature": 0, "max_tokens": 9}
    whole = client.completions.create(**fields)
    assert whole.usage.completion_tokens == 9 and whole.choices[0].finish_reason == "length"
    chunks = list(client.completions.create(**fields, stream=True))
    assert "".join(c.choices[0].text for c in chunks) == whole.choices[0].text
    ids = tinymodel.tokenizer()("the quick")["input_ids"]
    assert client.completions.create(**{**fields, "prompt": ids}).choices[0].text == whole.choices[0].text
    assert client.completions.create(**{**fields, "prompt": [ids]}).choices[0].text == whole.choices[0].text
    del fields["max_tokens"]
    assert client.completions.create(**fields).usage.completion_tokens == 16


def test_seed(client):
    def ask(seed):
        fields = {"model": "tiny/model", "messages": [USER], "seed": seed, "max_tokens": 20}
        return client.chat.completions.create(**fields, extra_body={"ignore_eos": True}).choices[0].message.content

    assert ask(1) == ask(1) != ask(2)


@pytest.mark.parametrize("stream", [False, True])
def test_n(client, stream):
    fields = {"model": "tiny/model", "messages": [USER], "n": 3, "seed": 4, "max_tokens": 10}
    fields |= {"extra_body": {"ignore_eos": True}}
    whole = client.chat.completions.create(**fields)
    texts = {choice.index: choice.message.content for choice in whole.choices}
    assert sorted(texts) == [0, 1, 2] and len(set(texts.values())) == 3
    assert whole.usage.completion_tokens == 30
    assert whole.usage.prompt_tokens == client.chat.completions.create(**{**fields, "n": 1}).usage.prompt_tokens
    if stream:
        streamed = {0: "", 1: "", 2: ""}
        roles = []
        for chunk in client.chat.completions.create(**fields, stream=True):
            for choice in chunk.choices:
                streamed[choice.index] += choice.delta.content or ""
                roles += [choice.index] if choice.delta.role else []
        assert streamed == texts and sorted(roles) == [0, 1, 2]


@pytest.mark.parametrize("stop", ["END", ["ENDING", "END"], ["END", "END\n"]])
def test_stop(serve, client_of, stop):
    client = client_of(serve(Scripted(byte_tokens("one 🦊 two END\n three"))))
    fields = {"model": "tiny/model", "messages": [USER], "stop": stop}
    whole = client.chat.completions.create(**fields)
    assert (whole.choices[0].message.content, whole.choices[0].finish_reason) == ("one 🦊 two ", "stop")
    chunks = list(client.chat.completions.create(**fields, stream=True))
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == "one 🦊 two "
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_emoji_split_over_tokens(serve, client_of):
    client = client_of(serve(Scripted(byte_tokens("a🦊é中b"))))
    chunks = client.chat.completions.create(model="tiny/model", messages=[USER], stream=True)
    pieces = [c.choices[0].delta.content for c in chunks if c.choices[0].delta.content]
    assert pieces == ["a", "🦊", "é", "中", "b"]


@pytest.mark.parametrize("temperature", [0, 1])
def test_chat_logprobs(serve, client_of, temperature):
    client = client_of(serve(Scripted(byte_tokens("a🦊 stop b"))))
    fields = {"model": "tiny/model", "messages": [USER], "temperature": temperature, "top_p": 0.1}
    fields |= {"logprobs": True, "top_logprobs": 4, "stop": "stop"}
    whole = client.chat.completions.create(**fields)
    content = whole.choices[0].logprobs.content
    assert [e.token for e in content] == ["a", *["\ufffd"] * 4, " "]
    assert [e.bytes for e in content] == [[97], None, None, None, None, [32]]
    # One logit is 20 above the others: its share is 1 / (1 + (V-1) e^-10), whatever the temperature.
    expected = -math.log1p((len(tinymodel.tokenizer()) - 1) * math.exp(-20))
    for entry in content:
        assert entry.logprob == pytest.approx(expected, abs=2e-7)
        assert len(entry.top_logprobs) == 4 and entry.top_logprobs[0].token == entry.token
        assert sum(math.exp(t.logprob) for t in entry.top_logprobs) <= 1
    chunks = client.chat.completions.create(**fields, stream=True)
    streamed = [e for c in chunks if c.choices[0].logprobs for e in c.choices[0].logprobs.content]
    assert streamed == content


def test_completion_logprobs(serve, client_of):
    client = client_of(serve(Scripted(byte_tokens("abc"))))
    fields = {"model": "tiny/model", "prompt": "x", "logprobs": 2}
    logprobs = client.completions.create(**fields).choices[0].logprobs
    assert logprobs.tokens == ["a", "b", "c"] and logprobs.text_offset == [0, 1, 2]
    assert [max(top, key=top.get) for top in logprobs.top_logprobs] == ["a", "b", "c"]
    streamed = [c.choices[0].logprobs for c in client.completions.create(**fields, stream=True)]
    assert [o for lp in streamed if lp for o in lp.text_offset] == [0, 1, 2]
    assert client.completions.create(model="tiny/model", prompt="x").choices[0].logprobs is None
    bare = client.completions.create(model="tiny/model", prompt="x", logprobs=0).choices[0].logprobs
    assert bare.top_logprobs == [{}, {}, {}] and len(bare.token_logprobs) == 3


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
@pytest.mark.parametrize("wanted", [True, False, None])
def test_include_usage(client, endpoint, wanted):
    fields = {"model": "tiny/model", "max_tokens": 3, "stream": True, "extra_body": {"ignore_eos": True}}
    if wanted is not None:
        fields["stream_options"] = {"include_usage": wanted}
    create = client.chat.completions.create if endpoint == "chat" else client.completions.create
    chunks = list(create(**fields, **({"messages": [USER]} if endpoint == "chat" else {"prompt": "x"})))
    if wanted:
        assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == 3
        assert all(c.usage is None and "usage" in c.model_fields_set for c in chunks[:-1])
        assert all(c.choices for c in chunks[:-1])
    else:
        assert all(c.choices and "usage" not in c.model_fields_set for c in chunks)


def test_penalties_and_bias(client):
    fields = {"model": "tiny/model", "messages": [USER], "temperature": 0, "max_tokens": 12}
    fields["extra_body"] = {"ignore_eos": True}
    token = byte_tokens("Q")[0]
    forced = client.chat.completions.create(**fields, logit_bias={str(token): 100})
    assert forced.choices[0].message.content == "Q" * 12
    varied = client.chat.completions.create(**fields, logit_bias={str(token): 11}, frequency_penalty=2.0)
    assert varied.choices[0].message.content != "Q" * 12


def test_errors_have_the_clients_classes(serve, client_of):
    client = client_of(serve(api_key="secret"), "wrong")
    with pytest.raises(openai.AuthenticationError):
        client.models.list()
    client = client_of(serve(api_key="secret"), "secret")
    assert client.models.list().data
    with pytest.raises(openai.NotFoundError) as e:
        client.chat.completions.create(model="other", messages=[USER])
    assert e.value.code == "model_not_found" and e.value.param == "model"
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model="tiny/model", messages=[])


def test_failure_in_a_stream(serve, client_of):
    def before(step):
        if step == 3:
            raise RuntimeError("boom")

    client = client_of(serve(Scripted(byte_tokens("abcdef"), before=before)))
    text = ""
    with pytest.raises(openai.APIError, match="boom"):
        for chunk in client.chat.completions.create(model="tiny/model", messages=[USER], stream=True):
            text += chunk.choices[0].delta.content or ""
    assert text == "ab"
    answer = client.chat.completions.create(model="tiny/model", messages=[USER])
    assert answer.choices[0].message.content == "abcdef"


@pytest.mark.parametrize("prompt", ["hello, ", [10, 300 - 1, 20]], ids=["text", "tokens"])
def test_echo(client, server, prompt):
    fields = {"model": "tiny/model", "prompt": prompt, "n": 2, "seed": 1, "max_tokens": 6}
    answers = [choice.text for choice in client.completions.create(**fields).choices]
    said = prompt if isinstance(prompt, str) else server.engine.tokenizer.decode(prompt)
    assert [choice.text for choice in client.completions.create(**fields, echo=True).choices] == [
        said + a for a in answers
    ]
    streamed = ["", ""]
    for chunk in client.completions.create(**fields, echo=True, stream=True):
        for choice in chunk.choices:
            streamed[choice.index] += choice.text
    assert streamed == [said + answer for answer in answers]


def test_log_probabilities_of_the_prompt(client, server):
    """Those of transformers' own model, in as many pieces as the prompt takes, and although the prompt is cached."""
    import tinymodel
    import torch

    prompt = [5 + i * 7 % 250 for i in range(150)]
    with torch.inference_mode():
        expected = tinymodel.model()(input_ids=torch.tensor([prompt])).logits[0].log_softmax(-1)
    fields = {"model": "tiny/model", "prompt": prompt, "logprobs": 2, "echo": True, "temperature": 0}
    for limit, choices in ((0, 1), (3, 2)):
        answer = client.completions.create(**fields, max_tokens=limit, n=choices)
        assert answer.usage.prompt_tokens_details.cached_tokens == 0 and len(answer.choices) == choices
        for choice in answer.choices:
            found = choice.logprobs
            assert "".join(found.tokens) == choice.text or "\ufffd" in choice.text
            assert len(found.tokens) == len(found.text_offset) == 150 + limit and choice.finish_reason == "length"
            assert found.token_logprobs[0] is None and found.top_logprobs[0] is None
            exact = [float(expected[i, token]) for i, token in enumerate(prompt[1:])]
            assert found.token_logprobs[1:150] == pytest.approx(exact, abs=0.05)  # keys and values are bfloat16
            assert all(
                max(top.values()) >= value
                for top, value in zip(found.top_logprobs[1:], found.token_logprobs[1:], strict=True)
            )
    plain = client.completions.create(**{**fields, "echo": False}, max_tokens=3).choices[0]
    assert found.token_logprobs[150:] == pytest.approx(plain.logprobs.token_logprobs, abs=0.05)
    streamed = []
    for chunk in client.completions.create(**fields, max_tokens=3, stream=True):
        streamed += chunk.choices[0].logprobs.token_logprobs if chunk.choices[0].logprobs else []
    assert streamed[1:] == pytest.approx(found.token_logprobs[1:], abs=0.05) and len(streamed) == 153


def test_the_offsets_of_a_text_count_no_token_before_it(client):
    answer = client.completions.create(model="tiny/model", prompt="hello", logprobs=0, echo=True, max_tokens=0)
    found = answer.choices[0].logprobs
    assert answer.choices[0].text == "hello" and found.tokens[0] == "<|bos|>"
    assert [
        "hello"[at:][: len(token)] for at, token in zip(found.text_offset[1:], found.tokens[1:], strict=True)
    ] == found.tokens[1:]


def test_logprobs_do_not_depend_on_how_tokens_are_chosen(client):
    """ggml-org/llama.cpp#7197: they come from the raw logits, at temperature 0 too."""
    found = []
    for sampling in (
        {"temperature": 0},
        {"temperature": 1.5, "seed": 1},
        {"temperature": 1, "presence_penalty": 1, "seed": 2},
    ):
        fields = {"model": "tiny/model", "messages": [USER], "max_tokens": 1, "logprobs": True, "top_logprobs": 20}
        entry = client.chat.completions.create(**fields, **sampling).choices[0].logprobs.content[0]
        found.append([(top.token, round(top.logprob, 4)) for top in entry.top_logprobs])
        assert sum(math.exp(top.logprob) for top in entry.top_logprobs) <= 1 + 1e-5
    assert found[0] == found[1] == found[2] and len(found[0]) == 20
