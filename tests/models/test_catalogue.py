"""The built-in models: their sizes against figures counted by others, their names, and the user's own beside them."""

import json
import re
from pathlib import Path

import pytest

from kt_core import models, paths
from kt_core.errors import BadData, NotFound
from kt_core.kernels.methods import METHODS
from kt_core.models import catalogue, knowledge, store
from kt_core.models.cache import cache_numbers
from kt_core.server import parsers
from kt_core.types import ModelSpec

# Name -> weights in 10^9 without next-token prediction: all, active, routed; bytes that the bfloat16 cache grows by for a
# token. Counted from the published configurations with transformers' classes, not with kt's formulas.
PUBLISHED = {
    "DeepSeek-V2-Lite": (15.7, 2.66, 14.4, 31104),
    "DeepSeek-V2": (235.7, 21.4, 222.7, 69120),
    "DeepSeek-V2.5": (235.7, 21.4, 222.7, 69120),
    "DeepSeek-V3-0324": (671.0, 37.6, 653.9, 70272),
    "DeepSeek-R1-0528": (671.0, 37.6, 653.9, 70272),
    "DeepSeek-V3.1": (671.0, 37.6, 653.9, 70272),
    "DeepSeek-V3.2": (671.9, 38.4, 653.9, 70272),
    "DeepSeek-V4-Flash": (284.3, 13.8, 277.0, 6880),
    "DeepSeek-V4-Pro": (1573.0, 49.8, 1547.4, 9848),
    "Kimi-K2-Instruct": (1026.4, 32.9, 1014.7, 70272),
    "Kimi-K2-Instruct-0905": (1026.4, 32.9, 1014.7, 70272),
    "Kimi-K2-Thinking": (1026.4, 32.9, 1014.7, 70272),
    "Kimi-K2.5": (1026.9, 32.9, 1014.7, 70272),
    "Kimi-K2.6": (1026.9, 32.9, 1014.7, 70272),
    "Moonlight-16B-A3B-Instruct": (16.0, 2.91, 14.4, 31104),
    "GLM-4.5": (352.8, 33.6, 336.0, 376832),
    "GLM-4.5-Air": (106.9, 13.4, 99.7, 188416),
    "GLM-4.6": (352.8, 33.6, 336.0, 376832),
    "GLM-4.7": (352.8, 33.6, 336.0, 376832),
    "GLM-4.7-Flash": (29.9, 3.9, 27.8, 54144),
    "GLM-5": (743.9, 41.8, 724.8, 89856),
    "GLM-5.1": (743.9, 41.8, 724.8, 89856),
    "GLM-5.2": (743.4, 41.3, 724.8, 89856),
    "GLM-5.3-Flash": (313.8, 17.4, 304.4, 11264),
    "MiniMax-M2": (228.7, 11.0, 224.7, 253952),
    "MiniMax-M2.1": (228.7, 11.0, 224.7, 253952),
    "MiniMax-M2.5": (228.7, 11.0, 224.7, 253952),
    "MiniMax-M2.7": (228.7, 11.0, 224.7, 253952),
    "MiniMax-M3": (427.0, 26.0, 413.1, 122880),
    "Qwen2-57B-A14B-Instruct": (57.4, 14.2, 49.3, 57344),
    "Qwen3-30B-A3B": (30.5, 3.35, 29.0, 98304),
    "Qwen3-30B-A3B-2507": (30.5, 3.35, 29.0, 98304),
    "Qwen3-30B-A3B-Thinking-2507": (30.5, 3.35, 29.0, 98304),
    "Qwen3-Coder-30B-A3B-Instruct": (30.5, 3.35, 29.0, 98304),
    "Qwen3-235B-A22B": (235.1, 22.2, 227.1, 192512),
    "Qwen3-235B-A22B-2507": (235.1, 22.2, 227.1, 192512),
    "Qwen3-235B-A22B-Thinking-2507": (235.1, 22.2, 227.1, 192512),
    "Qwen3-Coder-480B-A35B-Instruct": (480.2, 35.5, 468.1, 253952),
    "Qwen3-Next-80B-A3B-Instruct": (79.7, 3.87, 77.3, 24576),
    "Qwen3-Next-80B-A3B-Thinking": (79.7, 3.87, 77.3, 24576),
    "Qwen3-Coder-Next": (79.7, 3.87, 77.3, 24576),
    "Qwen3-VL-30B-A3B-Instruct": (31.1, 3.35, 29.0, 98304),
    "Qwen3-VL-235B-A22B-Instruct": (235.7, 22.2, 227.1, 192512),
    "Qwen3.5-35B-A3B": (35.1, 3.45, 32.2, 20480),
    "Qwen3.5-122B-A10B": (122.6, 9.77, 116.0, 24576),
    "Qwen3.5-397B-A17B": (396.8, 17.3, 386.5, 30720),
    "Qwen3.6-35B-A3B": (35.1, 3.45, 32.2, 20480),
    "Mixtral-8x7B-Instruct": (46.7, 12.9, 45.1, 131072),
    "Mixtral-8x22B-Instruct": (140.6, 39.2, 135.3, 229376),
    "gpt-oss-20b": (20.9, 4.19, 19.1, 24576),
    "gpt-oss-120b": (116.8, 5.71, 114.7, 36864),
    "Llama-4-Scout-17B-16E-Instruct": (108.2, 17.2, 96.6, 196608),
    "Llama-4-Maverick-17B-128E-Instruct": (401.2, 17.2, 386.5, 196608),
    "OLMoE-1B-7B-Instruct": (6.92, 1.28, 6.44, 131072),
    "Granite-4.0-H-Small": (32.2, 8.8, 27.2, 16384),
    "Granite-4.0-H-Tiny": (6.94, 1.47, 6.04, 8192),
    "ERNIE-4.5-21B-A3B": (21.8, 3.35, 20.4, 57344),
    "ERNIE-4.5-300B-A47B": (299.5, 47.9, 287.5, 221184),
    "Hunyuan-A13B-Instruct": (80.4, 12.7, 77.3, 131072),
    "SmallThinker-21B-A3B": (21.5, 3.72, 19.6, 106496),
    "dots.llm1.inst": (142.8, 14.0, 135.1, 1015808),
    "Phi-3.5-MoE-instruct": (41.9, 6.64, 40.3, 131072),
    "SmolLM2-135M-Instruct": (0.13, 0.13, 0.0, 23040),
    "Qwen3-0.6B": (0.6, 0.6, 0.0, 114688),
    "Qwen3-1.7B": (1.72, 1.72, 0.0, 114688),
    "Qwen3-4B": (4.02, 4.02, 0.0, 147456),
    "Qwen3-8B": (8.19, 8.19, 0.0, 147456),
    "Qwen3-14B": (14.8, 14.8, 0.0, 163840),
    "Qwen3-32B": (32.8, 32.8, 0.0, 262144),
    "Qwen3.5-27B": (27.4, 26.9, 0.0, 65536),
    "Llama-3.1-8B-Instruct": (8.03, 8.03, 0.0, 131072),
    "Llama-3.3-70B-Instruct": (70.6, 70.6, 0.0, 327680),
}


