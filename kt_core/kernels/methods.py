"""Names of ways to keep an expert's weights, as `KTMoEWrapper` and its users know them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Method:
    """The kernels' format ("": whatever the checkpoint has) and weights that share a scale (0: as the format says)."""

    format: str
    group: int = 0


METHODS = {
    "AMXINT4": Method("INT4", 32),
    "AMXINT8": Method("Q8_0", 32),
    "MOE_INT4": Method("INT4", 32),
    "MOE_INT8": Method("Q8_0", 32),
    "RAWINT4": Method("INT4"),
    "GPTQ_INT4": Method("GPTQ"),
    "FP8": Method("FP8_BLOCK", 128),
    "FP8_PERCHANNEL": Method("FP8_CHANNEL"),
    "MXFP4": Method("MXFP4_HF", 32),
    "MXFP8": Method("MXFP8", 32),
    "BF16": Method("BF16"),
    "LLAMAFILE": Method(""),
}
