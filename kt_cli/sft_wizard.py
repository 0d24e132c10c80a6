"""`kt sft train` without a file on a terminal: a few questions, whose answers become a file of settings."""

import json
from pathlib import Path

import yaml

from kt_cli import choose, output
from kt_core import config, paths
from kt_core.errors import UsageError
from kt_core.messages import t
from kt_core.train import settings

FILE = "run.yaml"


def asked() -> Path:
    """The file that was written. Raises UsageError where nobody can be asked, KeyboardInterrupt when a question is cancelled."""
    if not choose.can_ask():
        raise UsageError("sft.needs_file")
    model = choose.text(t("sft.ask_model"), "demo")
    data = choose.text(t("sft.ask_data"), "data.jsonl")
    kind = choose.select(t("sft.ask_type"), [(t(f"sft.type_{name}"), name) for name in settings.TYPES])
    folder = choose.text(t("sft.ask_output"), f"saves/{Path(model).name.removesuffix('.gguf')}")
    file = paths.expanded(Path(choose.text(t("sft.ask_file"), FILE)))
    if file.exists():
        raise UsageError("sft.exists", path=file)
    text = t("sft.init", model=json.dumps(model, ensure_ascii=False), output=json.dumps(folder, ensure_ascii=False))
    config.replace_file(file, with_values(text, {"dataset": data, "finetuning_type": kind}))
    output.muted(t("sft.same_as", file=file))
    return file


def with_values(text: str, values: dict[str, str]) -> str:
    """A file of settings with other values on its lines, comments and all; whole weights have no use for a rank."""
    lines = []
    whole = values.get("finetuning_type", "lora") != "lora"
    for line in text.splitlines():
        key = line.partition(":")[0]
        if whole and key.startswith("lora_"):
            continue
        if whole and key == "learning_rate":
            line = "learning_rate: 1.0e-5"
        elif key in values:
            line = yaml.safe_dump({key: values[key]}, allow_unicode=True).strip()
        lines.append(line)
    return "\n".join(lines) + "\n"
