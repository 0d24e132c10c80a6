"""Fine-tuning runs of the tiny model, in this process."""

import copy
import json
import os
from pathlib import Path

import tinymodel

from kt_core.events import Events
from kt_core.train import session
from kt_core.train.settings import check, settings

ROWS = [
    {"instruction": f"say {word}", "input": "", "output": f"{word} {word} the lazy dog"}
    for word in ("fox", "dog", "hello", "world", "stop", "go", "quick", "brown")
]


def base(folder: Path, scale: float = 1.0) -> Path:
    """The tiny model as a checkpoint folder, in float32, of values that bfloat16 has: kt rounds float32 experts to it."""
    model = copy.deepcopy(tinymodel.model())
    for parameter in model.parameters():
        parameter.data = (parameter.data * scale).bfloat16().float()
    model.save_pretrained(folder)
    tinymodel.tokenizer().save_pretrained(folder)
    return folder


def dataset(folder: Path) -> Path:
    file = folder / "rows.json"
    file.write_text(json.dumps(ROWS))
    return file


def chosen(model: Path, data: Path, out: Path, **more):
    """Settings of a short run, checked."""
    values = {
        "model_name_or_path": str(model), "dataset": str(data), "output_dir": str(out), "cutoff_len": 64,
        "lora_rank": 4, "learning_rate": 1e-2, "max_steps": 4, "save_steps": 2, "logging_steps": 1,
        "per_device_train_batch_size": 2, "kt_config": {"kt_num_threads": 1},
    }  # fmt: skip
    return check(settings(values | more))


def train(s):
    """Run it; the events that it told."""
    reading, writing = os.pipe()
    session.run(s, Events(writing))
    os.close(writing)
    with os.fdopen(reading) as lines:
        return [json.loads(line) for line in lines]
