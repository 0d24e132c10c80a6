"""`kt quant` of a checkpoint of Qwen3-30B-A3B's shape with few layers: beside the disk, its memory, and killed at random points.

    python tests/quantise/disk_speed.py FOLDER [--layers 8] [--methods int4 Q4_K_M] [--rounds 3] [--kills 10] [--tokenizer DIR]

FOLDER/source is made where it is not there (1.2 GB a layer and as much again for embedding and head). A round reads the
source and writes as many bytes as the output has, in plain pieces, and then runs the job, both from a disk whose pages are not
in memory. The share is the plain copy's time over the job's. Memory is the most that the job's process ever held (VmHWM),
what a process holds after its imports included. Then the job is killed with signal 9 at random points, and the bytes of what
is finished at last are compared.
"""

import argparse
import hashlib
import json
import os
import random
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file

HIDDEN, HEADS, KV_HEADS, HEAD, EXPERTS, SLOTS, INNER, VOCAB = 2048, 32, 4, 128, 128, 8, 768, 151936
PIECE = 16 << 20
KT = [sys.executable, "-m", "kt_cli"]


def config(layers: int) -> dict[str, object]:
    return {
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": HIDDEN, "intermediate_size": 6144,
        "num_hidden_layers": layers, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD,
        "num_experts": EXPERTS, "num_experts_per_tok": SLOTS, "moe_intermediate_size": INNER, "vocab_size": VOCAB,
        "norm_topk_prob": True, "max_position_embeddings": 32768, "rope_theta": 1e6, "tie_word_embeddings": False,
        "mlp_only_layers": [], "decoder_sparse_step": 1, "hidden_act": "silu", "rms_norm_eps": 1e-6, "torch_dtype": "bfloat16",
        "attention_bias": False, "bos_token_id": 151643, "eos_token_id": 151645,
    }  # fmt: skip


