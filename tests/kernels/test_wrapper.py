"""KTMoEWrapper: its sources of weights, arguments and states; against the float64 model and a plain loop."""

import gc
import os
import re
import threading
import time
from pathlib import Path

import cases
import numpy as np
import pytest
import tiny_models
import torch

from kt_core import errors
from kt_core.kernels import METHODS, KTMoEWrapper, generate_gpu_experts_masks, reference
from kt_core.models import resolve
from kt_core.weights import Weights, decode_matrix, open_weights
from kt_core.weights.quantize import quantize

E, K, H, I = 6, 3, 64, 32  # noqa: E741 - the sizes of tiny_models' layers, by their usual names
# As in test_experts: h may move by one step of its format, bfloat16 or int8.
RANDOM_BLOCKS = 1 / 127  # of a row: one value of a random block may make up most of it and move by a whole step
BOUND = {"BF16": 1e-3, "Q8_0": 2e-3, "INT4": 2e-3}


def wrapper(layer=0, **changes):
    sizes = {"num_experts": E, "num_experts_per_tok": K, "hidden_size": H, "moe_intermediate_size": I}
    return KTMoEWrapper(layer, **{**sizes, "cpuinfer_threads": 1, "method": "BF16", **changes})


def tensors(seed=0, experts=E):
    generator = torch.Generator().manual_seed(seed)
    shapes = ((experts, I, H), (experts, I, H), (experts, H, I))
    return [torch.randn(shape, generator=generator).mul(0.2).bfloat16() for shape in shapes]


def loaded(layer=0, seed=None, **changes):
    made = wrapper(layer, **changes)
    made.load_weights_from_tensors(*tensors(layer if seed is None else seed))
    return made


def batch(tokens=9, seed=1, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.stack([torch.randperm(E, generator=generator)[:K] for _ in range(tokens)])
    x = torch.randn(tokens, H, generator=generator).to(dtype)
    return x, ids, torch.rand(tokens, K, generator=generator)


def loop(x, ids, weights, gate, up, down):
    """The plain torch of it, in float64."""
    y = torch.zeros(x.shape, dtype=torch.float64)
    for t, k in np.ndindex(*ids.shape):
        e, row = int(ids[t, k]), x[t].double()
        if e >= 0:
            h = torch.nn.functional.silu(gate[e].double() @ row) * (up[e].double() @ row)
            y[t] += weights[t, k].double() * (down[e].double() @ h)
    return y


def close(y, expected, bound):
    error, text = cases.worst(y.float().numpy(), np.asarray(expected))
    assert error <= bound, text


def parts_of(weights, layer, method):
    """The reference's weights: as stored, or rounded as the method says."""
    prefix, kind = f"model.layers.{layer}.mlp.experts", METHODS[method]
    found = {}
    for index in range(E):
        matrices = [weights.expert(prefix, index, part) for part in ("gate", "up", "down")]
        if kind.quantises:
            values = [torch.from_numpy(decode_matrix(m)) for m in matrices]
            matrices = [quantize(value, kind.format, kind.group) for value in values]
        found[index] = tuple((m.format, decode_matrix(m)) for m in matrices)
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("bf16")
    tiny_models.model("qwen3moe").bfloat16().save_pretrained(path)
    return str(path)


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory):
    built = tiny_models.model("qwen3moe")
    return str(
        tiny_models.write_gguf(
            tmp_path_factory.mktemp("gguf") / "m.gguf",
            "qwen3moe",
            tiny_models.gguf_tensors("qwen3moe", built),
            built.config,
        )
    )


@pytest.mark.parametrize("method", ["BF16", "AMXINT4", "AMXINT8", "MOE_INT4", "MOE_INT8", "LLAMAFILE"])
def test_a_folder_by_every_method_that_can_read_it(folder, method):
    layer = wrapper(1, weight_path=folder, method=method)
    layer.load_weights()
    x, ids, weights = batch()
    parts = parts_of(open_weights(resolve(folder)), 1, method)
    expected = reference.experts(x.numpy(), ids.numpy(), weights.numpy(), parts, "silu")
    close(layer.forward(x, ids, weights), expected, BOUND[METHODS[method].format or "BF16"])


