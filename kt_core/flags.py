"""Flags of SGLang's server and of KTransformers, as their commands are pasted: what each does here.

One table: a flag is USED (it becomes an option of kt, a wish for the plan, or the model), IGNORED because leaving it out
changes no answer, or REFUSED because it would. docs/flags.md is made from it. What is in no table is not taken.
"""

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from kt_core.errors import Unsupported, UsageError
from kt_core.messages import t

USED, IGNORED, REFUSED = "used", "ignored", "refused"
MODEL, WEIGHTS = "model", "weights"  # where a flag names the model; the weights' folder goes before the model's
OPTION, WISH = "option", "wish"
SWITCH, COUNT, NUMBER, TEXT, COUNTS, TEXTS = "", "COUNT", "NUMBER", "TEXT", "COUNT ...", "TEXT ..."
MOST_DIGITS = 18  # of a count: it fits into 64 bits


@dataclass(frozen=True)
class Flag:
    """`takes` is one of SWITCH, COUNT, ...; `kind` says what a used flag becomes, called `to`; `values` maps what its value
    is called there to kt's name; `note` is a message that says what it does here, or why nothing."""

    name: str
    takes: str
    use: str
    note: str
    kind: str = ""
    to: str = ""
    also: tuple[str, ...] = ()
    values: Mapping[str, str] = field(default_factory=dict)


def _option(name: str, takes: str, to: str, *also: str, note: str = "flags.same", values: Any = None) -> Flag:
    return Flag(name, takes, USED, note, OPTION, to, also, values or {})


def _wish(name: str, takes: str, to: str, *also: str) -> Flag:
    return Flag(name, takes, USED, f"flags.to_{to}", WISH, to, also)


def _ignored(note: str, takes: str, *names: str) -> list[Flag]:
    return [Flag(name, takes, IGNORED, f"flags.{note}") for name in names]


def _refused(note: str, takes: str, *names: str) -> list[Flag]:
    return [Flag(name, takes, REFUSED, f"flags.{note}") for name in names]


# Parsers as SGLang calls them -> kt's
_TOOLS = {
    **dict.fromkeys(("deepseekv3", "deepseekv31"), "deepseek-v3"),
    **dict.fromkeys(("deepseekv32", "deepseekv4"), "deepseek-v3.2"),
    **dict.fromkeys(("glm", "glm45", "glm47"), "glm"),
    **dict.fromkeys(("qwen", "qwen25", "hermes"), "hermes"),
    "gpt-oss": "harmony", "kimi_k2": "kimi-k2", "llama3": "llama", "mistral": "mistral", "qwen3_coder": "qwen3-coder",
    "minimax-m2": "minimax-m2", "minimax-m3": "minimax-m3",
}  # fmt: skip
_REASONING = {
    **dict.fromkeys(
        ("deepseek-r1", "deepseek-v3", "deepseek-v4", "glm45", "kimi", "kimi_k2", "qwen3", "qwen3-thinking", "minimax",
         "minimax-append-think", "step3", "step3p5", "nano_v3", "interns1"), "think"),
    "gpt-oss": "harmony", "minimax-m3": "minimax-m3",
}  # fmt: skip

