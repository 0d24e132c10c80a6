"""Tiny random models that look at images, as their publishers' files would hold them."""

import io
import json
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import CONFIG_MAPPING, AutoModelForImageTextToText, PreTrainedTokenizerFast

MARKS = ["<|end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
TEMPLATE = """{% for m in messages %}{{ m.role }}:{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content -%}
{% if p.type in ('image', 'video') %}<|vision_start|><|{{ p.type }}_pad|><|vision_end|>{% else %}{{ p.text }}{% endif %}
{%- endfor %}{% endif %};{% endfor %}{% if add_generation_prompt %}a:{% endif %}"""
PROCESSOR = {
    "image_processor_type": "Qwen2VLImageProcessorFast",
    "size": {"shortest_edge": 8 * 8 * 2, "longest_edge": 8 * 8 * 40},
    "patch_size": 4,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "image_mean": [0.5] * 3,
    "image_std": [0.5] * 3,
}
TEXT = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 96,
    "moe_intermediate_size": 24,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 2048,
    "pad_token_id": None,
    "bos_token_id": None,
    "initializer_range": 0.3,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 2, 2], "partial_rotary_factor": 1.0},
}  # fmt: skip
LINEAR = {
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "layer_types": ["linear_attention", "full_attention"] * 2,
    "shared_expert_intermediate_size": 32,
}
VISION = {
    "depth": 2,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_heads": 2,
    "patch_size": 4,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "out_hidden_size": 64,
    "num_position_embeddings": 64,
    "initializer_range": 0.3,
}


def tokenizer():
    """A token for each byte, and the marks."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE({letter: at for at, letter in enumerate(letters)}, []))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken(mark, special=True) for mark in MARKS])
    fast = PreTrainedTokenizerFast(tokenizer_object=core, eos_token=MARKS[0])
    fast.chat_template = TEMPLATE
    return fast


def save(family: str, folder: Path) -> None:
    """A float32 checkpoint with its tokenizer and image processor."""
    tokens = tokenizer()
    ids = dict(
        zip(("end", "vision_start", "vision_end", "image", "video"), range(len(tokens) - 5, len(tokens)), strict=True)
    )
    deep = {} if family.startswith("qwen3_5") else {"deepstack_visual_indexes": [0, 1]}
    linear = LINEAR if family.startswith("qwen3_5") else {}
    config = CONFIG_MAPPING[family](
        text_config={**TEXT, **linear, "vocab_size": len(tokens), "eos_token_id": ids.pop("end")},
        vision_config={**VISION, **deep},
        **{f"{name}_token_id": id for name, id in ids.items()},
    )
    torch.manual_seed(3)
    model = AutoModelForImageTextToText.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "merger" in name and parameter.dim() > 1:
                parameter *= 4  # what is seen must matter beside what is said
    model.save_pretrained(folder)
    tokens.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    clips = {"size": {"shortest_edge": 8 * 8 * 4, "longest_edge": 8 * 8 * 100}}  # the rest as for images
    (folder / "video_preprocessor_config.json").write_text(json.dumps(clips))


def picture(seed: int, width: int = 40, height: int = 30, form: str = "PNG") -> bytes:
    """The file of an image of random blocks."""
    levels = np.random.default_rng(seed).integers(0, 255, (-(-height // 8), -(-width // 8), 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(levels).resize((width, height), 0).save(file, form)
    return file.getvalue()


def moving(seeds: range, form: str, milliseconds: int = 500) -> bytes:
    """The file of an animation."""
    frames = [Image.open(io.BytesIO(picture(seed))) for seed in seeds]
    file = io.BytesIO()
    frames[0].save(file, form, save_all=True, append_images=frames[1:], duration=milliseconds, **({"lossless": True} if form == "WEBP" else {}))  # fmt: skip
    return file.getvalue()
