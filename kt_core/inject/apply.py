"""Which rule decides each module, and the replacement itself."""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from kt_core.inject.rules import Rule


@dataclass(frozen=True)
class Decision:
    """What happens to the module at `key` ("" is the root): `replacement` None keeps it.

    `unfit` says why the rule's class cannot stand in for this module, which is kept then.
    """

    key: str
    replacement: type | None
    kwargs: dict[str, Any]
    rule: Rule | None
    unfit: str = ""


def decide(model: nn.Module, rules: Sequence[Rule], device: str = "cpu") -> dict[str, Decision]:
    """The decision for every module, by depth-first walk from the root; nothing is changed.

    A module no rule matches keeps its class and gets `device` for both phases; so does one that the rule's class
    finds unfit, by its class method `unfit(module, config) -> reason`, where it has one. Modules below a rule with
    `recursive: false` have no entry.
    """
    config = getattr(model, "config", None)
    return {d.key: d for d in _walk(model, "", rules, device, config)}


def unused_rules(rules: Sequence[Rule], decisions: dict[str, Decision]) -> list[Rule]:
    """The rules that decided no module: in a file that a person wrote, probably a mistake."""
    used = {id(d.rule) for d in decisions.values()}
    return [rule for rule in rules if id(rule) not in used]


def _walk(module: nn.Module, key: str, rules: Sequence[Rule], device: str, config: Any) -> Iterator[Decision]:
    rule = next((r for r in rules if _matches(r, module, key)), None)
    check = getattr(rule.replace_class, "unfit", None) if rule else None
    unfit = check(module, config) if check else ""
    if rule is None or unfit:
        yield Decision(key, None, {"generate_device": device, "prefill_device": device}, rule, unfit)
    else:
        yield Decision(key, rule.replace_class, copy.deepcopy(rule.kwargs), rule)
    if rule is None or unfit or rule.recursive:
        for name, child in module._modules.items():
            if child is not None:
                yield from _walk(child, f"{key}.{name}" if key else name, rules, device, config)


def _matches(rule: Rule, module: nn.Module, key: str) -> bool:
    if rule.match_class is not None and not isinstance(module, rule.match_class):
        return False
    return rule.name is None or rule.name.search(key) is not None


def apply(model: nn.Module, decisions: dict[str, Decision], weights: Any, config: Any) -> nn.Module:
    """Replace the modules as decided and return the root (itself replaced when a rule says so).

    A replacement is made as Class(key=, weights=, config=, orig_module=, **kwargs). The walk goes on
    inside the original module, which a replacement may keep and call.
    """
    return _replace(model, "", decisions, weights, config)


def _replace(module: nn.Module, key: str, decisions: dict[str, Decision], weights: Any, config: Any) -> nn.Module:
    for name, child in list(module._modules.items()):
        path = f"{key}.{name}" if key else name
        if child is not None and path in decisions:
            module._modules[name] = _replace(child, path, decisions, weights, config)
    decision = decisions[key]
    if decision.replacement is None:
        return module
    new: nn.Module = decision.replacement(
        key=key, weights=weights, config=config, orig_module=module, **decision.kwargs
    )
    return new
