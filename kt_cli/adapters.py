"""Adapters on the command line: NAME=FOLDER, or FOLDER, whose last part is the name; checked before anything is loaded."""

import math
import re
from pathlib import Path

from kt_core import paths
from kt_core.errors import NotFound, UsageError
from kt_core.formats import gguf, safetensors
from kt_core.train import settings

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_EXPERT = re.compile(r"\.\d+\.(gate|up|down)_proj\.|_exps\.|\.experts\.(gate|up|down)_lora_")
FROM = "--from"
_PAIR = "fused_expert_lora.safetensors"  # the other half of KTransformers' pair, with the experts' part
_FILES = ("adapter_config.json", "adapter_model.safetensors")


def parsed(given: list[str]) -> tuple[tuple[str, str], ...]:
    """Names and absolute folders. Raises UsageError for another form or a name twice, NotFound for a folder without one."""
    found: dict[str, str] = {}
    for text in given:
        name, equals, path = text.partition("=")
        name, path = (name, path) if equals else (Path(text).name, text)
        if not _NAME.fullmatch(name) or not path:
            raise UsageError("lora.name", text=text)
        folder = paths.expanded(Path(path)).absolute()
        if name in found:
            raise UsageError("lora.taken", name=name)
        if not all(paths.is_file(folder / file) for file in _FILES) and not _gguf(folder):
            raise NotFound("lora.none", folder=folder)
        found[name] = str(folder)
    return tuple(found.items())


def expanded(args: list[str]) -> list[str]:
    """The words of a command line, with --from FILE as the model and the adapter that a chat or API file names.

    Raises what reading the file raises.
    """
    if FROM not in args[:-1]:
        return args
    at = args.index(FROM)
    s = settings.check(settings.read(paths.expanded(Path(args[at + 1]))), training=False)
    beside = ["--lora", s.adapter_name_or_path] if s.adapter_name_or_path else []
    return [*args[:at], s.model_name_or_path, *beside, *args[at + 2 :]]


def nbytes(adapters: tuple[tuple[str, str], ...]) -> int:
    """Bytes that serving them takes: float32, of experts bfloat16. No matrix is read."""
    return sum(
        (2 if _EXPERT.search(name) else 4) * math.prod(shape)
        for _, folder in adapters
        for name, shape in _shapes(Path(folder)).items()
    )


def _shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    if file := _gguf(folder):
        return {name: tensor.shape for name, tensor in gguf.read_header(file).tensors.items()}
    files = [folder / _FILES[1], *(folder / name for name in (_PAIR,) if paths.is_file(folder / name))]
    return {name: tensor.shape for file in files for name, tensor in safetensors.read_header(file).items()}


def _gguf(path: Path) -> Path | None:
    """The GGUF file that `path` is, or that a folder holds in place of PEFT's; as kt_core.lora finds it."""
    if path.suffix.lower() == ".gguf" and paths.is_file(path):
        return path
    found = [] if paths.is_file(path / _FILES[0]) or not path.is_dir() else sorted(path.glob("*.gguf"))
    return found[0] if len(found) == 1 else None


def answering(model: str, adapters: tuple[tuple[str, str], ...]) -> str:
    """The name to ask for a single answer: of the adapter, where there is one."""
    return f"{model}:{adapters[0][0]}" if len(adapters) == 1 else model
