"""The same on a GPU: `make test-gpu`.

Computed in float32 there, every placement, graph and streamed prompt must give what transformers gives on the CPU, up to the
order of sums; as it runs otherwise, in bfloat16, the distributions must be as near as bfloat16 modules of transformers come.
Bounds are twice what was seen on an H200.
"""

from types import SimpleNamespace

import pytest
import torch
from families import save
from references import TINY, from_folder, save_tiny
from stepping import Driver
from test_deferred import deferring
from test_hybrid import FAMILIES, PROMPTS, runner_of, stepped
from test_pipeline import runner_of as piped

from kt_core import kernels
from kt_core.bench.cases import weight
from kt_core.device import found, open_device
from kt_core.engine.runners.rotation import as_kernels
from kt_core.operators.crossing import tried
from kt_core.operators.grouped import Stored
from kt_core.operators.packed import Form, memory
from kt_core.weights import decode_matrix

GPUS = list(found())
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not GPUS, reason="torch finds no GPU here")]
# Float32 sums in another order, through three layers, on both sides of the link: 3.8e-6 of the largest logit seen
GPU_BOUND = 8e-6


def gpu(dtype=torch.float32):
    device = open_device(GPUS[0])
    device.dtype = dtype
    return device


@pytest.fixture(scope="module", params=FAMILIES)
def case(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    (save_tiny if request.param in TINY else save)(request.param, folder, torch.float32)
    generator = torch.Generator().manual_seed(5)
    prompts = [torch.randint(3, 128, (n,), generator=generator).tolist() for n in PROMPTS]
    reference = from_folder(folder)
    with torch.no_grad():
        return folder, prompts, [reference(torch.tensor([prompt])).logits[0] for prompt in prompts]


def check(ours, expected, bound=GPU_BOUND):
    assert torch.isfinite(ours).all()
    difference = (ours - expected).abs().max() / expected.abs().max()
    print(f"differs by {difference:.1e}")
    assert difference < bound, f"{difference:.2e}"


@pytest.mark.parametrize("threshold", [None, 6], ids=["computed", "streamed"])
@pytest.mark.parametrize("captured", [(), (1, 2)], ids=["plain", "graphs"])
@pytest.mark.parametrize("experts", [0, 2, 99], ids=["none", "some", "all"])
def test_every_way(case, experts, captured, threshold):
    folder, prompts, expected = case
    runner, _ = runner_of(folder, experts, threshold, captured, gpu())
    for ours, logits in zip(stepped(runner, prompts), expected, strict=True):
        check(ours, logits)
    at = Driver(runner)  # the first of a kind is computed and then captured, the others are replayed
    replayed = torch.cat([at.step({3: prompts[0][:8]}), *(at.step({3: [token]}) for token in prompts[0][8:])])
    check(replayed, expected[0])
    assert bool(runner._graphs._captured) == bool(captured)


def test_a_graph_reads_nothing_that_others_have_taken(case):
    """Freed memory goes to the next who asks: here to numbers that are no index of anything."""
    folder, prompts, expected = case
    device = gpu()
    runner, _ = runner_of(folder, 2, None, (1,), device)
    at = Driver(runner)
    first, *rest = prompts[0][8:]
    rows = [at.step({3: prompts[0][:8]}), at.step({3: [first]}), at.step({3: [rest[0]]})]
    assert runner._graphs._captured
    at.step({4: prompts[0][:8]})  # a step of a prompt takes the place of what the runner knew last
    taken = [torch.full((1 << n,), 1 << 40, device=device.torch) for n in range(8) for _ in range(400)]
    check(torch.cat([*rows, *(at.step({3: [token]}) for token in rest[1:])]), expected[0])
    assert all(bool((numbers == 1 << 40).all()) for numbers in taken[::50])


def test_graphs_that_ask_by_functions(case, monkeypatch):
    folder, prompts, expected = case
    device = gpu()
    monkeypatch.setattr(type(device), "words_unusable", lambda self: "told so")
    runner, _ = runner_of(folder, 2, None, (1,), device)
    at = Driver(runner)
    check(torch.cat([at.step({3: prompts[0][:8]}), *(at.step({3: [token]}) for token in prompts[0][8:])]), expected[0])
    assert not runner.crossing.by_words and runner._graphs._captured


@pytest.mark.parametrize("captured", [(), (1, 2)], ids=["plain", "graphs"])
@pytest.mark.parametrize("experts", [0, 2, 99], ids=["none", "some", "all"])
def test_bfloat16(case, experts, captured):
    """transformers' own modules in bfloat16 on the same GPU are the measure: 1.05 times as far was seen, 1.6e-3 at most."""
    folder, prompts, expected = case
    runner, _ = runner_of(folder, experts, 6, captured, gpu(torch.bfloat16))
    theirs = from_folder(folder).to(GPUS[0], torch.bfloat16)
    with torch.no_grad():
        other = theirs(torch.tensor([prompts[0]], device=GPUS[0])).logits[0].float().cpu()
    ours, reference = divergence(stepped(runner, prompts)[0], expected[0]), divergence(other, expected[0])
    print(f"KL {ours:.1e}, transformers' own {reference:.1e}")
    assert ours < 2 * reference and ours < 3.2e-3


def divergence(ours, expected):
    p, q = expected.double().log_softmax(-1), ours.double().log_softmax(-1)
    return float((p.exp() * (p - q)).sum(-1).mean())


@pytest.mark.parametrize("captured", [(), (1, 2)], ids=["plain", "graphs"])
def test_experts_that_move(case, captured, restless):
    folder, prompts, expected = case
    runner, _ = runner_of(folder, 2, 6, captured, gpu(), strategy="dynamic")
    runner.moves[0]._allowance = 1e18
    for ours, logits in zip(stepped(runner, prompts), expected, strict=True):
        check(ours, logits)
    at = Driver(runner)
    check(torch.cat([at.step({3: prompts[0][:8]}), *(at.step({3: [token]}) for token in prompts[0][8:])]), expected[0])
    assert runner.moves[0].moved > 8


def test_rows_cross_by_a_kernel():
    """Numbers arrive as they are, and sums are rounded once."""
    device = gpu(torch.bfloat16)
    rows = tried(device)
    assert rows is not None
    x, there = torch.randn(5, 1500, device=device.torch).bfloat16(), torch.randn(5, 1500, device=device.torch)
    parts = x, torch.randint(-1, 9, (5, 6), device=device.torch), torch.rand(5, 6, device=device.torch).bfloat16()
    to = [device.pinned(part.numel() * kind.itemsize).view(kind).view(part.shape) for part, kind in zip(parts, (torch.bfloat16, torch.int64, torch.float32), strict=True)]  # fmt: skip
    rows.send(parts, tuple(to))
    device.reached()()
    assert all(torch.equal(one, part.cpu().to(one.dtype)) for one, part in zip(to, parts, strict=True))
    assert torch.equal(rows.collect(there, to[0], device.torch), (there + x.float()).bfloat16())
    assert torch.equal(rows.collect(None, to[0], device.torch), x)


@pytest.mark.parametrize("family", ["qwen3_moe", "mixtral"])
def test_queries_are_turned_by_a_kernel(family, tmp_path):
    """What comes of it is in every other test here."""
    (save_tiny if family in TINY else save)(family, tmp_path, torch.float32)
    runner, _ = runner_of(tmp_path, 2, device=gpu())
    files = runner._rotations
    assert [file.__name__.rpartition(".")[2] for file in files] == [f"modeling_{family}"]
    own = files[0].apply_rotary_pos_emb
    with as_kernels(files):
        assert files[0].apply_rotary_pos_emb is not own
    assert files[0].apply_rotary_pos_emb is own


@pytest.mark.parametrize("captured", [(), (1, 2)], ids=["plain", "graphs"])
@pytest.mark.parametrize("by_words", [True, False], ids=["words", "functions"])
@torch.no_grad()
def test_deferred_experts(case, captured, by_words, monkeypatch):
    folder, prompts, _ = case
    device = gpu()
    if not by_words:
        monkeypatch.setattr(type(device), "words_unusable", lambda self: "told so")
    expected = deferring(from_folder(folder), 1)(torch.tensor([prompts[0]])).logits[0]
    runner, _ = runner_of(folder, 2, None, captured, device, deferred=1)
    at = Driver(runner)
    check(torch.cat([at.step({3: prompts[0][:8]}), *(at.step({3: [token]}) for token in prompts[0][8:])]), expected)


@pytest.mark.parametrize("format", ["BF16", "Q4_K", "Q6_K", "Q8_0", "Q4_0", "MXFP4_HF", "FP8_BLOCK", "INT4", "GPTQ"])
def test_experts_kept_as_they_are_stored(format):
    """Rows of bfloat16 with packed experts, few and many: float32 sums of the decoded weights' products, rounded to bfloat16,
    which is half of 2^-8 of a value; both sides round once, and their sums before that differ by 6e-6 of the terms."""
    hidden, inner, module = 256, 512, SimpleNamespace(has_gate=True, is_concatenated=True)
    kernel = kernels.Experts(4, hidden, inner)
    parts = [  # seeds that give all of them one kind of scales and zero points, as the experts of a layer have
        [weight(format, *size, 12 * seed) for size in ((inner, hidden), (inner, hidden), (hidden, inner))]
        for seed in range(4)
    ]
    kernel.load_all(parts)
    form, device = Form(module, kernel, 0), gpu(torch.bfloat16)
    for number in range(4):
        form.check(kernel.places(number))
    raw = torch.stack([torch.cat([memory(place) for place in kernel.places(number)]) for number in range(4)])
    packed = Stored(raw.to(device.torch), form, device)
    chosen = torch.tensor([3, 4, 0, 1, 3, 2], device=device.torch)
    x = torch.randn(3, hidden, device=device.torch, dtype=torch.bfloat16)
    found = packed.few_first(x, chosen, 2).double().cpu()
    for number, row, result in zip(chosen.tolist(), x.repeat_interleave(2, 0).double().cpu(), found, strict=True):
        if number == 4:
            assert (result == 0).all()
            continue
        both = torch.cat([torch.from_numpy(decode_matrix(matrix)) for matrix in parts[number][:2]]).double()
        terms = both * row
        bound = 2**-8 * terms.sum(-1).abs() + 6e-6 * terms.abs().sum(-1)
        assert ((result - terms.sum(-1)).abs() <= bound).all(), f"{format}, expert {number}"


@pytest.mark.skipif(len(GPUS) < 2, reason="torch finds fewer than two GPUs here")
@pytest.mark.parametrize("experts", [0, 2, 99], ids=["none", "some", "all"])
@pytest.mark.parametrize("way", ["plain", "streamed", "deferred", "moving"])
@torch.no_grad()
def test_two_gpus(case, experts, way, restless):
    folder, prompts, expected = case
    devices = [open_device(name) for name in GPUS[:2]]
    for device in devices:
        device.dtype = torch.float32
    more = {"deferred": {"deferred": 1}, "moving": {"strategy": "dynamic"}}.get(way, {})
    runner, model = piped(folder, devices, experts, 6 if way == "streamed" else None, **more)
    assert {part.device.index for part in model.parameters()} == {0, 1}
    if way == "deferred":
        reference = deferring(from_folder(folder), 1)
        expected = [reference(torch.tensor([prompt])).logits[0] for prompt in prompts[:1]]
        at = Driver(runner)
        check(torch.cat([at.step({3: prompts[0][:8]}), *(at.step({3: [n]}) for n in prompts[0][8:])]), expected[0])
        return
    for moves in runner.moves:
        moves._allowance = 1e18
    for ours, logits in zip(stepped(runner, prompts), expected, strict=True):
        check(ours, logits)
