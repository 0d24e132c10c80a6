"""Models of other rooms' tests, saved as folders with a tokenizer, and jobs over them."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parent.parent
sys.path[:0] = [str(TESTS / "weights"), str(TESTS / "engine")]

import tiny_models  # noqa: E402
import torch  # noqa: E402
from tinymodel import tokenizer  # noqa: E402

from kt_core.models.files import local_files  # noqa: E402
from kt_core.quantise import make  # noqa: E402
from kt_core.quantise.job import Job, method_of, overrides_of  # noqa: E402


def quiet(*progress: object) -> None:
    pass


@pytest.fixture
def folder(tmp_path: Path) -> Callable[..., Path]:
    """folder("qwen3moe", hidden_size=96): a bfloat16 checkpoint with its published names."""

    def save(family: str, **changes: Any) -> Path:
        path = tmp_path / f"{family}-source"
        built = tiny_models.model(family, vocab_size=len(tokenizer()), **changes)
        built.to(torch.bfloat16).save_pretrained(path)
        tokenizer().save_pretrained(path)
        return path

    return save


@pytest.fixture
def job(tmp_path: Path) -> Callable[..., Job]:
    """job(source, "int4", overrides=["down_proj=int8"]): what the command line would hand over."""

    def made(source: Path, method: str, overrides: tuple[str, ...] = (), out: str = "out", **more: Any) -> Job:
        chosen, only = method_of(method)
        given = {"only": only, "threads": 2} | more
        rules = overrides_of(overrides, chosen)
        return Job.parse(Job(local_files(source), chosen, str(tmp_path / out), out, overrides=rules, **given).text())

    return made


@pytest.fixture
def quantised(job: Callable[..., Job]) -> Callable[..., Path]:
    """Run such a job; its folder. What the layout foretold is what was written."""

    def done(*args: Any, **more: Any) -> Path:
        prepared = make.prepare(job(*args, **more))
        out = make.run(prepared, quiet)
        sizes = {file.name: file.size for file in prepared.layout.files}
        assert {name: (out / name).stat().st_size for name in sizes} == sizes
        expected = sizes.keys() | prepared.layout.small.keys()
        assert expected <= {path.name for path in out.iterdir()}
        assert not list(out.parent.glob(".*.partial"))
        return out

    return done
