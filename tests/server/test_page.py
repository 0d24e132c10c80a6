"""The web page in a headless Chromium, over engines that answer what a test wants."""

import re
from importlib.resources import files

import browser
import pytest
import torch
from browser import SIZES, TAGS, Watched
from live import error_of
from playwright.sync_api import Error, expect
from test_ollama import PLAN
from tinymodel import Scripted, byte_tokens

from kt_core.types import Decision

pytestmark = browser.needed
FILES = [path for path in files("kt_core.server.page").iterdir() if not path.name.endswith((".py", "__pycache__"))]
# Everything that a renderer may be tricked with: elements, attributes, schemes, and ways out of its own syntax.
HOSTILE = """<img src=x onerror="hit=1"> <script>hit=1</script> <svg/onload=hit=1>

[a](javascript:hit=1) [b](JaVaScRiPt:hit=1) [c](&#106;avascript:hit=1) [d](data:text/html,<script>hit=1</script>) [e](//evil.example)
![f](https://evil.example/f.png) [g](https://evil.example/"onmouseover="hit=1) <https://evil.example/h> [i](vbscript:x "onclick=hit=1")

| <img src=x onerror=hit=1> | b |
|---|---|
| <iframe srcdoc="<script>parent.hit=1</script>"> | `<b>` |

- <details open ontoggle=hit=1>
> <style>body{display:none}</style>
# <form action=//evil.example><input autofocus onfocus=hit=1>

```html"><img src=x onerror=hit=1>
</code></pre><script>hit=1</script>
```
"""


class Asked:
    """As much of a layer's experts as the engine looks at."""

    def __init__(self, asked, elsewhere=None):
        self.asked, self.elsewhere = asked, None if elsewhere is None else torch.tensor(elsewhere)


@pytest.fixture
def visit(chromium, serve):
    """Open a server's page; what its console says fails the test, but for the `expected`. It closes before `serve` does."""
    opened = []

    def make(server, width=1280, expected=None, **context):
        opened.append((Watched(chromium, server.url, width, **{"locale": "en-US", **context}), expected))
        return opened[-1][0]

    yield make
    for watched, expected in opened:
        watched.context.close()
        assert [line for line in watched.said if not (expected and re.search(expected, line))] == []


# --- the files


def test_files_and_their_headers(serve):
    server = serve(loaded=False, api_key="k")  # open to everybody, as it is the page that asks for the key
    assert sum(len(path.read_bytes()) for path in FILES) < 60_000
    for path in FILES:
        assert not re.search(rb"(src|href|import|from|url)[\s=(\"']+https?:", path.read_bytes()), path.name
        got = server.http.get(f"/page/{path.name}")
        assert got.status_code == 200 and got.content == path.read_bytes()
        head = server.http.head(f"/page/{path.name}")
        assert head.content == b"" and head.headers["content-length"] == str(len(got.content))
        assert "script-src 'self';" in got.headers["content-security-policy"]
        assert got.headers["x-content-type-options"] == "nosniff"
    root = server.http.get("/")
    assert root.headers["content-type"] == "text/html; charset=utf-8" and "unsafe" not in str(root.headers)
    assert server.http.head("/").status_code == 200
    for name in ("__init__.py", "..%2Fapp.py", "nothing.js"):
        error_of(server.http.get(f"/page/{name}"), 404)


def test_both_languages_say_everything(visit, serve):
    page = visit(serve()).page
    texts = page.evaluate("async () => (await import('/page/texts.js')).TEXTS")
    places = {
        language: {key: sorted(re.findall(r"{\w+}", text)) for key, text in of.items()}
        for language, of in texts.items()
    }
    assert places["en"] == places["zh"]
    source = "".join(path.read_text() for path in FILES)
    used = set(re.findall(r"\bt\(\"(\w+)\"", source)) | set(
        re.findall(r'data-(?:text|label|hint|title)="(\w+)"', source)
    )
    assert used and used <= set(texts["en"])
    computed = ("part_", "phase_")  # and what is said under a condition, which the other tests show
    assert all(key in source.replace(f" {key}:", "") or key.startswith(computed) for key in texts["en"])


# --- asking


