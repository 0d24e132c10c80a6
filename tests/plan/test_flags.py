"""Flags of other programs: which are taken, what becomes of their values, and what is said of those without effect."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kt_core import flags
from kt_core.errors import KTError, Unsupported, UsageError
from kt_core.messages import room
from kt_core.plan import OVERRIDES
from kt_core.server import parsers

OPTIONS = ("--host", "--port", "--threads", "--context", "--max-running", "--kv-dtype", "--tool-parser", "--reasoning-parser", "--api-key", "--lora", "--json", "--prompt")  # fmt: skip
# All that published commands of KTransformers and its SGLang hold
_PUBLISHED = """
--kt-method --kt-weight-path --kt-cpuinfer --kt-threadpool-count --kt-numa-nodes --kt-num-gpu-experts --kt-gpu-experts-ratio
--kt-max-deferred-experts-per-token --kt-gpu-prefill-token-threshold --kt-enable-dynamic-expert-update
--kt-expert-placement-strategy --record-kt-gpu-expert-distribution --kt-lora-path --kt-expert-lora-path --host --port --log-level
--model --model-path --tokenizer-path --served-model-name --attention-backend --mem-fraction-static --chunked-prefill-size
--max-running-requests --max-total-tokens --context-length --tensor-parallel-size --tp-size --trust-remote-code
--enable-mixed-chunk --enable-p2p-check --disable-shared-experts-fusion --cuda-graph-bs --cuda-graph-max-bs --disable-cuda-graph
--disable-custom-all-reduce --enable-lora --lora-backend --lora-paths --limit-mm-data-per-request --mm-process-config
--tool-call-parser --reasoning-parser --init-expert-location --expert-distribution-recorder-mode --fp8-gemm-backend
--moe-runner-backend --quantization --kv-cache-dtype --watchdog-timeout --disable-radix-cache --disable-chunked-prefix-cache
--skip-server-warmup --speculative-algorithm --speculative-num-steps --speculative-eagle-topk --speculative-num-draft-tokens
--swa-full-tokens-ratio
"""


def translated(text: str) -> flags.Translated:
    return flags.translate(text.split(), OPTIONS)


@pytest.mark.parametrize("name", _PUBLISHED.split())
def test_every_published_flag_is_in_the_table(name: str) -> None:
    flag = flags.BY_NAME[name]
    assert flag.use in (flags.USED, flags.IGNORED, flags.REFUSED)
    assert flag.use != flags.USED or flag.kind


def test_the_table_is_sound() -> None:
    names = [name for flag in flags.FLAGS for name in (flag.name, *flag.also)]
    assert len(names) == len(set(names))
    for flag in flags.FLAGS:
        assert flag.note in room("flags"), flag.name
        assert flag.kind != flags.WISH or flag.to in (*OVERRIDES, "served_name"), flag.name
        assert flag.kind != flags.OPTION or flag.to in OPTIONS, flag.name
    styles = {style.name for style in parsers.STYLES}
    assert set(flags.BY_NAME["--tool-call-parser"].values.values()) <= styles
    assert set(flags.BY_NAME["--reasoning-parser"].values.values()) <= {style.name for style in parsers.THINKERS}


def test_what_becomes_of_a_command() -> None:
    done = translated(
        "--model M --host 0.0.0.0 --kt-cpuinfer=60 --kt-numa-nodes 0 1 --kt_method FP8 --kt-gpu-experts-ratio 0.5 "
        "--tool-call-parser glm47 --reasoning-parser=deepseek-r1 --cuda-graph-bs 1 2 4 --trust-remote-code --prompt hello"
    )
    assert done.words == [
        "M", "--host", "0.0.0.0", "--threads", "60", "--tool-parser", "glm", "--reasoning-parser", "think", "--prompt", "hello",
    ]  # fmt: skip
    assert done.wishes == {"nodes": [0, 1], "method": "FP8", "gpu_experts_ratio": 0.5}
    assert [note.split()[0] for note in done.notes] == ["--cuda-graph-bs", "--trust-remote-code"]


def test_a_list_of_numbers_ends_before_a_name() -> None:
    assert translated("--kt-numa-nodes 0 1 NAME").words == ["NAME"]


def test_two_folders_of_one_model() -> None:
    done = translated("--model M --kt-weight-path W")
    assert done.words == ["W"] and len(done.notes) == 1 and "M" in done.notes[0]
    same = translated("--model M/ --kt-weight-path M")
    assert same.words == ["M"] and same.notes == []


def test_adapters() -> None:
    done = flags.translate(["--enable-lora", "--lora-paths", "a=x", "b=y", "--port", "1"], OPTIONS)
    assert done.words == ["--lora", "a=x", "--lora", "b=y", "--port", "1"] and len(done.notes) == 1


def test_an_option_that_the_command_lacks_is_told() -> None:
    done = flags.translate(
        ["--host", "0.0.0.0", "--context-length", "64", "--tool-call-parser", "glm47"], ["--context"]
    )
    assert done.words == ["--context", "64"]
    assert [note.split()[0] for note in done.notes] == ["--host", "--tool-call-parser"]
    assert all("kt run takes it" in note for note in done.notes)


@pytest.mark.parametrize("text", ["--kt-lora-path a", "--nnodes 2", "--dp-size=2"])
def test_what_would_change_answers_is_refused(text: str) -> None:
    with pytest.raises(Unsupported) as caught:
        translated(text)
    assert caught.value.exit_code == 7 and text.split("=")[0].split()[0] in str(caught.value)


@pytest.mark.parametrize(
    "text", ["--kt-method", "--kt-num-gpu-experts many", "--mem-fraction-static x", "--lora-paths"]
)
def test_values_are_checked(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        translated(text)
    assert caught.value.exit_code == 2


def test_the_nearest_of_an_unknown_flag() -> None:
    assert flags.near("--kt-metod", OPTIONS)[0] == "--kt-method"
    assert flags.near("--kt-threadpool-cont", OPTIONS)[0] == "--kt-threadpool-count"
    assert flags.near("--zzz", OPTIONS) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("python -m sglang.launch_server --model M --tp 2", ["--model", "M", "--tp", "2"]),
        (
            "CUDA_VISIBLE_DEVICES=0,1 A=b \\\n  python3 -m sglang.launch_server \\\n --model 'my model'",
            ["--model", "my model"],
        ),
        ("sglang serve --model M # a comment", ["--model", "M"]),
        ("kt run m2 --tp 2", ["m2", "--tp", "2"]),
        ("--model M", ["--model", "M"]),
    ],
)
def test_pasted_commands(text: str, words: list[str]) -> None:
    assert flags.command_line(text) == words


@pytest.mark.parametrize("text", ["", "python -m sglang.launch_server", "--model 'M"])
def test_what_is_no_command(text: str) -> None:
    with pytest.raises(UsageError):
        flags.command_line(text)


WORDS = st.lists(
    st.sampled_from([*flags.BY_NAME, "--prompt", "--zzz", "--", "3", "0.5", "x", "-p", "--tp=2", ""]), max_size=8
)


@given(WORDS)
def test_no_flag_of_theirs_is_left_and_no_word_is_lost(words: list[str]) -> None:
    try:
        done = flags.translate(words, OPTIONS)
    except KTError as error:
        assert error.exit_code in (2, 7)
        return
    end = done.words.index("--") if "--" in done.words else len(done.words)
    theirs = set(flags.BY_NAME) - set(OPTIONS)
    left = [word for word in done.words[:end] if word in theirs]
    assert all(done.words[done.words.index(word) - 1].startswith("--") for word in left)  # a value of an option
    assert done.words.count("--zzz") == words.count("--zzz")
