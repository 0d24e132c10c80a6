"""What the plan says that a GPU will hold, beside what torch has reserved there: `python tests/device/bench_vram.py v2lite`.

Random weights of real shapes; the plan is made from the configuration as `kt plan` makes it, the model is built and placed as
the engine does, a prompt of a whole step goes through, streamed, and single tokens of 1 to 8 sequences, as graphs. "runtime" is
CUDA's own, which torch does not count; "used" is what the driver says, of which that is a part.
"""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "engine"))
sys.path.insert(0, str(Path(__file__).parent))
import bench_program
from bench_program import Feeder
from shapes import Shaped
from synthetic import Synthetic

from kt_core import kernels
from kt_core.engine.loader import build
from kt_core.engine.placing import placing_of
from kt_core.engine.room import device_runner_and_pages
from kt_core.machine import probe
from kt_core.models.knowledge import GGUF_METHOD
from kt_core.models.spec import from_config
from kt_core.plan import make_plan
from kt_core.types import Decision, Gpu, ModelFiles

FORMS = {
    "q4km": {"": "Q4_K", "embedding": "Q6_K", "head": "Q6_K", "other": "F32"},
    "bf16": {"": "BF16"},
    "v2lite": {"": "BF16"},
}


class Sequences(Feeder):
    """Of a runner that has its pages."""

    def __init__(self, runner, sequences, tokens):
        self.runner, self.sequences = runner, sequences
        each = -(-tokens // runner.page)
        self.tables = torch.arange(sequences * each, dtype=torch.int32).view(sequences, -1)


def planned(kind, weights, wishes, device):
    spec = from_config(weights.config(), formats=FORMS[kind])
    if kind == "q4km":
        spec = replace(spec, method=GGUF_METHOD)
    machine = probe()
    if device == "cpu":  # to try this without a GPU
        machine = replace(machine, gpus=(Gpu("none", 100 << 30, 100 << 30, kind="cuda", capability="9.0"),))
    plan = make_plan(machine, ModelFiles(kind, kind, "gguf" if kind == "q4km" else "safetensors", ()), spec, wishes)
    if device == "cpu":
        kept = [decision for decision in plan.decisions if decision.name not in ("devices", "vram_budget")]
        plan = replace(plan, decisions=(*kept, Decision("devices", ["cpu"], "", "user")))
    return plan


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=list(FORMS))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--experts", type=int, default=16)
    parser.add_argument("--context", type=int, default=8192)
    parser.add_argument("--threads", type=int, default=16)
    parser.add_argument("--chunk", type=int)
    args = parser.parse_args()
    kernels.set_threads(args.threads)
    layers = args.layers or (27 if args.kind == "v2lite" else 48)
    weights = Shaped("lite", "BF16", layers) if args.kind == "v2lite" else Synthetic(args.kind, layers)
    bench_program.VOCAB = weights.config()["vocab_size"]  # tokens that a Feeder takes
    wishes = {"devices": "cuda", "gpu_experts": args.experts, "context": args.context, "prefill_threshold": 256}
    plan = planned(args.kind, weights, {**wishes, "chunk": args.chunk, "threads": args.threads}, args.device)
    before = torch.cuda.mem_get_info()[0] if args.device == "cuda" else 0
    placing = placing_of(plan)
    with torch.inference_mode():
        model = build(weights, lambda *_: None, placing=placing)
        runner, pages = device_runner_and_pages(model, plan, placing)
    stages = []

    def stage(name):
        now = torch.cuda.memory_reserved(), torch.cuda.max_memory_allocated()
        stages.append(f"{name} {now[0] / 2**30:.2f} (allocated at most {now[1] / 2**30:.2f})")

    if args.device != "cuda":
        stage = stages.append
    stage("loaded")
    runner.allocate(pages)
    stage("pages")
    Sequences(runner, 1, min(pages * runner.page, runner.max_tokens + 64)).prompt(runner.max_tokens)
    stage("a prompt")
    for count in (1, 2, 4, 8):
        few = Sequences(runner, count, 64)
        for position in range(3):
            few.step(position, 1)
    stage("graphs")
    parts = next(iter(plan.gpu_parts.values()))
    own = sum(size for name, size in parts.items() if name != "runtime")
    print(
        f"{args.kind}, {layers} layers, {args.experts} experts of each, {type(runner).__name__}, {pages} pages:",
        flush=True,
    )
    print("  planned, GiB:", {name: round(size / 2**30, 2) for name, size in parts.items()})
    if args.device != "cuda":
        return
    reserved = torch.cuda.max_memory_reserved()
    used = before - torch.cuda.mem_get_info()[0]
    print(f"  without runtime {own / 2**30:.2f}; torch reserved {reserved / 2**30:.2f} ({100 * (own / reserved - 1):+.1f} %); used {used / 2**30:.2f}",
          flush=True)  # fmt: skip
    print("  reserved, GiB: " + ", ".join(stages), flush=True)


if __name__ == "__main__":
    main()
