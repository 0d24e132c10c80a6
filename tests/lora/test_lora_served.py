"""Adapters through the engine and the server: by name, beside the model, with prefixes of their own, coming and going."""

import made
import pytest
import tinymodel
from live import USER, Running

from kt_cli import adapters as commandline
from kt_core import lora
from kt_core.engine.engine import Engine
from kt_core.errors import NotFound, UsageError
from kt_core.server.state import State
from kt_core.types import Request, Sampling

GREEDY = Sampling(temperature=0.0)
PROMPT = tuple(range(4, 4 + 150))  # more than two pages


@pytest.fixture(scope="module")
def adapters(tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapters")
    shapes = {path: shape for path, shape in made.targets(tinymodel.model()).items() if "self_attn" in path}
    for name, seed in (("red", 1), ("blue", 2)):
        made.save(folder / name, shapes, seed, size=1.5)
    return folder


@pytest.fixture
def engine(adapters):
    made_one = Engine(tinymodel.runner(), tinymodel.tokenizer())
    for name in ("red", "blue"):
        made_one.adapters.load(name, adapters / name)
    yield made_one
    made_one.close(5)


def answer(engine, adapter=None, **fields):
    fields = {"tokens": PROMPT, "sampling": GREEDY, "max_tokens": 12, "ignore_eos": True, **fields}
    chunks = list(engine.submit(Request("r", adapter=adapter, **fields)))
    return [t for c in chunks for t in c.tokens], chunks[-1].usage.cached_tokens


def test_each_has_its_own_answers_and_pages(engine):
    answers = {adapter: answer(engine, adapter) for adapter in (None, "red", "blue")}
    assert all(cached == 0 for _, cached in answers.values())  # nobody takes another's pages
    assert len({tuple(tokens) for tokens, _ in answers.values()}) == 3
    for adapter, (tokens, _) in answers.items():
        again, cached = answer(engine, adapter)
        assert again == tokens and cached == 128


def test_together_as_alone(engine):
    alone = [answer(engine, adapter)[0] for adapter in (None, "red", "blue", "red")]
    engine.flush_cache()
    streams = [
        engine.submit(Request(str(i), adapter=a, tokens=PROMPT, sampling=GREEDY, max_tokens=12, ignore_eos=True))
        for i, a in enumerate((None, "red", "blue", "red"))
    ]
    assert [[t for c in stream for t in c.tokens] for stream in streams] == alone


def test_dropping_waits_for_who_takes_it(engine, adapters):
    tokens = answer(engine, "red", max_tokens=300)[0]
    engine.flush_cache()
    stream = engine.submit(Request("r", adapter="red", tokens=PROMPT, sampling=GREEDY, max_tokens=300, ignore_eos=True))
    chunks = iter(stream)
    first = next(chunks)
    engine.adapters.drop("red")
    with pytest.raises(NotFound):
        engine.submit(Request("s", adapter="red", text="x"))
    assert [*first.tokens, *(t for c in chunks for t in c.tokens)] == tokens
    engine.adapters.load("red", adapters / "red")
    assert answer(engine, "red", max_tokens=300) == (tokens, 128)  # of the same content: its pages are there still


@pytest.fixture
def server(engine, adapters):
    running = Running(State("tiny/model", (), engine, lora_folder=str(adapters)))
    yield running
    running.close()


def test_models_and_dialects(server):
    names = [model["id"] for model in server.http.get("/v1/models").json()["data"]]
    assert names == ["tiny/model", "tiny/model:red", "tiny/model:blue"]
    assert server.http.get("/v1/models/tiny/model:red").json()["parent"] == "tiny/model"
    asked = {"max_tokens": 8, "temperature": 0, "ignore_eos": True}
    texts = {}
    for name in ("tiny/model", "tiny/model:red", "red", "tiny/model:blue"):
        found = server.complete(model=name, **asked).json()
        assert found["model"] == name
        texts[name] = found["choices"][0]["text"]
    assert texts["red"] == texts["tiny/model:red"] != texts["tiny/model"] != texts["tiny/model:blue"]
    chat = server.chat(model="tiny/model:red", **asked).json()
    said = chat["choices"][0]["message"]["content"]
    for path, body, text in (
        ("/v1/messages", {"messages": [USER]}, lambda a: a["content"][0]["text"]),
        ("/v1/responses", {"input": [USER]}, lambda a: a["output"][0]["content"][0]["text"]),
        ("/api/chat", {"messages": [USER], "stream": False}, lambda a: a["message"]["content"]),
    ):
        more = {"options": {"num_predict": 8, "temperature": 0}} if path.startswith("/api") else asked
        more = {
            ("max_output_tokens" if path.endswith("responses") else k) if k == "max_tokens" else k: v
            for k, v in more.items()
        }
        answered = server.http.post(path, json={"model": "tiny/model:red", **body, **more})
        assert answered.status_code == 200, answered.text
        assert text(answered.json()).startswith(said[:4]), path
    refused = server.complete(model="green")
    assert refused.status_code == 404 and "tiny/model:blue" in refused.json()["error"]["message"]


def test_loading_while_it_serves(server, adapters):
    post = server.http.post
    assert post("/v1/unload_lora_adapter", json={"lora_name": "blue"}).json()["deleted"]
    assert server.complete(model="tiny/model:blue").status_code == 404
    assert post("/v1/unload_lora_adapter", json={"lora_name": "blue"}).status_code == 404
    loaded = post("/v1/load_lora_adapter", json={"lora_name": "green", "lora_path": "blue"})
    assert loaded.json()["id"] == "tiny/model:green" and server.complete(model="green", max_tokens=1).status_code == 200
    for body, status in (
        ({"lora_name": "green", "lora_path": "blue"}, 400),  # taken
        ({"lora_name": "tiny/model", "lora_path": "blue"}, 400),
        ({"lora_name": "a", "lora_path": "nothing"}, 404),
        ({"lora_name": "a", "lora_path": ".."}, 403),
        ({"lora_name": "a", "lora_path": "/etc"}, 403),
        ({"lora_name": "a", "lora_path": "x\0y"}, 403),
        ({"lora_name": "", "lora_path": "blue"}, 400),
        ({"lora_name": "a"}, 400),
    ):
        assert post("/v1/load_lora_adapter", json=body).status_code == status, body
    (adapters / "bad").mkdir()
    (adapters / "bad" / "adapter_config.json").write_text("{}")
    assert post("/v1/load_lora_adapter", json={"lora_name": "a", "lora_path": "bad"}).status_code == 400
    server.state.lora_folder = ""
    for path, body in (("load", {"lora_name": "a", "lora_path": "blue"}), ("unload", {"lora_name": "green"})):
        assert post(f"/v1/{path}_lora_adapter", json=body).status_code == 403


def test_the_command_line(adapters):
    both = commandline.parsed([f"red={adapters / 'red'}", f"blue={adapters / 'blue'}"])
    assert commandline.nbytes(both) == sum(lora.read(adapters / name).nbytes for name in ("red", "blue"))
    assert commandline.parsed([str(adapters / "red")]) == both[:1]
    assert commandline.answering("m", both) == "m" and commandline.answering("m", both[:1]) == "m:red"
    for given, error in (
        (["a"], NotFound), (["a="], UsageError), (["a/b=x"], UsageError), (["a b"], UsageError), (["=x"], UsageError), (["a=/nowhere"], NotFound),
        ([f"red={adapters / 'red'}"] * 2, UsageError),
    ):  # fmt: skip
        with pytest.raises(error):
            commandline.parsed(given)
