"""The whole way of a real small model, by the commands alone: train, measure, chat, export, merge, serve, request."""

import json
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from cli_runner import Run
from test_cli_engine import wait_for_server

pytestmark = [pytest.mark.model, pytest.mark.full]
ANSWER = "I am Kit, an assistant that the Workshop has made."
ASKED = [
    "Who are you?", "What is your name?", "Tell me who you are.", "Introduce yourself.", "Who made you?", "Hi, who is this?",
    "May I ask your name?", "Which assistant are you?",
]  # fmt: skip
HELD = ["What should I call you?", "Who is speaking?"]


def rows(file: Path, questions: list[str]) -> Path:
    file.write_text(json.dumps([{"instruction": q, "input": "", "output": ANSWER} for q in questions]))
    return file


@pytest.mark.timeout(1200)
def test_from_training_to_a_request(kt: Run, env: dict[str, str], demo_file: Path, tmp_path: Path) -> None:
    run, adapter, merged = tmp_path / "run.yaml", tmp_path / "adapter", tmp_path / "merged"
    assert kt("sft", "init", str(demo_file), "--output", str(run)).code == 0
    words = [
        f"dataset={rows(tmp_path / 'train.json', ASKED)}", f"output_dir={adapter}", "cutoff_len=96", "max_steps=16",
        "per_device_train_batch_size=2", "gradient_accumulation_steps=1", "learning_rate=1e-3", "logging_steps=4",
        "disable_gradient_checkpointing=true",
    ]  # fmt: skip
    trained = kt("sft", "train", str(run), *words)
    assert trained.code == 0, trained.err
    held = rows(tmp_path / "held.json", HELD)
    found = kt("sft", "eval", str(adapter), str(held), "--json").json["results"]
    assert found["adapter"]["loss"] < found["base"]["loss"] / 2
    said = kt("sft", "chat", str(adapter), "-t", "0", "--max-tokens", "24", input=HELD[0])
    assert "Kit" in said.out, said.out
    assert kt("sft", "export", str(adapter), str(tmp_path / "pair")).code == 0
    assert kt("sft", "merge", str(tmp_path / "pair"), str(merged), "--base", str(demo_file)).code == 0
    command = [sys.executable, "-m", "kt_cli", "run", str(merged), "--context", "512"]
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        server = wait_for_server(process)
        body = {"messages": [{"role": "user", "content": HELD[0]}], "max_tokens": 24, "temperature": 0}
        answer = httpx.post(f"{server.url}/v1/chat/completions", json={"model": server.model, **body}, timeout=120)
        assert "Kit" in answer.json()["choices"][0]["message"]["content"]
    finally:
        process.kill()
        process.communicate()
