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
import bench_program
from bench_program import Feeder
from synthetic import Synthetic, stored

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
LITE = {
    "model_type": "deepseek_v2", "hidden_size": 2048, "intermediate_size": 10944, "moe_intermediate_size": 1408,
    "num_attention_heads": 16, "num_key_value_heads": 16, "n_routed_experts": 64, "n_shared_experts": 2, "num_experts_per_tok": 6,
    "first_k_dense_replace": 1, "moe_layer_freq": 1, "kv_lora_rank": 512, "q_lora_rank": None, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "vocab_size": 102400, "max_position_embeddings": 32768, "norm_topk_prob": False,
    "routed_scaling_factor": 1.0, "topk_method": "greedy", "n_group": 1, "topk_group": 1, "tie_word_embeddings": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}  # fmt: skip


class Lite(Synthetic):
    """DeepSeek-V2-Lite's shapes."""

    def __init__(self, layers):
        self._layers, self._decoded = layers, {}
        table = stored("BF16", LITE["vocab_size"], 2048)
        self._matrices = {"model.embed_tokens.weight": table, "lm_head.weight": table}
        self._tensors = {"model.norm.weight": torch.ones(2048)}
        self._parts = {"gate": stored("BF16", 1408, 2048), "down": stored("BF16", 2048, 1408)}
        self._parts["up"] = self._parts["gate"]
        sizes = {"q_proj": (16 * 192, 2048), "kv_a_proj_with_mqa": (576, 2048), "kv_b_proj": (16 * 256, 512)}
        sizes |= {"o_proj": (2048, 16 * 128)}
        attention = {f"self_attn.{name}": stored("BF16", *size) for name, size in sizes.items()}
        shared, dense = (
            {f"{name}_proj": stored("BF16", *((2048, inner) if name == "down" else (inner, 2048))) for name in ("gate", "up", "down")}
            for inner in (2816, 10944)
        )  # fmt: skip
        for index in range(layers):
            at, feed = f"model.layers.{index}", dense if index == 0 else shared
            inside = "mlp" if index == 0 else "mlp.shared_experts"
            whole = attention | {f"{inside}.{name}": matrix for name, matrix in feed.items()}
            self._matrices |= {f"{at}.{name}.weight": matrix for name, matrix in whole.items()}
            self._tensors |= {f"{at}.{name}_layernorm.weight": torch.ones(2048) for name in ("input", "post_attention")}
            self._tensors[f"{at}.self_attn.kv_a_layernorm.weight"] = torch.ones(512)
            if index:
                router = torch.randn(64, 2048, generator=torch.Generator().manual_seed(index)) * 0.1
                self._tensors[f"{at}.mlp.gate.weight"] = router

    def config(self):
        return {**LITE, "num_hidden_layers": self._layers}

    def experts(self, prefix):
        return 64


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
    weights = Lite(layers) if args.kind == "v2lite" else Synthetic(args.kind, layers)
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
