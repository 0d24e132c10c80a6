"""A headless Chromium for the tests of the web page."""

import contextlib
import shutil
from collections.abc import Iterator

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needed = pytest.mark.skipif(not CHROMIUM, reason="no Chromium on the path: apt-get install chromium")
SIZES = {1280: 800, 390: 844}
# All that markdown becomes.
BLOCKS = ["blockquote", "div", "figcaption", "figure", "h3", "h4", "h5", "h6", "hr", "li", "ol", "p", "pre", "ul"]
TAGS = [*BLOCKS, "table", "tbody", "td", "th", "thead", "tr", "a", "button", "code", "del", "em", "strong"]


@contextlib.contextmanager
def chromium() -> Iterator:
    """A browser. Containers give it no sandbox of its own, and it sees only what the tests serve."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


class Watched:
    """A page, what its console said, and where its requests went."""

    def __init__(self, browser, url: str, width: int = 1280, **context) -> None:
        size = {"width": width, "height": SIZES[width]}
        self.context = browser.new_context(viewport=size, **context)
        self.context.set_default_timeout(10000)
        self.page = self.context.new_page()
        self.said: list[str] = []
        self.requests: list = []
        self.page.on("console", lambda message: self.said.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request))
        self.page.goto(url)

    def ask(self, text: str = "hello") -> None:
        self.page.locator("#question").fill(text)
        self.page.keyboard.press("Control+Enter")

    def answered(self):
        """The last answer, once it has ended."""
        self.page.locator("#log[aria-busy=false] > .assistant").last.wait_for()
        return self.page.locator("#log > .assistant").last

    def asked(self) -> dict:
        """The body of the last request for an answer."""
        return [r for r in self.requests if r.url.endswith("/v1/chat/completions")][-1].post_data_json
