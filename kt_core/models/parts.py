"""Which part of a model a stored tensor is of, by its name in a Hugging Face or GGUF file."""

import re

_LAYER = re.compile(r"(?:^|\.)(?:layers|blk|h|blocks)\.(\d+)\.")
_PATTERNS = tuple(
    (part, re.compile(pattern))
    for part, pattern in (
        ("vision", r"(^|\.)(visual|vision\w*|image\w*|audio\w*|multi_modal\w*|mm_\w+|mm|v|patch\w*|embed_(vision|audio))\."),
        ("mtp", r"(^|\.)(mtp\w*|nextn)\."),
        ("other", r"shared_expert_gate|ffn_gate_inp|\brouter\b|\.gate\.(weight|wg|bias|e_score|tid2eid)|e_score_correction|expert_bias"),
        ("shared", r"shared_experts?|shared_mlp|share_expert|_shexp"),
        ("experts", r"(^|\.)experts\.|_exps\.|\.ffn_(gate|up|down)\.\d+\.|block_sparse_moe\.(in|out)put_linear"),
        ("head", r"(^|\.)(lm_head|embed_out)\.|^output\.weight"),
        ("embedding", r"embed_tokens|token_embd|(^|\.)wte\.|word_embeddings|(^|\.)embeddings?\.weight"),
        ("other", r"norm"),
        ("attention", r"attn|attention|mamba|ssm_|\.mixer\.|indexer|shortconv|(^|\.)conv\."),
        ("dense", r"mlp|feed_forward|ffn|\.fc\d|block_sparse_moe"),
    )
)  # fmt: skip


def part_of(name: str, layers: int) -> str:
    """One of ModelSpec's parts. Layers from `layers` on predict further tokens."""
    match = _LAYER.search(name)
    if match and int(match[1]) >= layers and "vis" not in name:
        return "mtp"
    return next((part for part, pattern in _PATTERNS if pattern.search(name)), "other")
