"""The official client for Node: it needs Node, and a folder in which `npm install openai` was run, in NODE_PATH."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from marked import ANSWER

SCRIPT = Path(__file__).with_name("openai_node.mjs")
MODULES = os.environ.get("NODE_PATH", "")
needed = pytest.mark.skipif(
    not (shutil.which("node") and Path(MODULES or "/nowhere", "openai").is_dir()),
    reason="no Node with the openai package: npm install openai, then NODE_PATH=$PWD/node_modules",
)


@needed
def test_the_official_client_for_node(ask):
    server = ask(ANSWER, api_keys=("secret",))
    done = subprocess.run(["node", SCRIPT, server.url], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    got = json.loads(done.stdout)
    assert got["models"] == ["tiny/model"]
    choice = got["whole"]["choices"][0]
    calls = [call["function"] for call in choice["message"]["tool_calls"]]
    assert choice["message"]["content"] == "I look." and choice["finish_reason"] == "tool_calls"
    assert [(call["name"], json.loads(call["arguments"])) for call in calls] == [("f", {"city": "Oslo"}), ("g", {})]
    assert got["streamed"]["content"] == "I look." and got["streamed"]["calls"] == calls
    assert got["streamed"]["reason"] == "tool_calls" and got["streamed"]["usage"] == got["whole"]["usage"]
    assert got["helper"]["content"] == "I look." and [call["function"] for call in got["helper"]["tool_calls"]] == calls
    assert got["responses"]["first"] == "response.created" and got["responses"]["last"] == "response.completed"
    assert got["responses"]["text"].startswith("I look.")
    assert got["completion"]["finish_reason"] == "length" and got["errors"] == [401, 404, 400]
    server.wait_idle()
