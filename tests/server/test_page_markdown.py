"""The page's markdown in a headless Chromium: against markdown-it, and in pieces of any text."""

import html
import re
from html.parser import HTMLParser

import browser
import pytest
from browser import TAGS
from hypothesis import given, settings
from hypothesis import strategies as st
from live import Running
from markdown_it import MarkdownIt

from kt_core.server.state import State

pytestmark = browser.needed
REFERENCE = MarkdownIt("commonmark", {"html": False, "linkify": False}).enable(["table", "strikethrough"])
DOCUMENTS = [
    "One *two* **three** ***four*** `five` ~~six~~ \\*seven\\*",
    "snake_case_name and 2 * 3 * 4 and _whole words_ and __two__",
    "a **b *c* d** e *f **g** h* i",
    "``a ` b`` and ` c ` and `un\nbroken` and ``` no end",
    "# One\n## Two *em*\ntext right after\n###### Six\n#not one",
    "- a\n- b\n  - c\n    - d\n- e\n\nafter",
    "1. a\n2. b\n   - c\n   - d\n3. e",
    "7) seven\n8) eight",
    "- a\n\n  second paragraph\n\n- b",
    "1. Do this:\n\n   ```sh\n   ls -l\n     indented\n   ```\n\n2. Then that",
    "* a\n* b\n\n- c\n- d",
    "> quoted *em*\n> - item\n>> deeper\n\nnot quoted",
    "```python\ndef f():\n\treturn '<b>'\n```\nafter",
    "~~~\n```\n~~~\n",
    "````\n```\nnested\n```\n````",
    "```\nnever closed\n\n# still code",
    "| a | b |\n|:--|--:|\n| *1* | `2` |\n| 3 \\| 4 |\n\nafter",
    "a | b\n--|--\n1 | 2",
    "no | table\nhere",
    "---\n\ntext\n\n* * *\n",
    "[a *b*](https://x.example/p?q=1&r=2) [t](http://x.example 'title') [n](https://x.example/a_(b)) <b>shown</b> &amp;",
    "[mail](mailto:a@x.example) and [not a link] and [one](",
    "[https://x.example/a](https://x.example/b)",
    "中文**加粗**文字 and `代码`",
]
PIECES = st.sampled_from([*DOCUMENTS, "Plain words.", "Two lines\nof text."])
MARKED = st.text(alphabet="*_`~[]()#>-|\\!<h1. \n\tab", max_size=60) | st.lists(PIECES, max_size=3).map("\n".join)
# The whole text at once, and every beginning of it drawn into one element.
DRAW = """async (text) => {
  const { drawer } = await import("/page/markdown.js");
  const [once, grown] = [document.createElement("div"), document.createElement("div")];
  drawer(once)(text);
  const draw = drawer(grown);
  for (let end = 0; end <= text.length; end++) draw(text.slice(0, end));
  return [once.innerHTML, grown.innerHTML];
}"""


@pytest.fixture(scope="module")
def draw(chromium):
    server = Running(State("tiny/model"))
    page = chromium.new_page()
    page.goto(server.url)
    yield lambda text: page.evaluate(DRAW, text)
    page.close()
    server.close()


SAME = {"s": "del", **{f"h{n}": f"h{min(n + 2, 6)}" for n in range(1, 7)}}  # markdown-it's tags by ours


class Outline(HTMLParser):
    """What a reader sees of either renderer's HTML: tags without those for looks, addresses, text without its breaks."""

    UNSEEN = ("div", "figure", "p")  # a paragraph is seen by what is around it

    def __init__(self, text: str, reference: bool) -> None:
        super().__init__()
        self._same = SAME if reference else {}
        self._in_caption = False
        self.found: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self._in_caption |= tag == "figcaption"
        if tag not in self.UNSEEN and not self._in_caption:
            given = {name: value for name, value in attributes if name in ("href", "start") and value != "1"}
            self.found.append(
                f"<{self._same.get(tag, tag)} {given.get('href', '').rstrip('/')}{given.get('start', '')}>"
            )

    def handle_endtag(self, tag):
        if tag not in (*self.UNSEEN, "hr") and not self._in_caption:
            self.found.append(f"</{self._same.get(tag, tag)}>")
        self._in_caption &= tag != "figcaption"

    def handle_data(self, data):
        if not self._in_caption and data.strip():
            self.found.append(re.sub(r"\s+", " ", data.strip()))


def outline(text, reference=False):
    return "".join(Outline(text, reference).found)


@pytest.mark.parametrize("text", DOCUMENTS, ids=range(len(DOCUMENTS)))
def test_as_markdown_it(draw, text):
    once, grown = draw(text)
    assert outline(once) == outline(REFERENCE.render(text.replace("&amp;", "&amp;amp;")), reference=True)
    assert grown == once


@settings(max_examples=60, deadline=None)
@given(MARKED)
def test_any_text_in_any_pieces(draw, text):
    once, grown = draw(text)
    assert grown == once
    assert set(re.findall(r"<(\w+)", once)) <= set(TAGS)
    shown = html.unescape(re.sub(r"<figcaption>.*?</figcaption>|<[^>]*>", "", once))
    if (
        "(" not in text and "```" not in text and "~~~" not in text
    ):  # else addresses and names of languages are left out
        assert re.findall("[abh<]", shown) == re.findall("[abh<]", text)


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "unit",
    ["*a ", "**a*_b", "[", "[a](", "![", "`", "` `` ", "> ", ">", "- ", "  - a\n", "1. a\n- b\n", "| a ", "|-", "http://[", "~~~\n", "\\", "#", "<a "],
)  # fmt: skip
def test_hostile_text_costs_little(chromium, draw, unit):
    """A renderer whose work grows with the square of this text's length would take minutes for it."""
    page = chromium.contexts[-1].pages[-1]
    text = unit * (200_000 // len(unit))
    drawn = "async (text) => { const { drawer } = await import('/page/markdown.js'); drawer(document.createElement('div'))(text); }"
    page.evaluate(drawn, text)
