"""The output as a GGUF file."""

from typing import Any

from kt_core.models import families
from kt_core.models.gguf_writer import Tensor, header, padded
from kt_core.quantise import scheme
from kt_core.quantise.job import Job
from kt_core.quantise.layout import File, Layout, by_layer, piece
from kt_core.quantise.methods import Scheme
from kt_core.quantise.source import Source
from kt_core.quantise.vocabulary import vocabulary

# llama.cpp's numbers for what most of a file's tensors are; of IQ4_K ik_llama.cpp's.
_FILE_TYPES = {"Q4_1": 3, "Q8_0": 7, "Q4_K_M": 15, "Q5_K_M": 17, "Q6_K": 18, "GGUF_BF16": 32, "IQ4_K": 140}


def layout(source: Source, job: Job, label: bytes) -> Layout:
    """Where everything goes. `label` is the content of kt.json."""
    tied = not any(weight.part == "head" for weight in source.weights)
    pieces = []
    for weight in source.weights:
        kind = scheme.of_gguf(weight, job, source.layers, tied)
        pieces.append(piece(weight, Scheme(kind) if kind else None, lambda name, suffix: name))
    groups = by_layer(pieces)
    tensors = [Tensor(one.names[0], one.tensors[0].format, one.tensors[0].shape) for group in groups for one in group]
    start, offsets = header(_metadata(source, job), tensors)
    last = tensors[-1]
    size = offsets[last.name] + padded(last.nbytes)
    file = File(f"{job.name}.gguf", start, offsets, size, tuple(map(tuple, groups)))
    return Layout((file,), {"kt.json": label}, lambda out: None)


def _metadata(source: Source, job: Job) -> dict[str, Any]:
    own = {"general.name": job.name, "general.file_type": _FILE_TYPES[job.method], "general.quantization_version": 2}
    if source.header is not None:
        parts = ("split.no", "split.count", "split.tensors.count", "general.alignment")
        return {key: value for key, value in source.header.metadata.items() if key not in parts} | own
    found = families.metadata(source.config)
    return found | own | vocabulary(source.files, int(source.config["vocab_size"]))
