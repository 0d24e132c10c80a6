"""What a fine-tuning run is to do: LlamaFactory's keys, checked, from a YAML file and `key=value` words."""

import difflib
import types
import typing
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml

from kt_core import paths
from kt_core.errors import BadData, NotFound, Unsupported, UsageError

STAGES = ("sft", "pt", "dpo")
TYPES = ("lora", "full", "freeze")
REFERRED = ("sigmoid", "ipo")  # losses against the model as it was
PREFERENCES = (*REFERRED, "orpo", "simpo")
MARGIN = 8  # tokens that kt_model_max_length must have beyond cutoff_len
EXPORTS = ("pair", "peft", "sglang")  # forms of kt sft export
PARTS = ("all", "experts", "others")
LEAST: dict[str, float] = {
    "lora_rank": 1, "cutoff_len": 2, "per_device_train_batch_size": 1, "per_device_eval_batch_size": 1,
    "gradient_accumulation_steps": 1, "logging_steps": 1, "save_steps": 1, "num_train_epochs": 0, "learning_rate": 0,
    "warmup_steps": 0, "warmup_ratio": 0, "weight_decay": 0, "lora_dropout": 0, "val_size": 0, "dataloader_num_workers": 0,
}  # fmt: skip
MEASURES = ("loss", "text", "choice")  # of kt sft eval
ACTIVATIONS = ("retain", "recompute")
MODES = {"lora": "lora", "full": "full", "freeze": "hybrid"}  # kt_train_mode of each finetuning_type
ADAMW = ("adamw_torch", "adamw_torch_fused")

# Keys of KTransformers' `kt_config`, with the type of each.
KT_CONFIG: dict[str, type] = {
    "enabled": bool, "kt_backend": str, "kt_num_threads": int, "kt_tp_enabled": bool, "kt_threadpool_count": int,
    "kt_weight_path": str, "kt_non_expert_weight_path": str, "kt_expert_weight_format": str,
    "kt_weight_lifecycle": str, "kt_expert_checkpoint_path": str, "kt_num_gpu_experts": int,
    "kt_skip_expert_loading": bool, "kt_share_backward_bb": bool, "kt_share_cache_pool": bool,
    "kt_force_fused_expert_lora": bool, "kt_max_cache_depth": int, "kt_model_max_length": int,
    "kt_activation_policy": dict, "kt_lora_rank": int, "kt_lora_alpha": float, "kt_lora_dropout": float,
    "kt_train_mode": str, "kt_full_weight_grad": bool, "kt_use_lora_experts": bool, "kt_lora_expert_num": int,
    "kt_lora_expert_intermediate_size": int,
}  # fmt: skip


