"""Images in `kt chat`: named in a command, an option or a question, sent as they are, refused where nobody looks at them."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from cli_runner import Run
from fake_openai import FakeServer

from kt_cli import answer, client, pictures
from kt_cli.chat import commands, saved, session
from kt_core.errors import BadData, NotFound, UsageError

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))
HEADS = {"png": PNG, "jpeg": b"\xff\xd8\xff\xe0", "gif": b"GIF89a", "bmp": b"BM6", "webp": b"RIFF\0\0\0\0WEBPVP8 "}


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    file = tmp_path / "a photo.PNG"
    file.write_bytes(PNG)
    return file


@pytest.fixture
def chat(server: FakeServer) -> session.Chat:
    server.sees = True
    options = answer.options(None, None)
    return session.Chat(client.Api(server.url), "fake-model", options, "", context=4096, file=saved.new_file())


def sent(server: FakeServer) -> Any:
    """The content of the last question."""
    return server.requests[-1]["messages"][-1]["content"]


def image(data: bytes, kind: str = "png") -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"data:image/{kind};base64,{base64.b64encode(data).decode()}"}}


@pytest.mark.parametrize("kind", HEADS)
def test_kinds_are_seen_in_the_first_bytes(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "no-ending"
    file.write_bytes(HEADS[kind])
    assert pictures.load(str(file)).url == image(HEADS[kind], kind)["image_url"]["url"]


def test_a_command_sends_an_image_with_the_next_question_alone(
    chat: session.Chat, server: FakeServer, picture: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    commands.run(chat, f"/image {picture}")
    commands.run(chat, f"/image '{picture}'")  # as a file manager drops it
    assert "goes along" in capsys.readouterr().err and not server.requests
    session.ask(chat, "What is this?")
    assert sent(server) == [image(PNG), image(PNG), {"type": "text", "text": "What is this?"}]
    session.ask(chat, "And now?")
    assert sent(server) == "And now?" and server.requests[-1]["messages"][0]["content"][0] == image(PNG)


def test_a_path_in_a_question(chat: session.Chat, server: FakeServer, picture: Path) -> None:
    assert commands.took_images(chat, f"file://{str(picture).replace(' ', '%20')}")  # nothing else: no question yet
    assert commands.took_images(chat, str(picture).replace(" ", "\\ ")) and len(chat.images) == 2
    assert not commands.took_images(chat, f"What is in '{picture}'?") and len(chat.images) == 2  # no such file
    assert not commands.took_images(chat, f"What is in '{picture}' ?") and len(chat.images) == 3
    for text in ("don't look", f"{picture}.txt", "photo.png", "/usr/bin/env", "a/b.png"):
        assert not commands.took_images(chat, text) and len(chat.images) == 3, text
    server.sees = None
    assert not commands.took_images(chat, f"'{picture}'") and len(chat.images) == 3  # the words may be meant as words


def test_who_sees_nothing_is_said_before_anything_is_sent(
    chat: session.Chat, server: FakeServer, picture: Path, kt: Run
) -> None:
    server.sees = False
    with pytest.raises(UsageError, match="sees no images"):
        pictures.check(chat.api, chat.model)
    done = kt("chat", "--url", server.url, "-p", "What?", "--image", str(picture))
    assert done.code == 2 and "fake-model reads text only" in done.err and not server.requests
    server.sees = None  # another program's server: it has to refuse itself
    assert kt("chat", "--url", server.url, "-p", "What?", "--image", str(picture)).code == 0
    assert sent(server) == [image(PNG), {"type": "text", "text": "What?"}]


def test_addresses_are_fetched_here(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server.files = {"/cat": PNG, "/page": b"<html>", "/big": PNG + bytes(64)}
    assert pictures.load(f"{server.url}/cat").url == image(PNG)["image_url"]["url"]
    with pytest.raises(BadData, match="no image"):
        pictures.load(f"{server.url}/page")
    for wrong in (f"{server.url}/absent", "http://127.0.0.1:1/x.png", "http://[::1/x", "https://"):
        with pytest.raises(NotFound, match="cannot be fetched"):
            pictures.load(wrong)
    monkeypatch.setattr(pictures, "BYTES", len(PNG))
    with pytest.raises(UsageError, match="larger"):
        pictures.load(f"{server.url}/big")


def test_what_is_no_image(tmp_path: Path) -> None:
    (tmp_path / "text.png").write_text("hello")
    with pytest.raises(BadData, match="no image"):
        pictures.load(str(tmp_path / "text.png"))
    with pytest.raises(NotFound):
        pictures.load(str(tmp_path / "absent.png"))
    for wrong in (str(tmp_path), "x\0y", "n" * 5000):
        with pytest.raises(BadData, match="cannot be read"):
            pictures.load(wrong)


def test_a_conversation_with_images_is_kept(chat: session.Chat, server: FakeServer, picture: Path) -> None:
    commands.run(chat, f"/image {picture}")
    session.ask(chat, "What is this?")
    (kept,) = saved.newest(1)
    assert kept.title == "What is this?" and kept.messages[0]["content"][0] == image(PNG)
    again = session.Chat(chat.api, chat.model, chat.options, "")
    commands.take_up(again, kept)
    session.ask(again, "And?")
    assert server.requests[-1]["messages"][0] == server.requests[0]["messages"][0]
    data = json.loads(kept.file.read_text())
    for part in (
        {"type": "audio", "audio": "x"},
        {"type": "text", "text": 1},
        {"type": "image_url", "image_url": {}},
        1,
    ):
        data["messages"][0]["content"] = [part]
        kept.file.write_text(json.dumps(data))
        with pytest.raises(BadData):
            saved.read(kept.file)
