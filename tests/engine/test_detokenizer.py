"""Incremental text: every split of a text gives the same pieces joined, and stop strings are cut exactly."""

import itertools

import pytest
import tinymodel
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from kt_core.engine.answer import Answer
from kt_core.engine.detokenizer import Detokenizer, StopStrings
from kt_core.types import TokenLogprob


def pieces(tokenizer, ids, context=()):
    detokenizer = Detokenizer(tokenizer, context)
    return [*(detokenizer.push(token) for token in ids), detokenizer.flush()]


def test_emoji_one_byte_a_token():
    ids = tinymodel.byte_tokens("a🦊b")
    assert pieces(tinymodel.tokenizer(), ids) == ["a", "", "", "", "🦊", "b", ""]


def test_unfinished_character_comes_out_at_the_end():
    ids = tinymodel.byte_tokens("a🦊")[:-1]
    assert pieces(tinymodel.tokenizer(), ids) == ["a", "", "", "", "\ufffd"]


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=20), whole=st.booleans())
def test_pieces_join_to_the_text(text, whole):
    tokenizer = tinymodel.tokenizer()
    ids = tokenizer(text, add_special_tokens=False)["input_ids"] if whole else tinymodel.byte_tokens(text)
    parts = pieces(tokenizer, ids)
    assert "".join(parts) == text == tokenizer.decode(ids, skip_special_tokens=True)
    if "\ufffd" not in text:
        assert "\ufffd" not in "".join(parts)


@settings(max_examples=200, deadline=None)
@given(ids=st.lists(st.integers(4, 299), max_size=24))
def test_any_tokens_join_to_their_decoding(ids):
    """Broken UTF-8 too: a random model writes it all the time."""
    tokenizer = tinymodel.tokenizer()
    ids = [i for i in ids if i < len(tokenizer)]
    assert "".join(pieces(tokenizer, ids)) == tokenizer.decode(ids)


def test_leading_spaces_stay():
    tokenizer = tinymodel.tokenizer()
    for text in (" the quick", "  the", "the  quick ", "\n\n the", " "):
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert "".join(pieces(tokenizer, ids)) == text


def test_special_tokens_have_no_text():
    tokenizer = tinymodel.tokenizer()
    ids = [2, *tokenizer(" the", add_special_tokens=False)["input_ids"], 3]
    assert "".join(pieces(tokenizer, ids)) == " the"


def test_endless_broken_bytes_are_not_held_back_for_ever():
    lone = tinymodel.byte_tokens("é")[1]  # a continuation byte on its own
    out = pieces(tinymodel.tokenizer(), [lone] * 10)
    assert "".join(out) == "\ufffd" * 10
    assert any(out[:6])


def sentencepiece_like():
    """Metaspace with byte fallback, as in Llama 2 and Mixtral: the first token's space is dropped by decode."""
    words = ["<unk>", "▁the", "▁fox", "x", *(f"<0x{b:02X}>" for b in range(256))]
    core = Tokenizer(models.BPE({w: i for i, w in enumerate(words)}, [], unk_token="<unk>", byte_fallback=True))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    core.decoder = decoders.Sequence(steps)
    return PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>")


def test_dropped_leading_space_depends_on_what_comes_before():
    tokenizer = sentencepiece_like()
    assert "".join(pieces(tokenizer, [1, 2, 3])) == "the foxx"
    assert "".join(pieces(tokenizer, [2, 3], context=[1])) == " foxx"


def test_byte_fallback_characters():
    tokenizer = sentencepiece_like()
    ids = [1, *(4 + b for b in "中🦊".encode()), 2]
    out = pieces(tokenizer, ids)
    assert "".join(out) == "the中🦊 fox"
    assert not any("\ufffd" in piece for piece in out)


def test_character_begun_in_the_prompt_is_finished():
    ids = tinymodel.byte_tokens("a🦊b")
    assert "".join(pieces(tinymodel.tokenizer(), ids[3:], context=ids[:3])) == "🦊b"


# --- stop strings


def run(stops, parts):
    matcher, out = StopStrings(stops), []
    for part in parts:
        text, found = matcher.push(part)
        out.append(text)
        if found:
            return out, True
    return [*out, matcher.flush()], False


def model(stops, text):
    """The text before the first stop string that is complete, reading one character at a time."""
    for end in range(1, len(text) + 1):
        starts = [end - len(s) for s in stops if text[:end].endswith(s)]
        if starts:
            return text[: min(starts)], True
    return text, False


def splits(text):
    for cuts in itertools.product([False, True], repeat=max(len(text) - 1, 0)):
        parts, last = [], 0
        for i, cut in enumerate(cuts, 1):
            if cut:
                parts.append(text[last:i])
                last = i
        yield [*parts, text[last:]]


@pytest.mark.parametrize(
    ("stops", "text"),
    [
        (["END"], "abENDcd"),
        (["X", "X\n"], "abX\ncd"),
        (["X\n", "X"], "abX\ncd"),
        (["ab", "abc"], "zzabcd"),
        (["abcd", "bc"], "zabcde"),
        (["aab"], "aaaabaa"),
        (["abab"], "abaabab"),
        (["stop"], "sto stoq s"),
        (["🦊x"], "a🦊🦊xb"),
        ([], "plain"),
        (["no"], ""),
    ],
)
def test_every_split(stops, text):
    for parts in splits(text):
        out, found = run(stops, parts)
        assert ("".join(out), found) == model(stops, text), parts


@settings(max_examples=300, deadline=None)
@given(
    stops=st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
    parts=st.lists(st.text("ab", max_size=4), max_size=6),
)
def test_any_split(stops, parts):
    out, found = run(stops, parts)
    assert ("".join(out), found) == model(stops, "".join(parts))


def test_no_more_than_the_longest_prefix_is_held():
    matcher = StopStrings(["stop", "tops"])
    assert matcher.push("is") == ("i", False)
    assert matcher.push("t") == ("", False)
    assert matcher.push("x") == ("stx", False)
    assert matcher.push("nothing here") == ("nothing here", False)


# --- tokens and text together


def answer(stops, ids):
    a = Answer(tinymodel.tokenizer(), stops)
    out = []
    for token in ids:
        out.append(a.push(token, TokenLogprob(token, -1.0)))
        if a.stopped:
            break
    return [*out, a.finish()]


def test_tokens_go_out_with_their_text():
    ids = tinymodel.byte_tokens("a🦊b")
    out = answer([], ids)
    assert [p.tokens for p in out] == [(ids[0],), (), (), (), tuple(ids[1:5]), (ids[5],), ()]
    assert [tuple(lp.token for lp in p.logprobs) for p in out] == [p.tokens for p in out]


def test_tokens_of_a_stop_string_do_not_go_out():
    ids = tinymodel.byte_tokens("abEND")
    out = answer(["END"], ids)
    assert [p.text for p in out] == ["a", "b", "", "", "", ""]
    assert [t for p in out for t in p.tokens] == ids[:2]


def test_held_tokens_go_out_when_the_stop_string_does_not_come():
    ids = tinymodel.byte_tokens("abEN")
    out = answer(["END"], ids)
    assert "".join(p.text for p in out) == "abEN"
    assert [t for p in out for t in p.tokens] == ids
    assert out[-1].text == "EN"
