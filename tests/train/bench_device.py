"""A LoRA step of DeepSeek-V2-Lite's shapes with a device: tokens a second and the device's memory, random weights, batch 1.

usage: python tests/train/bench_device.py [--device cuda] [--layers 27] [--seq 512 2048] [--checkpoint 2048] [--resident 0]
       [--streamed 0 16 32 -1] [--attention] [--steps 5] [--rank 8] [--threads 16] [--check] [--profile]
resident: experts of each layer that lie on the device; streamed: of the others, those brought there for each pass, -1: as many
as the program finds best. --check first compares loss and gradients of a few layers with those of the CPU alone.
"""

import argparse
import gc
import resource
import statistics
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from bench_train import ATTENTION

from kt_core import kernels
from kt_core.device import open_device
from kt_core.engine.loader import build
from kt_core.train import head, lora, placing

for folder in ("device", "engine"):
    sys.path.insert(0, str(Path(__file__).parents[1] / folder))
from shapes import SHAPES, Shaped  # noqa: E402

NEAR = 0.03  # of a loss or a gradient, relative: both round to bfloat16, in other orders
SIZES = SHAPES["lite"]
EXPERTS = SIZES["n_routed_experts"]


def prepared(a: argparse.Namespace, count: int, device: str, resident: int) -> Any:
    with placing.rules(device, resident) as rules:
        model = build(Shaped("lite", "BF16", count), lambda *_: None, rules)
    torch.manual_seed(0)
    for parameter in model.parameters():
        parameter.data = parameter.data.to(torch.bfloat16)
    names = [name for name in ATTENTION if name not in ("k_proj", "v_proj")]
    lora.adapt(model, names if a.attention else [*names, "experts"], lora.Shape(a.rank, 2.0))
    for name, parameter in lora.trainable(model).items():
        if "lora_B" in name or name.endswith("_B"):
            parameter.data.uniform_(-0.01, 0.01)
    model.config.use_cache = False
    return model.train()


def gradients(model: Any, ids: torch.Tensor) -> tuple[float, dict[str, torch.Tensor]]:
    model.zero_grad()
    loss = head.loss(model, {"input_ids": ids, "labels": ids})
    loss.backward()
    return loss.item(), {
        n: p.grad.float().cpu().clone() for n, p in lora.trainable(model).items() if p.grad is not None
    }


def check(a: argparse.Namespace) -> None:
    """One step's loss and gradients with the device, in each way, against the CPU's."""
    ids = torch.randint(0, SIZES["vocab_size"], (1, 256))
    one, grads = gradients(prepared(a, 3, "cpu", 0), ids)
    for resident, streamed in ((0, 0), (16, 16), (EXPERTS, 0)):
        model = prepared(a, 3, a.device, resident)
        placing.share(model, open_device(a.device), streamed)
        head.keep_table(model)
        model.to(a.device)
        for _ in range(2):
            other, theirs = gradients(model, ids.to(a.device))
        worst = max((float((grads[n] - theirs[n]).norm() / grads[n].norm().clamp(min=1e-12)), n) for n in grads)
        fine = abs(one - other) < NEAR and worst[0] < 4 * NEAR and grads.keys() == theirs.keys()
        print(f"check, {resident} there, {streamed} brought: loss {one:.4f} on the CPU, {other:.4f}; worst gradient {worst[1]} "
              f"differs by {worst[0]:.4f}: {'fine' if fine else 'WRONG'}", flush=True)  # fmt: skip
        del model
        gc.collect()


def sync(a: argparse.Namespace) -> None:
    if a.device != "cpu":
        torch.cuda.synchronize()


def steps(a: argparse.Namespace, model: Any, seq: int) -> str:
    optimiser = torch.optim.AdamW(lora.trainable(model).values(), lr=1e-4, fused=True)
    if a.device != "cpu":
        torch.cuda.reset_peak_memory_stats()
    times, parts = [], []
    for _ in range(a.steps):
        ids = torch.randint(0, SIZES["vocab_size"], (1, seq), device=a.device)
        marks = [time.perf_counter()]
        loss = head.loss(model, {"input_ids": ids, "labels": ids})
        sync(a)
        marks.append(time.perf_counter())
        loss.backward()
        sync(a)
        marks.append(time.perf_counter())
        optimiser.step()
        optimiser.zero_grad()
        sync(a)
        marks.append(time.perf_counter())
        times.append(marks[-1] - marks[0])
        parts.append([after - before for before, after in pairwise(marks)])
    median = statistics.median(times[1:])
    split = "/".join(f"{1e3 * statistics.median(p[i] for p in parts[1:]):.0f}" for i in range(3))
    vram = "" if a.device == "cpu" else (
        f", VRAM {torch.cuda.max_memory_reserved() / 2**30:.2f} GiB reserved, {torch.cuda.max_memory_allocated() / 2**30:.2f} used"
    )  # fmt: skip
    return (
        f"{seq / median:.0f} tok/s, {1e3 * median:.0f} ms ({1e3 * min(times[1:]):.0f} to {1e3 * max(times[1:]):.0f}; forward/"
        f"back/optimizer {split}){vram}, loss {loss.item():.3f}"
    )


def profile(a: argparse.Namespace, model: Any, seq: int) -> None:
    ids = torch.randint(0, SIZES["vocab_size"], (1, seq), device=a.device)
    both = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=both) as found:
        head.loss(model, {"input_ids": ids, "labels": ids}).backward()
        sync(a)
    for order in ("self_cuda_time_total", "self_cpu_time_total"):
        print(found.key_averages().table(sort_by=order, row_limit=16, max_name_column_width=50), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    for name, default in (("layers", 27), ("resident", 0), ("steps", 5), ("rank", 8), ("threads", 16)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--seq", type=int, nargs="*", default=[512, 2048])
    parser.add_argument("--streamed", type=int, nargs="*", default=[0])
    parser.add_argument("--checkpoint", type=int, default=2048, help="tokens from which on layers are run again")
    for name in ("attention", "check", "profile"):
        parser.add_argument(f"--{name}", action="store_true")
    a = parser.parse_args()
    kernels.set_threads(a.threads)
    torch.set_num_threads(a.threads)
    if a.check:
        check(a)
    if not a.layers:
        return
    begin = time.perf_counter()
    model = prepared(a, a.layers, a.device, a.resident)
    head.keep_table(model)
    model.to(a.device)
    print(f"{a.layers} layers, {a.resident} experts of each there, loaded in {time.perf_counter() - begin:.0f} s, "
          f"additions {'attention' if a.attention else 'attention and experts'}", flush=True)  # fmt: skip
    device = open_device(a.device)
    for seq in a.seq:
        again = seq >= a.checkpoint
        if again:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        for streamed in a.streamed:
            count = placing.balanced(model, seq, False) if streamed < 0 else streamed
            for layer in placing.layers(model):
                layer.shares.clear()
                layer.revisited = again
            gc.collect()
            if a.device != "cpu":
                torch.cuda.empty_cache()
            placing.share(model, device, count, again)
            print(f"  seq {seq}, checkpoints {again}, {count} brought: {steps(a, model, seq)}", flush=True)
            if a.profile:
                profile(a, model, seq)
    print(f"  peak RSS {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.1f} GiB", flush=True)


if __name__ == "__main__":
    main()