@dataclass(frozen=True)
class Settings:
    """Names and meanings are those of llamafactory's argument classes; None is "not said"."""

    # model
    model_name_or_path: str = ""
    adapter_name_or_path: str | None = None
    trust_remote_code: bool = False  # kt never runs code from a model
    disable_gradient_checkpointing: bool = False
    # method
    stage: str = "sft"
    do_train: bool = True
    finetuning_type: str = "lora"
    lora_rank: int = 8
    lora_alpha: float | None = None  # 2 * lora_rank
    lora_dropout: float = 0.0
    lora_target: str | list[str] = "all"
    use_rslora: bool = False
    pref_beta: float = 0.1
    pref_loss: str = "sigmoid"
    simpo_gamma: float = 0.5
    freeze_trainable_layers: int = 2  # the last ones; below 0 the first ones
    freeze_trainable_modules: str | list[str] = "all"
    freeze_extra_modules: str | list[str] | None = None
    # data
    dataset: str | list[str] = ""
    dataset_dir: str = "data"
    template: str | None = None
    cutoff_len: int = 2048
    max_samples: int | None = None
    packing: bool = False
    train_on_prompt: bool = False
    overwrite_cache: bool = False
    preprocessing_num_workers: int | None = None
    dataloader_num_workers: int = 0
    val_size: float = 0.0  # below 1 a share of the samples, else their number
    # output
    output_dir: str = ""
    logging_steps: int = 10
    eval_strategy: str = "no"
    eval_steps: int | None = None
    save_strategy: str = "steps"
    save_steps: int = 500
    save_total_limit: int | None = None
    save_only_model: bool = False
    plot_loss: bool = False
    overwrite_output_dir: bool = False
    report_to: str | list[str] = "none"
    run_name: str | None = None
    # training
    per_device_train_batch_size: int = 1
    per_device_eval_batch_size: int = 1
    gradient_accumulation_steps: int = 1
    learning_rate: float = 1e-4
    num_train_epochs: float = 3.0
    max_steps: int = -1
    lr_scheduler_type: str = "cosine"
    warmup_ratio: float = 0.0
    warmup_steps: int = 0
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    optim: str = "adamw_torch"
    bf16: bool = False
    fp16: bool = False
    seed: int = 42
    use_cpu: bool = False  # also where there is a GPU for all but the experts
    ddp_timeout: int = 1800
    resume_from_checkpoint: str | bool | None = None
    # experts on the CPU
    use_kt: bool = True
    kt_config: dict[str, Any] = field(default_factory=dict)
    kt_weight_path: str | None = None
    kt_non_expert_weight_path: str | None = None
    kt_cpu_activation: str = "retain"
    kt_optimize_rule: str | None = None
    cpu_infer: int | None = None
    chunk_size: int | None = None
    # chat and API files
    infer_backend: str | None = None

    @property
    def alpha(self) -> float:
        return 2.0 * self.lora_rank if self.lora_alpha is None else self.lora_alpha

    @property
    def scale(self) -> float:
        """What B A is multiplied with."""
        return self.alpha / (self.lora_rank**0.5 if self.use_rslora else self.lora_rank)

    @property
    def experts_path(self) -> str | None:
        """A checkpoint of the same model that the experts are read from."""
        return self.kt_weight_path or self.kt_config.get("kt_weight_path")

    @property
    def threads(self) -> int | None:
        return self.kt_config.get("kt_num_threads") or self.cpu_infer

    @property
    def keep_activations(self) -> bool:
        policy = self.kt_config.get("kt_activation_policy") or {}
        return bool(policy.get("cpu", self.kt_cpu_activation) == "retain")


def read(file: str | Path, words: typing.Sequence[str] = ()) -> Settings:
    """The settings of a YAML file, with `key=value` words on top.

    Raises NotFound, BadData for a file that is not a YAML mapping, UsageError for an unknown key (with the nearest known
    one), a value of another type or a word that is not key=value. What kt cannot do is for `check` to say.
    """
    path = Path(file)
    try:
        found = yaml.safe_load(paths.text(path))
    except FileNotFoundError:
        raise NotFound("train.no_file", file=path) from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise BadData("train.bad_yaml", file=path, reason=" ".join(str(error).split())) from None
    if not isinstance(found, dict):
        raise BadData("train.bad_yaml", file=path, reason=type(found).__name__)
    return settings({str(key): value for key, value in found.items()} | on_top(words))


def on_top(words: typing.Iterable[str]) -> dict[str, Any]:
    """Values of `key=value` words. Raises UsageError for another word."""
    return dict(map(_word, words))


def settings(values: dict[str, Any]) -> Settings:
    """Settings of plain values. Raises UsageError as `read` does."""
    hints = typing.get_type_hints(Settings)
    checked = {}
    for key, value in values.items():
        if key not in hints:
            raise UsageError("train.unknown_key", setting=key, near=_near(key, hints))
        if value is not None or types.NoneType in typing.get_args(hints[key]):
            checked[key] = _converted(key, value, hints[key])
    for key, value in (checked.get("kt_config") or {}).items():
        if key not in KT_CONFIG:
            raise UsageError("train.unknown_key", setting=f"kt_config.{key}", near=_near(key, KT_CONFIG))
        if value is not None:
            checked["kt_config"][key] = _converted(f"kt_config.{key}", value, KT_CONFIG[key])
    return Settings(**checked)


