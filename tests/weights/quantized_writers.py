"""Writers of quantised weights that share no code with kt: compressed-tensors' own compressors, torch's float8 types, and
loops from the public descriptions of GPTQ, AWQ, NVFP4 and the MX formats.

Each takes a float32 [N, K] and returns ({end of a tensor's name: tensor}, the float32 [N, K] that these stand for).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.quantization import QuantizationScheme

Written = tuple[dict[str, torch.Tensor], torch.Tensor]
E4M3 = torch.float8_e4m3fn
FP4 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0]
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


@dataclass(frozen=True)
class Way:
    settings: dict[str, Any]
    write: Callable[[torch.Tensor], Written]
    format: str


def _powers_of_two(amax: torch.Tensor, largest: float) -> torch.Tensor:
    """Exponents e with amax <= largest * 2^(e - 127), as uint8."""
    return (127 + torch.log2(amax.clamp(min=1e-30) / largest).ceil()).clamp(1, 254).to(torch.uint8)


def _power(e: torch.Tensor) -> torch.Tensor:
    return torch.ldexp(torch.ones(e.shape), e.to(torch.int32) - 127)


def fp8_block(weight: torch.Tensor, scale_type: torch.dtype = torch.float32, name: str = "weight_scale_inv") -> Written:
    """Block by block, as DeepSeek-V3's conversion describes: scale = amax / 448 of 128 x 128 weights."""
    rows, cols = weight.shape
    scales = torch.empty(-(-rows // 128), -(-cols // 128))
    stored, decoded = torch.empty(weight.shape, dtype=E4M3), torch.empty_like(weight)
    for i in range(scales.shape[0]):
        for j in range(scales.shape[1]):
            at = (slice(128 * i, 128 * i + 128), slice(128 * j, 128 * j + 128))
            scale = weight[at].abs().max() / 448
            scale = 2.0 ** torch.log2(scale).ceil() if scale_type == torch.float8_e8m0fnu else scale.to(scale_type)
            scales[i, j] = scale
            stored[at] = (weight[at] / scale.float()).to(E4M3)
            decoded[at] = stored[at].float() * scale.float()
    return {"weight": stored, name: scales.to(scale_type)}, decoded


def fp8_rows(weight: torch.Tensor, one_dimension: bool = False) -> Written:
    scale = (weight.abs().amax(dim=1, keepdim=True) / 448).bfloat16()
    stored = (weight / scale.float()).to(E4M3)
    return {"weight": stored, "weight_scale": scale[:, 0] if one_dimension else scale}, stored.float() * scale.float()


def fp8_matrix(weight: torch.Tensor) -> Written:
    scale = weight.abs().max() / 448
    stored = (weight / scale).to(E4M3)
    activations = {"input_scale": torch.tensor(0.25), "k_scale": torch.tensor(1.0)}
    return {"weight": stored, "weight_scale": scale} | activations, stored.float() * scale


def mxfp8(weight: torch.Tensor) -> Written:
    groups = weight.reshape(weight.shape[0], -1, 32)
    e = _powers_of_two(groups.abs().amax(dim=2), 448)
    stored = (groups / _power(e)[..., None]).to(E4M3)
    decoded = stored.float() * _power(e)[..., None]
    return {"weight": stored.reshape(weight.shape), "weight_scale_inv": e}, decoded.reshape(weight.shape)


def _fp4_pairs(groups: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(bytes [N, K/2], the numbers [N, groups, size]) nearest to groups [N, groups, size]; even elements low."""
    table = torch.tensor(FP4)
    codes = (groups[..., None] - table).abs().argmin(dim=-1)
    flat = codes.reshape(groups.shape[0], -1)
    return (flat[:, 0::2] | flat[:, 1::2] << 4).to(torch.uint8), table[codes]


def mxfp4(weight: torch.Tensor) -> Written:
    """DeepSeek-V4's experts: int8 pairs, and `.scale` of type E8M0."""
    groups = weight.reshape(weight.shape[0], -1, 32)
    e = _powers_of_two(groups.abs().amax(dim=2), 6)
    pairs, numbers = _fp4_pairs(groups / _power(e)[..., None])
    decoded = (numbers * _power(e)[..., None]).reshape(weight.shape)
    return {"weight": pairs.view(torch.int8), "scale": e.view(torch.float8_e8m0fnu)}, decoded


def nvfp4_modelopt(weight: torch.Tensor) -> Written:
    factor = weight.abs().max() / (6 * 448)
    groups = weight.reshape(weight.shape[0], -1, 16)
    scale = (groups.abs().amax(dim=2) / 6 / factor).to(E4M3)
    pairs, numbers = _fp4_pairs(groups / (scale.float() * factor)[..., None])
    decoded = (numbers.double() * scale.double()[..., None] * factor.double()).float().reshape(weight.shape)
    sides = {"weight_scale": scale, "weight_scale_2": factor, "input_scale": torch.tensor(0.5)}
    return {"weight": pairs} | sides, decoded


def gptq(weight: torch.Tensor, size: int, symmetric: bool, stored_less: int, skip: tuple[str, ...] = ()) -> Written:
    """Column group by column group; word r of output n holds inputs 8r ... 8r+7, input 8r in the lowest bits.

    A word of zero points is stored less `stored_less` (0x11111111 in the first format, as GPTQModel converts them).
    """
    rows, cols = weight.shape
    group = cols if size == -1 else size
    scales = torch.empty(cols // group, rows, dtype=torch.float16)
    zeros = torch.empty(cols // group, rows, dtype=torch.int64)
    codes, decoded = torch.empty(cols, rows, dtype=torch.int64), torch.empty(rows, cols)
    for g in range(cols // group):
        part = weight[:, g * group : (g + 1) * group]
        low, high = part.amin(dim=1).clamp(max=0), part.amax(dim=1).clamp(min=0)
        if symmetric:
            high, low = part.abs().amax(dim=1), -part.abs().amax(dim=1)
        scales[g] = ((high - low) / 15).half()
        zeros[g] = 8 if symmetric else (-low / scales[g].float()).round().clamp(0, 15).long()
        code = ((part / scales[g].float()[:, None]).round().long() + zeros[g][:, None]).clamp(0, 15)
        codes[g * group : (g + 1) * group] = code.T
        decoded[:, g * group : (g + 1) * group] = (code - zeros[g][:, None]) * scales[g].float()[:, None]
    qweight, qzeros = torch.zeros(cols // 8, rows, dtype=torch.int64), torch.zeros(len(zeros), rows // 8).long()
    for i in range(8):
        qweight |= codes[i::8] << 4 * i
        qzeros |= zeros[:, i::8] << 4 * i
    tensors = {
        "qweight": _int32(qweight),
        "qzeros": _int32(qzeros - stored_less & 0xFFFFFFFF),
        "scales": scales,
        "g_idx": (torch.arange(cols) // group).int(),
        "bias": torch.zeros(rows, dtype=torch.float16),
    }
    return {end: tensor for end, tensor in tensors.items() if end not in skip}, decoded


def awq(weight: torch.Tensor, group: int, has_zeros: bool = True) -> Written:
    """Input by input; word c holds outputs 8c ... 8c+7 in the order 0, 2, 4, 6, 1, 3, 5, 7 from the lowest bits."""
    tensors, decoded = gptq(weight, group, symmetric=not has_zeros, stored_less=0)
    rows, cols = weight.shape

    def repacked(values: torch.Tensor) -> torch.Tensor:
        words = torch.zeros(values.shape[0], rows // 8, dtype=torch.int64)
        for place, column in enumerate(AWQ_ORDER):
            words |= values[:, column::8].long() << 4 * place
        return _int32(words)

    codes = torch.stack([tensors["qweight"] >> 4 * i & 15 for i in range(8)], dim=1).reshape(cols, rows)
    zeros = torch.stack([tensors["qzeros"] >> 4 * i & 15 for i in range(8)], dim=2).reshape(-1, rows)
    written = {"qweight": repacked(codes), "scales": tensors["scales"]}
    return written | ({"qzeros": repacked(zeros)} if has_zeros else {}), decoded


def _int32(words: torch.Tensor) -> torch.Tensor:
    """The low 32 bits of int64 words."""
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32).contiguous()


def compressed(weight: torch.Tensor, form: str, args: dict[str, Any], scale_type: torch.dtype) -> Written:
    """What compressed-tensors' compressor of format `form` writes, and what it decompresses that to."""
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    state = {"weight": weight} | _parameters(weight, scheme.weights)
    state["weight_scale"] = state["weight_scale"].to(scale_type)
    compressor = BaseCompressor.get_value_from_registry(form)
    written = compressor.compress(state, scheme)
    if form == "nvfp4-pack-quantized":
        numbers = unpack_fp4_from_uint8(written["weight_packed"], *weight.shape, dtype=torch.float32).double()
        scales = written["weight_scale"].double().repeat_interleave(16, dim=1)
        return written, (numbers * scales / written["weight_global_scale"].double()).float()
    exact = written["weight_scale"].dtype == torch.uint8
    widened = written if exact else written | {"weight_scale": written["weight_scale"].float()}
    return written, compressor.decompress(dict(widened), scheme)["weight"].float()


def _parameters(weight: torch.Tensor, args: Any) -> dict[str, torch.Tensor]:
    """weight_scale, weight_zero_point and weight_global_scale by amax of each group, row, block or matrix."""
    rows, cols = weight.shape
    strategy, float8 = args.strategy, args.type == "float"
    if strategy == "block":
        return {"weight_scale": fp8_block(weight)[0]["weight_scale_inv"]}
    if strategy == "tensor":
        return {"weight_scale": (weight.abs().max() / 448).reshape(1)}
    groups = weight.reshape(rows, -1, args.group_size if strategy in ("group", "tensor_group") else cols)
    amax = groups.abs().amax(dim=2)
    if strategy == "tensor_group":
        factor = (6 * 448 / weight.abs().max()).reshape(1)
        return {"weight_scale": (amax / 6 * factor).to(E4M3).float(), "weight_global_scale": factor}
    if args.scale_dtype == torch.uint8:
        return {"weight_scale": _power(_powers_of_two(amax, 448 if args.num_bits == 8 else 6))}
    if args.symmetric:
        return {"weight_scale": (amax / (448 if float8 else 2 ** (args.num_bits - 1) - 0.5)).bfloat16().float()}
    low, high = groups.amin(dim=2).clamp(max=0), groups.amax(dim=2).clamp(min=0)
    scale = ((high - low) / 15).bfloat16().float()
    return {"weight_scale": scale, "weight_zero_point": (-8 - low / scale).round().clamp(-8, 7).to(torch.int8)}


def _compressed_way(form: str, format: str, scale_type: torch.dtype, **args: Any) -> Way:
    shown = {key: "torch.uint8" if value is torch.uint8 else value for key, value in args.items()}
    groups = {"group_0": {"targets": ["Linear"], "weights": shown, "input_activations": None}}
    settings = {"quant_method": "compressed-tensors", "format": form, "config_groups": groups, "ignore": ["lm_head"]}
    return Way(settings, lambda weight: compressed(weight, form, args, scale_type), format)


def _gptq_way(size: int, symmetric: bool, version: str = "gptq", skip: tuple[str, ...] = ()) -> Way:
    settings = {"quant_method": "gptq", "bits": 4, "group_size": size, "sym": symmetric, "desc_act": False}
    less = 0x11111111 if version == "gptq" else 0
    written = settings | {"checkpoint_format": version}
    return Way(written, lambda weight: gptq(weight, size, symmetric, less, skip), "GPTQ")


_FP8: dict[str, Any] = {"quant_method": "fp8", "activation_scheme": "dynamic"}
_BLOCKS = _FP8 | {"weight_block_size": [128, 128]}
_AWQ: dict[str, Any] = {"quant_method": "awq", "bits": 4, "version": "gemm"}
_INT = {"num_bits": 4, "type": "int", "strategy": "group", "dynamic": False}
_FLOAT = {"num_bits": 8, "type": "float", "symmetric": True, "dynamic": False}
_HALF, _BF16, _F32 = torch.float16, torch.bfloat16, torch.float32

WAYS: dict[str, Way] = {
    "fp8-block": Way(_BLOCKS, fp8_block, "FP8_BLOCK"),
    "fp8-block-bf16": Way(_BLOCKS, lambda w: fp8_block(w, _BF16), "FP8_BLOCK"),
    "fp8-block-e8m0": Way(_BLOCKS, lambda w: fp8_block(w, torch.float8_e8m0fnu, "scale"), "FP8_BLOCK"),
    "fp8-rows": Way(_FP8, fp8_rows, "FP8_CHANNEL"),
    "fp8-rows-1d": Way(_FP8, lambda w: fp8_rows(w, one_dimension=True), "FP8_CHANNEL"),
    "fp8-matrix": Way(_FP8 | {"weight_block_size": None}, fp8_matrix, "FP8_CHANNEL"),
    "mxfp8": Way(_FP8 | {"quant_method": "mxfp8"}, mxfp8, "MXFP8"),
    "mxfp8-blocks": Way(_FP8 | {"weight_block_size": [1, 32]}, mxfp8, "MXFP8"),
    "fp4-v4": Way(_BLOCKS | {"scale_fmt": "ue8m0"}, mxfp4, "MXFP4_HF"),
    "modelopt-nvfp4": Way({"quant_method": "modelopt", "quant_algo": "NVFP4"}, nvfp4_modelopt, "NVFP4"),
    "modelopt-fp8": Way({"quant_method": "modelopt", "quant_algo": "FP8"}, fp8_matrix, "FP8_CHANNEL"),
    "gptq-sym": _gptq_way(32, True),
    "gptq-asym": _gptq_way(64, False),
    "gptq-row": _gptq_way(-1, True),
    "gptq-no-zeros": _gptq_way(32, True, skip=("qzeros", "g_idx")),
    "gptq_v2-sym": _gptq_way(32, True, "gptq_v2"),
    "gptq_v2-asym": _gptq_way(32, False, "gptq_v2"),
    "awq": Way(_AWQ | {"group_size": 32, "zero_point": True}, lambda w: awq(w, 32), "AWQ"),
    "awq-no-zeros": Way(_AWQ | {"group_size": 64, "zero_point": False}, lambda w: awq(w, 64, False), "AWQ"),
    "ct-int4-g32": _compressed_way("pack-quantized", "INT4", _BF16, **_INT, group_size=32, symmetric=True),
    "ct-int4-g64": _compressed_way("pack-quantized", "INT4", _F32, **_INT, group_size=64, symmetric=True),
    "ct-int4-asym": _compressed_way("pack-quantized", "INT4", _HALF, **_INT, group_size=32, symmetric=False),
    "ct-int4-row": _compressed_way(
        "pack-quantized", "INT4", _BF16, **_INT | {"strategy": "channel"}, group_size=None, symmetric=True
    ),
    "ct-fp8-rows": _compressed_way("float-quantized", "FP8_CHANNEL", _BF16, **_FLOAT, strategy="channel"),
    "ct-fp8-matrix": _compressed_way("float-quantized", "FP8_CHANNEL", _F32, **_FLOAT, strategy="tensor"),
    "ct-fp8-naive": _compressed_way("naive-quantized", "FP8_CHANNEL", _HALF, **_FLOAT, strategy="channel"),
    "ct-fp8-block": _compressed_way(
        "float-quantized", "FP8_BLOCK", _BF16, **_FLOAT, strategy="block", block_structure=[128, 128]
    ),
    "ct-int8": _compressed_way(
        "int-quantized", "INT8_CHANNEL", _BF16, num_bits=8, type="int", strategy="channel", symmetric=True
    ),
    "ct-nvfp4": _compressed_way(
        "nvfp4-pack-quantized", "NVFP4", _F32, **_FLOAT | {"num_bits": 4}, strategy="tensor_group", group_size=16
    ),
    "ct-mxfp4": _compressed_way(
        "mxfp4-pack-quantized", "MXFP4_HF", _F32, **_FLOAT | {"num_bits": 4}, strategy="group", group_size=32,
        scale_dtype=torch.uint8,
    ),
    "ct-mxfp8": _compressed_way(
        "mxfp8-quantized", "MXFP8", _F32, **_FLOAT, strategy="group", group_size=32, scale_dtype=torch.uint8
    ),
}  # fmt: skip