def layer(index: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    at = f"model.layers.{index}"
    yield from ((f"{at}.{name}_layernorm.weight", (HIDDEN,)) for name in ("input", "post_attention"))
    yield from ((f"{at}.self_attn.{name}_norm.weight", (HEAD,)) for name in "qk")
    for name, rows in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
        yield f"{at}.self_attn.{name}_proj.weight", (rows * HEAD, HIDDEN)
    yield f"{at}.self_attn.o_proj.weight", (HIDDEN, HEADS * HEAD)
    yield f"{at}.mlp.gate.weight", (EXPERTS, HIDDEN)
    for expert in range(EXPERTS):
        yield f"{at}.mlp.experts.{expert}.gate_proj.weight", (INNER, HIDDEN)
        yield f"{at}.mlp.experts.{expert}.up_proj.weight", (INNER, HIDDEN)
        yield f"{at}.mlp.experts.{expert}.down_proj.weight", (HIDDEN, INNER)


def make_source(folder: Path, layers: int, tokenizer: Path | None) -> None:
    """Gaussian weights, cut from one long row of them at places that differ; norms of ones."""
    beside = folder.with_name(f"{folder.name}.new")
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    numbers = (torch.randn(1 << 27, generator=torch.Generator().manual_seed(0)) * 0.02).bfloat16()
    chance, index, total = random.Random(0), dict[str, str](), 0

    def tensor(name: str, shape: tuple[int, ...]) -> torch.Tensor:
        count = torch.Size(shape).numel()
        if len(shape) == 1:
            return torch.ones(shape, dtype=torch.bfloat16)
        at = chance.randrange(max(1, len(numbers) - count))
        row = numbers if at + count <= len(numbers) else numbers.repeat(-(-(at + count) // len(numbers)))
        return row[at : at + count].view(shape).clone()

    ends = [
        ("model.embed_tokens.weight", (VOCAB, HIDDEN)),
        ("lm_head.weight", (VOCAB, HIDDEN)),
        ("model.norm.weight", (HIDDEN,)),
    ]
    for number, names in enumerate([ends, *(list(layer(one)) for one in range(layers))]):
        tensors, file = {name: tensor(name, shape) for name, shape in names}, f"model-{number:05}.safetensors"
        save_file(tensors, beside / file, metadata={"format": "pt"})
        index |= dict.fromkeys(tensors, file)
        total += sum(one.nbytes for one in tensors.values())
    text = json.dumps({"metadata": {"total_size": total}, "weight_map": index})
    (beside / "model.safetensors.index.json").write_text(text)
    (beside / "config.json").write_text(json.dumps(config(layers)))
    for file in tokenizer.iterdir() if tokenizer else ():
        shutil.copy(file, beside)
    beside.rename(folder)


def forget(folder: Path) -> None:
    """The files' pages leave memory."""
    os.sync()
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def copy(source: Path, beside: Path, count: int) -> tuple[float, float]:
    """Seconds for reading the source, and for writing `count` bytes and bringing them to the disk."""
    forget(source)
    begin, buffer = time.perf_counter(), bytearray(PIECE)
    for path in sorted(source.glob("*.safetensors")):
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass
    read, data = time.perf_counter() - begin, os.urandom(PIECE)
    begin = time.perf_counter()
    with (beside / "copy").open("wb", buffering=0) as file:
        for _ in range(-(-count // PIECE)):
            file.write(data)
        os.fdatasync(file.fileno())
    written = time.perf_counter() - begin
    (beside / "copy").unlink()
    return read, written


class Job:
    """`kt quant` as a process of its own, watched."""

    def __init__(self, source: Path, method: str, out: Path) -> None:
        words = ["quant", str(source), "--method", method, "--out", str(out)]
        self.begin = time.perf_counter()
        self.process = subprocess.Popen(
            [*KT, *words], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        self.worker, self.memory = 0, 0
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while self.process.poll() is None:
            self.worker = self.worker or child(self.process.pid)
            self.memory = max(self.memory, most_held(self.worker))
            time.sleep(0.02)

    def kill(self, after: float) -> bool:
        """Whether it was still at work by then."""
        time.sleep(max(0.0, self.begin + after - time.perf_counter()))
        alive = self.process.poll() is None and self.worker > 0
        if alive:
            os.kill(self.worker, signal.SIGKILL)
        self.process.communicate()
        return alive and self.process.returncode != 0

    def end(self) -> tuple[float, float]:
        """Seconds that it took, and those of processors."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        _, told = self.process.communicate()
        if self.process.returncode:
            sys.exit(f"kt quant failed: {told[-2000:]}")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        busy = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
        return time.perf_counter() - self.begin, busy


def child(pid: int) -> int:
    try:
        found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return next((int(one) for one in found if "kt_core.quantise" in Path(f"/proc/{one}/cmdline").read_text()), 0)
    except OSError:
        return 0


def most_held(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return next((int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM")), 0)
    except OSError:
        return 0


def digests(folder: Path) -> dict[str, str]:
    found = {}
    for path in sorted(folder.iterdir()):
        with path.open("rb") as file:
            found[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def measure(source: Path, method: str, layers: int, options: argparse.Namespace) -> None:
    out = options.folder / f"out-{method}"
    shutil.rmtree(out, ignore_errors=True)
    nbytes, shares = 0, []
    before = sum(path.stat().st_size for path in source.glob("*.safetensors"))
    for _ in range(options.rounds):
        shutil.rmtree(out, ignore_errors=True)
        forget(source)
        job = Job(source, method, out)
        took, busy = job.end()
        nbytes = sum(path.stat().st_size for path in out.iterdir())
        read, written = copy(source, options.folder, nbytes)
        shares.append((read + written) / took)
        say(
            f"{method}: {before / 1e9:.2f} GB in, {nbytes / 1e9:.2f} out, {took:.1f} s ({busy:.1f} of processors); plain: read {before / read / 1e6:.0f} MB/s, "
            f"written {nbytes / written / 1e6:.0f} MB/s, {read + written:.1f} s; share {shares[-1]:.2f}; "
            f"memory {job.memory / 1e9:.2f} GB, a layer {layer_bytes() / 1e9:.2f}"
        )
    say(f"{method}: median share of {options.rounds} {statistics.median(shares):.2f}")
    if not options.kills:
        return
    expected = digests(out)
    shutil.rmtree(out)
    chance, killed = random.Random(1), []
    while len(killed) < options.kills:
        after = 1.5 + chance.uniform(0, 0.25) * took  # after its imports
        if Job(source, method, out).kill(after):
            killed.append(round(after, 1))
        elif out.exists():  # it was finished: from the beginning
            assert digests(out) == expected
            shutil.rmtree(out)
    if not out.exists():
        Job(source, method, out).end()
    same = digests(out) == expected
    say(f"{method}: killed {killed} s after their beginnings; bytes {'are the same' if same else 'DIFFER'}")


def layer_bytes() -> int:
    return sum(2 * torch.Size(shape).numel() for _, shape in layer(0))


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--methods", nargs="*", default=["int4", "Q4_K_M"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--tokenizer", type=Path, help="a folder whose files come along")
    options = parser.parse_args()
    source = options.folder / "source"
    if not source.exists():
        make_source(source, options.layers, options.tokenizer)
    for method in options.methods:
        measure(source, method, options.layers, options)


if __name__ == "__main__":
    main()