def check(s: Settings, training: bool = True) -> Settings:
    """The settings, which kt can do. Raises UsageError for what contradicts itself or is missing, Unsupported, by name."""
    needed = ("model_name_or_path", "dataset", "output_dir") if training else ("model_name_or_path",)
    for key in needed:
        if not getattr(s, key):
            raise UsageError("train.needs_key", setting=key)
    if s.stage not in STAGES:
        raise Unsupported("train.stage", stage=s.stage, known=", ".join(STAGES))
    if s.pref_loss not in PREFERENCES:
        raise Unsupported("train.preference", loss=s.pref_loss, known=", ".join(PREFERENCES))
    if s.stage == "dpo" and s.packing:
        raise UsageError("train.packed_pairs")
    _check_type(s)
    if s.fp16:
        raise Unsupported("train.key", setting="fp16")
    if s.eval_strategy != "no" and not s.val_size:
        raise UsageError("train.needs_key", setting="val_size")
    if s.kt_config.get("kt_use_lora_experts"):
        raise Unsupported("train.key", setting="kt_config.kt_use_lora_experts")
    for key, least in LEAST.items():
        if not getattr(s, key) >= least:
            raise UsageError("train.too_small", setting=key, least=least, value=getattr(s, key))
    if s.lora_rank > 256:
        raise Unsupported("train.rank", rank=s.lora_rank)
    if s.kt_cpu_activation not in ACTIVATIONS:
        raise UsageError(
            "train.choice", setting="kt_cpu_activation", value=s.kt_cpu_activation, known=", ".join(ACTIVATIONS)
        )
    longest = s.kt_config.get("kt_model_max_length")
    if longest and longest < s.cutoff_len + MARGIN:
        raise UsageError("train.max_length", longest=longest, cutoff=s.cutoff_len, least=s.cutoff_len + MARGIN)
    rank = s.kt_config.get("kt_lora_rank")
    if rank and rank != s.lora_rank:
        raise UsageError("train.two_ranks", inner=rank, outer=s.lora_rank)
    return s


def _check_type(s: Settings) -> None:
    if s.finetuning_type not in TYPES:
        raise Unsupported("train.finetuning_type", type=s.finetuning_type, known=", ".join(TYPES))
    mode = s.kt_config.get("kt_train_mode") or MODES[s.finetuning_type]
    if mode != MODES[s.finetuning_type] or (s.finetuning_type == "lora" and s.kt_config.get("kt_full_weight_grad")):
        raise UsageError("train.two_modes", type=s.finetuning_type, mode=mode)
    if s.finetuning_type == "lora":
        return
    if s.experts_path:
        raise Unsupported("train.frozen_experts", type=s.finetuning_type)
    if s.stage == "dpo" and s.pref_loss in REFERRED:
        raise Unsupported("train.no_reference", type=s.finetuning_type, loss=s.pref_loss)
    if s.optim not in ADAMW:
        raise Unsupported("train.optim", optim=s.optim, type=s.finetuning_type, known=", ".join(ADAMW))


def without_effect(s: Settings) -> list[str]:
    """Keys that were set, mean something elsewhere, and change nothing here."""
    default = Settings()
    keys = [
        "kt_optimize_rule",
        "chunk_size",
        "kt_non_expert_weight_path",
        "preprocessing_num_workers",
        "overwrite_cache",
        "trust_remote_code",
    ]
    if s.finetuning_type != "lora":
        keys += ["lora_rank", "lora_alpha", "lora_dropout", "lora_target", "use_rslora"]
    return [key for key in keys if getattr(s, key) != getattr(default, key)]


def _word(word: str) -> tuple[str, Any]:
    key, equals, value = word.partition("=")
    if not equals or not key:
        raise UsageError("train.bad_word", word=word)
    try:
        return key.removeprefix("--"), yaml.safe_load(value)
    except yaml.YAMLError:
        raise UsageError("train.bad_word", word=word) from None


def _near(key: str, known: typing.Iterable[str]) -> str:
    return next(iter(difflib.get_close_matches(key, list(known), 1, 0.5)), "-")


def _converted(key: str, value: Any, hint: Any) -> Any:
    """The value as its type; YAML reads 1e-4 as text. Raises UsageError."""
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    options = tuple(typing.get_origin(option) or option for option in options)
    if value is None and types.NoneType in options:
        return None
    for option in options:
        if type(value) is option:
            return value
    try:
        if float in options and not isinstance(value, bool):
            return float(value)
        if int in options and not isinstance(value, bool) and float(value) == int(float(value)):
            return int(float(value))
    except (TypeError, ValueError):
        pass
    if str in options and isinstance(value, int | float):
        return str(value)
    names = ", ".join(option.__name__ for option in options if option is not types.NoneType)
    raise UsageError("train.type", setting=key, value=value, type=names)


def keys() -> list[str]:
    """Every key that a file may have."""
    return [f.name for f in fields(Settings)]
