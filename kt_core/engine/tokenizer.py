"""The model's tokenizer as a transformers tokenizer: from a folder's own files, or from GGUF metadata."""

import json
from pathlib import Path
from typing import Any

import jinja2
from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from kt_core.engine import prompt
from kt_core.engine.config import model_config
from kt_core.engine.splitting import SPLITTINGS
from kt_core.errors import BadData, Unsupported
from kt_core.formats import gguf
from kt_core.formats.gguf import GGUFHeader
from kt_core.formats.problems import shown
from kt_core.types import ModelFiles
from kt_core.weights.store import read_config

MODELS = ("gpt2",)  # tokenizer.ggml.model: byte-level BPE
_CONTROL, _USER_DEFINED = 3, 4  # llama.cpp's token types
_ENDS = ("eos", "eot", "eom")


def load_tokenizer(files: ModelFiles, header: GGUFHeader | None = None) -> Any:
    """A PreTrainedTokenizerFast with the chat template, if the model has one. Code from the model is never run.

    A GGUF file's `header` is read unless it is given. From GGUF, a text gets a first token only where the metadata asks for it, and never a last one.
    Raises BadData for missing or contradictory tokenizer data, Unsupported for a tokenizer of an unknown kind,
    for a chat template that cannot be parsed, and what engine.config raises when config.json, which transformers reads too, is at fault.
    """
    if files.format == "gguf":
        return _sound(from_metadata((header or gguf.read_model(files.path)).metadata, files.path), files.path)
    try:
        tokenizer = AutoTokenizer.from_pretrained(files.path, trust_remote_code=False, local_files_only=True)
        tokenizer.decode(tokenizer("a 1").input_ids)  # some damage shows only when a text is split
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:  # a damaged tokenizer.json gives bare Exceptions, and panics, which are none
        config = Path(files.path) / "config.json"
        if config.exists():
            model_config(read_config(config.parent), str(config))
        reason = shown(str(error).strip().split("\n")[0])
        raise BadData("weights.tokenizer", path=shown(files.path), reason=reason) from error
    if not tokenizer.tokenize("a text, 1 2 3"):  # of no files transformers makes a tokenizer that knows no tokens
        raise BadData("weights.no_tokenizer", path=shown(files.path))
    return _sound(tokenizer, files.path)


def _sound(tokenizer: Any, path: str) -> Any:
    """The tokenizer. Raises BadData for a chat template that is none: no chat could ever be rendered."""
    for template in prompt.all_templates(tokenizer):
        try:
            prompt.names_read(template)
        except (jinja2.TemplateError, RecursionError) as error:
            raise BadData("weights.chat_template", path=shown(path), reason=shown(str(error))) from None
    return tokenizer


def end_tokens(files: ModelFiles, tokenizer: Any, header: GGUFHeader | None = None) -> frozenset[int]:
    """Ids that end an answer: the tokenizer's own, and all that config.json, generation_config.json or the GGUF name.

    A GGUF file's `header` is read unless it is given.
    """
    found = {tokenizer.eos_token_id}
    if files.format == "gguf":
        metadata = (header or gguf.read_model(files.path)).metadata
        found |= {metadata.get(f"tokenizer.ggml.{name}_token_id") for name in _ENDS}
    for name in ("config.json", "generation_config.json") if files.format != "gguf" else ():
        found |= _stated_ends(Path(files.path) / name)
    return frozenset(token for token in found if type(token) is int and 0 <= token < len(tokenizer))


def _stated_ends(path: Path) -> set[int]:
    """`eos_token_id` of a JSON file: one id, several or none. Raises BadData for anything else."""
    try:
        ends = json.loads(path.read_bytes()).get("eos_token_id") if path.exists() else None
        listed = ends if isinstance(ends, list) else [] if ends is None else [ends]
        if not all(type(token) is int for token in listed):
            raise ValueError(f"eos_token_id: {ends}")
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise BadData("weights.config", path=shown(str(path)), reason=shown(str(error))) from None
    return set(listed)


