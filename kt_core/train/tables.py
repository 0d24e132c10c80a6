"""Data sets of several files: a folder on this disk, or a repository of the hub, in JSON, JSON lines, Parquet or Arrow."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kt_core.errors import BadData, EnvironmentProblem, NotFound

ENDINGS = (".json", ".jsonl", ".parquet", ".arrow")
TABLES = (".parquet", ".arrow")
REPOSITORY = re.compile(r"[\w][\w.-]*/[\w][\w.-]*")
_DESCRIBING = ("dataset_info.json", "dataset_dict.json", "dataset_infos.json", "state.json", "config.json")


def files_of(folder: Path) -> list[Path]:
    """The files with rows in a folder, as one wrote them or `datasets` did: of several splits, those to train on. Raises NotFound."""
    found = sorted(path for path in folder.rglob("*") if _rows(path.name))
    if not found:
        raise NotFound("train.empty_folder", folder=folder, known=", ".join(ENDINGS))
    names = [str(path.relative_to(folder)) for path in found]
    return [folder / name for name in trained_on(names)]


def from_hub(repository: str) -> list[Path]:
    """The same of a data set's repository, through huggingface_hub's cache. Raises NotFound, with its reason."""
    from huggingface_hub import HfApi, hf_hub_download

    try:
        names = [name for name in HfApi().list_repo_files(repository, repo_type="dataset") if _rows(Path(name).name)]
        chosen = trained_on(names)
        found = [Path(hf_hub_download(repository, name, repo_type="dataset")) for name in chosen]
    except Exception as error:  # whatever the client library raises
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise NotFound("train.hub_dataset", name=repository, reason=reason) from None
    if not found:
        raise NotFound("train.hub_dataset", name=repository, reason=", ".join(ENDINGS))
    return found


def trained_on(names: list[str]) -> list[str]:
    """Of files' names those of the split "train", all where there is none; of one form, the first of ENDINGS."""
    split = [name for name in names if "train" in re.split(r"[^a-z]+", name.lower())] or names
    form = next((end for end in ENDINGS if any(name.endswith(end) for name in split)), "")
    return sorted(name for name in split if name.endswith(form))


def rows(file: Path) -> Iterator[Any]:
    """Of a Parquet or Arrow file. Raises EnvironmentProblem without pyarrow, BadData."""
    try:
        import pyarrow.ipc  # type: ignore[import-not-found]
        import pyarrow.parquet  # type: ignore[import-not-found]
    except ImportError:
        raise EnvironmentProblem("train.needs_pyarrow", file=file) from None
    try:
        if file.suffix == ".parquet":
            table = pyarrow.parquet.read_table(file)
        else:
            with pyarrow.memory_map(str(file)) as data:
                table = pyarrow.ipc.open_stream(data).read_all()
        yield from table.to_pylist()
    except (OSError, ValueError) as error:  # pyarrow's own errors are ValueErrors
        raise BadData("train.bad_table", file=file, reason=" ".join(str(error).split())) from None


def _rows(name: str) -> bool:
    return name.endswith(ENDINGS) and name not in _DESCRIBING and not name.startswith(".")
