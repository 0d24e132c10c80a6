"""Images through every dialect, over a tiny model that looks at them; and what is fetched from elsewhere."""

import base64
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
import tinyvision
import torch
from anthropic import Anthropic
from live import Running, error_of
from ollama import Client
from openai import OpenAI
from tinyvision import moving, picture

from kt_cli import client, pictures
from kt_core.engine.engine import Engine
from kt_core.engine.loader import build
from kt_core.engine.runners import runner_for
from kt_core.engine.vision import Clips, Vision, processor_of
from kt_core.models import resolve
from kt_core.server import attachments
from kt_core.server.state import State
from kt_core.weights import open_weights

PNG = picture(1)
TEXT = {"type": "text", "text": "what?"}


def url(data, kind="image/png"):
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def part(data=PNG):
    return {"type": "image_url", "image_url": {"url": url(data)}}


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    folder = tmp_path_factory.mktemp("seeing")
    tinyvision.save("qwen3_vl_moe", folder)
    model = build(open_weights(resolve(str(folder)), vision=True), lambda *_: None)
    tokenizer, processor = tinyvision.tokenizer(), processor_of(folder)
    vision = Vision(model, processor, Clips.of(model.config, folder, tokenizer, processor))
    engine = Engine(runner_for(model, 1024, torch.float32), tokenizer, vision=vision)
    running = Running(State("tiny/seeing", (), engine))
    yield running
    running.close()


def chat(running, *parts, **fields):
    messages = [{"role": "user", "content": list(parts)}]
    return running.http.post(
        "/v1/chat/completions", json={"messages": messages, "max_tokens": 6, "temperature": 0, **fields}
    )


def test_kt_chat_asks_whether_the_model_sees_and_sends(running, tmp_path):
    (tmp_path / "a.png").write_bytes(PNG)
    api = client.Api(running.url)
    assert client.sees(api, "tiny/seeing") and "vision" in Client(running.url).show("tiny/seeing").capabilities
    content = pictures.content("what?", [pictures.load(str(tmp_path / "a.png"))])
    options = client.Options(temperature=0, max_tokens=6)
    pieces = client.chat(api, "tiny/seeing", [{"role": "user", "content": content}], options)
    told = chat(running, part(), TEXT).json()["choices"][0]["message"]["content"]
    assert "".join(piece.text for piece in pieces) == told


def test_clients_send_images(running):
    """One prompt, so one answer: the image, then the text."""
    fields = {"model": "tiny/seeing", "temperature": 0}
    messages = [{"role": "user", "content": [part(), TEXT]}]
    with OpenAI(base_url=f"{running.url}/v1", api_key="-") as client:
        found = client.chat.completions.create(messages=messages, max_tokens=6, **fields)
        given = [
            {"type": "input_image", "image_url": url(PNG), "detail": "auto"},
            {"type": "input_text", "text": "what?"},
        ]
        response = client.responses.create(input=[{"role": "user", "content": given}], max_output_tokens=6, **fields)
    source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(PNG).decode()}
    messages = [{"role": "user", "content": [{"type": "image", "source": source}, TEXT]}]
    with Anthropic(base_url=running.url, api_key="-") as client:
        message = client.messages.create(
            messages=messages, max_tokens=6, model="tiny/seeing", extra_body={"temperature": 0}
        )
        counted = client.messages.count_tokens(messages=messages, model="tiny/seeing")
    message_of = {"role": "user", "content": "what?", "images": [PNG]}
    options = {"temperature": 0, "num_predict": 6}
    said = Client(running.url).chat(model="tiny/seeing", messages=[message_of], options=options)
    generated = Client(running.url).generate(model="tiny/seeing", prompt="what?", images=[PNG], options=options)
    text, tokens = found.choices[0].message.content, found.usage.prompt_tokens
    assert text
    assert response.output_text == message.content[0].text == said.message.content == generated.response == text
    # "user:" "what?" ";a:", a mark on either side of the image, a token for four patches
    assert tokens == 5 + 5 + 3 + 2 + 20
    assert counted.input_tokens == response.usage.input_tokens == said.prompt_eval_count == tokens
    asked = {"messages": [{"role": "user", "content": [part(), TEXT]}]}
    assert running.http.post("/tokenize", json=asked).json()["count"] == tokens
    assert running.http.post("/apply-template", json=asked).json()["prompt"].count("<|image_pad|>") == 1


