"""The output as a Hugging Face folder, in the words of compressed-tensors where it is quantised."""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kt_core.formats.quantized import unquantised
from kt_core.formats.safetensors import INDEX
from kt_core.quantise import methods, scheme
from kt_core.quantise.job import Job
from kt_core.quantise.layout import Layout, Piece, by_layer, piece, safetensors_file, shards
from kt_core.quantise.methods import Scheme
from kt_core.quantise.source import Source

BESIDE = (".json", ".txt", ".jinja", ".model", ".tiktoken")  # tokenizer, templates, generation settings, licence
_LIMIT = 64 << 20  # bytes of a file beside the weights; vocabularies take half of that
_SKIPPED = ("config.json", INDEX, "kt.json", "hf_quant_config.json", "quantize_config.json")


def layout(source: Source, job: Job, label: bytes) -> Layout:
    """Where everything goes. `label` is the content of kt.json."""
    pieces = [piece(weight, scheme.of_folder(weight, job), _renamed) for weight in source.weights]
    parted = shards(by_layer(pieces))
    count = len(parted)
    files = tuple(
        safetensors_file(f"model-{number:05}-of-{count:05}.safetensors" if count > 1 else "model.safetensors", groups)
        for number, groups in enumerate(parted, 1)
    )
    small = {"config.json": _json(_config(source, pieces)), "kt.json": label}
    if count > 1:
        total = sum(one.nbytes for one in pieces)
        places = {name: file.name for file in files for name in file.offsets}
        small[INDEX] = _json({"metadata": {"total_size": total}, "weight_map": places})
    if source.header is None:
        folder = Path(source.files.path)
        small |= {path.name: path.read_bytes() for path in _beside(folder)}
        return Layout(files, small, lambda out: None)
    return Layout(files, small, lambda out: _write_tokenizer(source, out))


def _renamed(name: str, suffix: str) -> str:
    return name if suffix == "weight" else f"{name.removesuffix('weight')}{suffix}"


def _json(content: object) -> bytes:
    return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()


def _beside(folder: Path) -> Iterable[Path]:
    for path in sorted(folder.iterdir()):
        if path.suffix in BESIDE and path.name not in _SKIPPED and path.is_file() and path.stat().st_size < _LIMIT:
            yield path


def _write_tokenizer(source: Source, out: str) -> None:
    from kt_core.engine.tokenizer import load_tokenizer  # with transformers, whose import takes seconds

    load_tokenizer(source.files, source.header).save_pretrained(out)


def _config(source: Source, pieces: list[Piece]) -> dict[str, Any]:
    if source.header is None:
        text = (Path(source.files.path) / "config.json").read_bytes()
        config = unquantised(json.loads(text))
    else:
        config = source.config | {"dtype": "bfloat16"}
    settings = _settings(pieces)
    return config | ({"quantization_config": settings} if settings else {})


def _settings(pieces: list[Piece]) -> dict[str, Any]:
    """compressed-tensors' description: a group for each scheme, and the linear layers that stay as they are."""
    schemes = {_module(one): _quantising(one.scheme) for one in pieces if _is_linear(one)}
    groups = {}
    named = _patterns(schemes)
    used = [found for found in named if found is not None]
    for index, found in enumerate(used):
        method = methods.find(found.method)
        groups[f"group_{index}"] = {
            "targets": named[found],
            "weights": method.settings(found),
            "input_activations": None,
            "output_activations": None,
            "format": method.FORMAT,
        }
    if not groups:
        return {}
    formats = {str(group["format"]) for group in groups.values()}
    return {
        "quant_method": "compressed-tensors",
        "format": formats.pop() if len(formats) == 1 else "mixed-precision",
        "quantization_status": "compressed",
        "config_groups": groups,
        "ignore": named.get(None, []),
        "kv_cache_scheme": None,
        "global_compression_ratio": None,
    }


def _is_linear(one: Piece) -> bool:
    weight = one.weight
    return weight.name.endswith(".weight") and len(weight.shape) == 2 and weight.part != "embedding"


def _quantising(found: Scheme | None) -> Scheme | None:
    return found if found and hasattr(methods.find(found.method), "FORMAT") else None


def _module(one: Piece) -> str:
    return one.weight.name.removesuffix(".weight")


def _patterns(schemes: dict[str, Scheme | None]) -> dict[Scheme | None, list[str]]:
    """Scheme -> the modules that have it, with the numbers of layers and experts left open where all of them agree."""
    found: dict[Scheme | None, list[str]] = {}
    left = schemes
    for open_numbers in (r"(?<=layers\.)\d+|(?<=experts\.)\d+", r"(?<=experts\.)\d+", r"(?!)"):
        alike: dict[str, list[str]] = {}
        for name in left:
            alike.setdefault(re.sub(open_numbers, "#", name), []).append(name)
        mixed: dict[str, Scheme | None] = {}
        for shape, names in alike.items():
            if len({left[name] for name in names}) > 1:
                mixed |= {name: left[name] for name in names}
                continue
            exact = "#" not in shape
            pattern = shape if exact else "re:" + re.escape(shape).replace(r"\#", r"\d+") + "$"
            found.setdefault(left[names[0]], []).append(pattern)
        left = mixed
    return found
