"""A hub repository's headers, without its weights: its small files whole, of the others as much as the headers take.

What is read lies in a folder of the cache as a model would, with files of the published sizes that are empty behind their
headers and take no room. So the readers for models on this disk read it, and a second look needs no network.
"""

import re
import shutil
import struct
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kt_core import paths
from kt_core.errors import BadData, EnvironmentProblem, KTError, NotFound, UsageError
from kt_core.formats import gguf
from kt_core.models.files import local_files
from kt_core.types import ModelFiles

if TYPE_CHECKING:
    import httpx

CONNECT_SECONDS = 5.0
READ_SECONDS = 30.0
_AT_ONCE = 8  # requests: a large model has 160 files
_FIRST_BYTES = 1 << 18  # of a safetensors file: headers of files with thousands of tensors have more, most have less
_FIRST_GGUF = 1 << 22  # of a GGUF file: its vocabulary is in the header
_MOST_SMALL = 1 << 26  # bytes of a file that is read whole; the largest indices have 2^24
_MOST_HEADER = 1 << 27  # as the readers' own limit
_SAFE = re.compile(r"[\w][\w.+ -]*(/[\w][\w.+ -]*)?")
_REPO = re.compile(r"\w[\w.-]*/\w[\w.-]*")
_QUANT = re.compile(r"(\w[\w.-]*)?")
_PART = re.compile(r"(?P<stem>.+)-\d{5}-of-\d{5}\.gguf")
_SMALL = (
    "config.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "hf_quant_config.json",
    "model.safetensors.index.json",
)


@dataclass(frozen=True)
class File:
    """A published file, and what the hub says of its content: large files' SHA-256, small ones' id as a git blob."""

    name: str
    size: int
    sha256: str = ""
    blob: str = ""


def read_headers(name: str) -> ModelFiles:
    """The files of the repository `name`, "owner/model" or "owner/model:QUANT" for one of several GGUF models.

    Raises NotFound for no such repository or one without weights, UsageError where several models are in it,
    EnvironmentProblem for a hub that cannot be reached or asks for a login, BadData for files that are no model.
    """
    repo, quant = parts_of(name)
    with connected(repo, paths.cache_dir()) as client:
        revision, files = listing(client, repo)
        picked = chosen(repo, files, quant)
        folder = paths.cache_dir() / "headers" / f"{repo.replace('/', '--')}@{revision[:12]}" / (quant or "model")
        if not folder.is_dir():
            _fetch(client, repo, revision, picked, folder)
    first = next((file.name for file in picked if file.name.endswith(".gguf")), "")
    return local_files(folder / Path(first).name if first else folder, repo)


def parts_of(name: str) -> tuple[str, str]:
    """(repository, what tells one GGUF model from others in it). Raises NotFound for what cannot be a repository."""
    repo, _, quant = name.partition(":")
    if not _REPO.fullmatch(repo) or not _QUANT.fullmatch(quant):  # both become names of folders
        raise NotFound("models.no_repository", name=name)
    return repo, quant


@contextmanager
def connected(repo: str, folder: Path) -> "Iterator[httpx.Client]":
    """A client of the hub. Raises EnvironmentProblem for a hub that does not answer, KTError when `folder` cannot be written."""
    import httpx

    headers = {"Accept-Encoding": "identity"} | _authorization(repo)
    timeout = httpx.Timeout(READ_SECONDS, connect=CONNECT_SECONDS)
    try:
        with httpx.Client(headers=headers, timeout=timeout, follow_redirects=True) as client:
            yield client
    except httpx.HTTPError as error:
        raise EnvironmentProblem("models.hub_failed", name=repo, reason=error or type(error).__name__) from None
    except OSError as error:
        raise KTError("models.disk_failed", name=repo, folder=folder, reason=error.strerror or error) from error


def _authorization(repo: str) -> dict[str, str]:
    from huggingface_hub import constants, get_token

    if constants.HF_HUB_OFFLINE:
        raise EnvironmentProblem("models.offline", name=repo)
    token = get_token()
    return {"Authorization": f"Bearer {token}"} if token else {}


def _endpoint() -> str:
    from huggingface_hub import constants

    return str(constants.ENDPOINT).rstrip("/")


