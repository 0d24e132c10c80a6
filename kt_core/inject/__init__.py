"""Putting kt's operators into a transformers model by YAML rules."""

from kt_core.inject.apply import Decision, apply, decide, unused_rules
from kt_core.inject.rules import Rule, default_rules, read_rules

__all__ = ["Decision", "Rule", "apply", "decide", "default_rules", "read_rules", "unused_rules"]