KT_FLAGS = (
    _wish("--kt-method", TEXT, "method"),
    Flag("--kt-weight-path", TEXT, USED, "flags.weight_path", WEIGHTS, "", ("--weights-path",)),
    _option("--kt-cpuinfer", COUNT, "--threads", "--cpu-threads", note="flags.threads"),
    _wish("--kt-threadpool-count", COUNT, "pools"),
    _wish("--kt-numa-nodes", COUNTS, "nodes"),
    _wish("--kt-num-gpu-experts", COUNT, "gpu_experts", "--gpu-experts"),
    _wish("--kt-gpu-experts-ratio", NUMBER, "gpu_experts_ratio"),
    _wish("--kt-max-deferred-experts-per-token", COUNT, "deferred"),
    _wish("--kt-gpu-prefill-token-threshold", COUNT, "prefill_threshold", "--kt-gpu-prefill-threshold"),
    _wish("--kt-expert-placement-strategy", TEXT, "placement"),
    _wish("--kt-enable-dynamic-expert-update", SWITCH, "moving"),
    _wish("--record-kt-gpu-expert-distribution", SWITCH, "record"),
    *_refused("lora_folder", TEXT, "--kt-lora-path", "--kt-expert-lora-path"),
)
SERVER_FLAGS = (
    Flag("--model-path", TEXT, USED, "flags.model", MODEL, "", ("--model",)),
    _option("--host", TEXT, "--host"),
    _option("--port", COUNT, "--port"),
    _option("--api-key", TEXT, "--api-key"),
    _wish("--served-model-name", TEXT, "served_name"),
    _option("--context-length", COUNT, "--context", note="flags.context"),
    _option("--max-running-requests", COUNT, "--max-running", note="flags.running"),
    _wish("--max-total-tokens", COUNT, "cache_tokens"),
    _option("--kv-cache-dtype", TEXT, "--kv-dtype", note="flags.kv_dtype"),
    _option("--tool-call-parser", TEXT, "--tool-parser", note="flags.tools", values=_TOOLS),
    _option("--reasoning-parser", TEXT, "--reasoning-parser", note="flags.reasoning", values=_REASONING),
    _wish("--mem-fraction-static", NUMBER, "vram_share"),
    _wish("--chunked-prefill-size", COUNT, "chunk"),
    _wish("--tensor-parallel-size", COUNT, "tensor", "--tp-size", "--tp"),
    _wish("--pipeline-parallel-size", COUNT, "pipeline", "--pp-size"),
    _wish("--init-expert-location", TEXT, "expert_statistics"),
    _wish("--device", TEXT, "devices"),
    *_ignored("one_attention", TEXT, "--attention-backend", "--prefill-attention-backend", "--decode-attention-backend"),
    *_ignored("one_kernel", TEXT, "--fp8-gemm-backend", "--moe-runner-backend", "--sampling-backend"),
    *_ignored("own_tokenizer", TEXT, "--tokenizer-path"),
    *_ignored("no_code", SWITCH, "--trust-remote-code"),
    *_ignored("always_mixed", SWITCH, "--enable-mixed-chunk"),
    *_ignored("always_cached", SWITCH, "--disable-radix-cache", "--disable-chunked-prefix-cache"),
    *_ignored("no_fusion", SWITCH, "--disable-shared-experts-fusion", "--enable-shared-experts-fusion"),
    *_ignored("links", SWITCH, "--enable-p2p-check", "--disable-custom-all-reduce"),
    *_ignored("graphs", SWITCH, "--disable-cuda-graph"),
    *_ignored("graphs", COUNTS, "--cuda-graph-bs"),
    *_ignored("graphs", COUNT, "--cuda-graph-max-bs"),
    *_ignored("stored_form", TEXT, "--quantization", "--dtype", "--load-format"),
    *_ignored("text_alone", TEXT, "--limit-mm-data-per-request", "--mm-process-config"),
    *_ignored("recorded", TEXT, "--expert-distribution-recorder-mode"),
    *_ignored("log", TEXT, "--log-level"),
    *_ignored("log", SWITCH, "--enable-metrics"),
    *_ignored("waits", NUMBER, "--watchdog-timeout"),
    *_ignored("waits", SWITCH, "--skip-server-warmup"),
    *_ignored("windows", NUMBER, "--swa-full-tokens-ratio"),
    *_ignored("seed", COUNT, "--random-seed"),
    *_ignored("speculative", TEXT, "--speculative-algorithm", "--speculative-draft-model-path"),
    *_ignored("speculative", COUNT, "--speculative-num-steps", "--speculative-eagle-topk", "--speculative-num-draft-tokens"),
    *_ignored("lora", SWITCH, "--enable-lora"),
    *_ignored("lora", TEXT, "--lora-backend", "--lora-target-modules"),
    *_ignored("lora", COUNT, "--max-lora-rank", "--max-loras-per-batch", "--max-loaded-loras"),
    _option("--lora-paths", TEXTS, "--lora"),
    *_refused("one_machine", COUNT, "--nnodes", "--node-rank", "--data-parallel-size", "--dp-size"),
    *_refused("one_machine", TEXT, "--dist-init-addr"),
)  # fmt: skip
OWN_FLAGS = (_wish("--vram-budget", TEXT, "vram_budget"),)
FLAGS = (*KT_FLAGS, *SERVER_FLAGS, *OWN_FLAGS)
BY_NAME = {name: flag for flag in FLAGS for name in (flag.name, *flag.also)}
# decision -> the flag that it is called after
OF_DECISION = {flag.to: flag.name for flag in FLAGS if flag.kind == WISH} | {
    "threads": "--kt-cpuinfer",
    "context": "--context-length",
    "max_running": "--max-running-requests",
    "kv_dtype": "--kv-cache-dtype",
    "layout": "--tensor-parallel-size",
}


