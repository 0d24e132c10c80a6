"""Attention over a device's pages: on the CPU, and on a GPU where there is one."""

import pytest
import torch

from kt_core.device import found
from kt_core.device.pages import Attending, Form, Pages, last_keys, prompt, seen_of

DEVICES = ["cpu", *(pytest.param(name, marks=pytest.mark.gpu) for name in found())]


def check(ours, expected, bound):
    assert torch.isfinite(ours).all()
    difference = (ours - expected).abs().max() / expected.abs().max()
    assert difference < bound, f"{difference:.2e}"


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("length", [1, 63, 64, 200, 1000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_over_pages(device, dtype, length):
    """Both ways in, for queries at the end of keys that others of the pages surround, against plain attention in float64."""
    form = Form(2, 64, 32, 64, dtype)
    pages = Pages(form, 40, torch.device(device))
    table = torch.randperm(40, generator=torch.Generator().manual_seed(1))[: -(-length // 64)].to(device)
    torch.manual_seed(2)
    keys, values = (torch.randn(length, 2, n, device=device).to(dtype) for n in (64, 32))
    places = torch.arange(length, device=device)
    pages.write(table[places // 64] * 64 + places % 64, keys, values)
    count = min(length, 37)
    q = torch.randn(count, 6, 64, device=device).to(dtype)
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
        seen = seen_of(torch.tensor([length], device=device), 64 * len(table), how.window)
        last = last_keys(q[-1:], pages, table[None], seen, how)
        check(last.double(), expected[-1:], bound)
