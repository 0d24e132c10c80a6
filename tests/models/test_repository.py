"""Repositories of a hub on this machine: chosen files, resumed and verified downloads, repair of what is broken alone."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import small_hub
from small_hub import FILES, SHA, SHARD, Hub

from kt_core.errors import BadData, DoesNotFit, EnvironmentProblem, KTError, NotFound, UsageError
from kt_core.models import repository, resolve, store
from kt_core.models.repository import CONTENT, MISSING, OK, SIZE


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[type[Hub]]:
    from huggingface_hub import constants

    with small_hub.serving() as (handler, address):
        monkeypatch.setattr(constants, "ENDPOINT", address)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        for name, value in {"HF_ENDPOINT": address, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "0"}.items():
            monkeypatch.setenv(name, value)
        for name in ("TRANSFORMERS_OFFLINE", "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
        monkeypatch.setenv("KT_LANG", "en")
        yield handler


def quiet(*_: object) -> None:
    pass


def names(found: repository.Repository) -> set[str]:
    return {file.name for file in found.files}


WANTED = set(list(FILES)[:5])


def test_what_a_model_needs(hub: type[Hub]) -> None:
    found = repository.find("me/tiny")
    assert names(found) == WANTED and found.folder == "tiny" and found.revision == SHA
    assert found.bytes == sum(len(FILES[name]) for name in WANTED)
    assert names(repository.find("me/tiny", exclude=["model-*", "tok*"])) == {
        "config.json", "model.safetensors.index.json",
    }  # fmt: skip
    assert names(repository.find("me/tiny", include=["*.json", "*.md"], exclude=["t*"])) == {
        "config.json", "model.safetensors.index.json", "README.md",
    }  # fmt: skip
    with pytest.raises(NotFound, match=r"x\*"):
        repository.find("me/tiny", include=["x*"])


def test_one_of_several_gguf_models(hub: type[Hub]) -> None:
    hub.files = {"a-Q4_K_M.gguf": b"4", "a-Q8_0-00001-of-00002.gguf": b"8", "a-Q8_0-00002-of-00002.gguf": b"8"}
    found = repository.find("me/a-GGUF:Q8_0")
    assert len(found.files) == 2 and found.folder == "a-GGUF-Q8_0"
    with pytest.raises(UsageError, match="Q4_K_M"):
        repository.find("me/a-GGUF")


def test_a_pull_is_a_model_of_the_store(hub: type[Hub]) -> None:
    reports: list[tuple[int, int, str]] = []
    found = repository.find("me/tiny")
    files = repository.pull(found, lambda _, done, total, unit: reports.append((done, total, unit)))
    assert len(files.files) == 2 and Path(files.path) == store.models_dir() / "tiny"
    assert all((Path(files.path) / name).read_bytes() == FILES[name] for name in WANTED)
    told = [(done, total) for done, total, unit in reports if unit == "bytes"]
    assert told and all(done <= total == found.bytes for done, total in told)
    assert resolve("me/tiny").path == resolve("TINY").path == files.path
    before = list(hub.sent)
    repository.pull(found, quiet)
    assert hub.sent == before and sorted(hub.sent) == sorted(WANTED)
    assert {check.state for check in repository.verify("tiny", quiet)} == {OK}


def test_a_broken_connection_is_taken_up_again(hub: type[Hub]) -> None:
    shard = "model-00001-of-00002.safetensors"
    hub.cut[shard] = 1000
    assert repository.pull(repository.find("me/tiny"), quiet).files
    assert len([name for name in hub.sent if name.startswith(shard)]) == 2 and hub.sent.count("config.json") == 1


def test_a_killed_pull_goes_on(hub: type[Hub]) -> None:
    """Files that came whole are checked and kept; a part of one is completed."""
    found = repository.find("me/tiny")
    incoming = store.models_dir() / ".partial" / "tiny" / repository.INCOMING
    incoming.mkdir(parents=True)
    (incoming / "config.json").write_bytes(FILES["config.json"])
    shard = "model-00001-of-00002.safetensors"
    (incoming / f"{shard}.part").write_bytes(SHARD[:2000])

    def killed(stage: str, done: int, total: int, unit: str) -> None:
        if unit == "bytes":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        repository.pull(found, killed)
    assert not store.list_models()
    repository.pull(found, quiet)
    assert "config.json" not in hub.sent and f"{shard}@2000" in hub.sent


@pytest.mark.parametrize("name", ["config.json", "model-00002-of-00002.safetensors"])
def test_wrong_content_is_never_taken(name: str, hub: type[Hub]) -> None:
    """By the SHA-256 of large files, and by git's id of small ones."""
    hub.wrong = {name}
    with pytest.raises(BadData, match=name):
        repository.pull(repository.find("me/tiny"), quiet)
    assert not store.list_models()
    hub.wrong = set()
    assert repository.pull(repository.find("me/tiny"), quiet).files


def test_only_what_is_broken_is_fetched_again(hub: type[Hub]) -> None:
    folder = Path(repository.pull(repository.find("me/tiny"), quiet).path)
    one, two = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    (folder / one).write_bytes(SHARD[::-1])
    (folder / two).unlink()
    (folder / "tokenizer.json").write_bytes(b"{}")
    found = {check.file: check.state for check in repository.verify("tiny", quiet)}
    assert found == {**dict.fromkeys(WANTED, OK), one: CONTENT, two: MISSING, "tokenizer.json": SIZE}
    hub.sent.clear()
    repository.repair("tiny", [one, two, "tokenizer.json"], quiet)
    assert sorted(hub.sent) == sorted([one, two, "tokenizer.json"])
    assert {check.state for check in repository.verify("me/tiny", quiet)} == {OK}


def test_a_folder_that_kt_did_not_download(hub: type[Hub]) -> None:
    folder = store.models_dir() / "tiny"
    folder.mkdir(parents=True)
    (folder / "a.gguf").write_bytes(b"x")
    assert [check.state for check in repository.verify("tiny", quiet)] == [repository.UNKNOWN]
    with pytest.raises(KTError, match="tiny"):
        repository.pull(repository.find("me/tiny"), quiet)
    for content in ("[]", "{", '{"files": [1]}', '{"files": [{"nme": 1}]}'):
        (folder / repository.MANIFEST).write_text(content)
        assert [check.state for check in repository.verify("tiny", quiet)] == [repository.UNKNOWN]
    with pytest.raises(NotFound):
        repository.verify("other", quiet)


def test_refusals(hub: type[Hub], monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    found = repository.find("me/tiny")
    with monkeypatch.context() as small:
        small.setattr(repository.shutil, "disk_usage", lambda folder: type("Usage", (), {"free": 10})())
        with pytest.raises(DoesNotFit):
            repository.pull(found, quiet)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(EnvironmentProblem, match="HF_HUB_OFFLINE"):
        repository.find("me/tiny")
