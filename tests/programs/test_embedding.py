"""Rows of an embedding decoded by the extension are those that the reference decodes, bit for bit."""

import numpy as np
import pytest
import torch

from kt_core.formats import FORMATS
from kt_core.kernels.attention import Batch
from kt_core.kernels.program import Program
from kt_core.weights import decode

DECODED = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"]
WIDTH, VOCAB = 512, 40


@pytest.mark.parametrize("format", DECODED)
def test_rows(format):
    info = FORMATS[format]
    row = WIDTH // info.block_size * info.block_bytes
    table = np.random.default_rng(3).integers(0, 256, (VOCAB, row), dtype=np.uint8)
    program = Program(VOCAB)
    x = program.rows(WIDTH)
    program.embed(format, table, WIDTH, x)
    assert not program.given
    program.give(x)
    tokens = torch.arange(VOCAB).flip(0)
    none = torch.zeros(1, 0, dtype=torch.int32)
    batch = Batch(none, torch.tensor([VOCAB], dtype=torch.int32), torch.tensor([0, VOCAB], dtype=torch.int32))
    got = program.run(tokens, tokens, tokens, batch, torch.arange(VOCAB)).numpy()
    with np.errstate(invalid="ignore"):  # random scales are not all finite
        expected = decode(format, table[::-1])
    finite = np.isfinite(expected)
    assert finite.mean() > 0.9 and (np.isfinite(got) == finite).all()
    assert np.array_equal(got[finite], expected[finite])


def test_another_format_comes_from_the_caller():
    program = Program(4)
    program.embed("Q3_K", np.zeros((4, 110), np.uint8), 256, program.rows(256))
    assert program.given