def test_a_gguf_file_opened_once_for_all_layers(gguf_file):
    checkpoint = open_weights(resolve(gguf_file))
    x, ids, weights = batch()
    for index in range(tiny_models.LAYERS):
        layer = wrapper(index, weight_path=checkpoint, method="LLAMAFILE")
        layer.load_weights()
        expected = reference.experts(
            x.numpy(), ids.numpy(), weights.numpy(), parts_of(checkpoint, index, "LLAMAFILE"), "silu"
        )
        close(layer.forward(x, ids, weights), expected, 5e-6)


class Given(Weights):
    """A checkpoint of one layer."""

    def __init__(self, stored):
        self.stored = stored

    def names(self):
        return {"model.layers.0.mlp.experts.down_proj", "model.layers.10.mlp.gate.weight"}

    def __contains__(self, name):
        return name in self.names()

    def experts(self, prefix):
        return len(self.stored) if prefix.endswith("experts") else 0

    def expert(self, prefix, index, part):
        return self.stored[index][("gate", "up", "down").index(part)]


@pytest.mark.parametrize("method", [name for name, method in METHODS.items() if method.format])
def test_weights_in_the_format_of_the_method_are_taken_as_they_are(method):
    format = METHODS[method].format
    wide = cases.columns(format, 128)
    stored = [[cases.stored(format, wide, wide, seed=3 * e + i) for i in range(3)] for e in range(E)]
    layer = wrapper(hidden_size=wide, moe_intermediate_size=wide, method=method, weight_path=Given(stored))
    layer.load_weights()
    _, ids, weights = batch()
    x = torch.from_numpy(cases.inputs(9, wide))
    parts = {e: tuple((m.format, m.values) for m in three) for e, three in enumerate(stored)}
    expected = reference.experts(x.numpy(), ids.numpy(), weights.numpy(), parts, "silu")
    close(layer.forward(x, ids, weights), expected, RANDOM_BLOCKS)


def test_checkpoints_that_do_not_fit(folder, gguf_file):
    for change, error, words in [
        ({"weight_path": folder, "method": "FP8"}, errors.Unsupported, "are BF16, the method reads FP8_BLOCK"),
        ({"weight_path": folder, "layer": 7}, errors.NotFound, "layer 7"),
        ({"weight_path": folder, "num_experts": E + 1}, ValueError, "experts 0 to 5"),
        ({"weight_path": folder, "hidden_size": 96}, ValueError, "must be"),
        ({"weight_path": folder + "/nothing"}, errors.NotFound, "nothing"),
        ({}, ValueError, "weight_path"),
    ]:
        with pytest.raises(error, match=words):
            wrapper(**change).load_weights()


def test_experts_with_biases_are_refused(tmp_path):
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_local_experts": 2}
    more = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "vocab_size": 32}
    config = AutoConfig.for_model("gpt_oss", **sizes, **more)
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(tmp_path)
    layer = KTMoEWrapper(0, 2, 1, 32, 32, weight_path=str(tmp_path), method="BF16")
    with pytest.raises(errors.Unsupported, match="biases"):
        layer.load_weights()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tensors_against_a_plain_loop(dtype):
    layer, (x, ids, weights) = loaded(), batch(dtype=dtype)
    ids[2, 1] = -1
    y = layer.forward(x, ids, weights)
    assert y.dtype == dtype
    close(y, loop(x, ids, weights, *tensors()), 1e-2)  # x and h rounded to bfloat16, and y
    assert torch.equal(layer.forward(x, ids.int(), weights), y)
    assert layer.forward(x[:0], ids[:0], weights[:0]).shape == (0, H)


@pytest.mark.parametrize(("method", "bound"), [("AMXINT8", 0.05), ("AMXINT4", 0.35)])
def test_rounding_online_keeps_what_was_promised(method, bound):
    """Mean error over mean output: the limits that the known tests of these methods set."""
    layer, (x, ids, weights) = loaded(method=method), batch(40)
    expected = loop(x, ids, weights, *tensors()).numpy()
    assert np.abs(layer.forward(x, ids, weights).numpy() - expected).mean() < bound * np.abs(expected).mean()


