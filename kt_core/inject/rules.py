"""Rule files: a YAML list of `match` / `replace` / `recursive`, checked whole before anything loads.

    - match: {name: regex, class: dotted.path}   # both must hold when both are given
      replace: {class: dotted.path, kwargs: {...}}   # class "default" keeps the module
      recursive: false                           # optional: leave the children alone

The first rule that matches a module decides. Class paths of the existing system are mapped to ours.
"""

import importlib
import inspect
import re
import reprlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from torch import nn

from kt_core.errors import BadData, NotFound
from kt_core.events import one_line
from kt_core.messages import t

DEFAULT = "default"
OPERATOR_ARGUMENTS = ("key", "weights", "config", "orig_module")

# Class paths that rule files of the existing system use, and what they are here.
LEGACY_CLASSES = {
    "ktransformers.operators.linear.KTransformersLinear": "kt_core.operators.linear.Linear",
    "ktransformers.operators.experts.KTransformersExperts": "kt_core.operators.experts.Experts",
    "ktransformers.operators.experts.KTransformersExpertsV2": "kt_core.operators.experts.Experts",
}
LEGACY_MODEL = re.compile(r"^ktransformers\.models\.modeling_(\w+)\.(\w+)$")


@dataclass(frozen=True)
class Rule:
    """One rule. `match_class` and `replace_class` are the imported classes; None: not given / keep."""

    name: re.Pattern[str] | None
    match_class: type | None
    replace_class: type | None
    kwargs: dict[str, Any] = field(default_factory=dict)
    recursive: bool = True
    where: str = ""  # file:line, for messages


def default_rules() -> Path:
    """The rules used when neither the user nor the plan names a file."""
    return Path(__file__).parent / "rules" / "default.yaml"


def read_rules(path: Path) -> list[Rule]:
    """Read and check a rule file. Raises NotFound, or BadData listing every problem with its line."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as e:
        raise NotFound("inject.no_file", path=path, reason=e.strerror or e) from None
    except UnicodeDecodeError as e:
        raise BadData("inject.bad_yaml", path=path, reason=e) from None
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        items = yaml.safe_load(text)
    except Exception as e:  # besides YAMLError: RecursionError, and whatever a value of nonsense makes of itself
        raise BadData("inject.bad_yaml", path=path, reason=" ".join(str(e).split())) from None
    if not isinstance(items, list) or not isinstance(root, yaml.SequenceNode):
        raise BadData("inject.bad_yaml", path=path, reason=t("inject.rules_no_list"))
    problems: list[str] = []
    rules = []
    for item, node in zip(items, root.value, strict=True):
        where = f"{path}:{node.start_mark.line + 1}"
        found = [t("inject.rule_twice", name=reprlib.repr(key)) for key in _repeated(node)]
        rule = _rule(item, where, found)
        problems += [f"{where}: {problem}" for problem in found]
        if rule and not found:
            rules.append(rule)
    if problems:
        raise BadData("inject.bad_rules", path=path, problems="; ".join(problems))
    return rules


def _rule(item: Any, where: str, problems: list[str]) -> Rule | None:
    if not isinstance(item, dict):
        problems.append(t("inject.rule_no_mapping"))
        return None
    _check_keys(item, {"match", "replace", "recursive"}, "rule", problems)
    match, replace = item.get("match"), item.get("replace")
    if not isinstance(match, dict) or not ({"name", "class"} & match.keys()):
        problems.append(t("inject.rule_no_match"))
        match = {}
    if not isinstance(replace, dict):
        problems.append(t("inject.rule_no_replace"))
        replace = {}
    _check_keys(match, {"name", "class"}, "match", problems)
    _check_keys(replace, {"class", "kwargs"}, "replace", problems)
    recursive = item.get("recursive", True)
    if not isinstance(recursive, bool):
        problems.append(t("inject.rule_recursive", value=reprlib.repr(recursive)))
    kwargs = replace.get("kwargs") or {}
    if not isinstance(kwargs, dict):
        problems.append(t("inject.rule_no_kwargs"))
        kwargs = {}
    replacement = None
    if replace.get("class", DEFAULT) != DEFAULT:
        replacement = _load_class(replace["class"], problems)
        if replacement and not issubclass(replacement, nn.Module):
            problems.append(t("inject.rule_no_module", cls=replace["class"]))
            replacement = None
        _check_kwargs(replacement, kwargs, problems)
    return Rule(
        name=_pattern(match.get("name"), problems),
        match_class=_load_class(match["class"], problems) if "class" in match else None,
        replace_class=replacement,
        kwargs=kwargs,
        recursive=bool(recursive),
        where=where,
    )


def _repeated(node: yaml.Node) -> Iterator[object]:
    """Keys that a mapping at or below `node` has twice: YAML's reader takes the last one without a word."""
    if isinstance(node, yaml.MappingNode):
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        yield from (key for key in dict.fromkeys(keys) if keys.count(key) > 1)
        for _, value in node.value:
            yield from _repeated(value)


def _check_keys(mapping: dict[Any, Any], known: set[str], what: str, problems: list[str]) -> None:
    for key in mapping.keys() - known:
        problems.append(t("inject.rule_key", name=reprlib.repr(key), what=what, known=", ".join(sorted(known))))


def _pattern(text: Any, problems: list[str]) -> re.Pattern[str] | None:
    if text is None:
        return None
    try:
        return re.compile(text)
    except (re.error, TypeError, RecursionError, OverflowError) as e:
        problems.append(t("inject.rule_expression", reason=e))
        return None


def _load_class(path: Any, problems: list[str]) -> type | None:
    if not isinstance(path, str) or "." not in path:
        problems.append(t("inject.rule_path", path=reprlib.repr(path)))
        return None
    ours = LEGACY_CLASSES.get(path, path)
    ours = LEGACY_MODEL.sub(r"transformers.models.\1.modeling_\1.\2", ours)
    module, _, name = ours.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), name)
    except (Exception, SystemExit) as e:  # importing runs the module, which may fail in any way
        problems.append(t("inject.rule_import", path=path, reason=one_line(e)))
        return None
    if not isinstance(found, type):
        problems.append(t("inject.rule_no_class", path=path))
        return None
    return found


def _check_kwargs(cls: type | None, kwargs: dict[str, Any], problems: list[str]) -> None:
    if cls is None:
        return
    parameters = inspect.signature(cls).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return
    known = [name for name in parameters if name not in OPERATOR_ARGUMENTS]
    for key in kwargs:
        if key not in known:
            problems.append(t("inject.rule_argument", cls=cls.__name__, name=repr(key), known=", ".join(known)))
