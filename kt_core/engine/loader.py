"""From a plan to a model that runs: skeleton on the meta device, rules, weights, tokenizer."""

import inspect
import logging
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

from kt_core import inject, kernels
from kt_core.engine.config import blamed_on, model_config, unknown_family
from kt_core.engine.kept import Kept, fitting_context, kept, report
from kt_core.engine.placing import RULES, Placing, kept_exact, placing_of, said_when_full, settled, shared_out
from kt_core.engine.room import device_runner_and_pages, runner_and_pages
from kt_core.engine.runners.facts import CACHE_NAMES
from kt_core.engine.step import Runner
from kt_core.engine.tokenizer import end_tokens, load_tokenizer
from kt_core.engine.trial import try_out
from kt_core.engine.vision import Eyes, Vision
from kt_core.errors import BadData, EnvironmentProblem, NotFound, Unsupported
from kt_core.events import one_line
from kt_core.formats import gguf
from kt_core.messages import t
from kt_core.operators.base import Operator
from kt_core.types import Plan, Progress
from kt_core.weights import Weights, open_weights

log = logging.getLogger(__name__)

# Checkpoint tensors that no inference needs: buffers that are computed, not stored.
COMPUTED = re.compile(r"(rotary_emb\.inv_freq|attn\.masked_bias|attn\.bias)$")
LAYER = re.compile(r"\.layers\.(\d+)\.")
PREDICTION = re.compile(r"\.layers\.(\d+)\.(.*\.)?eh_proj\.")


def load(plan: Plan, progress: Progress) -> tuple[Runner, Any, int, Vision | None]:
    """Build the planned model. Returns (runner, tokenizer, pages of the cache, what looks at images).

    Raises BadData when a tensor is missing, has another shape, was not used or makes nothing but NaN; Unsupported for
    a model or layout that kt cannot run; EnvironmentProblem when the extension or the device is missing; DoesNotFit.
    """
    placing = placing_of(plan)
    if plan.value("tier"):
        os.environ.setdefault("KT_KERNEL_CPU_VARIANT", str(plan.value("tier")))
    kernels.set_pools(plan.value("pools"))
    torch.set_num_threads(int(plan.value("threads")))
    progress("tokenizer", 0, 1, "")
    header = gguf.read_model(plan.model.path) if plan.model.format == "gguf" else None
    tokenizer = load_tokenizer(plan.model, header)
    eyes = Eyes.of(plan)
    weights = open_weights(plan.model, header, vision=eyes.processor is not None)
    rules = plan.value("rules")
    context, extra = int(plan.value("context")), 0

    def agree(found: Kept) -> None:
        nonlocal context, extra
        report(found, sum(plan.spec.bytes_by_part.values()))
        if not placing:  # else they are on the device
            context, extra = fitting_context(plan, found), found.decoded - found.stored

    with said_when_full(placing):
        model = build(weights, progress, Path(rules) if rules else None, agree, placing)
        try_out(model)
        model.generation_config.eos_token_id = sorted(end_tokens(plan.model, tokenizer, header))
        log.info("kernels: %s", kernels.info())
        if placing:
            runner, pages = device_runner_and_pages(model, plan, placing)
        else:
            runner, pages = runner_and_pages(model, plan, context, extra)
    return runner, tokenizer, pages, eyes.vision(model, tokenizer)


def build(
    weights: Weights,
    progress: Progress,
    rule_file: Path | None = None,
    agree: Callable[[Kept], None] = lambda found: None,
    placing: Placing | None = None,
) -> PreTrainedModel:
    """The model of `weights`, every layer in place and loaded, in evaluation mode.

    The operators are those of the rule file, by default kt's own: for the CPU, or, with `placing`, for its device and the
    CPU together. `agree` hears what stays transformers' own against a rule before any weight is read.
    """
    rules = inject.read_rules(rule_file or (RULES if placing else inject.default_rules()))
    config = model_config(weights.config(), weights.described_in)
    model = skeleton(weights)
    decisions = inject.decide(model, rules)
    if rule_file:
        for rule in inject.unused_rules(rules, decisions):
            log.warning("%s", t("inject.unused_rule", where=rule.where))
    agree(kept(model, decisions, weights))
    decisions = shared_out(model, decisions, placing, weights) if placing else decisions
    model = inject.apply(model, decisions, weights, config)
    _load_operators(model, weights, progress)
    _compute_buffers(model)
    _load_rest(model, weights, placing)
    if placing:
        settled(model, placing)
    _check_unused(model, weights, config)
    weights.forget_pages()
    return model.eval()


def skeleton(weights: Weights) -> PreTrainedModel:
    """The model of `weights` on the meta device, whose parameters' names these know."""
    model = _skeleton(model_config(weights.config(), weights.described_in), weights.described_in, weights.vision)
    # A checkpoint of the model without its head has names without the prefix, and some families publish theirs so.
    weights.tie({f"{model.base_model_prefix}.{name}": name for name in weights.names()})
    weights.tie(model.all_tied_weights_keys)
    return model


