"""What each weight format does to activations before they meet a weight: the numeric contract.

"f32": nothing. "bf16": round to bfloat16, to nearest even. "int8": in groups of 32 along K,
scale = max|x| / 127 in float32, q = x / scale rounded to nearest even; a group of zeros has scale 0.
Sums are float32 (int32 inside an int8 group), along K in one order whatever the number of rows and
threads. Values that are not finite make the whole row's result not finite.

From info()["formats"][format]["prefill_from"] rows on (for an expert: of its own) a layer takes the prefill
path. There weights are decoded to bfloat16, to nearest even, and meet activations of policy "bf16": both are
rounded by at most 2^-8 of their size, so a result moves by at most (2^-7 + 2^-16) sum |x w| from the exact
product; int8 activations alone allow 1/254 of a group's largest. For BF16 weights that is the direct path's
rounding; those of FP8_BLOCK, FP8_CHANNEL and MXFP8 are rounded with their scale, where the direct path keeps
both exact. A row's bits depend on the path, and never on the other rows of the call. Deterministic mode keeps
to one path.
"""

_INT8 = (
    "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ1_S",
    "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS", "IQ4_K",
    "MXFP4",
)  # fmt: skip
# Formats with arrays beside the data: see kt_core.weights.Matrix.
WITH_SCALES: dict[str, str] = {
    "MXFP4_HF": "int8", "NVFP4": "int8", "INT4": "int8", "GPTQ": "int8", "AWQ": "int8", "INT8_CHANNEL": "int8",
    "FP8_BLOCK": "bf16", "FP8_CHANNEL": "bf16", "MXFP8": "bf16",
}  # fmt: skip
POLICY: dict[str, str] = {"F32": "f32", "F16": "f32", "BF16": "bf16"} | dict.fromkeys(_INT8, "int8") | WITH_SCALES
SUPPORTED = frozenset(POLICY)
GROUP = 32