def test_an_answer_bound_to_a_form_may_be_about_an_image(running):
    answer = chat(running, part(), TEXT, guided_choice=["cat", "dog"]).json()
    assert answer["choices"][0]["message"]["content"] in ("cat", "dog")


def test_videos_come_as_files_and_as_frames(running):
    frames = ",".join(base64.b64encode(picture(seed, form="JPEG")).decode() for seed in range(4))
    for given in (url(moving(range(4), "WEBP"), "video/webp"), f"data:video/jpeg;base64,{frames}"):
        found = chat(running, {"type": "video_url", "video_url": {"url": given}}, TEXT)
        assert found.status_code == 200, found.text


@pytest.mark.parametrize(
    ("parts", "code"),
    [
        ([{"type": "image_url", "image_url": {"url": "data:image/png;base64,?"}}], "field"),
        ([{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}], "field"),
        ([{"type": "image_url", "image_url": {}}], "field"),
        ([{"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/a.png"}}], "remote"),
        ([{"type": "image_url", "image_url": {"url": "http://[/a.png"}}], "remote"),
        ([part(b"nothing")], "unreadable"),
        ([part()] * 17, "too_many"),
        ([{"type": "input_audio", "input_audio": {}}], "field"),
    ],
)
def test_what_is_no_image_is_400(running, parts, code):
    error_of(chat(running, *parts), 400, code)


def test_an_assistants_message_has_no_images(running):
    messages = [{"role": "assistant", "content": [part()]}, {"role": "user", "content": "so?"}]
    error_of(running.http.post("/v1/chat/completions", json={"messages": messages}), 400, "field")


def test_a_model_of_text_refuses_images_in_every_dialect(serve):
    running = serve()
    error_of(chat(running, part(), TEXT), 400, "no_vision")
    source = {"type": "base64", "media_type": "image/png", "data": "AA=="}
    for path, body in (
        (
            "/v1/messages",
            {"max_tokens": 1, "messages": [{"role": "user", "content": [{"type": "image", "source": source}]}]},
        ),
        ("/api/chat", {"messages": [{"role": "user", "content": "", "images": ["AA=="]}]}),
        ("/v1/responses", {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": url(PNG)}]}]}),
    ):
        found = running.http.post(path, json=body)
        assert found.status_code == 400, (path, found.text)
        assert "text only" in found.text


class Elsewhere(BaseHTTPRequestHandler):
    def do_GET(self):
        where = {"/moved": 302, "/image": 200, "/large": 200}.get(self.path, 404)
        self.send_response(where)
        if where == 302:
            self.send_header("Location", "/image")
        self.end_headers()
        if where == 200:
            self.wfile.write(PNG if self.path == "/image" else b"0" * 5000)

    def log_message(self, *_):
        pass


@pytest.fixture
def elsewhere():
    server = HTTPServer(("127.0.0.1", 0), Elsewhere)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_images_are_fetched_only_from_named_hosts(running, elsewhere, monkeypatch):
    def ask(path):
        return chat(running, {"type": "image_url", "image_url": {"url": elsewhere + path}}, TEXT)

    monkeypatch.setattr(attachments, "FETCH_BYTES", 4000)
    error_of(ask("/image"), 400, "remote")
    monkeypatch.setattr(running.state, "media_hosts", ("127.0.0.1",))
    content = ask("/image").json()["choices"][0]["message"]["content"]
    assert content == chat(running, part(), TEXT).json()["choices"][0]["message"]["content"]
    for path in ("/moved", "/large", "/nothing"):
        error_of(ask(path), 400, "fetch")
    monkeypatch.setattr(attachments, "FETCH_SECONDS", 0.0)
    error_of(ask("/image"), 400, "fetch")
