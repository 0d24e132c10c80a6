"""What KTMoEWrapper adds to a call of its kernel, in microseconds: experts so small that nothing else counts."""

import statistics
import time

import torch

from kt_core.kernels import KTMoEWrapper

HIDDEN, INTERMEDIATE, EXPERTS, CALLS, RUNS = 64, 32, 8, 500, 9


def report(name, call):
    times = []
    for _ in range(RUNS):
        start = time.perf_counter()
        for _ in range(CALLS):
            call()
        times.append((time.perf_counter() - start) / CALLS * 1e6)
    print(f"{name:28} {min(times):6.0f} to {max(times):6.0f}, median {statistics.median(times):6.0f} us")


def stack(deferred=0):
    layers = []
    for index in range(2):
        previous = layers[-1] if layers else None
        layer = KTMoEWrapper(
            index,
            EXPERTS,
            2,
            HIDDEN,
            INTERMEDIATE,
            method="AMXINT8",
            previous=previous,
            max_deferred_experts_per_token=deferred,
        )
        gate, up = torch.randn(2, EXPERTS, INTERMEDIATE, HIDDEN).bfloat16()
        layer.load_weights_from_tensors(gate, up, torch.randn(EXPERTS, HIDDEN, INTERMEDIATE).bfloat16())
        layers.append(layer)
    return layers


def main():
    inputs = torch.randn(1, HIDDEN).bfloat16(), torch.tensor([[1, 3]]), torch.rand(1, 2)
    layer = stack()[0]
    report("kernel", lambda: layer._kernel(*inputs))
    report("forward", lambda: layer.forward(*inputs))
    report("submit_forward, sync_forward", lambda: (layer.submit_forward(*inputs), layer.sync_forward(inputs[0])))
    two = stack(deferred=1)
    report("two layers, one deferred", lambda: [layer.forward(*inputs) for layer in two])


if __name__ == "__main__":
    main()
