"""Makes page.png, the README's picture of the web page, from a session that it runs: python docs/pictures/page.py [MODEL],
in kt's environment with the developers' tools, where a Chromium is installed. Without MODEL it is the demo.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

KT = Path(sys.executable).with_name("kt")
QUESTION = "What is photosynthesis? Answer with a short list."


def main() -> None:
    model = sys.argv[1] if len(sys.argv) > 1 else "demo"
    with subprocess.Popen([KT, "run", model, "--port", "30999"], stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr
        found = re.search(r"http://\S+", next(line for line in server.stderr if "http://" in line))
        assert found
        try:
            draw(found[0])
        finally:
            server.terminate()


def draw(url: str) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1100, "height": 680}, locale="en-US")
        page.goto(url)
        page.locator("#parameters summary").click()
        page.locator("[name=temperature]").fill("0")
        page.locator("[name=max_tokens]").fill("160")
        page.locator("#parameters summary").click()
        page.locator("#question").fill(QUESTION)
        with page.expect_response("**/metrics"):  # the panel shows what the answer did
            page.keyboard.press("Control+Enter")
            page.locator("#log[aria-busy=false] .assistant").wait_for()
        page.screenshot(path=Path(__file__).with_name("page.png"))


if __name__ == "__main__":
    main()
