"""Formats with arrays beside the data: decoding against compressed-tensors, torch and plain loops."""

import numpy as np
import pytest
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

from kt_core.errors import Unsupported
from kt_core.weights import Matrix, decode_matrix

ROWS, COLS = 24, 256


def raw(tensor: torch.Tensor) -> np.ndarray:
    """uint8 [rows, bytes of a row]"""
    tensor = tensor.contiguous()
    return tensor.view(torch.uint8).numpy().reshape(tensor.shape[0], -1)


def scheme(**weights):
    return QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**weights))


def quantised(name, scale, global_scale=None, zero_point=None, **weights):
    """(compressed, decompressed) state dicts of a random weight."""
    compressor, how = BaseCompressor.get_value_from_registry(name), scheme(**weights)
    state = {"weight": torch.randn(ROWS, COLS) * 0.05, "weight_scale": scale}
    if global_scale is not None:
        state["weight_global_scale"] = global_scale
    if zero_point is not None:
        state["weight_zero_point"] = zero_point
    small = compressor.compress(state, how)
    return small, compressor.decompress(small, how)["weight"].float().numpy()


@pytest.mark.parametrize(
    ("name", "kind", "dtype"),
    [("FP8_BLOCK", "F32", torch.float32), ("FP8_BLOCK", "BF16", torch.bfloat16),
     ("FP8_CHANNEL", "F32", torch.float32), ("FP8_CHANNEL", "BF16", torch.bfloat16),
     ("FP8_CHANNEL", "F16", torch.float16)],
)  # fmt: skip
def test_fp8_equals_torch_for_every_code(name, kind, dtype):
    codes = torch.arange(256, dtype=torch.uint8).repeat(130, 2)[:, :300]
    block = name == "FP8_BLOCK"
    scales = (torch.rand(2, 3) if block else torch.rand(130, 1)).to(dtype)
    wide = scales.float().repeat_interleave(128, 0).repeat_interleave(128, 1)[:130, :300] if block else scales.float()
    expected = codes.view(torch.float8_e4m3fn).float() * wide
    matrix = Matrix(name, 130, 300, codes.numpy(), raw(scales), scale_format=kind)
    np.testing.assert_array_equal(decode_matrix(matrix), expected.numpy())


