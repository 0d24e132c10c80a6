"""The files that KTransformers' and LlamaFactory's users have, and what is refused of them, by name."""

import dataclasses

import pytest
import yaml

from kt_core.errors import BadData, NotFound, Unsupported, UsageError
from kt_core.models import catalogue
from kt_core.train import estimate
from kt_core.train.settings import KT_CONFIG, check, read, settings, without_effect
from kt_core.types import MachineProfile, ModelSpec

SECOND = """
model_name_or_path: /data/models/Qwen3.5-397B-A17B
trust_remote_code: true
disable_gradient_checkpointing: false
stage: sft
do_train: true
finetuning_type: lora
lora_rank: 8
lora_alpha: 16
lora_dropout: 0.0
lora_target: all
dataset: your_dataset
template: qwen3_5
cutoff_len: 2048
packing: false
preprocessing_num_workers: 16
dataloader_num_workers: 4
output_dir: /data/output/qwen35-bf16-lora
logging_steps: 10
save_strategy: steps
save_steps: 500
plot_loss: true
overwrite_output_dir: false
save_only_model: false
report_to: none
per_device_train_batch_size: 1
gradient_accumulation_steps: 1
learning_rate: 1.0e-4
num_train_epochs: 3
lr_scheduler_type: cosine
warmup_ratio: 0.1
bf16: true
ddp_timeout: 180000000
use_kt: true
# kt_cpu_activation: retain
kt_config:
  kt_expert_weight_format: bf16
  kt_backend: auto
  kt_num_threads: 64
  kt_tp_enabled: true
  kt_threadpool_count: 2
  kt_max_cache_depth: 2
  kt_share_backward_bb: true
"""
FIRST = """
model_name_or_path: opensourcerelease/DeepSeek-V3-bf16
trust_remote_code: true
stage: sft
do_train: true
finetuning_type: lora
lora_rank: 8
lora_target: all
dataset: identity
template: deepseek
cutoff_len: 2048
max_samples: 100000
overwrite_cache: true
preprocessing_num_workers: 16
dataloader_num_workers: 4
output_dir: saves/Kllama_deepseekV3
logging_steps: 10
save_steps: 500
plot_loss: true
overwrite_output_dir: true
save_only_model: false
report_to: none # choices: [none, wandb, tensorboard, swanlab, mlflow]
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
learning_rate: 1.0e-4
num_train_epochs: 3.0
lr_scheduler_type: cosine
warmup_ratio: 0.1
bf16: true
ddp_timeout: 180000000
resume_from_checkpoint: null
use_kt: true
kt_optimize_rule: examples/kt_optimize_rules/DeepSeek-V3-Chat-sft-amx-multi-gpu.yaml
cpu_infer: 32
chunk_size: 8192
"""
PREFERENCES = FIRST.replace("stage: sft", "stage: dpo").replace(
    "lora_target: all", "lora_target: all\npref_beta: 0.1\npref_loss: sigmoid"
)
FP8 = SECOND.replace("bf16\n  kt_backend", "fp8\n  kt_backend")
INT8 = SECOND.replace(
    "kt_config:",
    """kt_weight_path: /data/models/Your-Routed-Experts-INT8
kt_non_expert_weight_path: /data/models/Your-Non-Expert-Cache-BF16
kt_config:
  kt_weight_lifecycle: persistent""",
).replace("format: bf16", "format: int8")
AMXINT4 = INT8.replace("  kt_expert_weight_format: int8\n", "").replace("backend: auto", "backend: AMXINT4")
FULL = "".join(
    f"{line}\n"
    for line in SECOND.replace("type: lora", "type: full").replace("1.0e-4", "1.0e-5").splitlines()
    if not line.startswith("lora_")
)
CHAT = """
model_name_or_path: opensourcerelease/DeepSeek-V3-bf16
adapter_name_or_path: saves/Kllama_deepseekV3
template: deepseek
infer_backend: ktransformers
trust_remote_code: true
use_kt: true
kt_optimize_rule: examples/kt_optimize_rules/DeepSeek-V3-Chat-sft-amx-multi-gpu.yaml
cpu_infer: 32
chunk_size: 8192
"""
CONVERTED = """
model_name_or_path: m
dataset: d
output_dir: o
kt_weight_path: /data/models/Your-Routed-Experts-INT8
kt_non_expert_weight_path: /data/models/Your-Non-Expert-Cache-BF16
kt_config: {kt_backend: auto, kt_expert_weight_format: int8, kt_weight_lifecycle: persistent}
"""


