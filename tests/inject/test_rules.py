"""Rule files: exact semantics, and every mistake found before anything loads."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn

from kt_core.errors import BadData, NotFound
from kt_core.inject import apply, decide, default_rules, read_rules, unused_rules
from kt_core.messages import set_language

pytestmark = pytest.mark.transformers


class Wrapper(nn.Module):
    """A replacement that records how it was made."""

    def __init__(self, key, weights, config, orig_module, generate_device="cpu", scale=1):
        super().__init__()
        self.key, self.scale, self.generate_device = key, scale, generate_device
        self.inner = orig_module


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
        self.mlp = nn.Linear(2, 2)


@pytest.fixture
def model():
    with torch.device("meta"):
        return nn.Sequential(Block(), Block())


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "rules.yaml"
    path.write_text(text)
    return path


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


WRAPPER = "test_rules.Wrapper"


def decisions(tmp_path, model, text):
    return decide(model, read_rules(write(tmp_path, text)))


def names(found):
    return {key for key, d in found.items() if d.replacement is not None}


def test_first_match_wins(tmp_path, model):
    found = decisions(
        tmp_path,
        model,
        f"""
- match: {{name: "^0"}}
  replace: {{class: default, kwargs: {{generate_device: cpu}}}}
- match: {{class: torch.nn.Linear}}
  replace: {{class: {WRAPPER}, kwargs: {{scale: 3}}}}
""",
    )
    assert names(found) == {"1.attn.0", "1.mlp"}
    assert found["1.mlp"].kwargs == {"scale": 3}
    assert found["0.mlp"].kwargs == {"generate_device": "cpu"}


def test_class_and_name_must_both_hold(tmp_path, model):
    text = f"- match: {{name: attn, class: torch.nn.Linear}}\n  replace: {{class: {WRAPPER}}}\n"
    assert names(decisions(tmp_path, model, text)) == {"0.attn.0", "1.attn.0"}


def test_name_is_searched_not_anchored(tmp_path, model):
    text = f'- match: {{name: "lp$"}}\n  replace: {{class: {WRAPPER}}}\n'
    assert names(decisions(tmp_path, model, text)) == {"0.mlp", "1.mlp"}


def test_recursive_false_stops_the_walk(tmp_path, model):
    text = f'- match: {{name: "^0$"}}\n  replace: {{class: {WRAPPER}}}\n  recursive: false\n'
    found = decisions(tmp_path, model, text)
    assert "0.mlp" not in found and "1.mlp" in found


def test_no_match_gets_the_default_device(tmp_path, model):
    text = f'- match: {{name: "^0$"}}\n  replace: {{class: {WRAPPER}}}\n'
    found = decisions(tmp_path, model, text)
    assert found["1.mlp"].kwargs == {"generate_device": "cpu", "prefill_device": "cpu"}
    assert found["1.mlp"].replacement is None


def test_replacement_keeps_the_original_whose_children_are_replaced_too(tmp_path, model):
    text = f'- match: {{name: "^0$"}}\n  replace: {{class: {WRAPPER}}}\n- match: {{name: mlp}}\n  replace: {{class: {WRAPPER}}}\n'
    original = model[0]
    apply(model, decisions(tmp_path, model, text), weights=None, config=None)
    assert type(model[0]).__name__ == "Wrapper" and model[0].inner is original
    assert type(original.mlp).__name__ == "Wrapper" and original.mlp.key == "0.mlp"


def test_root_can_be_replaced(tmp_path, model):
    text = f'- match: {{name: "^$"}}\n  replace: {{class: {WRAPPER}}}\n  recursive: false\n'
    root = apply(model, decisions(tmp_path, model, text), weights=None, config=None)
    assert type(root).__name__ == "Wrapper" and root.inner is model


def test_rule_without_match_is_reported(tmp_path, model):
    text = f"- match: {{name: nowhere}}\n  replace: {{class: {WRAPPER}}}\n- match: {{name: mlp}}\n  replace: {{class: {WRAPPER}}}\n"
    rules = read_rules(write(tmp_path, text))
    (unused,) = unused_rules(rules, decide(model, rules))
    assert unused.where.endswith("rules.yaml:1")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("match: {name: a}", "not a list of rules"),
        ("- match: {name: a}\n  replace: {class: x.y.Z}\n", "x.y.Z cannot be imported"),
        ("- match: {class: torch.nn.Nope}\n  replace: {class: default}\n", "torch.nn.Nope cannot be imported"),
        ("- match: {}\n  replace: {class: default}\n", "'match' needs 'name' or 'class'"),
        ("- match: {name: a}\n", "'replace' is missing"),
        ("- match: {name: '('}\n  replace: {class: default}\n", "not a regular expression"),
        ("- match: {name: a}\n  replace: {class: default, device: cpu}\n", "unknown key 'device' in replace"),
        ("- match: {name: a}\n  replace: {class: default}\n  recursion: no\n", "unknown key 'recursion' in rule"),
        ("- match: {name: a}\n  replace: {class: default}\n  recursive: 7\n", "not true or false"),
        (f"- match: {{name: a}}\n  replace: {{class: {WRAPPER}, kwargs: {{size: 1}}}}\n", "takes no argument 'size'"),
        ("- match: {name: a, name: b}\n  replace: {class: default}\n", "the key 'name' stands there twice"),
        (
            "- match: {name: a}\n  replace: {class: default}\n  replace: {class: default}\n",
            "'replace' stands there twice",
        ),
        ("- match: {name: [\n", "not a rule file"),
        ("- match: {name: a}\n  replace: {class: torch.nn.functional.relu}\n", "is not a class"),
    ],
)
def test_mistakes_are_named_with_their_line(tmp_path, text, words):
    with pytest.raises(BadData) as caught:
        read_rules(write(tmp_path, text))
    assert words in str(caught.value)


def test_mistakes_are_told_in_chinese_too(tmp_path):
    set_language("zh")
    try:
        for text in ("- 5\n", "- match: {}\n  replace: {class: .x, kwargs: [1]}\n  recursive: 7\n", "a: b\n"):
            with pytest.raises(BadData) as caught:
                read_rules(write(tmp_path, text))
            words = str(caught.value).replace(str(tmp_path), "")
            assert not re.search(r"\b(the|must|needs|is not|is missing|true and)\b", words), words
    finally:
        set_language(None)


def test_all_mistakes_are_listed_with_lines(tmp_path):
    text = "- match: {name: '('}\n  replace: {class: default}\n- match: {}\n  replace: {class: a.B}\n"
    with pytest.raises(BadData) as caught:
        read_rules(write(tmp_path, text))
    assert "rules.yaml:1:" in str(caught.value) and "rules.yaml:3:" in str(caught.value)


def test_missing_file(tmp_path):
    with pytest.raises(NotFound):
        read_rules(tmp_path / "none.yaml")


def test_default_rules_are_valid():
    assert len(read_rules(default_rules())) == 3


def test_class_paths_of_the_existing_system_are_mapped(tmp_path):
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3MoE

    text = (
        "- match: {class: ktransformers.models.modeling_deepseek_v3.DeepseekV3MoE}\n"
        "  replace: {class: ktransformers.operators.experts.KTransformersExperts}\n"
    )
    (rule,) = read_rules(write(tmp_path, text))
    assert rule.match_class is DeepseekV3MoE
    assert rule.replace_class.__module__ == "kt_core.operators.experts"
