"""A LoRA step of kt on a random qwen3_moe model: tokens a second and peak memory, of a process of its own.

usage: python tests/train/bench_train.py FOLDER [--experts] [--seq 512] [--steps 6] [--rank 8] [--threads 2] [--checkpoint]
       [--recompute]
The model (hidden 1024, 32 experts of 512, top 4, 4 layers; bfloat16) is made in FOLDER if it is not there. Without
--experts only attention is trained, through the experts.
"""

import argparse
import os
import resource
import statistics
import time
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from kt_core import models
from kt_core.events import Events
from kt_core.train import session
from kt_core.train.settings import settings

CONFIG = {
    "hidden_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 64,
    "num_experts": 32, "num_experts_per_tok": 4, "moe_intermediate_size": 512, "intermediate_size": 2048,
    "vocab_size": 32000,
}  # fmt: skip


def make(folder: Path) -> None:
    torch.manual_seed(0)
    config = AutoConfig.for_model("qwen3_moe", **CONFIG)
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    for name, default in (("seq", 512), ("steps", 6), ("rank", 8), ("threads", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    for name in ("experts", "checkpoint", "recompute", "make"):
        parser.add_argument(f"--{name}", action="store_true")
    a = parser.parse_args()
    if a.make or not a.folder.exists():
        make(a.folder)
        return
    attention = ["q_proj", "k_proj", "v_proj", "o_proj"]
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
    model.train()
    optimiser = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)
    times = []
    for _ in range(a.steps):
        ids = torch.randint(0, CONFIG["vocab_size"], (1, a.seq))
        begin = time.perf_counter()
        model(input_ids=ids, labels=ids).loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        times.append(time.perf_counter() - begin)
    median = statistics.median(times[1:])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"experts {a.experts} checkpoint {a.checkpoint}: {median:.3f} s/step ({min(times[1:]):.3f} to {max(times[1:]):.3f}), "
        f"{a.seq / median:.1f} tok/s, peak RSS {peak:.2f} GiB"
    )


if __name__ == "__main__":
    main()
