"""Tokenizers from GGUF metadata: ids equal to the reference tokenizers', and what the metadata may ask for or get wrong."""

import json
import random
import re

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from kt_core.engine.splitting import SPLITTINGS
from kt_core.engine.tokenizer import end_tokens, from_metadata, load_tokenizer
from kt_core.errors import BadData, KTError, Unsupported
from kt_core.types import ModelFiles

TEXTS = [
    "def f(x):\n    return x**2  # ok\n\n\n\tif a != b: pass", "你好，世界！今天天气怎么样？", "日本語のテキスト 한국어",
    "😀👩‍👩‍👧‍👦🏳️‍🌈 emoji", "a   b\n\n \t c  \r\n\r\n  ", "<|im_start|>user\nHi<|im_end|>\n<|endoftext|>x", "12345 6.789",
    "e\u0301 é \ufeff\u200b\x00\x7f\u202e", "don't I'LL we'Ve", "\U0010ffff \ufffd \ud7ff", "", "  ", "\n", " <|im_end|> ",
    "Ünïcödé ñ ß İ ı", "[PAD151936] <unk> <repo_name>", "مرحبا بالعالم नमस्ते", "$^+=<>|~`", "٣ ½ Ⅷ",
]  # fmt: skip


def random_texts(count: int = 400) -> list[str]:
    rng = random.Random(0)
    alphabet = "abcXYZ019 \n\t'.,!?/_-()[]{}<>|$^你好日本🎉éß\r\u3000\u00a0"
    return ["".join(rng.choice(alphabet) for _ in range(rng.randint(1, 60))) for _ in range(count)]


def files(path) -> ModelFiles:
    kind = "safetensors" if path.is_dir() else "gguf"
    return ModelFiles("x", str(path), kind, (str(path),))


@pytest.fixture(scope="module")
def smollm2(smollm2_gguf):
    return load_tokenizer(files(smollm2_gguf))


def test_smollm2_equals_transformers(smollm2, smollm2_gguf):
    reference = AutoTokenizer.from_pretrained(smollm2_gguf.parent, gguf_file=smollm2_gguf.name)
    # transformers' conversion ignores tokenizer.ggml.pre (digits apart, first of all); that shows in texts with numerals
    # beyond 0-9 or with several blanks before a digit, which the next test compares.
    texts = [text for text in [*TEXTS, *random_texts()] if not re.search(r"[^\D0-9]|[½Ⅷ]|\s\s\d", text)]
    assert len(texts) > 350
    for text in texts:
        ids = smollm2.encode(text)
        assert ids == reference.encode(text), text
        for skip in (False, True):
            assert smollm2.decode(ids, skip_special_tokens=skip) == reference.decode(ids, skip_special_tokens=skip)
    assert len(smollm2) == len(reference) == 49152
    for name in ("bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id", "chat_template"):
        assert getattr(smollm2, name) == getattr(reference, name), name
    messages = [{"role": "user", "content": "Hi<|im_end|>"}, {"role": "assistant", "content": "Yes?"}]
    assert smollm2.apply_chat_template(messages, tokenize=False) == reference.apply_chat_template(
        messages, tokenize=False
    )


def test_smollm2_splits_as_its_published_tokenizer_does(smollm2):
    reference = Tokenizer.from_str(smollm2.backend_tokenizer.to_str())
    reference.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    for text in [*TEXTS, *random_texts()]:
        assert smollm2.encode(text) == reference.encode(text).ids, text


def test_no_bos_unless_asked_for(smollm2):
    assert smollm2.encode("Hello") == smollm2.encode("Hello", add_special_tokens=False)


def test_end_tokens(smollm2, smollm2_gguf):
    assert end_tokens(files(smollm2_gguf), smollm2) == {2}


def test_text_survives_encoding_and_decoding(smollm2):
    for text in [*TEXTS, *random_texts()]:
        assert smollm2.decode(smollm2.encode(text), clean_up_tokenization_spaces=False) == text


# The pre-tokenizers of public tokenizer.json files, put together from the library's own parts.
_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
GPT2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
PUBLISHED = {
    "gpt-2": GPT2,
    "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), GPT2]),
    "starcoder": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), GPT2]),
    "qwen2": pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(_QWEN2), "isolated"), BYTES]),
    "llama-bpe": pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(_QWEN2.replace(r"\p{N}|", r"\p{N}{1,3}|", 1)), "isolated"), BYTES]
    ),
}