@pytest.mark.parametrize("width", SIZES)
def test_an_answer_streams(visit, ask, width):
    seen = visit(ask("<think>Let me see.</think>Here is **one** answer.", delay=0.05, plan=PLAN), width)
    seen.page.locator("#model", has_text="tiny/model: ready").wait_for()
    seen.ask("What <b>is</b> it?")
    expect(seen.page.locator(".user")).to_have_text("What <b>is</b> it?")
    expect(seen.page.locator(".assistant .thinking")).to_have_attribute("open", "")
    answer = seen.answered()
    expect(answer.locator(".text")).to_have_text("Here is one answer.")
    expect(answer.locator("strong").first).to_have_text("one")
    expect(answer.locator("footer span")).to_have_text(
        re.compile(r"^\d+ tokens, [\d,.]+ tokens/s; prompt \d+ tokens, 0 of")
    )
    thinking = answer.locator(".thinking")
    assert thinking.get_attribute("open") is None
    thinking.locator("summary").click()
    expect(thinking.locator("div")).to_have_text("Let me see.")
    assert seen.page.evaluate("document.documentElement.scrollWidth") <= width


def test_stop_frees_the_engine(visit, serve):
    server = serve(Scripted(byte_tokens("word "), delay=0.005, loop=True))
    seen = visit(server)
    for way in (lambda: seen.page.locator("#stop").click(), lambda: seen.page.keyboard.press("Escape")):
        seen.ask()
        seen.page.locator(".assistant .text", has_text="word word").last.wait_for()
        expect(seen.page.locator(".assistant footer span").last).to_have_text(
            re.compile(r"^\d+ tokens, [\d,.]+ tokens/s$")
        )
        way()
        expect(seen.answered().locator("footer")).to_contain_text("Stopped.")
        server.wait_idle()


def test_parameters_reach_the_server(visit, ask):
    seen = visit(ask("One two three"))
    seen.ask()
    seen.answered()
    plain = {"stream": True, "stream_options": {"include_usage": True}, "return_progress": True}
    assert seen.asked() == {"messages": [{"role": "user", "content": "hello"}], **plain}
    seen.page.get_by_text("Parameters").click()
    given = {"temperature": "0.7", "top_p": "0.9", "max_tokens": "3", "system": "Be brief."}
    for name, value in given.items():
        seen.page.locator(f"#parameters [name={name}]").fill(value)
    seen.ask("Go on")
    assert seen.answered().locator(".text").inner_text() == "One"
    expect(seen.answered().locator("footer")).to_contain_text("Cut off")
    system, *said = seen.asked()["messages"]
    assert system == {"role": "system", "content": "Be brief."}
    assert [m["content"] for m in said] == ["hello", "One two three", "Go on"]
    assert {name: seen.asked()[name] for name in given if name != "system"} == {
        "temperature": 0.7, "top_p": 0.9, "max_tokens": 3,
    }  # fmt: skip
    seen.page.locator("#parameters [name=temperature]").fill("9")
    seen.ask("Refused by the field itself")
    assert len(seen.page.locator(".user").all()) == 2


def test_again_clear_and_a_reload(visit, ask):
    seen = visit(ask("Yes"))
    again = seen.page.locator("#again")
    expect(again).to_be_disabled()
    seen.ask()
    first = seen.answered()
    with seen.page.expect_event("requestfinished", lambda request: request.url.endswith("/completions")):
        again.click()
    expect(seen.answered().locator(".text")).to_have_text("Yes")
    assert first.count() == 1 and len(seen.asked()["messages"]) == 1
    seen.page.reload()
    expect(seen.page.locator("#log > article")).to_have_text(["hello", re.compile("^.*Yes")])
    seen.page.locator("#clear").click()
    expect(seen.page.locator("#log > article")).to_have_count(0)
    seen.page.reload()
    expect(again).to_be_disabled()
    assert seen.page.locator("#log > article").count() == 0


def test_code_can_be_copied(visit, ask):
    code = "def f():\n\treturn 1"
    seen = visit(ask(f"Look:\n\n```python\n{code}\n```\n"), permissions=["clipboard-read", "clipboard-write"])
    seen.ask()
    seen.answered().locator(".code").get_by_text("Copy").click()
    expect(seen.page.locator(".code button")).to_have_text("Copied")
    assert seen.page.evaluate("navigator.clipboard.readText()") == code


