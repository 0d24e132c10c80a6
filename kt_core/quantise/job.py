"""What is to be made of a model, checked before anything is opened. Light: the command line builds a job, a process does it."""

import json
import os
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kt_core.errors import BadData, UsageError
from kt_core.formats.texts import read_text
from kt_core.types import ModelFiles

FOLDERS = ("int4", "int8", "fp8", "mxfp4", "bf16")  # a Hugging Face folder
GGUF = ("Q4_K_M", "Q5_K_M", "IQ4_K", "Q4_1", "Q6_K", "Q8_0", "GGUF_BF16")  # a GGUF file
EXPERTS_ONLY = {"moe_int4": "int4", "moe_int8": "int8"}
COMPENSATED = ("int4", "int8", *EXPERTS_ONLY)  # methods that GPTQ rounds for
METHODS = (*FOLDERS, *EXPERTS_ONLY, *GGUF)
TYPES = ("Q4_K", "Q5_K", "Q6_K", "IQ4_K", "Q8_0", "Q4_1", "Q5_1", "BF16", "F32")  # of single tensors in a GGUF file
KEEP = "keep"
JOURNAL = "journal.json"  # in the unfinished folder: how much is on the disk
INPUTS = "index.json"  # of GPTQ's inputs, written last: with it they are whole
GROUPS = (32, 64, 128)
ALL, EXPERTS, OTHER = "all", "experts", "other"
ONLY = (ALL, EXPERTS, OTHER)
LEAST_LETTERS, LEAST_KINDS = 500, 10  # of a text: less of it puts no figures into most columns


@dataclass(frozen=True)
class Override:
    """Weights whose name the expression finds get another method; `group` 0: the job's."""

    pattern: str
    method: str
    group: int = 0


@dataclass(frozen=True)
class Job:
    """`only` says which weights of the layers are taken: all, those of routed experts, or all but those."""

    model: ModelFiles
    method: str
    out: str
    name: str  # under which the store lists it
    group: int = 32
    zero_point: bool = False
    only: str = ALL
    overrides: tuple[Override, ...] = ()
    threads: int = 1
    dry_run: bool = False
    importance: str = ""  # a text whose statistics say how much an error of each column counts; "": all alike
    gptq: str = ""  # a text whose inputs say how columns make good for each other; "": they do not

    @property
    def gguf(self) -> bool:
        return self.method in GGUF

    def text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> "Job":
        """Raises ValueError or TypeError for a text that is not of text()."""
        fields: dict[str, Any] = json.loads(text)
        files = ModelFiles(**fields["model"] | {"files": tuple(fields["model"]["files"])})
        overrides = tuple(Override(**override) for override in fields["overrides"])
        return cls(**fields | {"model": files, "overrides": overrides})


def unfinished(out: Path) -> Path:
    """The folder beside `out` that it is written into; lists of models leave hidden ones out."""
    return out.with_name(f".{out.name}.partial")


def inputs_of(out: Path) -> Path:
    """The folder beside `out` that holds what a text puts into each weight, while GPTQ works."""
    return out.with_name(f".{out.name}.inputs")


def begun(out: Path) -> bool:
    """Whether an earlier run left what the same command goes on with: a layer of the output, or a text's inputs for GPTQ."""
    try:
        journal = json.loads((unfinished(out) / JOURNAL).read_text(encoding="utf-8"))
        done = bool(journal["done"])
    except (OSError, ValueError, KeyError, TypeError):
        done = False
    return done or (inputs_of(out) / INPUTS).is_file()


def exists(out: str) -> bool:
    """Whether something is there, a link to nothing included."""
    return os.path.lexists(out)


def check_new(out: str) -> None:
    """Raises UsageError when something is there already."""
    if exists(out):
        raise UsageError("quantise.exists", out=out)


def read_sample(path: Path) -> str:
    """A text to run through a model. Raises NotFound; BadData for what is no text, and for one that would teach nothing."""
    text = read_text(path)
    letters = "".join(text.split())
    if len(letters) < LEAST_LETTERS:
        raise BadData("quantise.short_text", path=path, count=len(letters), least=LEAST_LETTERS)
    if len(set(letters)) < LEAST_KINDS:
        raise BadData("quantise.uniform_text", path=path, count=len(set(letters)), least=LEAST_KINDS)
    return text


def method_of(name: str) -> tuple[str, str]:
    """(method, which weights) for a name as it was typed. Raises UsageError."""
    known = {method.casefold(): method for method in METHODS}
    method = known.get(name.casefold())
    if method is None:
        raise UsageError("quantise.method", name=name, known=", ".join(METHODS))
    return (EXPERTS_ONLY[method], EXPERTS) if method in EXPERTS_ONLY else (method, ALL)


def overrides_of(texts: Sequence[str], method: str) -> tuple[Override, ...]:
    """Overrides from PATTERN=METHOD[:GROUP]. Raises UsageError for what is none of this kind of output's methods."""
    known = TYPES if method in GGUF else FOLDERS
    methods = {name.casefold(): name for name in (*known, KEEP)}
    found = []
    for text in texts:
        pattern, _, rest = text.rpartition("=")
        name, colon, group = rest.partition(":")
        wanted = methods.get(name.casefold())
        if not pattern or wanted is None or (colon and (wanted != "int4" or group not in map(str, GROUPS))):
            raise UsageError("quantise.override", text=text, known=", ".join(methods.values()))
        try:
            re.compile(pattern)
        except re.error as error:
            raise UsageError("quantise.pattern", text=pattern, reason=error) from None
        found.append(Override(pattern, wanted, int(group or 0)))
    return tuple(found)