@pytest.fixture(autouse=True)
def settings_of_nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KT_CONFIG_FILE", str(tmp_path / "config.toml"))
    monkeypatch.setenv("KT_PATHS_MODELS", str(tmp_path / "models"))
    monkeypatch.setenv("KT_LANG", "en")


def spec(name: str) -> ModelSpec:
    known = catalogue.find(name)
    assert known is not None, name
    found = catalogue.spec(known)
    assert found is not None
    return found


@pytest.mark.parametrize("name", PUBLISHED)
def test_sizes_are_the_published_ones(name: str) -> None:
    total, active, routed, cache = PUBLISHED[name]
    found = spec(name)
    assert (found.parameters - found.parameters_by_part.get("mtp", 0)) / 1e9 == pytest.approx(
        total, rel=0.003, abs=0.05
    )
    assert found.active_parameters / 1e9 == pytest.approx(active, rel=0.01, abs=0.05)
    assert found.parameters_by_part.get("experts", 0) / 1e9 == pytest.approx(routed, rel=0.002, abs=0.05)
    growing = sum(part.layers * part.numbers for part in found.cache if not part.window and part.kind != "indexer")
    chunked = sum(
        part.layers * part.numbers for part in found.cache if part.kind == "chunked"
    )  # until the chunk is full
    assert 2 * (growing + chunked) == cache
    assert sum(found.bytes_by_part.values()) == pytest.approx(sum(found.formats.values()), abs=10)
    assert not found.exact and found.context >= 4096 and found.method


def test_every_model_is_in_the_table() -> None:
    assert PUBLISHED.keys() == catalogue.builtin().keys()


@pytest.mark.parametrize(
    ("name", "gigabytes"),
    [
        ("qwen3-30b", 61.1),
        ("r1", 688.5),  # with the layer that predicts further tokens
        ("zai-org/GLM-5", 1507.7),
        ("kimi-k2.5", 595.1),
        ("gpt-oss-120b", 65.2),
        ("gpt-oss-20b", 13.8),
        ("Qwen/Qwen3-Coder-Next-FP8", 80.4),
        ("MiniMaxAI/MiniMax-M2.1", 230.0),
        ("v4-flash", 159.0),
    ],
)
def test_checkpoints_are_as_large_as_their_files(name: str, gigabytes: float) -> None:
    assert sum(spec(name).bytes_by_part.values()) / 1e9 == pytest.approx(gigabytes, rel=0.01)


