"""What a server's process takes at most (VmHWM) beside its plan, for every kind of model that can be had here.

`python tests/engine/bench_memory.py [NAME ...]` makes each model, loads it in a process of its own, writes every page of its
cache, and prints a row; without names all of them. Random models of real shapes have fewer layers, and a vocabulary of their
own size. The renderer of chat templates is a process of its own and not counted.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

sys.path[:0] = [str(Path(__file__).parent.parent / "parity"), str(Path(__file__).parent)]

import families  # noqa: E402  its folder is on the path now

from kt_core.models import catalogue  # noqa: E402

CONTEXT = 1024
SCRIPT = """
import json, sys
from pathlib import Path
import kt_core.server.serve
from kt_core.engine.start import start
from kt_core.machine import probe
from kt_core.models import read_spec, resolve
from kt_core.plan import make_plan
from kt_core.types import Request, Sampling

files = resolve(sys.argv[1])
wishes = {"context": int(sys.argv[2]), "max_running": 1, "prefix_disk": "off"}
plan = make_plan(probe(), files, read_spec(files), wishes)
engine = start(plan, lambda *_: None)
for first in (5, 6):
    prompt = tuple(first + at % 90 for at in range(plan.value("context") - 24))
    for chunk in engine.submit(Request("r", tokens=prompt, sampling=Sampling(temperature=0.0), max_tokens=20)):
        pass
engine.close(5)
most = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
print(json.dumps({"parts": plan.memory_parts, "taken": int(most.split()[1]) * 1024}))
"""
MIB = 1 << 20


def vocabulary(size: int) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer of so many tokens: all bytes, then pairs of bytes, then triples."""
    first = sorted(pre_tokenizers.ByteLevel.alphabet())
    names, merges = list(first), []
    for left in (first, [a + b for a in first for b in first]):
        for a in left:
            for b in first:
                if len(names) < size:
                    names.append(a + b)
                    merges.append((a, b))
    core = Tokenizer(models.BPE({name: at for at, name in enumerate(names)}, merges))
    core.pre_tokenizer, core.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token=names[0])


def tiny(name: str, folder: Path) -> Path:
    families.save(name, folder, torch.bfloat16)
    vocabulary(256).save_pretrained(folder)  # of which a model's 128 are asked for
    return folder


def shaped(name: str, layers: int, folder: Path) -> Path:
    """A model that kt knows, with few layers of random weights."""
    known = catalogue.find(name)
    assert known
    settings = {key: value for key, value in known.config.items() if key not in ("quantization_config", "layer_types")}
    settings |= {"num_hidden_layers": layers, "max_position_embeddings": 4096}
    config = AutoConfig.for_model(**{key: value for key, value in settings.items() if key != "architectures"})
    torch.set_default_dtype(torch.bfloat16)
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
    torch.set_default_dtype(torch.float32)
    vocabulary(config.vocab_size).save_pretrained(folder)
    return folder


def quantised(make: Callable[[Path], Path], method: str, folder: Path) -> Path:
    """What kt quant makes of another one."""
    source, target = make(folder / "source"), folder / "made"
    command = [sys.executable, "-m", "kt_cli", "quant", str(source), "--method", method, "--out", str(target), "--yes"]
    subprocess.run(command, check=True, capture_output=True, timeout=900)
    return target


def pulled(name: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "kt_cli", "model", "pull", name, "-q"]
    subprocess.run(command, check=True, capture_output=True, timeout=900)
    done = subprocess.run([sys.executable, "-m", "kt_cli", "model", "path", name], capture_output=True, text=True)
    return Path(done.stdout.strip())


METHODS = ("int4", "int8", "fp8", "mxfp4")
SHAPES = {"qwen3-30b-a3b": 2, "gpt-oss-20b": 2, "v2-lite": 3, "Qwen3-4B": 4, "mixtral-8x7b": 1, "olmoe-1b-7b": 3}
MODELS: dict[str, Callable[[Path], Path]] = {name: partial(pulled, name) for name in ("demo", "smollm2")}
MODELS |= {f"demo {method}": partial(quantised, MODELS["demo"], method) for method in (*METHODS, "Q4_K_M", "Q8_0")}
MODELS |= {
    f"{name}, {count} layers": partial(shaped, name, count) for name, count in SHAPES.items() if catalogue.find(name)
}
MODELS |= {
    f"qwen3-30b-a3b, 2 layers, {method}": partial(quantised, partial(shaped, "qwen3-30b-a3b", 2), method)
    for method in METHODS
}
MODELS |= {f"tiny {name}": partial(tiny, name) for name in families.FAMILIES}


def row(name: str) -> str:
    with tempfile.TemporaryDirectory(prefix="kt-memory-") as folder:
        context = str(128 if name.startswith("tiny") else CONTEXT)
        path = MODELS[name](Path(folder))
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, str(path), context], capture_output=True, text=True, timeout=600
        )
    if done.returncode:
        return f"| {name} | {done.stderr.strip().splitlines()[-1][:150]} |"
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    parts = told["parts"]
    planned = sum(size for part, size in parts.items() if part != "templates")
    figures = [parts["runtime"], planned - parts["runtime"], planned, told["taken"]]
    return f"| {name} | {' | '.join(f'{size / MIB:.0f}' for size in figures)} | {told['taken'] / planned - 1:+.1%} |"


def main() -> None:
    print("| model | fixed, MiB | its own | planned | VmHWM | |\n| --- | --- | --- | --- | --- | --- |")
    for name in sys.argv[1:] or MODELS:
        print(row(name), flush=True)


if __name__ == "__main__":
    main()