def test_failures_are_said(visit, serve):
    def before(step):
        if step > 3:
            raise RuntimeError("boom")

    seen = visit(serve(Scripted(byte_tokens("abcdefgh"), before=before)))
    seen.ask()
    expect(seen.answered().locator(".failed")).not_to_be_empty()
    cut = 'data: {"choices": [{"delta": {"content": "half"}, "finish_reason": null}]}\n\n'
    seen.page.route("**/v1/chat/completions", lambda route: route.fulfill(body=cut, content_type="text/event-stream"))
    seen.ask()
    expect(seen.answered().locator(".failed")).to_have_text("The connection ended before the answer did.")
    expect(seen.answered().locator(".text")).to_have_text("half")


def test_what_a_refusal_says(visit, ask):
    seen = visit(ask("x", max_queue=1), expected="status of 400")
    seen.ask("long " * 2000)
    expect(seen.answered().locator(".failed")).to_contain_text("4096")
    seen.ask("more")
    seen.answered()
    assert [message["role"] for message in seen.asked()["messages"]] == ["user", "user"]  # what never came is not said


def test_the_key_is_asked_for_once(visit, serve):
    server = serve(Scripted(byte_tokens("Hi")), api_key="right")
    seen = visit(server, expected="status of 401")
    key = seen.page.get_by_label("This server asks for an API key")
    for given in ("wrong", "right"):
        key.fill(given)
        key.press("Enter")
        if given == "wrong":
            seen.page.locator("#key-note", has_text="refused").wait_for()
    seen.page.locator("#model", has_text="ready").wait_for()
    seen.ask()
    expect(seen.answered().locator(".text")).to_have_text("Hi")
    seen.page.reload()
    seen.page.locator("#model", has_text="ready").wait_for()
    expect(key).to_be_hidden()
    assert seen.page.evaluate("localStorage.length") == 0 and not seen.context.cookies()


# --- what a model may write


def test_hostile_text_stays_text(visit, ask):
    seen = visit(ask(f"<think>{HOSTILE.splitlines()[0]}</think>{HOSTILE}"))
    seen.ask(HOSTILE.splitlines()[0])
    answer = seen.answered()
    assert "<script>hit=1</script>" in answer.locator(".text").inner_text()
    found = seen.page.evaluate("[...document.querySelectorAll('#log article *')].map(e => e.localName)")
    assert set(found) <= {*TAGS, "details", "summary", "footer", "span"}
    attributes = seen.page.evaluate(
        "[...document.querySelectorAll('#log article *')].flatMap(e => [...e.attributes].map(a => a.name))"
    )
    assert set(attributes) <= {"class", "href", "target", "rel", "tabindex", "type", "hidden", "open"}
    hrefs = seen.page.evaluate("[...document.querySelectorAll('#log a')].map(a => a.href)")
    assert len(hrefs) == 3 and all(href.startswith("https://evil.example/") for href in hrefs)
    for summary in seen.page.locator("#log summary").all():
        summary.click()
    assert seen.page.evaluate("typeof hit") == "undefined"
    assert {request.url.split("/")[2] for request in seen.requests} == {seen.page.url.split("/")[2]}


def test_the_policy_stops_what_would_get_through(visit, serve):
    """Were there a hole in the page, markup still could not be parsed, and nothing could be sent away."""
    seen = visit(serve(), expected="Content Security Policy|TrustedHTML|Trusted Type")
    with pytest.raises(Error, match="TrustedHTML"):
        seen.page.evaluate("document.body.innerHTML = '<img src=x>'")
    seen.page.evaluate(
        "document.body.append(Object.assign(document.createElement('img'), {src: 'http://127.0.0.2:9/'}))"
    )
    with pytest.raises(Error, match="Failed to fetch"):
        seen.page.evaluate("fetch('http://127.0.0.2:9/')")
    assert sum("violates" in line for line in seen.said) >= 2


# --- the panel, languages, looks, and people who do not see or point


