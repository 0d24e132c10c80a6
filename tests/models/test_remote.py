"""A repository's headers by ranged reads, from a small hub on this machine that counts what it sends."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from safetensors.numpy import save_file
from test_spec import MIXTRAL, mixtral_tensors

from kt_core.errors import BadData, EnvironmentProblem, KTError, NotFound, UsageError
from kt_core.models import remote
from kt_core.models.gguf_writer import Tensor, header, padded
from kt_core.models.spec import describe, read_spec

SHA = "0123456789abcdef"


class Hub(BaseHTTPRequestHandler):
    """Repositories in `files`: name -> content, or its beginning and its whole size. `ranges` off: sends all."""

    files: dict[str, bytes | tuple[bytes, int]]
    ranges = True
    status = 200
    listing: bytes | None = None
    cut = False
    sent: list[int]
    seen: list[str]

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        self.seen.append(path)
        if self.status != 200:
            self.send_error(self.status)
        elif path.startswith("/api/models/"):
            sizes = [{"rfilename": name, "size": _size(content)} for name, content in self.files.items()]
            self._answer(200, self.listing or json.dumps({"sha": SHA, "siblings": sizes}).encode())
        else:
            self._file(path.partition(f"/resolve/{SHA}/")[2])

    def _file(self, name: str) -> None:
        content = self.files[name]
        data, size = content if isinstance(content, tuple) else (content, len(content))
        first, last = (int(word) for word in self.headers["Range"].removeprefix("bytes=").split("-"))
        if not self.ranges:
            self._answer(200, data + bytes(size - len(data)))
            return
        last = min(last, size - 1)
        part = (data + bytes(max(0, last + 1 - len(data))))[first : last + 1]
        self._answer(206, part[: len(part) // 2] if self.cut else part)

    def _answer(self, status: int, data: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.sent.append(len(data))
        try:
            self.wfile.write(data)
        except OSError:  # whoever asked has read enough
            self.sent[-1] = 0

    def log_message(self, *_: object) -> None:
        pass


def _size(content: bytes | tuple[bytes, int]) -> int:
    return content[1] if isinstance(content, tuple) else len(content)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[type[Hub]]:
    from huggingface_hub import constants

    handler = type("OneHub", (Hub,), {"files": {}, "sent": [], "seen": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("KT_LANG", "en")
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    yield handler
    server.shutdown()
    server.server_close()


def folder_files(tmp_path: Path, large: int = 0) -> dict[str, Any]:
    """A small mixture in two shards; with `large`, each is published as that much larger than its header says."""
    tensors = mixtral_tensors()
    names = sorted(tensors)
    files: dict[str, Any] = {"config.json": json.dumps(MIXTRAL).encode(), "README.md": b"#", ".gitattributes": b"x"}
    index = {}
    for number, part in enumerate((names[:10], names[10:]), 1):
        shard = f"model-0000{number}-of-00002.safetensors"
        save_file({name: tensors[name] for name in part}, tmp_path / shard)
        files[shard] = (tmp_path / shard).read_bytes()
        index |= dict.fromkeys(part, shard)
    files["model.safetensors.index.json"] = json.dumps({"metadata": {}, "weight_map": index}).encode()
    files["tokenizer_config.json"] = json.dumps({"chat_template": "{{ x }}"}).encode()
    return files


def test_a_repository_reads_as_its_folder_would(hub: type[Hub], tmp_path: Path) -> None:
    hub.files = folder_files(tmp_path)
    files = remote.read_headers("me/mixtral")
    found = read_spec(files)
    assert files.name == "me/mixtral" and found.exact and found.chat_template
    assert found.parameters == sum(t.size for t in mixtral_tensors().values())
    assert found.bytes_by_part["experts"] == sum(t.nbytes for n, t in mixtral_tensors().items() if ".experts." in n)
    assert not any("README" in path for path in hub.seen)


def test_a_second_look_asks_for_the_listing_alone(hub: type[Hub], tmp_path: Path) -> None:
    hub.files = folder_files(tmp_path)
    first = remote.read_headers("me/mixtral")
    hub.seen.clear()
    assert remote.read_headers("me/mixtral") == first and hub.seen == ["/api/models/me/mixtral"]


def deepseek(layers: int = 3) -> tuple[bytes, int]:
    """A GGUF file of DeepSeek-V3's sizes with few layers, which kt cannot run; its vocabulary is larger than one request."""
    keys = {
        "block_count": layers, "context_length": 163840, "embedding_length": 7168, "feed_forward_length": 18432,
        "attention.head_count": 128, "attention.head_count_kv": 1, "attention.key_length": 576,
        "attention.value_length": 512, "attention.key_length_mla": 192, "attention.value_length_mla": 128,
        "attention.kv_lora_rank": 512, "attention.q_lora_rank": 1536, "rope.dimension_count": 64, "expert_count": 256,
        "expert_used_count": 8, "expert_feed_forward_length": 2048, "leading_dense_block_count": 1, "expert_shared_count": 1,
    }  # fmt: skip
    metadata: dict[str, Any] = {"general.architecture": "deepseek2"} | {f"deepseek2.{k}": v for k, v in keys.items()}
    metadata["tokenizer.ggml.tokens"] = [f"token number {i:030}" for i in range(120_000)]
    metadata["tokenizer.chat_template"] = "{{ x }}"
    tensors = [Tensor("token_embd.weight", "Q8_0", (120_000, 7168)), Tensor("output.weight", "Q6_K", (120_000, 7168))]
    for layer in range(layers):
        shapes = {"attn_q_a": (1536, 7168), "attn_q_b": (24576, 1536), "attn_output": (7168, 16384)}
        if layer:
            shapes |= {"ffn_gate_inp": (256, 7168), "ffn_gate_shexp": (2048, 7168)}
            shapes |= {f"ffn_{name}_exps": (256, 2048, 7168) for name in ("gate", "up")}
            shapes |= {"ffn_down_exps": (256, 7168, 2048)}
        else:
            shapes |= {"ffn_gate": (18432, 7168)}
        tensors += [Tensor(f"blk.{layer}.{name}.weight", "Q4_K", shape) for name, shape in shapes.items()]
    data, _ = header(metadata, tensors)
    return data, len(data) + sum(padded(tensor.nbytes) for tensor in tensors)