def listing(client: "httpx.Client", repo: str) -> tuple[str, list[File]]:
    """(commit, files with their sizes). Names that are no plain ones are left out."""
    answer = client.get(f"{_endpoint()}/api/models/{repo}", params={"blobs": "true"})
    if answer.status_code in (401, 403):
        raise EnvironmentProblem("models.hub_login", name=repo)
    if answer.status_code == 404:
        raise NotFound("models.no_repository", name=repo)
    answer.raise_for_status()
    try:
        data = answer.json()
        listed = [_file(entry) for entry in data["siblings"]]
        revision = str(data["sha"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise EnvironmentProblem("models.hub_failed", name=repo, reason=f"{type(error).__name__}: {error}") from None
    if not re.fullmatch(r"[0-9a-f]{7,64}", revision):
        raise EnvironmentProblem("models.hub_failed", name=repo, reason=revision[:40])
    return revision, [file for file in listed if _SAFE.fullmatch(file.name) and ".." not in file.name]


def _file(entry: dict[str, Any]) -> File:
    """Raises KeyError, ValueError, TypeError and AttributeError for an entry that is none."""
    sha256, blob = str((entry.get("lfs") or {}).get("sha256") or ""), str(entry.get("blobId") or "")
    return File(str(entry["rfilename"]), int(entry.get("size") or 0), sha256, blob)


def chosen(repo: str, files: list[File], quant: str) -> list[File]:
    """The files of one model: config, templates and shards, or the parts of one GGUF model."""
    shards = [file for file in files if file.name.endswith(".safetensors") and "/" not in file.name]
    small = [file for file in files if file.name in _SMALL and file.size <= _MOST_SMALL]
    if shards and any(file.name == "config.json" for file in small) and not quant:
        return small + shards
    models: dict[str, list[File]] = {}
    for file in sorted(files, key=lambda file: file.name):
        if file.name.endswith(".gguf") and "mmproj" not in file.name:
            match = _PART.fullmatch(file.name)
            models.setdefault(match["stem"] if match else file.name, []).append(file)
    wanted = {stem: parts for stem, parts in models.items() if quant.casefold() in stem.casefold()}
    if not wanted:
        raise NotFound("models.no_weights", name=repo, found=", ".join(sorted(models)) or "-")
    if len(wanted) > 1:
        raise UsageError("models.several_quants", name=repo, files=", ".join(sorted(wanted)))
    return next(iter(wanted.values()))


def _fetch(client: "httpx.Client", repo: str, revision: str, files: Iterable[File], folder: Path) -> None:
    """All files into `folder`, or none."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=".", dir=folder.parent))
    url = f"{_endpoint()}/{repo}/resolve/{revision}"
    try:
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(lambda file: _fetch_one(client, f"{url}/{file.name}", file, beside), files))
        if not folder.is_dir():  # another process may have been faster
            beside.replace(folder)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _fetch_one(client: "httpx.Client", url: str, file: File, folder: Path) -> None:
    path = folder / Path(file.name).name
    if file.name in _SMALL:
        path.write_bytes(_range(client, url, min(file.size or _MOST_SMALL, _MOST_SMALL)))
    elif file.name.endswith(".gguf"):
        _fetch_gguf(client, url, file, path)
    else:
        data = _range(client, url, min(file.size, _FIRST_BYTES))
        length = struct.unpack("<Q", data[:8])[0] + 8 if len(data) >= 8 else 0
        if len(data) < length <= min(file.size, _MOST_HEADER):
            data += _range(client, url, length, len(data))
        _write(path, data[:length], file.size)


def _fetch_gguf(client: "httpx.Client", url: str, file: File, path: Path) -> None:
    """More and more of the file, until its header is whole."""
    data = b""
    wanted = _FIRST_GGUF
    while True:
        wanted = min(wanted, file.size, _MOST_HEADER)
        data += _range(client, url, wanted, len(data))
        _write(path, data, file.size)
        try:
            if gguf.read_header(path).data_offset <= len(data):
                return
        except KTError:
            if wanted >= min(file.size, _MOST_HEADER):
                raise
        if wanted >= min(file.size, _MOST_HEADER):
            return
        wanted *= 4


def _write(path: Path, data: bytes, size: int) -> None:
    """`data`, and nothing up to `size`: file systems keep such a hole without room."""
    with path.open("wb") as out:
        out.write(data)
        out.truncate(max(size, len(data)))


def _range(client: "httpx.Client", url: str, end: int, start: int = 0) -> bytes:
    """Bytes start to end of the file; a server without ranges is read so far and no further."""
    if end <= start:
        return b""
    data = bytearray()
    with client.stream("GET", url, headers={"Range": f"bytes={start}-{end - 1}"}) as answer:
        if answer.status_code in (401, 403):
            raise EnvironmentProblem("models.hub_login", name=url)
        answer.raise_for_status()
        skip = 0 if answer.status_code == 206 else start
        for chunk in answer.iter_bytes():
            data += chunk
            if len(data) >= end - start + skip:
                break
    if len(data) < end - start + skip:
        raise BadData("models.short_answer", url=url, found=len(data), wanted=end - start + skip)
    return bytes(data[skip : skip + end - start])