def test_clamped_activations():
    x, ids, weights = batch()
    parts = {e: tuple(("BF16", part[e].float().numpy()) for part in tensors()) for e in range(E)}
    for alpha, name in ((0.0, "silu"), (1.3, "swiglu_oai")):
        y = loaded(swiglu_limit=0.5, swiglu_alpha=alpha).forward(x, ids, weights)
        expected = reference.experts(x.numpy(), ids.numpy(), weights.numpy(), parts, name, None, 0.5, alpha)
        close(y, expected, BOUND["BF16"])


def test_the_map_says_which_stored_expert_each_one_is(folder):
    order = torch.tensor([3, 3, 0, 5, 1, 2])
    x, ids, weights = batch()
    mapped = wrapper()
    mapped.load_weights_from_tensors(*tensors(), order)
    expected = loaded().forward(x, order[ids], weights)
    close(mapped.forward(x, ids, weights), expected, 1e-6)  # the order of the sum changed
    read, straight = wrapper(weight_path=folder), wrapper(weight_path=folder)
    read.load_weights(order.int())
    straight.load_weights()
    close(read.forward(x, ids, weights), straight.forward(x, order[ids], weights), 1e-6)
    spare = wrapper(num_experts=2, num_experts_per_tok=1)
    spare.load_weights_from_tensors(*tensors(), torch.tensor([4, 5]))
    for wrong in (order[:3], order.float(), order + 3, order - 1):
        with pytest.raises(ValueError, match="expected"):
            wrapper().load_weights_from_tensors(*tensors(), wrong)


def test_documented_example():
    """The existing API's, on the CPU: experts 0 and 1 are elsewhere, positions and names as documented."""
    layer = KTMoEWrapper(
        layer_idx=0,
        num_experts=8,
        num_experts_per_tok=2,
        hidden_size=64,
        moe_intermediate_size=32,
        num_gpu_experts=2,
        cpuinfer_threads=2,
        threadpool_count=1,
        weight_path="/path/to/weights",
        chunked_prefill_size=512,
        method="AMXINT4",
    )
    gate_proj, up_proj, down_proj = tensors(experts=8)
    physical_to_logical_map = torch.arange(8)
    layer.load_weights_from_tensors(gate_proj, up_proj, down_proj, physical_to_logical_map)
    hidden_states, topk_ids = torch.randn(4, 64).bfloat16(), torch.tensor([[0, 1], [2, 0], [7, 3], [1, 5]])
    topk_weights, cuda_stream = torch.rand(4, 2), None
    output = layer.forward(hidden_states, topk_ids, topk_weights, cuda_stream)
    layer.submit_forward(hidden_states, topk_ids, topk_weights, cuda_stream)
    assert torch.equal(layer.sync_forward(hidden_states, cuda_stream), output)
    assert (output[0] == 0).all()
    here = topk_ids.where(topk_ids >= 2, -1)
    assert torch.equal(layer.forward(hidden_states, here, topk_weights), output)
    KTMoEWrapper.set_capture_batch_sizes([1, 2, 4])
    assert KTMoEWrapper.get_capture_batch_sizes() == [1, 2, 4]
    KTMoEWrapper.set_capture_batch_sizes([])
    KTMoEWrapper.clear_buffer_cache()