def test_the_panel(visit, ask):
    decision = Decision("threads", 2, "two <cores>", "machine")
    plan = type(PLAN)(
        **{**vars(PLAN), "decisions": (decision,), "memory_parts": {"weights": 3 << 30, "cache": 1 << 30}}
    )
    seen = visit(ask("Hi", plan=plan), 390)
    panel, button = seen.page.locator("#panel"), seen.page.locator("#open")
    expect(button).to_have_attribute("aria-expanded", "false")
    seen.ask()
    seen.answered()
    assert not [request for request in seen.requests if request.url.endswith(("/slots", "/metrics"))]
    button.click()
    expect(panel).to_contain_text("Weights (planned)3.0 GiB")
    expect(panel).to_contain_text(re.compile(r"Answers1.*Answer tokens[23]"))
    expect(panel).to_contain_text("0 / ")
    panel.get_by_text("threads: 2").click()
    expect(panel.get_by_text("two <cores>")).to_be_visible()
    expect(seen.page.locator("main")).to_be_hidden()
    assert seen.page.evaluate("document.documentElement.scrollWidth") <= 390
    button.click()
    expect(panel).to_be_hidden()


@pytest.mark.parametrize("width", SIZES)
def test_the_map_of_expert_use(visit, ask, width):
    """Two layers of 4 and 2 experts: pixels are told apart by their counts, and by where an expert is computed."""
    server = ask("Hi")
    server.engine._runner.experts = {3: Asked([30, 10, 0, 0]), 5: Asked([1, 1], [False, True])}
    seen = visit(server, width)
    if width < 900:  # wider ones begin with the panel
        seen.page.locator("#open").click()
    heat = seen.page.locator("canvas.heat")
    expect(heat).to_have_attribute("aria-label", re.compile("Asked 42 times; the busiest took 75.0 %.*2.4 % of all"))
    pixels = seen.page.evaluate(
        "() => { const map = document.querySelector('canvas.heat');"
        " return [map.width, map.height, [...map.getContext('2d').getImageData(0, 0, map.width, map.height).data]] }"
    )
    assert pixels[:2] == [4, 2]
    cells = [pixels[2][i : i + 4] for i in range(0, len(pixels[2]), 4)]
    alpha = [cell[3] for cell in cells]
    assert alpha[0] > alpha[1] > alpha[2] == alpha[3] > 0 and alpha[4] == alpha[5] and alpha[6] == alpha[7] == 0
    assert cells[4][1] > cells[4][0] and cells[5][0] > cells[5][1]  # green here, orange elsewhere
    box = heat.bounding_box()
    heat.hover(position={"x": box["width"] * 0.1, "y": box["height"] * 0.2})
    expect(heat).to_have_attribute("title", "layer 3, expert 0: asked 30 times, 75.0 %")
    assert seen.page.evaluate("document.documentElement.scrollWidth") <= width


def test_no_map_without_experts(visit, ask):
    seen = visit(ask("Hi"))
    expect(seen.page.locator("#panel")).to_contain_text("Since the start")
    assert seen.page.locator("canvas").count() == 0


def test_while_the_model_loads(visit, serve):
    server = serve(loaded=False)
    server.state.stage, server.state.done, server.state.total = "weights", 1, 4
    seen = visit(server, expected="status of 503")
    expect(seen.page.locator("#model")).to_have_text("tiny/model: loading: weights 25 %")


@pytest.mark.parametrize(
    ("locale", "language", "send", "scheme", "brightness"),
    [("zh-CN", "zh", "发送", "dark", range(150)), ("de-DE", "en", "Send", "light", range(600, 766))],
)
def test_the_browsers_language_and_colours(visit, ask, locale, language, send, scheme, brightness):
    page = visit(ask("Hi"), locale=locale, color_scheme=scheme).page
    expect(page.locator("html")).to_have_attribute("lang", language)
    expect(page.locator("#send")).to_have_text(send)
    colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert sum(map(int, re.findall(r"\d+", colour))) in brightness


def test_every_control_has_a_name_and_the_keyboard_reaches_it(visit, ask):
    seen = visit(ask("```\ncode\n```"))
    seen.ask()
    seen.answered()
    seen.page.get_by_text("Parameters").click()
    tree = seen.context.new_cdp_session(seen.page).send("Accessibility.getFullAXTree")
    controls = [
        n for n in tree["nodes"] if n.get("role", {}).get("value") in ("button", "textbox", "spinbutton", "log")
    ]
    assert len(controls) >= 9 and all(node["name"]["value"].strip() for node in controls)
    seen.page.evaluate("document.activeElement.blur()")
    reached = set()
    for _ in range(20):
        seen.page.keyboard.press("Tab")
        reached.add(seen.page.evaluate("document.activeElement.id || document.activeElement.name"))
    assert {"clear", "open", "log", "question", "temperature", "system", "again", "send"} <= reached
