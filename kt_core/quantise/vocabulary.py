"""The metadata of a GGUF file that is the tokenizer of a Hugging Face folder."""

import json
from pathlib import Path
from typing import Any

from kt_core.engine.splitting import SPLITTINGS
from kt_core.engine.tokenizer import end_tokens, load_tokenizer
from kt_core.errors import Unsupported
from kt_core.types import ModelFiles

_NORMAL, _CONTROL, _USER_DEFINED, _UNUSED = 1, 3, 4, 5  # llama.cpp's token types
_IDS = {"bos": "bos", "unknown": "unk", "padding": "pad"}
# What pre-tokenizers stand for that have no expression of their own.
_DIGITS = r"\p{N}"
_WORDS = SPLITTINGS["gpt-2"].expressions[0]


def vocabulary(files: ModelFiles, size: int) -> dict[str, Any]:
    """tokenizer.ggml.* of the folder's tokenizer.json; ids up to `size` that it does not name become unused tokens.

    Raises Unsupported for anything but byte-level BPE with a way of splitting texts that GGUF has a name for.
    """
    tokenizer = load_tokenizer(files)
    path = Path(files.path) / "tokenizer.json"
    backend = json.loads(path.read_bytes()) if path.is_file() else json.loads(tokenizer.backend_tokenizer.to_str())
    model = backend["model"]
    if model["type"] != "BPE" or '"ByteLevel"' not in json.dumps(backend["pre_tokenizer"]):
        raise Unsupported("quantise.tokenizer", path=path, kind=model["type"])
    tokens = {index: token for token, index in model["vocab"].items()}
    types = dict.fromkeys(tokens, _NORMAL)
    for added in backend["added_tokens"]:
        tokens[added["id"]] = added["content"]
        types[added["id"]] = _CONTROL if added["special"] else _USER_DEFINED
    count = max(size, *(index + 1 for index in tokens))
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    found = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": _splitting(backend, path),
        "tokenizer.ggml.tokens": [tokens.get(index, f"[PAD{index}]") for index in range(count)],
        "tokenizer.ggml.token_type": [types.get(index, _UNUSED) for index in range(count)],
        "tokenizer.ggml.merges": merges,
        **_special(files, tokenizer, count),
    }
    template = tokenizer.chat_template
    return found | ({"tokenizer.chat_template": template} if isinstance(template, str) else {})


def _special(files: ModelFiles, tokenizer: Any, count: int) -> dict[str, Any]:
    """Ids of special tokens; the tokenizer's own end, then another one that ends a turn.

    transformers' class may add tokens of its own behind the model's `count`.
    """
    found: dict[str, Any] = {"tokenizer.ggml.add_bos_token": bool(getattr(tokenizer, "add_bos_token", False))}
    for theirs, ours in _IDS.items():
        if (token := getattr(tokenizer, f"{ours}_token_id")) is not None and token < count:
            found[f"tokenizer.ggml.{theirs}_token_id"] = token
    own = tokenizer.eos_token_id
    ends = [*([] if own is None else [own]), *sorted(end_tokens(files, tokenizer) - {own})]
    ends = [token for token in ends if token < count]
    for name, token in zip(("eos", "eot", "eom"), ends, strict=False):
        found[f"tokenizer.ggml.{name}_token_id"] = token
    return found


def _splitting(backend: dict[str, Any], path: Path) -> str:
    """The name that GGUF files give to the way in which the tokenizer cuts texts."""
    expressions = tuple(_expressions(backend["pre_tokenizer"]))
    nfc = '"NFC"' in json.dumps(backend.get("normalizer"))
    whole = bool(backend["model"].get("ignore_merges"))
    for name, splitting in SPLITTINGS.items():
        if (splitting.expressions, splitting.nfc, splitting.ignore_merges) == (expressions, nfc, whole):
            return name
    raise Unsupported("quantise.splitting", path=path, known=", ".join(SPLITTINGS))


def _expressions(step: dict[str, Any]) -> list[str]:
    kind = step["type"]
    if kind == "Sequence":
        return [found for inner in step["pretokenizers"] for found in _expressions(inner)]
    if kind == "Split":
        return [step["pattern"].get("Regex") or step["pattern"].get("String", "")]
    if kind == "Digits":
        return [_DIGITS]
    return [_WORDS] if step.get("use_regex", True) else []