def written(tmp_path, text):
    file = tmp_path / "run.yaml"
    file.write_text(text)
    return file


@pytest.mark.parametrize("text", [SECOND, FP8, INT8, AMXINT4, FULL, FIRST, PREFERENCES, CHAT, CONVERTED])
def test_published_files_load_as_they_are(tmp_path, text):
    found = dataclasses.asdict(read(written(tmp_path, text)))
    for key, value in yaml.safe_load(text).items():
        assert found[key] == value, key


def test_what_the_files_mean(tmp_path):
    second, first = check(read(written(tmp_path, SECOND))), check(read(written(tmp_path, FIRST)))
    assert (second.threads, first.threads) == (64, 32)
    assert (second.scale, first.scale) == (2.0, 2.0)
    assert without_effect(first) == [
        "kt_optimize_rule", "chunk_size", "preprocessing_num_workers", "overwrite_cache", "trust_remote_code",
    ]  # fmt: skip
    assert check(read(written(tmp_path, FULL))).finetuning_type == "full"
    assert check(read(written(tmp_path, FP8))).threads == 64
    assert check(read(written(tmp_path, CHAT)), training=False).adapter_name_or_path == "saves/Kllama_deepseekV3"


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        (PREFERENCES.replace("stage: dpo", "stage: kto"), Unsupported, "Stage kto"),
        (PREFERENCES.replace("sigmoid", "kto_pair"), Unsupported, "pref_loss kto_pair"),
        (PREFERENCES.replace("type: lora", "type: full"), Unsupported, "no copy"),
        (PREFERENCES + "packing: true\n", UsageError, "not packed"),
        (CONVERTED + "finetuning_type: full\n", Unsupported, "kt_weight_path"),
        (SECOND.replace("type: lora", "type: oft"), Unsupported, "finetuning_type oft"),
        (SECOND.replace("type: lora", "type: full") + "optim: adafactor\n", Unsupported, "optim adafactor"),
        (SECOND + "  kt_train_mode: full\n", UsageError, "kt_train_mode full"),
        (SECOND + "  kt_model_max_length: 2050\n", UsageError, "at least 2056"),
        (SECOND + "  kt_lora_rank: 4\n", UsageError, "Two ranks"),
        (SECOND.replace("lora_rank: 8", "lora_rank: 300"), Unsupported, "up to 256"),
        (SECOND.replace("lora_rank: 8", "lora_rank: 0"), UsageError, "least is 1"),
        (SECOND.replace("dataset:", "# dataset:"), UsageError, "setting dataset is missing"),
        (SECOND + "fp16: true\n", Unsupported, "fp16"),
        (SECOND + "eval_strategy: steps\n", UsageError, "setting val_size"),
        (SECOND + "kt_cpu_activation: forget\n", UsageError, "retain, recompute"),
    ],
)
def test_what_kt_cannot_do_is_refused_by_name(tmp_path, text, error, says):
    with pytest.raises(error, match=says):
        check(read(written(tmp_path, text)))


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        ("lora_rang: 8", UsageError, "nearest known one is: lora_rank"),
        ("kt_config: {kt_backnd: auto}", UsageError, r"kt_config\.kt_backnd.* kt_backend\."),
        ("lora_rank: many", UsageError, "Its type is int"),
        ("lora_rank: 2.5", UsageError, "Its type is int"),
        ("packing: 3", UsageError, "Its type is bool"),
        ("kt_config: 3", UsageError, "Its type is dict"),
        ("- a list", BadData, "not a YAML file"),
        ("a: [", BadData, "not a YAML file"),
    ],
)
def test_files_with_mistakes(tmp_path, text, error, says):
    with pytest.raises(error, match=says):
        read(written(tmp_path, text))