@dataclass
class Translated:
    """A command line in kt's words. `words` are for kt's own parser; `wishes` for the plan; `notes` say what was not taken
    as it stands."""

    words: list[str] = field(default_factory=list)
    wishes: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def translate(words: Iterable[str], options: Iterable[str]) -> Translated:
    """The command line `words` for a command of kt that has these `options`; words that no table knows stay as they are.

    Raises Unsupported for a flag that is refused, UsageError for one without its value, or with one that is no such value.
    """
    left, done, own = list(words), Translated(), set(options)
    named: dict[str, str] = {}
    while left:
        word = left.pop(0)
        if word == "--":
            done.words += [word, *left]
            break
        name, equals, value = word.partition("=")
        flag = BY_NAME.get(name if name in BY_NAME else name.replace("_", "-")) if name.startswith("--") else None
        if flag is None or (name in own and not (flag.values and (equals or left))):
            done.words.append(word)
            if name in own and not equals and left and not left[0].startswith("-"):
                done.words.append(left.pop(0))  # its value, or an argument: in both cases no flag
            continue
        _take(flag, name, _values(flag, name, value if equals else None, left), own, named, done)
    _name(named, done)
    return done


def command_line(text: str) -> list[str]:
    """The flags of a command that starts a server, as "CUDA_VISIBLE_DEVICES=0 python -m sglang.launch_server --model ..." or
    "kt run NAME ...". Raises UsageError where the text has none."""
    try:
        words = shlex.split(text.replace("\\\n", " "), comments=True)
    except ValueError as error:
        raise UsageError("flags.bad_command", reason=error) from error
    while words and re.fullmatch(r"[A-Za-z_]\w*=.*", words[0]):
        words.pop(0)
    first = next((place for place, word in enumerate(words) if word.startswith("--")), len(words))
    head = words[:first]
    if head[:2] == ["kt", "run"] or head[:2] == ["kt", "plan"]:
        return words[2:]
    if not words[first:]:
        raise UsageError("flags.bad_command", reason=text[:60])
    return words[first:]


def whole(text: str) -> int | None:
    """The number from 0 that the digits of a text say; None for another text, and for more digits than any count has."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS else None


def near(name: str, options: Iterable[str]) -> list[str]:
    """The nearest flags and options to an unknown one, at most two."""
    return get_close_matches(name, [*options, *BY_NAME], n=2, cutoff=0.6)


def _values(flag: Flag, name: str, given: str | None, left: list[str]) -> list[str]:
    """The words of a flag's value, taken from `left`."""
    if flag.takes == SWITCH:
        return []
    if given is not None:
        return [given]
    found: list[str] = []
    several = flag.takes in (COUNTS, TEXTS)
    while left and not left[0].startswith("--") and (several or not found):
        if flag.takes == COUNTS and found and not left[0].isdecimal():
            break
        found.append(left.pop(0))
    if not found:
        raise UsageError("flags.no_value", name=name, takes=flag.takes)
    return found


def _take(flag: Flag, name: str, words: list[str], own: set[str], named: dict[str, str], done: Translated) -> None:
    if flag.use == REFUSED:
        raise Unsupported("flags.refused", name=name, reason=t(flag.note))
    if flag.use == IGNORED:
        done.notes.append(t("flags.has_no_effect", name=name, reason=t(flag.note)))
    elif flag.kind in (MODEL, WEIGHTS):
        named[flag.kind] = words[0]
    elif flag.kind == WISH:
        values = [_typed(flag, name, word) for word in words] or [True]
        done.wishes[flag.to] = values if flag.takes == COUNTS else values[0]
    elif flag.to not in own:
        done.notes.append(t("flags.has_no_effect", name=name, reason=t("flags.for_running")))
    else:
        for word in words:
            done.words += [flag.to, flag.values.get(word, word)]


def _typed(flag: Flag, name: str, word: str) -> Any:
    try:
        if flag.takes in (COUNT, COUNTS):
            return int(word)
        return float(word) if flag.takes == NUMBER else word
    except ValueError:
        raise UsageError("flags.bad_value", name=name, value=word, takes=flag.takes) from None


def _name(named: dict[str, str], done: Translated) -> None:
    """The model goes first. Where weights lie in a folder of their own, that is what is run."""
    model, weights = named.get(MODEL), named.get(WEIGHTS)
    if weights and model and weights.rstrip("/") != model.rstrip("/"):
        done.notes.append(t("flags.two_folders", weights=weights, model=model))
    if found := weights or model:
        done.words.insert(0, found)