def test_the_example_of_the_documentation_runs():
    text = (Path(__file__).parents[2] / "docs" / "kernels.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    names = {}
    exec(example, names)
    assert torch.isfinite(names["x"]).all()


def test_the_mask_is_a_copy_that_counts_from_the_next_call_on():
    mask = torch.zeros(E, dtype=torch.bool)
    mask[2] = True
    layer, (x, ids, weights) = loaded(gpu_experts_mask=mask), batch()
    mask.fill_(True)
    close(layer.forward(x, ids, weights), loop(x, ids.where(ids != 2, -1), weights, *tensors()), 1e-2)
    layer.gpu_experts_mask[2], layer.gpu_experts_mask[4] = False, True
    close(layer.forward(x, ids, weights), loop(x, ids.where(ids != 4, -1), weights, *tensors()), 1e-2)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_experts": 0}, "at least 1"),
        ({"layer": -1}, "at least 0"),
        ({"hidden_size": 64.0}, "integers"),
        ({"num_experts_per_tok": E + 1}, "num_experts_per_tok"),
        ({"num_gpu_experts": E + 1}, "num_gpu_experts"),
        ({"max_deferred_experts_per_token": K + 1}, "max_deferred"),
        ({"gpu_experts_mask": torch.zeros(E + 1, dtype=torch.bool)}, "mask"),
        ({"gpu_experts_mask": torch.zeros(E)}, "mask"),
        ({"mode": "training"}, "mode"),
        ({"method": "AMXINT5"}, "AMXINT4, AMXINT8"),
        ({"cpuinfer_threads": 0}, "thread"),
        ({"cpuinfer_threads": 1, "threadpool_count": 2}, "thread"),
        ({"numa_nodes": [0, 0]}, "NUMA"),
        ({"numa_nodes": [4095]}, "NUMA"),
        ({"swiglu_limit": -1.0}, "limit"),
    ],
)
def test_wrong_arguments(change, words):
    with pytest.raises(ValueError, match=words):
        loaded(**change)


def test_what_is_not_done():
    for change in ({"mode": "sft", "lora_rank": 8}, {"cpu_save": True}):
        with pytest.raises(errors.Unsupported):
            wrapper(**change)
    with pytest.raises(errors.Unsupported, match="FP8_BLOCK"):
        loaded(method="FP8")
    with pytest.raises(TypeError, match="lora_rang"):
        wrapper(lora_rang=8)


def test_wrong_tensors():
    gate, up, down = tensors()
    for three in [(gate, up, down.mT), (gate[0], up[0], down[0]), (gate, up[:3], down), (gate.int(), up, down)]:
        with pytest.raises(ValueError, match="expected"):
            wrapper().load_weights_from_tensors(*three)
    with pytest.raises(ValueError, match="must be"):
        wrapper(hidden_size=32).load_weights_from_tensors(gate, up, down)
    layer, (x, ids, weights) = loaded(), batch()
    for inputs in [
        (x[:, 1:], ids, weights),
        (x[0], ids, weights),
        (x, ids[1:], weights),
        (x, ids[:, 1:], weights[:, 1:]),
        (x.half(), ids, weights),
        (x, ids.float(), weights),
        (x, ids, weights.int()),
        (x.to("meta"), ids, weights),
    ]:
        with pytest.raises(ValueError, match="expected"):
            layer.forward(*inputs)


def test_states():
    x, ids, weights = batch()
    with pytest.raises(RuntimeError, match="load_weights"):
        wrapper().forward(x, ids, weights)
    layer = loaded()
    with pytest.raises(RuntimeError, match="submit_forward"):
        layer.sync_forward(x)
    layer.submit_forward(x, ids, weights)
    for again in (layer.submit_forward, layer.forward):
        with pytest.raises(RuntimeError, match="sync_forward"):
            again(x, ids, weights)
    expected = layer.sync_forward(x)
    with pytest.raises(RuntimeError, match="submit_forward"):
        layer.sync_forward(x)
    ids[1, 2] = E
    layer.submit_forward(x, ids, weights)
    with pytest.raises(ValueError, match="ids below 6, got 6"):
        layer.sync_forward(x)
    ids[1, 2] = -5
    assert torch.equal(layer.forward(x, ids, weights)[2:], expected[2:])


def test_inputs_may_be_written_to_after_submission():
    layer, (x, ids, weights) = loaded(), batch(300)
    expected = layer.forward(x, ids, weights)
    written = threading.Event()
    layer._worker.submit(written.wait)  # what is submitted next has to wait for it
    layer.submit_forward(x, ids, weights)
    x.fill_(float("nan"))
    ids.fill_(0)
    weights.zero_()
    written.set()
    assert torch.equal(layer.sync_forward(x), expected)


def test_two_layers_interleaved():
    first, second = loaded(0), loaded(1)
    one, two = batch(5, seed=3), batch(70, seed=4)
    expected = first.forward(*one), second.forward(*two)
    first.submit_forward(*one)
    second.submit_forward(*two)
    assert torch.equal(second.sync_forward(two[0]), expected[1])
    assert torch.equal(first.sync_forward(one[0]), expected[0])


