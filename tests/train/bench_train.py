"""A LoRA step of kt on a random model: tokens a second and peak memory, of a process of its own.

usage: python tests/train/bench_train.py FOLDER [--shape small|v2lite] [--layers N] [--experts] [--seq 512] [--steps 6] [--rank 8]
       [--threads 2] [--checkpoint] [--recompute] [--device cpu|cuda] [--check]
small: qwen3_moe, hidden 1024, 32 experts of 512, top 4, 4 layers; v2lite: deepseek_v2 as DeepSeek-V2-Lite, 27 layers, some 31 GB.
bfloat16, made in FOLDER if it is not there. Without --experts only attention is trained, through the experts.
--device cuda: experts on the CPU, the rest on the GPU; --check first compares loss and gradients with those of the CPU alone.
"""

import argparse
import os
import resource
import statistics
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from kt_core import models
from kt_core.events import Events
from kt_core.train import checkpoint, session
from kt_core.train.settings import settings

SHAPES = {
  "small": ("qwen3_moe", {
    "hidden_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 64,
    "num_experts": 32, "num_experts_per_tok": 4, "moe_intermediate_size": 512, "intermediate_size": 2048,
    "vocab_size": 32000,
  }),
  "v2lite": ("deepseek_v2", {
    "hidden_size": 2048, "num_hidden_layers": 27, "num_attention_heads": 16, "num_key_value_heads": 16,
    "n_routed_experts": 64, "num_experts_per_tok": 6, "n_shared_experts": 2, "moe_intermediate_size": 1408,
    "intermediate_size": 10944, "first_k_dense_replace": 1, "kv_lora_rank": 512, "q_lora_rank": None,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "vocab_size": 102400,
    "topk_method": "greedy", "n_group": 1, "topk_group": 1,
  }),
}  # fmt: skip
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj", "kv_a_proj_with_mqa", "kv_b_proj"]
NEAR = 0.03  # of a loss or a gradient, relative: both round to bfloat16, in other orders


def make(folder: Path, shape: str, layers: int | None) -> None:
    """By random bytes: numbers of a deviation of some 0.02, as a model's own initialiser would take minutes to draw."""
    kind, settings_of = SHAPES[shape]
    config = AutoConfig.for_model(kind, **(settings_of | ({"num_hidden_layers": layers} if layers else {})))
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    torch.manual_seed(0)
    some = (torch.randn(1 << 24) * 0.02).bfloat16()
    drawn = {
        n: some.repeat(-(-p.numel() // len(some)))[: p.numel()].view(p.shape) for n, p in model.state_dict().items()
    }
    drawn = {n: torch.ones_like(t) if "norm" in n else t for n, t in drawn.items()}
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint.write(model, checkpoint.names(model), drawn.__getitem__, folder, torch.bfloat16)


def check(model: Any, ids: torch.Tensor, device: str) -> None:
    """One step's loss and gradients on the device against the CPU's."""
    model.train()
    found = {}
    for where in ("cpu", device):
        model.to(where)
        model.zero_grad()
        loss = model(input_ids=ids.to(where), labels=ids.to(where)).loss
        loss.backward()
        found[where] = loss.item(), {n: p.grad.float().cpu() for n, p in model.named_parameters() if p.grad is not None}
    (one, grads), (other, theirs) = found["cpu"], found[device]
    worst = max((float((grads[n] - theirs[n]).norm() / grads[n].norm().clamp(min=1e-12)), n) for n in grads)
    print(
        f"check: loss {one:.4f} on the CPU, {other:.4f} on {device}; worst gradient {worst[1]} differs by {worst[0]:.4f}"
    )
    assert abs(one - other) < NEAR and worst[0] < 2 * NEAR, "the device computes something else"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    for name, default in (("seq", 512), ("steps", 6), ("rank", 8), ("threads", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--shape", choices=SHAPES, default="small")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--device", default="cpu")
    for name in ("experts", "checkpoint", "recompute", "make", "check"):
        parser.add_argument(f"--{name}", action="store_true")
    a = parser.parse_args()
    if a.make or not a.folder.exists():
        make(a.folder, a.shape, a.layers)
        return
    heads = SHAPES[a.shape][1]
    attention = [name for name in ATTENTION if ("kv_lora_rank" in heads) != (name in ("k_proj", "v_proj"))]
    attention = [name for name in attention if "kv_lora_rank" in heads or not name.startswith("kv_")]
    s = settings(
        {
            "model_name_or_path": str(a.folder), "bf16": True, "lora_rank": a.rank, "lora_alpha": 2.0 * a.rank,
            "lora_target": [*attention, "experts"] if a.experts else attention,
            "kt_cpu_activation": "recompute" if a.recompute else "retain", "kt_config": {"kt_num_threads": a.threads},
        }
    )  # fmt: skip
    session.set_threads(s)
    model, _ = session.prepared(s, models.resolve(str(a.folder)), Events(2))
    if a.checkpoint:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    vocab = SHAPES[a.shape][1]["vocab_size"]
    if a.check:
        check(model, torch.randint(0, vocab, (1, a.seq)), a.device)
    model.to(a.device).train()
    optimiser = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)
    times = []
    for _ in range(a.steps):
        ids = torch.randint(0, vocab, (1, a.seq), device=a.device)
        begin = time.perf_counter()
        model(input_ids=ids, labels=ids).loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        if a.device != "cpu":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    median = statistics.median(times[1:])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    vram = f", peak VRAM {torch.cuda.max_memory_allocated() / 2**30:.2f} GiB" if a.device != "cpu" else ""
    print(
        f"experts {a.experts} checkpoint {a.checkpoint}: {median:.3f} s/step ({min(times[1:]):.3f} to {max(times[1:]):.3f}), "
        f"{a.seq / median:.1f} tok/s, peak RSS {peak:.2f} GiB{vram}"
    )


if __name__ == "__main__":
    main()
