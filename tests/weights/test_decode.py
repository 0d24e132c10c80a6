"""Reference decoding against the gguf package and torch, bit for bit, on random valid blocks."""

import gguf
import numpy as np
import pytest
import torch
from plain_blocks import dequantize

from kt_core.bench.blocks import random_blocks
from kt_core.errors import Unsupported
from kt_core.formats import FORMATS
from kt_core.weights.decode import DECODERS, decode

BLOCKED = [name for name in DECODERS if FORMATS[name].block_size > 1]


@pytest.mark.parametrize("name", BLOCKED)
def test_blocks_equal_the_gguf_package(name):
    blocks = random_blocks(name, 257)
    expected = dequantize(name, blocks.reshape(1, -1))
    np.testing.assert_array_equal(decode(name, blocks.reshape(1, -1)), expected)


@pytest.mark.parametrize("name", ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])  # what the gguf package can write
def test_quantised_numbers_come_back_near(name):
    values = np.random.default_rng(1).standard_normal((4, 512)).astype(np.float32)
    packed = gguf.quants.quantize(values, gguf.GGMLQuantizationType[name])
    error = np.abs(decode(name, packed) - values).max()
    # Half a step of a block whose values span about 6 (3 for the symmetric types, which round one end away).
    step = {"Q8_0": 4.2 / 127, "Q4_0": 4.2 / 8 * 2, "Q4_1": 8 / 15, "Q5_0": 4.2 / 16 * 2, "Q5_1": 8 / 31}[name]
    assert error <= step / 2 * 1.05


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("F32", torch.float32), ("F16", torch.float16), ("BF16", torch.bfloat16), ("F64", torch.float64),
     ("I8", torch.int8), ("I16", torch.int16), ("I32", torch.int32), ("I64", torch.int64)],
)  # fmt: skip
def test_plain_numbers_equal_torch(name, dtype):
    values = (torch.randn(3, 50) * 100).to(dtype)
    raw = values.view(torch.uint8).numpy()
    np.testing.assert_array_equal(decode(name, raw), values.float().numpy())


def test_float8_equals_torch_for_every_code():
    codes = torch.arange(256, dtype=torch.uint8)
    np.testing.assert_array_equal(decode("F8_E4M3", codes.numpy()), codes.view(torch.float8_e4m3fn).float().numpy())


def test_special_numbers_survive():
    values = np.array([[np.inf, -np.inf, np.nan, -0.0, 1e-40]], dtype=np.float32)
    np.testing.assert_array_equal(decode("F32", values.view(np.uint8)), values)


def test_unknown_format_lists_the_known():
    with pytest.raises(Unsupported, match=r"TQ1_0.*Q4_1"):
        decode("TQ1_0", np.zeros((1, 54), np.uint8))


def test_a_strided_view_is_decoded():
    blocks = random_blocks("Q4_1", 8).reshape(4, 40)
    np.testing.assert_array_equal(decode("Q4_1", blocks[::2]), decode("Q4_1", blocks)[::2])