def test_each_object_has_the_threads_it_asked_for():
    one, two, three = loaded(), loaded(cpuinfer_threads=2), loaded(cpuinfer_threads=3, threadpool_count=2)
    assert [w.pool.info()["threads"] for w in (one, two, three)] == [1, 2, 3]
    assert [group["threads"] for group in three.pool.info()["groups"]] == [2, 1]
    assert loaded(cpuinfer_threads=2).pool is two.pool
    inputs = batch(30)
    results = [w.forward(*inputs) for w in (one, two, three)]
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_objects_on_several_threads():
    layers = [loaded(index, cpuinfer_threads=1 + index % 2) for index in range(4)]
    inputs = [batch(12, seed=index) for index in range(4)]
    expected = [layer.forward(*three) for layer, three in zip(layers, inputs, strict=True)]
    wrong = []

    def work(layer, three, y):
        for turn in range(40):
            if turn % 2:
                layer.submit_forward(*three)
            got = layer.sync_forward(three[0]) if turn % 2 else layer.forward(*three)
            if not torch.equal(got, y):
                wrong.append(turn)

    threads = [threading.Thread(target=work, args=args) for args in zip(layers, inputs, expected, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def test_deleting_an_object_gives_its_memory_back():
    size = 3 * 4 * 1024 * 2048 * 2  # bytes in bfloat16
    three = [torch.zeros(4, 1024, 2048).bfloat16(), torch.zeros(4, 1024, 2048).bfloat16()]
    three.append(torch.zeros(4, 2048, 1024).bfloat16())

    inputs = torch.ones(1, 2048), torch.tensor([[0, 1]]), torch.ones(1, 2)

    def used():
        layer = KTMoEWrapper(0, 4, 2, 2048, 1024, method="BF16")
        layer.load_weights_from_tensors(*three)
        layer.forward(*inputs)
        return layer

    used()  # what the first one leaves behind: scratch memory
    gc.collect()
    before = resident()
    layer = used()
    assert resident() - before > 0.9 * size
    layer.submit_forward(*inputs)
    del layer  # at work
    gc.collect()
    end = time.monotonic() + 30
    while resident() - before >= 0.1 * size and time.monotonic() < end:
        time.sleep(0.05)
    assert resident() - before < 0.1 * size


def test_masks_hold_the_most_used_experts_of_all_layers():
    frequency = torch.tensor([[1.0, 9.0, 3.0], [4.0, 4.0, 0.0]])
    for count, expected in [
        (3, [[0, 1, 0], [1, 1, 0]]),
        (1, [[0, 1, 0], [0, 0, 0]]),
        (2, [[0, 1, 0], [1, 0, 0]]),
        (0, [[0, 0, 0], [0, 0, 0]]),
        (-1, [[0, 0, 0], [0, 0, 0]]),
        (99, [[1, 1, 1], [1, 1, 1]]),
    ]:
        mask = generate_gpu_experts_masks(frequency, count)
        assert mask.dtype == torch.bool
        assert mask.int().tolist() == expected
    assert generate_gpu_experts_masks(torch.tensor([[3, 5]]), 1).tolist() == [[False, True]]
    for wrong in (frequency[0], frequency / 0 * 0):
        with pytest.raises(ValueError, match="expected"):
            generate_gpu_experts_masks(wrong, 1)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_tensors_on_a_gpu():
    first = loaded(0, max_deferred_experts_per_token=1)
    second = loaded(1, previous=first)
    here = batch(33, dtype=torch.bfloat16)
    expected = [first.forward(*here), second.forward(*here)]
    there = [tensor.cuda() for tensor in here]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    for handle in (None, stream, stream.cuda_stream):
        for layer, y in zip((first, second), expected, strict=True):
            layer.submit_forward(*there, handle)
            got = layer.sync_forward(there[0], handle)
            torch.cuda.synchronize()
            assert torch.equal(got.cpu(), y)
    with pytest.raises(ValueError, match="one GPU"):
        first.forward(there[0], here[1], there[2])
    with torch.cuda.graph(torch.cuda.CUDAGraph()), pytest.raises(errors.Unsupported):
        second.forward(*there)