def test_mxfp8_equals_compressed_tensors():
    scale = torch.exp2(torch.randint(-12, -6, (ROWS, COLS // 32)).float())
    state, expected = quantised("mxfp8-quantized", scale, num_bits=8, type="float", strategy="group", group_size=32)
    matrix = Matrix("MXFP8", ROWS, COLS, raw(state["weight"]), raw(state["weight_scale"]), scale_format="E8M0")
    np.testing.assert_array_equal(decode_matrix(matrix), expected)


def test_mxfp4_equals_compressed_tensors():
    scale = torch.exp2(torch.randint(-8, -3, (ROWS, COLS // 32)).float())
    state, expected = quantised(
        "mxfp4-pack-quantized", scale, num_bits=4, type="float", strategy="group", group_size=32
    )
    packed = state["weight_packed"]
    matrix = Matrix("MXFP4_HF", ROWS, COLS, raw(packed), raw(state["weight_scale"]), scale_format="E8M0")
    np.testing.assert_array_equal(decode_matrix(matrix), expected)


def test_nvfp4_equals_compressed_tensors():
    scale = (torch.rand(ROWS, COLS // 16) * 300 + 1).to(torch.float8_e4m3fn).float()
    state, expected = quantised(
        "nvfp4-pack-quantized", scale, torch.tensor([4096.0]), num_bits=4, type="float", strategy="tensor_group",
        group_size=16,
    )  # fmt: skip
    packed, scales = raw(state["weight_packed"]), raw(state["weight_scale"])
    matrix = Matrix("NVFP4", ROWS, COLS, packed, scales, scale_format="E4M3", multiplier=1 / 4096)
    np.testing.assert_allclose(decode_matrix(matrix), expected, rtol=2**-7)  # the package decodes to bfloat16
    exact = decode_matrix(matrix).astype(np.float64) * 4096 / np.repeat(scale.numpy(), 16, axis=1)
    assert set(np.abs(exact).ravel()) <= {0, 0.5, 1, 1.5, 2, 3, 4, 6}


@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize("symmetric", [True, False])
def test_int4_equals_compressed_tensors(group, symmetric):
    scale = torch.rand(ROWS, COLS // group) * 0.01 + 0.005
    zero = None if symmetric else torch.randint(-8, 8, scale.shape, dtype=torch.int8)
    state, expected = quantised(
        "pack-quantized", scale, None, zero, num_bits=4, type="int", strategy="group", group_size=group,
        symmetric=symmetric,
    )  # fmt: skip
    zeros = None if symmetric else nibble_rows((zero + 8).numpy().astype(np.uint8))
    packed = raw(state["weight_packed"])
    matrix = Matrix("INT4", ROWS, COLS, packed, raw(scale), zeros, scale_format="F32", group=group)
    np.testing.assert_array_equal(decode_matrix(matrix), expected)


def nibble_rows(values: np.ndarray) -> np.ndarray:
    """[rows, n] to [rows, ceil(n / 2)] bytes, the first value low."""
    even = np.pad(values, ((0, 0), (0, values.shape[1] % 2)))
    return even[:, ::2] | even[:, 1::2] << 4


def test_int8_channel():
    q = torch.randint(-128, 128, (ROWS, COLS), dtype=torch.int8)
    scale = torch.rand(ROWS, 1).bfloat16()
    matrix = Matrix("INT8_CHANNEL", ROWS, COLS, raw(q), raw(scale), scale_format="BF16")
    np.testing.assert_array_equal(decode_matrix(matrix), (q.float() * scale.float()).numpy())


@pytest.mark.parametrize("group", [32, 64, 128, -1])
@pytest.mark.parametrize("symmetric", [True, False])
def test_gptq_equals_its_packing_loop(group, symmetric):
    size = COLS if group == -1 else group
    rng = np.random.default_rng(2)
    q = rng.integers(0, 16, (COLS, ROWS))
    zero = np.full((COLS // size, ROWS), 8) if symmetric else rng.integers(1, 17, (COLS // size, ROWS))
    scale = rng.random((COLS // size, ROWS)).astype(np.float16)
    weight = np.zeros((COLS // 8, ROWS), np.uint32)
    for i in range(COLS):
        for n in range(ROWS):
            weight[i // 8, n] |= np.uint32(q[i, n] << 4 * (i % 8))
    zeros = np.zeros((COLS // size, ROWS // 8), np.uint32)
    for g in range(COLS // size):
        for n in range(ROWS):
            zeros[g, n // 8] |= np.uint32((zero[g, n] - 1) << 4 * (n % 8))
    expected = np.empty((ROWS, COLS), np.float32)
    for i in range(COLS):
        expected[:, i] = scale[i // size].astype(np.float32) * (q[i] - zero[i // size])
    stored = None if symmetric else zeros.view(np.uint8)
    arrays = weight.view(np.uint8), scale.view(np.uint8)
    matrix = Matrix("GPTQ", ROWS, COLS, *arrays, stored, scale_format="F16", group=group)
    np.testing.assert_array_equal(decode_matrix(matrix), expected)


@pytest.mark.parametrize("group", [32, 128])
def test_awq_equals_its_packing_loop(group):
    rng = np.random.default_rng(3)
    q, zero = rng.integers(0, 16, (COLS, ROWS)), rng.integers(0, 16, (COLS // group, ROWS))
    scale = rng.random((COLS // group, ROWS)).astype(np.float16)

    def packed(values):
        out = np.zeros((len(values), ROWS // 8), np.uint32)
        for row in range(len(values)):
            for word in range(ROWS // 8):
                for i, column in enumerate((0, 2, 4, 6, 1, 3, 5, 7)):
                    out[row, word] |= np.uint32(values[row, 8 * word + column] << 4 * i)
        return out.view(np.uint8)

    expected = np.empty((ROWS, COLS), np.float32)
    for i in range(COLS):
        expected[:, i] = scale[i // group].astype(np.float32) * (q[i] - zero[i // group])
    arrays = packed(q), scale.view(np.uint8), packed(zero)
    matrix = Matrix("AWQ", ROWS, COLS, *arrays, scale_format="F16", group=group)
    np.testing.assert_array_equal(decode_matrix(matrix), expected)


def test_words_of_int4_are_those_of_compressed_tensors():
    q = torch.randint(-8, 8, (3, 64), dtype=torch.int8)
    scales = np.ones((3, 2), np.float32).view(np.uint8)
    matrix = Matrix("INT4", 3, 64, raw(pack_to_int32(q, 4)), scales, scale_format="F32", group=32)
    np.testing.assert_array_equal(decode_matrix(matrix), q.float().numpy())


def test_nan_scales():
    codes = np.full((1, 32), 0x38, np.uint8)
    nan = np.full((1, 1), 255, np.uint8)
    assert np.isnan(decode_matrix(Matrix("MXFP8", 1, 32, codes, nan, scale_format="E8M0"))).all()


def test_what_is_missing_is_named():
    data = np.zeros((1, 32), np.uint8)
    with pytest.raises(ValueError, match="FP8_CHANNEL needs scales"):
        decode_matrix(Matrix("FP8_CHANNEL", 1, 32, data, scale_format="F32"))
    with pytest.raises(ValueError, match=r"'F8'\. Known: F32"):
        decode_matrix(Matrix("FP8_CHANNEL", 1, 32, data, data[:, :1], scale_format="F8"))
    with pytest.raises(Unsupported, match="TQ1_0"):
        decode_matrix(Matrix("TQ1_0", 1, 256, np.zeros((1, 54), np.uint8)))


def test_formats_without_arrays_are_decoded_as_ever():
    values = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)
    np.testing.assert_array_equal(decode_matrix(Matrix("F32", 3, 5, values.view(np.uint8))), values)