def test_caches_by_kind() -> None:
    """Figures by hand: DeepSeek's latents and indexer keys, gpt-oss's windows, the state of linear layers."""
    kinds = {(part.kind, part.layers): part for part in spec("deepseek-v3.2").cache}
    assert kinds["latent", 61].numbers == 576 and kinds["indexer", 61].numbers == 128
    assert [part.layers for part in spec("glm-5.2").cache if part.kind == "indexer"] == [21]
    sliding = next(part for part in spec("gpt-oss-120b").cache if part.kind == "sliding")
    assert (sliding.layers, sliding.window, sliding.layers * sliding.numbers * 128 * 2) == (18, 128, 4_718_592)
    linear = next(part for part in spec("qwen3-next").cache if part.kind == "linear")
    assert linear.layers * 32 * 128 * 128 == 18_874_368 and linear.state == 32 * 128 * 128 + 8192 * 3
    assert cache_numbers((sliding,), 10**6) == cache_numbers((sliding,), 128) == 18 * 1024 * 128
    flash = spec("v4-flash").cache
    assert sum(part.layers * part.numbers for part in flash if part.kind == "compressed") * 2 == 6880
    assert cache_numbers(flash, 1) < 43 * 512 * 2


def test_names_mean_one_model_each() -> None:
    words: dict[str, str] = {}
    for name, known in catalogue.builtin().items():
        for word in (name, *known.aliases, *known.repos.values()):
            other = words.setdefault(word.casefold(), name)
            assert other == name, f"{word} is {other} and {name}"
        assert all(re.fullmatch(r"[\w.-]+/[\w.-]+", repo) for repo in known.repos.values())


@pytest.mark.parametrize(
    "alias",
    [
        "m2",
        "m2.1",
        "m2.5",
        "m2.7",
        "m3",
        "k2",
        "k2.5",
        "r1",
        "v3",
        "v3.2",
        "v4-flash",
        "glm-4.7",
        "glm-5",
        "glm-5.2",
        "glm-5.3-flash",
        "qwen3-30b-a3b",
        "qwen3-235b-a22b",
        "qwen3.5-35b-a3b",
        "qwen3-coder-next",
        "v2-lite",
        "dsv3",
        "deepseek3",
        "v3-0324",
        "dsr1",
        "r1-0528",
        "dsv3.2",
        "deepseek3.2",
        "dsv4",
        "v4",
        "deepseek-v4",
        "kimi",
        "kimi-thinking",
        "k2-thinking",
        "minimax-m2",
        "MINIMAX-M3",
        "DeepSeek-R1",
    ],
)
def test_aliases_of_other_tools(alias: str) -> None:
    assert spec(alias).experts > 0


def test_what_is_said_exists() -> None:
    calls, thinking = {style.name for style in parsers.STYLES}, {style.name for style in parsers.THINKERS}
    for name in catalogue.builtin():
        found = spec(name)
        assert found.tool_parser in calls | {""} and found.reasoning_parser in thinking | {""}, name
        assert all(map(knowledge.quirk_text, found.quirks))
        assert found.method in METHODS
    assert set(knowledge.METHODS.values()) | {knowledge.GGUF_METHOD} <= METHODS.keys()


def test_a_model_that_only_the_hub_has() -> None:
    with pytest.raises(NotFound) as caught:
        models.resolve("r1")
    assert "deepseek-ai/DeepSeek-R1-0528" in str(caught.value) and "kt model pull DeepSeek-R1-0528" in str(caught.value)
    with pytest.raises(NotFound, match="DeepSeek-R1-0528 is not on this disk"):
        store.pull("r1", lambda *_: None)
    with pytest.raises(NotFound, match="deepseek-v3"):
        models.resolve("deepsek-v3")


# ---- the user's own


def write(text: str) -> None:
    paths.models_file().write_text(text)


def test_the_users_own_models_come_first(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "a.gguf").write_bytes(b"x")
    write(f'''
[mine]
path = "{folder}"
aliases = ["m2"]
[tuned]
repo = "me/tuned-r1"
like = "deepseek-r1"
[other]
repo = "me/other"
''')
    found = catalogue.find("M2")
    assert found is not None and found.own and models.resolve("m2").path == str(folder / "a.gguf")
    tuned = catalogue.find("tuned")
    assert tuned is not None and tuned.repo == "me/tuned-r1"
    shapes = catalogue.spec(tuned)
    assert shapes is not None and shapes.experts == 256
    other = catalogue.find("other")
    assert other is not None and catalogue.spec(other) is None
    assert "mine" in store.known_names()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[x\n", "models.toml"),
        ("x = 1\n", "x has neither"),
        ("[x]\n", "x has neither"),
        ("[x]\npath = 3\n", "path cannot be 3"),
        ('[x]\nrepo = "a/b"\ncolour = "red"\n', "unknown key colour"),
        ('[x]\nrepo = "a/b"\naliases = [1]\n', "aliases cannot be"),
        ('[x]\nrepo = "a/b"\nlike = "nothing"\n', "no built-in model is called nothing"),
    ],
)
def test_a_wrong_file_is_refused_in_words(text: str, said: str) -> None:
    write(text)
    with pytest.raises(BadData, match=said):
        catalogue.find("r1")


def test_the_file_is_small_and_sorted_by_hand() -> None:
    """One line a model, so that a change is one line of a diff."""
    text = Path(catalogue.__file__).with_name("catalogue.json").read_text()
    assert len(text.splitlines()) == len(json.loads(text)) + 2 and len(text) < 60_000