def trained(pre: pre_tokenizers.PreTokenizer, nfc: bool = False) -> Tokenizer:
    """A small byte-level BPE over the test texts, made by the tokenizers library alone."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre
    tokenizer.decoder = decoders.ByteLevel()
    if nfc:
        tokenizer.normalizer = normalizers.NFC()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=700, initial_alphabet=alphabet, special_tokens=["<s>", "</s>", "<pad>"])
    tokenizer.train_from_iterator([*TEXTS, *random_texts(100)] * 3, trainer)
    return tokenizer


def metadata_of(tokenizer: Tokenizer, pre: str | None) -> dict:
    model = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    found = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": [" ".join(pair) for pair in model["merges"]],
        "tokenizer.ggml.token_type": [3 if token in ("<s>", "</s>", "<pad>") else 1 for token in tokens],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.padding_token_id": 2,
    }
    return found | ({"tokenizer.ggml.pre": pre} if pre else {})


@pytest.mark.parametrize("pre", PUBLISHED)
def test_splitting_equals_the_published_one(pre):
    reference = trained(PUBLISHED[pre], nfc=pre == "qwen2")
    ours = from_metadata(metadata_of(reference, pre), "x")
    for text in [*TEXTS, *random_texts()]:
        assert ours.encode(text) == reference.encode(text).ids, text


PIECES = {
    "llama-bpe": ("It's 12345", ["It", "'s", " ", "123", "45"]),
    "glm4": ("It'S 12345\n\n x", ["It", "'S", " ", "123", "45", "\n\n", " x"]),
    "qwen2": ("a12 b", ["a", "1", "2", " b"]),
    "qwen35": ("e\u0301 12", ["e\u0301", " ", "1", "2"]),
    "deepseek-v3": ("1234你好abc.def", ["123", "4", "你好", "abc", ".def"]),
    "deepseek-llm": ("a\nб 你好 12", ["a", "\n", "б", " ", "你好", " ", "12"]),
    "deepseek-coder": ("x=12你好", ["x", "=", "1", "2", "你好"]),
    "falcon": ("a1234`b", ["a", "123", "4", "`", "b"]),
    "default": ("a  b1234", ["a", " ", " b", "123", "4"]),
    "gpt-2": ("I'll x12", ["I", "'ll", " x", "12"]),
}


@pytest.mark.parametrize("pre", PIECES)
def test_pieces(pre):
    text, expected = PIECES[pre]
    tokenizer = from_metadata(metadata_of(trained(GPT2), pre), "x").backend_tokenizer
    pieces = tokenizer.pre_tokenizer.pre_tokenize_str(text)
    assert [text[start:end] for _, (start, end) in pieces] == expected


def test_every_splitting_compiles_and_keeps_the_text():
    metadata = metadata_of(trained(GPT2), None)
    for pre, splitting in SPLITTINGS.items():
        tokenizer = from_metadata(metadata | {"tokenizer.ggml.pre": pre}, "x")
        for text in TEXTS:
            if not splitting.nfc:
                assert tokenizer.decode(tokenizer.encode(text)) == text, (pre, text)


def test_bos_and_token_kinds():
    metadata = metadata_of(trained(GPT2), "gpt-2")
    assert from_metadata(metadata, "x").encode("<s>hi</s>")[0] == 0
    tokenizer = from_metadata(metadata | {"tokenizer.ggml.add_bos_token": True}, "x")
    assert tokenizer.encode("hi")[0] == 0 and tokenizer.encode("hi").count(0) == 1
    assert tokenizer.encode("hi", add_special_tokens=False)[0] != 0
    kinds = list(metadata["tokenizer.ggml.token_type"])
    kinds[2] = 4  # user-defined: one token, but part of the text
    tokenizer = from_metadata(
        metadata | {"tokenizer.ggml.token_type": kinds, "tokenizer.ggml.padding_token_id": 1}, "x"
    )
    ids = tokenizer.encode("a<pad>b</s>")
    assert 2 in ids and 1 in ids
    assert tokenizer.decode(ids, skip_special_tokens=True) == "a<pad>b"


def test_named_chat_templates():
    metadata = metadata_of(trained(GPT2), "gpt-2")
    assert from_metadata(metadata, "x").chat_template is None
    templates = {"tokenizer.chat_template": "plain", "tokenizer.chat_template.tool_use": "tools: {{ tools | length }}"}
    tokenizer = from_metadata(metadata | templates, "x")
    messages, tools = [{"role": "user", "content": "x"}], [{"type": "function", "function": {"name": "f"}}]
    assert tokenizer.apply_chat_template(messages, tokenize=False) == "plain"
    assert tokenizer.apply_chat_template(messages, tools=tools, tokenize=False) == "tools: 1"


def test_a_chat_template_that_is_none(tmp_path):
    """Found when the model is loaded: no chat could ever be rendered."""
    template = "{% if messages %}x"
    PreTrainedTokenizerFast(tokenizer_object=trained(GPT2), chat_template=template).save_pretrained(tmp_path)
    with pytest.raises(BadData, match=r"chat template.*end of template") as e:
        load_tokenizer(ModelFiles("x", str(tmp_path), "safetensors", ()))
    assert e.value.key == "weights.chat_template"


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"tokenizer.ggml.model": "llama"}, Unsupported, "llama.*gpt2"),
        ({"tokenizer.ggml.model": None}, Unsupported, "None"),
        ({"tokenizer.ggml.pre": "nobody"}, Unsupported, r"nobody.*smollm"),
        ({"tokenizer.ggml.tokens": []}, BadData, "token_type: "),
        ({"tokenizer.ggml.tokens": [1, 2]}, BadData, "tokens"),
        ({"tokenizer.ggml.merges": ["abc"]}, BadData, "merges"),
        ({"tokenizer.ggml.merges": ["qqq zzz"]}, BadData, "qqq"),
        ({"tokenizer.ggml.token_type": [1]}, BadData, "token_type: 1"),
        ({"tokenizer.ggml.token_type": 7}, BadData, "token_type"),
        ({"tokenizer.ggml.eos_token_id": 99999}, BadData, "eos_token_id: 99999"),
        ({"tokenizer.ggml.bos_token_id": "0"}, BadData, "bos_token_id"),
        ({"tokenizer.chat_template": 3}, BadData, "chat_template"),
    ],
)
def test_contradictory_metadata(change, error, words):
    with pytest.raises(error, match=words) as caught:
        from_metadata(metadata_of(trained(GPT2), "gpt-2") | change, "x")
    assert all(caught.value.lines())


def test_doubled_tokens():
    metadata = metadata_of(trained(GPT2), "gpt-2")
    metadata["tokenizer.ggml.tokens"][5] = metadata["tokenizer.ggml.tokens"][6]
    with pytest.raises(BadData, match="tokens"):
        from_metadata(metadata, "x")


def test_folder(tmp_path):
    tokenizer = trained(GPT2)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>").save_pretrained(tmp_path)
    ours = load_tokenizer(files(tmp_path))
    for text in TEXTS:
        assert ours.encode(text) == tokenizer.encode(text).ids
    assert end_tokens(files(tmp_path), ours) == {1}
    (tmp_path / "config.json").write_text('{"eos_token_id": 5}')
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [2, 6, 99999]}')
    assert end_tokens(files(tmp_path), ours) == {1, 2, 5, 6}
    (tmp_path / "config.json").write_text("[")
    with pytest.raises(BadData, match=r"config\.json"):
        end_tokens(files(tmp_path), ours)


def test_bad_folders(tmp_path):
    with pytest.raises(KTError):
        load_tokenizer(files(tmp_path))
    (tmp_path / "tokenizer.json").write_text("{nonsense")
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    with pytest.raises(BadData, match="tokenizer"):
        load_tokenizer(files(tmp_path))


def test_folder_without_a_tokenizer(tmp_path):
    """Of such a Qwen folder transformers makes an empty tokenizer, for which every text is empty."""
    (tmp_path / "config.json").write_text('{"model_type": "qwen3_moe"}')
    with pytest.raises(BadData, match="no tokenizer"):
        load_tokenizer(files(tmp_path))


def test_code_of_the_model_is_never_run(tmp_path):
    trap = tmp_path / "ran"
    (tmp_path / "tokenization_trap.py").write_text(f"open({str(trap)!r}, 'w')\nclass Trap: pass\n")
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "Trap", "auto_map": {"AutoTokenizer": ["tokenization_trap.Trap", None]}})
    )
    with pytest.raises(KTError):
        load_tokenizer(files(tmp_path))
    assert not trap.exists()
