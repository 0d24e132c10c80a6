"""Speed of attention: `bench_attention.py [threads ...] [decode] [prefill] [mla] [float32] [tier=NAME ...]`.

Decode: one query per sequence, over the caches of more layers than the last-level cache holds; GB/s of keys and
values, and its share of a plain read just before and after. Prefill: one prompt in one call, TFLOP/s counted over
the keys that each query sees. Median and spread of the repeats.
"""

import statistics
import sys
import time

import torch

from kt_core.kernels import attention, info, read_rate, set_threads

MEMORY = 1 << 30  # more than any last-level cache

# name, query heads, kv heads, key size, value size
SHAPES = [
    ("64 / 8 x 64", 64, 8, 64, 64),
    ("32 / 4 x 128", 32, 4, 128, 128),
    ("32 / 8 x 128", 32, 8, 128, 128),
    ("16 / 8 x 256", 16, 8, 256, 256),
    ("16 / 16 x 128", 16, 16, 128, 128),
]
LATENT = [("128 heads", 128), ("16 heads", 16)]  # of 512 + 64


def seconds(call, repeats):
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times), min(times), max(times)


def rate(amount, took):
    median, low, high = took
    return f"{amount / median / 1e9:7.1f} ({amount / high / 1e9:.1f}..{amount / low / 1e9:.1f})"


def layout_of(kv_heads, key_size, value_size, dtype, shared=False):
    return attention.PageLayout(kv_heads, key_size, value_size, 64, dtype, shared)


def filled(layout, keys):
    """Pages for that many keys, in random order, and their table. Small positive numbers, whatever the dtype."""
    count = -(-keys // layout.page)
    pages = attention.new_pages(layout, count)
    pages.fill_(0x3C)
    return pages, torch.randperm(count, dtype=torch.int32)[None]


def batch(table, keys, queries):
    return attention.Batch(
        table, torch.tensor([keys], dtype=torch.int32), torch.tensor([0, queries], dtype=torch.int32)
    )


def decode(layout, query_heads, keys, tier):
    total = keys * layout.page_bytes // layout.page
    layers = [filled(layout, keys) for _ in range(-(-MEMORY // total))]
    q = torch.randn(1, query_heads, layout.key_size)
    work = [(pages, batch(table, keys, 1)) for pages, table in layers]
    before = read_rate(MEMORY, 5)
    took = seconds(lambda: [attention.attend(q, pages, layout, b, 0.1, tier=tier) for pages, b in work], 9)
    share = total * len(layers) / took[0] / max(before, read_rate(MEMORY, 5))
    return f"{rate(total * len(layers), took)} GB/s {share:4.0%}"


def prefill(layout, query_heads, keys, tier):
    pages, table = filled(layout, keys)
    q = torch.randn(keys, query_heads, layout.key_size)
    b = batch(table, keys, keys)
    flops = 2 * query_heads * (layout.key_size + layout.value_size) * keys * (keys + 1) / 2
    took = seconds(lambda: attention.attend(q, pages, layout, b, 0.1, tier=tier), 5)
    return f"{rate(flops, took)} GFLOP/s"


def main():
    torch.set_num_threads(1)
    words = sys.argv[1:]
    kinds = [word for word in words if word in ("decode", "prefill", "mla")] or ["decode", "prefill", "mla"]
    tiers = [word[5:] for word in words if word.startswith("tier=")] or [None]
    for n in [int(word) for word in words if word.isdigit()] or [1, 2]:
        set_threads(n, list(range(n)))
        print(f"{n} threads, tier {info()['chosen']}, read {read_rate(MEMORY, 9) / 1e9:.1f} GB/s")
        for tier in tiers:
            for dtype in (torch.bfloat16, torch.float32) if "float32" in words else (torch.bfloat16,):
                label = f"{tier or ''} {str(dtype)[6:]}"
                for name, heads, kv_heads, key_size, value_size in SHAPES:
                    layout = layout_of(kv_heads, key_size, value_size, dtype)
                    if "decode" in kinds:
                        print(f"  decode  {label} {name:14} 8192 keys {decode(layout, heads, 8192, tier)}", flush=True)
                    if "prefill" in kinds:
                        print(f"  prefill {label} {name:14} 2048 keys {prefill(layout, heads, 2048, tier)}", flush=True)
                for name, heads in LATENT if "mla" in kinds else []:
                    layout = layout_of(1, 576, 512, dtype, True)
                    print(f"  latent decode  {label} {name} 8192 keys {decode(layout, heads, 8192, tier)}", flush=True)
                    print(f"  latent prefill {label} {name}  512 keys {prefill(layout, heads, 512, tier)}", flush=True)


if __name__ == "__main__":
    main()