def from_metadata(metadata: dict[str, Any], path: str) -> Any:
    """The tokenizer that a GGUF header describes. Raises as load_tokenizer does; `path` is for the message only."""
    model = metadata.get("tokenizer.ggml.model")
    if model not in MODELS:
        raise Unsupported("weights.tokenizer_kind", kind=shown(str(model)), known=", ".join(MODELS))
    pre = metadata.get("tokenizer.ggml.pre", "default")
    if not isinstance(pre, str) or pre not in SPLITTINGS:
        raise Unsupported("weights.tokenizer_pre", name=shown(str(pre)), known=", ".join(SPLITTINGS))
    tokens = _strings(metadata, "tokens", path)
    types = metadata.get("tokenizer.ggml.token_type", [1] * len(tokens))
    if not isinstance(types, list) or len(types) != len(tokens):
        raise _bad(path, f"token_type: {len(types) if isinstance(types, list) else types}, tokens: {len(tokens)}")
    tokenizer = _backend(tokens, _strings(metadata, "merges", path), pre, path)
    special = [_added(token, True) for token, kind in zip(tokens, types, strict=True) if kind == _CONTROL]
    tokenizer.add_special_tokens(special)
    tokenizer.add_tokens([_added(t, False) for t, kind in zip(tokens, types, strict=True) if kind == _USER_DEFINED])
    if tokenizer.get_vocab_size() != len(tokens):
        raise _bad(path, f"{len(tokens)} tokens, {tokenizer.get_vocab_size()} different ones")
    named = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        add_bos_token=bool(metadata.get("tokenizer.ggml.add_bos_token", False)),
        chat_template=_chat_template(metadata, path),
        clean_up_tokenization_spaces=False,
        **{f"{ours}_token": _token(metadata, theirs, tokens, path) for ours, theirs in named.items()},
    )


def _backend(tokens: list[str], merges: list[str], pre: str, path: str) -> Tokenizer:
    splitting = SPLITTINGS[pre]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    if any(merge.count(" ") != 1 for merge in merges):
        raise _bad(path, "tokenizer.ggml.merges")
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    try:
        tokenizer = Tokenizer(BPE(vocabulary, pairs, ignore_merges=splitting.ignore_merges))
    except Exception as error:  # the library's only class for a merge of unknown tokens
        raise _bad(path, str(error)) from error
    if splitting.nfc:
        tokenizer.normalizer = normalizers.NFC()
    cuts = [pre_tokenizers.Split(Regex(expression), "isolated") for expression in splitting.expressions]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [*cuts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _added(token: str, special: bool) -> AddedToken:
    return AddedToken(token, special=special, normalized=False)


def _strings(metadata: dict[str, Any], name: str, path: str) -> list[str]:
    value = metadata.get(f"tokenizer.ggml.{name}")
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise _bad(path, f"tokenizer.ggml.{name}")
    return value


def _token(metadata: dict[str, Any], name: str, tokens: list[str], path: str) -> str | None:
    index = metadata.get(f"tokenizer.ggml.{name}_token_id")
    if index is None:
        return None
    if type(index) is not int or not 0 <= index < len(tokens):
        raise _bad(path, f"tokenizer.ggml.{name}_token_id: {index}")
    return tokens[index]


def _chat_template(metadata: dict[str, Any], path: str) -> str | dict[str, str] | None:
    """The template, or all of them by name when the file has further named ones."""
    prefix = "tokenizer.chat_template"
    found = {"default": metadata[prefix]} if prefix in metadata else {}
    found |= {key[len(prefix) + 1 :]: value for key, value in metadata.items() if key.startswith(prefix + ".")}
    if not all(isinstance(template, str) for template in found.values()):
        raise _bad(path, prefix)
    return found.get("default") if found.keys() <= {"default"} else found


def _bad(path: str, reason: str) -> BadData:
    return BadData("weights.tokenizer", path=shown(path), reason=shown(reason))