def _skeleton(config: PretrainedConfig, path: str, vision: bool) -> PreTrainedModel:
    """The model on the meta device: nothing is allocated. float32 between operators. `path` holds the configuration.

    With `vision`, or where the family has no other, it is the class that looks at images.
    """
    seeing = type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
    if seeing and (vision or type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING):
        classes, auto = MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING, AutoModelForImageTextToText
    else:
        classes, auto = MODEL_FOR_CAUSAL_LM_MAPPING, AutoModelForCausalLM
    if type(config) not in classes:
        raise unknown_family(config.model_type, "AutoModelForCausalLM")
    try:
        classes[type(config)]  # imports the family's code, which no setting can break
    except Exception as e:
        raise EnvironmentProblem("server.broken_package", reason=one_line(e)) from e
    with torch.device("meta"), blamed_on(path):
        model = auto.from_config(config, dtype=torch.float32)
    # An encoder's attention looks ahead, and a model without a cache would forget all but the last token.
    encoder = config.model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES and not getattr(model.config, "is_decoder", True)
    if encoder or not set(CACHE_NAMES) & inspect.signature(model.forward).parameters.keys():
        raise Unsupported("inject.no_generator", family=config.model_type)
    return model


def _load_operators(model: nn.Module, weights: Weights, progress: Progress) -> None:
    """Pages of the files that were packed are forgotten at once: the process is never larger than the model."""
    operators = [m for m in model.modules() if isinstance(m, Operator)]
    for done, operator in enumerate(operators):
        progress("weights", done, len(operators), "modules")
        try:
            operator.load()
        except NotFound as e:  # the model's files were found; what they hold is not enough
            raise BadData(e.key, **e.args_) from e
        weights.forget_pages()
    progress("weights", len(operators), len(operators), "modules")


def _load_rest(model: PreTrainedModel, weights: Weights, placing: Placing | None) -> None:
    """Parameters and stored buffers of the modules that stayed transformers' own, parameters on the device where there is one.
    A name the checkpoint lacks is an error."""
    missing = []
    for prefix, module in model.named_modules():
        computed = module._non_persistent_buffers_set
        stored = {**module._parameters, **{n: b for n, b in module._buffers.items() if n not in computed}}
        for name, old in stored.items():
            if old is None:
                continue
            full = f"{prefix}.{name}" if prefix else name
            if full not in weights:
                missing.append(full)
                continue
            floats = torch.float32
            if placing and name in module._parameters and not kept_exact(model, full):
                floats = placing.device.dtype
            tensor = weights.tensor(full, floats if old.is_floating_point() else old.dtype)
            if tensor.shape != old.shape:
                raise BadData("inject.shape", name=full, found=list(tensor.shape), expected=list(old.shape))
            if name in module._parameters:
                tensor = tensor.to(placing.place(model, full)) if placing else tensor
                module._parameters[name] = nn.Parameter(tensor, requires_grad=False)
            else:
                module._buffers[name] = tensor
    if missing:
        raise BadData("inject.missing", count=len(missing), names=", ".join(missing[:5]))


def _compute_buffers(model: PreTrainedModel) -> None:
    """Buffers that are not stored (rotary frequencies) were lost on the meta device: the models' own initialisers make
    them again. Some are made by the module that holds them, some by one above it.

    Raises Unsupported for a buffer that none of them made.
    """
    holders = {path: m for path, m in model.named_modules() if m._non_persistent_buffers_set}
    for module in holders.values():
        for name in module._non_persistent_buffers_set:
            if (old := module._buffers[name]) is not None:
                unset = torch.nan if old.is_floating_point() else 0
                module._buffers[name] = torch.full_like(old, unset, device="cpu")
    above = {path[:end] for path in holders for end in [0, *(m.start() for m in re.finditer(r"\.", path)), len(path)]}
    for path in sorted(above, key=len, reverse=True):  # what lies deeper comes first, as transformers does it
        _nearest_model(model, path)._init_weights(model.get_submodule(path))
    for path, module in holders.items():
        for name in module._non_persistent_buffers_set:
            if (made := module._buffers[name]) is not None and made.is_floating_point() and made.isnan().any():
                raise Unsupported("inject.buffer", name=f"{path}.{name}", cls=type(module).__name__)


def _nearest_model(model: PreTrainedModel, path: str) -> PreTrainedModel:
    """The innermost model of transformers that the module at `path` is, or belongs to: initialisers read its fields."""
    nearest, module = model, model
    for part in path.split(".") if path else ():
        module = getattr(module, part)
        nearest = module if isinstance(module, PreTrainedModel) else nearest
    return nearest


def _check_unused(model: PreTrainedModel, weights: Weights, config: PretrainedConfig) -> None:
    """Every checkpoint tensor was used, or is known to have no place: the layers of multi-token
    prediction behind the last one, computed buffers, and a stored head that is tied.

    A layer behind the last one is of that kind when config.json counts it as such or it has the projection that all
    of them have; any other would be a part of the model that config.json leaves out.
    """
    layers = config.get_text_config().num_hidden_layers
    spare = {layers + i for i in range(_whole(getattr(config.get_text_config(), "num_nextn_predict_layers", 0)))}
    spare |= {
        int(found[1]) for name in weights.names() if (found := PREDICTION.search(name)) and int(found[1]) >= layers
    }
    ignored = [re.compile(p) for p in model._keys_to_ignore_on_load_unexpected or ()]

    def expected(name: str) -> bool:
        layer = LAYER.search(name)
        if layer and int(layer.group(1)) in spare:
            return True
        if name in model.all_tied_weights_keys:
            return True
        return bool(COMPUTED.search(name)) or any(p.search(name) for p in ignored if "layers" not in p.pattern)

    unused = [name for name in weights.unused() if not expected(name)]
    if unused:
        raise BadData("inject.unused", count=len(unused), names=", ".join(unused[:5]))


def _whole(value: object) -> int:
    """A setting that families need not have, as a count: 0 for anything but a whole number of reasonable size."""
    return value if type(value) is int and 0 < value < 100 else 0