def test_words_come_on_top_and_numbers_may_be_written_any_way(tmp_path):
    found = read(
        written(tmp_path, "learning_rate: 1e-4\nmax_steps: 1e2"), ["lora_rank=16", "kt_config={kt_num_threads: 3}"]
    )
    assert (found.learning_rate, found.max_steps, found.lora_rank, found.threads) == (1e-4, 100, 16, 3)
    with pytest.raises(UsageError, match="key=value"):
        read(written(tmp_path, "{}"), ["lora_rank"])
    with pytest.raises(NotFound):
        read(tmp_path / "none.yaml")


def test_every_nested_key_has_a_type_that_yaml_gives():
    assert set(KT_CONFIG.values()) <= {str, int, float, bool, dict}


def test_steps_and_memory():
    s = settings({"gradient_accumulation_steps": 4, "num_train_epochs": 2.5, "per_device_train_batch_size": 2})
    assert estimate.steps(50, s) == 15  # 25 batches, 6 steps an epoch
    assert estimate.steps(50, settings({"max_steps": 7})) == 7
    spec = ModelSpec(
        family="x", layers=4, hidden=1024, context=0, vocab=0, experts=32, experts_per_token=4, parameters=0,
        bytes_by_part={"experts": 1000}, kv_bytes_per_token=0, formats={"BF16": 1}, moe_layers=4, expert_width=512,
        parameters_by_part={"experts": 500, "attention": 10, "mtp": 77},
    )  # fmt: skip
    parts = estimate.memory(spec, settings({"bf16": True}))
    full = estimate.memory(spec, settings({"bf16": True, "finetuning_type": "full"}))
    assert full["trained"] == 16 * 500 + 12 * 10
    half = settings({"bf16": True, "finetuning_type": "freeze", "freeze_trainable_layers": -2})
    assert estimate.memory(spec, half)["trained"] == full["trained"] // 2
    assert parts["experts"] == 1000
    assert parts["weights"] == 40
    assert parts["adapter"] == 16 * 4 * 32 * 3 * 8 * (1024 + 512)


@pytest.mark.parametrize(
    ("name", "gpus", "vram", "ram"),
    [("Qwen3-235B-A22B-2507", 2, 27.14, 545.36), ("Qwen3.5-397B-A17B", 8, 20.37, 1075.68)],
)
def test_the_published_runs_memory_is_foreseen(name, gpus, vram, ram):
    """KTransformers' cookbook: 2,048 tokens, micro-batch 1, LoRA of rank 8; peaks of a GPU and of all processes, in GiB."""
    spec = catalogue.spec(catalogue.find(name))
    s, run = settings({"bf16": True, "lora_rank": 8, "cutoff_len": 2048}), estimate.Processes(gpus, gpu=True)
    assert sum(estimate.memory(spec, s, run).values()) / 2**30 == pytest.approx(ram, rel=0.1)
    assert estimate.gpu_memory(spec, s, run) / 2**30 == pytest.approx(vram, rel=0.1)


def test_time_is_foreseen_from_arithmetic_rates():
    spec = catalogue.spec(catalogue.find("Qwen3-235B-A22B-2507"))
    rates = MachineProfile(fingerprint={}, measured=1.0, read_rates={}, unit_rates={"bf16": {64: 1e13}}, link_rates={})
    s = settings({"bf16": True, "disable_gradient_checkpointing": True})
    least = 4 * 20e9 * 1000 / 1e13  # some 20e9 weights a token
    assert least < estimate.seconds(spec, s, 1000, rates, 60) < 3 * least
    more = estimate.seconds(spec, dataclasses.replace(s, disable_gradient_checkpointing=False), 1000, rates, 60)
    assert more == pytest.approx(1.5 * estimate.seconds(spec, s, 1000, rates, 60))
    assert estimate.seconds(spec, s, 1000, None, 60) is None
