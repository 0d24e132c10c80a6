"""What each weight format does to activations before they meet a weight: the numeric contract.

"f32": nothing. "bf16": round to bfloat16, to nearest even. "int8": in groups of 32 along K,
scale = max|x| / 127 in float32, q = x / scale rounded to nearest even; a group of zeros has scale 0.
Sums are float32 (int32 inside an int8 group), along K in one order whatever the number of rows and
threads. Values that are not finite make the whole row's result not finite.
"""

_INT8 = (
    "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ1_S",
    "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS", "MXFP4",
)  # fmt: skip
POLICY: dict[str, str] = {"F32": "f32", "F16": "f32", "BF16": "bf16"} | dict.fromkeys(_INT8, "int8")
SUPPORTED = frozenset(POLICY)
GROUP = 32