def test_a_gguf_header_that_is_larger_than_a_request(hub: type[Hub]) -> None:
    hub.files = {"UD/DeepSeek-UD-Q4_K_XL.gguf": deepseek()}
    files = remote.read_headers("me/deepseek-gguf")
    found = describe(files)
    assert (found.family, found.layers, found.experts, found.moe_layers) == ("deepseek2", 3, 256, 2)
    assert found.parameters_by_part["experts"] == 2 * 256 * 3 * 2048 * 7168
    assert found.bytes_by_part["experts"] == found.parameters_by_part["experts"] * 144 // 256
    assert found.method == "LLAMAFILE" and found.chat_template and found.vocab == 120_000
    assert found.cache[0].kind == "latent" and found.cache[0].numbers == 576 and found.kv_heads == 1
    assert found.active_parameters < found.parameters / 5
    whole = hub.files["UD/DeepSeek-UD-Q4_K_XL.gguf"][1]
    assert len(deepseek()[0]) > 4 << 20 and sum(hub.sent) < 20 << 20 < whole
    assert Path(files.path).stat().st_size == whole and Path(files.path).stat().st_blocks * 512 < 32 << 20


def test_one_of_several_quants(hub: type[Hub]) -> None:
    small = deepseek(1)
    hub.files = {"Q4/a-Q4_K.gguf": small, "Q8/a-Q8_0.gguf": small, "mmproj-a.gguf": b"x"}
    with pytest.raises(UsageError, match="a-Q4_K"):
        remote.read_headers("me/two")
    assert Path(remote.read_headers("me/two:q8_0").path).name == "a-Q8_0.gguf"
    with pytest.raises(NotFound, match="a-Q4_K"):
        remote.read_headers("me/two:q5")


def test_a_server_without_ranges(hub: type[Hub], tmp_path: Path) -> None:
    hub.ranges = False
    hub.files = folder_files(tmp_path)
    assert read_spec(remote.read_headers("me/mixtral")).experts == 4


def test_names_that_lead_elsewhere_are_not_taken(hub: type[Hub], tmp_path: Path) -> None:
    hub.files = folder_files(tmp_path) | {
        "../../evil.safetensors": b"x",
        "/etc/x.safetensors": b"x",
        "a/b/c.gguf": b"x",
    }
    remote.read_headers("me/mixtral")
    assert not any("evil" in path or "etc" in path or "c.gguf" in path for path in hub.seen)


@pytest.mark.parametrize("name", ["../x", "a/..", "a/b:../../c", "a/b/c", "a", "a/b:.x", "/a/b"])
def test_names_of_no_repository(hub: type[Hub], name: str) -> None:
    with pytest.raises(NotFound):
        remote.read_headers(name)
    assert hub.seen == []


@pytest.mark.parametrize(
    ("status", "error", "said"),
    [(404, NotFound, "no repository"), (401, EnvironmentProblem, "hf auth login"), (403, EnvironmentProblem, "login"),
     (500, EnvironmentProblem, "500"), (503, EnvironmentProblem, "HF_ENDPOINT")],
)  # fmt: skip
def test_a_hub_that_refuses(hub: type[Hub], status: int, error: type[KTError], said: str) -> None:
    hub.status = status
    with pytest.raises(error, match=said):
        remote.read_headers("me/mixtral")


@pytest.mark.parametrize("listing", [b"<html>", b"[]", b"{}", b'{"sha": "../..", "siblings": []}', b'{"sha": 1}'])
def test_a_listing_of_nonsense(hub: type[Hub], listing: bytes) -> None:
    hub.listing = listing
    with pytest.raises(EnvironmentProblem):
        remote.read_headers("me/mixtral")


def test_an_answer_that_ends_early_leaves_nothing(hub: type[Hub], tmp_path: Path) -> None:
    hub.files = folder_files(tmp_path)
    hub.cut = True
    with pytest.raises(BadData, match="ended early"):
        remote.read_headers("me/mixtral")
    assert not [p for p in (tmp_path / "cache").rglob("*") if p.is_file()]


def test_a_repository_without_weights(hub: type[Hub]) -> None:
    hub.files = {"config.json": b"{}", "pytorch_model.bin": b"x"}
    with pytest.raises(NotFound, match="no such model"):
        remote.read_headers("me/pickles")


def test_nobody_answers(monkeypatch: pytest.MonkeyPatch, hub: type[Hub]) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(EnvironmentProblem, match="did not answer"):
        remote.read_headers("me/mixtral")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(EnvironmentProblem, match="HF_HUB_OFFLINE"):
        remote.read_headers("me/mixtral")
