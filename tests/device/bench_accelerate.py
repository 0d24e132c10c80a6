"""What transformers does without kt on the same machine and shapes: `python tests/device/bench_accelerate.py --layers 12`.

Qwen3-30B-A3B's shapes in bfloat16, random. "offloaded": accelerate keeps the experts in the CPU's memory and copies a layer's to the
device whenever it is run. "on the CPU": torch's own experts compute on the CPU, everything else on the device.
"""

import argparse
import time

import torch
from accelerate import dispatch_model
from transformers import AutoConfig, AutoModelForCausalLM

SHAPE = {
    "hidden_size": 2048, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8,
    "moe_intermediate_size": 768, "intermediate_size": 6144, "vocab_size": 151936, "norm_topk_prob": True, "tie_word_embeddings": False,
}  # fmt: skip


def made(layers: int):
    config = AutoConfig.for_model("qwen3_moe", num_hidden_layers=layers, **SHAPE)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
    finally:
        torch.set_default_dtype(before)
    rotary = type(model.model.rotary_emb)(config)  # not on meta: its frequencies are computed
    model = model.to_empty(device="cpu")
    model.model.rotary_emb = rotary
    some = torch.randn(1 << 22) * 0.02
    with torch.no_grad():
        for parameter in model.parameters():
            flat = parameter.view(-1)
            for begin in range(0, len(flat), len(some)):
                part = flat[begin : begin + len(some)]
                part.copy_(some[: len(part)])
            if parameter.dim() < 2:
                parameter.fill_(1.0)
    return model.eval()


def on_the_cpu(module) -> None:
    own = module.forward

    def forward(*args):
        return own(*(value.cpu() for value in args)).to(args[0].device)

    module.forward = forward


def measured(model, tokens: int, steps: int) -> str:
    with torch.inference_mode():
        prompt = torch.randint(0, SHAPE["vocab_size"], (1, tokens), device="cuda")
        model(prompt[:, :16], use_cache=False, logits_to_keep=1)
        torch.cuda.synchronize()
        begin = time.perf_counter()
        out = model(prompt, use_cache=True, logits_to_keep=1)
        torch.cuda.synchronize()
        first, begin = time.perf_counter() - begin, time.perf_counter()
        for _ in range(steps):
            token = out.logits[:, -1].argmax(-1, keepdim=True)
            out = model(token, past_key_values=out.past_key_values, use_cache=True)
        torch.cuda.synchronize()
    return f"prefill {tokens}: {tokens / first:.0f} tok/s, decode {steps / (time.perf_counter() - begin):.2f} tok/s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--steps", type=int, default=4)
    args = parser.parse_args()
    model = made(args.layers)
    names = [name for name, module in model.named_modules() if name.endswith(".mlp.experts")]
    leaves = [name for name, module in model.named_modules() if not list(module.children()) and ".experts" not in name]
    there = {name: 0 for name in leaves if next(iter(model.get_submodule(name).parameters()), None) is not None}
    for name in there:
        model.get_submodule(name).to("cuda")
    model.model.rotary_emb.to("cuda")
    for name in names:
        on_the_cpu(model.get_submodule(name))
    print(f"{args.layers} layers, experts on the CPU: {measured(model, args.tokens, args.steps)}", flush=True)
    for name in names:
        del model.get_submodule(name).forward
    places = {**there, **dict.fromkeys(names, "cpu"), "model.rotary_emb": 0}
    model = dispatch_model(model, places, main_device=0, force_hooks=True)
    print(
        f"{args.layers} layers, experts offloaded by accelerate: {measured(model, args.tokens, args.steps)}", flush=True
    )


if __name__ == "__main__":
    main()
