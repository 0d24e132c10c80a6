"""Attention over a device's pages: on the CPU, and on a GPU where there is one."""

import pytest
import torch

from kt_core.device import found
from kt_core.device.pages import FP8, Attending, Form, Pages, Sequences, gathered, last_keys, prompt

DEVICES = ["cpu", *(pytest.param(name, marks=pytest.mark.gpu) for name in found())]


def check(ours, expected, bound):
    assert torch.isfinite(ours).all()
    difference = (ours - expected).abs().max() / expected.abs().max()
    assert difference < bound, f"{difference:.2e}"


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("length", [1, 63, 64, 200, 1000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, FP8])
def test_attention_over_pages(device, dtype, length):
    """Both ways in, for queries at the end of keys that others of the pages surround, against plain attention in float64."""
    form = Form(2, 64, 32, 64, dtype)
    pages = Pages(form, 40, torch.device(device))
    table = torch.randperm(40, generator=torch.Generator().manual_seed(1))[: -(-length // 64)].to(device)
    torch.manual_seed(2)
    keys, values = (torch.randn(length, 2, n, device=device).to(dtype).to(form.products) for n in (64, 32))
    places = torch.arange(length, device=device)
    pages.write(table[places // 64] * 64 + places % 64, keys, values)
    count = min(length, 37)
    q = torch.randn(count, 6, 64, device=device).to(form.products)
    for how in (Attending(0.125), Attending(0.125, window=16), Attending(0.125, sinks=torch.randn(6, device=device))):
        scores = torch.einsum("qhd,khd->hqk", q.double(), keys.double().repeat_interleave(3, 1)) * how.scale
        ends = torch.arange(length - count, length, device=device)[:, None]
        seen = (places <= ends) & (places > ends - (how.window or length))
        scores = scores.masked_fill(~seen, -torch.inf)
        if how.sinks is not None:
            scores = torch.cat((scores, how.sinks.double()[:, None, None].expand(-1, count, 1)), -1)
        weights = scores.softmax(-1)[..., :length]
        expected = torch.einsum("hqk,khd->qhd", weights, values.double().repeat_interleave(3, 1))
        bound = 1e-5 if dtype == torch.float32 else 2e-2
        found = prompt(q, *(rows[:length] for rows in pages.rows(table)), how)
        check(found.double(), expected, bound)
        sequences = Sequences(table[None], torch.tensor([length], device=device))
        for single in (last_keys, gathered):
            check(single(q[-1:], pages, sequences, how).double(), expected[-1:], bound)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, FP8])
@pytest.mark.parametrize(("heads", "group", "sizes", "shared"), [(1, 20, (576, 512), True), (2, 8, (128, 128), False)])
def test_single_tokens_of_several_sequences(device, dtype, heads, group, sizes, shared):
    """Latent attention's pages, and long sequences beside short ones whose tables name pages that are not theirs."""
    form, there = Form(heads, *sizes, 64, dtype, shared), torch.device(device)
    pages = Pages(form, 40, there)
    torch.manual_seed(3)
    pages.keys.copy_(torch.randn(pages.keys.shape, device=there).to(dtype))
    if not shared:
        pages.values.copy_(torch.randn(pages.values.shape, device=there).to(dtype))
    q, lengths = (
        torch.randn(3, heads * group, sizes[0], device=there).to(form.products),
        torch.tensor([1, 1700, 64], device=there),
    )
    tables = torch.stack([torch.randperm(40, device=there)[:28] for _ in range(3)])
    for how in (Attending(0.05), Attending(0.05, window=300), Attending(0.05, softcap=2.0)):
        found = last_keys(q, pages, Sequences(tables, lengths), how)
        for number, (row, length) in enumerate(zip(q.double(), lengths.tolist(), strict=True)):
            own = pages.rows(tables[number : number + 1])
            keys, values = (part[0, :length].double().repeat_interleave(group, 1) for part in own)
            scores = torch.einsum("hd,khd->hk", row, keys) * how.scale
            scores = how.softcap * torch.tanh(scores / how.softcap) if how.softcap else scores
            begin = max(0, length - (how.window or length))
            expected = torch.einsum("hk,khd->hd", scores[:, begin:].softmax(-1), values[begin:])
            check(found[number].double(), expected, 1e-5 if dtype == torch.float32 else 2e-2)


def test_what_fp8_cannot_hold_is_kept_as_the_largest():
    pages = Pages(Form(1, 16, 16, 64, FP8), 1, torch.device("cpu"))
    pages.write(torch.tensor([3]), torch.full((1, 1, 16), 1e4), torch.full((1, 1, 16), -1e4))
    keys, values = pages.rows(torch.tensor([0]))
    assert (keys[3] == 448).all() and (values[3] == -448).all() and (keys[:3] == 0).all()
