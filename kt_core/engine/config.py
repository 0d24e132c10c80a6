"""The model's configuration as transformers understands it, and the blame when it does not."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import transformers
from transformers import CONFIG_MAPPING, AutoConfig, PretrainedConfig

from kt_core.errors import BadData, KTError, Unsupported
from kt_core.formats.problems import shown
from kt_core.models.spec import not_finite

_LINES = 2  # of a reason: the first one may name a setting, and the second what is wrong with it


def model_config(fields: dict[str, Any], path: str) -> PretrainedConfig:
    """transformers' object for `fields`, which `path` holds.

    Raises Unsupported for a model type that the installed transformers does not know, BadData for settings that
    it does not take.
    """
    if infinite := not_finite(fields):
        raise BadData("weights.not_finite", path=shown(path), fields=", ".join(map(shown, infinite)))
    family = str(fields.get("model_type"))
    if family not in CONFIG_MAPPING:
        raise unknown_family(family, "model_type")
    with blamed_on(path):
        return AutoConfig.for_model(**fields)


@contextmanager
def blamed_on(path: str) -> Iterator[None]:
    """Whatever transformers raises in this block, while it follows the settings of `path`, is BadData of that file."""
    try:
        yield
    except (KTError, ImportError, MemoryError):
        raise
    except Exception as e:
        lines = [shown(line.strip()) for line in str(e).splitlines() if line.strip()]
        reason = " ".join(lines[:_LINES])
        raise BadData("weights.config", path=shown(path), reason=f"{type(e).__name__}: {reason}") from e


def unknown_family(family: str, reason: str) -> Unsupported:
    """The error for a model type that transformers has no causal language model for."""
    return Unsupported("inject.unknown_family", family=shown(family), version=transformers.__version__, reason=reason)
