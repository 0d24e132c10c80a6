"""Loading a planned model."""

from kt_core import kernels
from kt_core.engine import loader
from kt_core.formats import gguf
from kt_core.machine import probe
from kt_core.models.files import local_files
from kt_core.models.spec import read_spec
from kt_core.plan import make_plan


def test_start_up_reads_a_gguf_header_once(smollm2_gguf, monkeypatch):
    """Weights, tokenizer and end tokens all come from it; a large model's takes a third of a second to read."""
    files = local_files(smollm2_gguf)
    plan = make_plan(probe(), files, read_spec(files), {"context": 64, "threads": kernels.info()["threads"]})
    reads = []
    read = gguf.read_model
    monkeypatch.setattr(gguf, "read_model", lambda path: reads.append(str(path)) or read(path))
    runner, tokenizer, pages, _ = loader.load(plan, lambda *_: None)
    assert reads == [files.path]
    assert pages * runner.page >= 64 and runner.page_bytes > 0
    assert runner.eos_ids == {2} and len(tokenizer) == 49152
