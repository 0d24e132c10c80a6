"""One fine-tuning run, from settings to an adapter folder."""

import os
import shutil
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import set_seed

from kt_core import kernels, models, paths
from kt_core.engine.loader import build, skeleton
from kt_core.engine.tokenizer import load_tokenizer
from kt_core.errors import NotFound, Unsupported, UsageError
from kt_core.events import Events
from kt_core.kernels.pool import thread_groups
from kt_core.machine import default_threads, probe, profile
from kt_core.messages import t
from kt_core.models import catalogue
from kt_core.train import adapter, base, checkpoint, described, estimate, experts_of, lora, placing, preference, ranks
from kt_core.train.data import load, load_pairs
from kt_core.train.encode import collate, encode_all
from kt_core.train.estimate import ONE, Processes
from kt_core.train.optimizer import AdamW
from kt_core.train.settings import Settings, without_effect
from kt_core.train.trainer import STAGING, Keeping, RunTrainer, Telling, arguments, resume_from
from kt_core.types import ModelFiles, ModelSpec
from kt_core.weights import Weights, open_weights

RULES = Path(__file__).with_name("rules.yaml")


def foresee(s: Settings, events: Events, processes: Processes = ONE) -> None:
    """Tells what a run would take, and trains nothing; of a known model that is not on this disk, memory alone. Raises KTError."""
    arguments(s)
    if processes == ONE and not s.use_cpu and torch.cuda.is_available():
        processes = Processes(1, gpu=True)
    known = catalogue.find(s.model_name_or_path)
    spec = catalogue.spec(known) if known else None
    try:
        models.resolve(s.model_name_or_path)
    except NotFound:
        if spec is None:
            raise
        _tell_plan(spec, s, 0, None, processes, events)
    else:
        plan(s, events, processes)


def plan(s: Settings, events: Events, processes: Processes = ONE) -> tuple[ModelFiles, Any, list[Any]]:
    """The model's files, its tokenizer and the data; tells what the run will take. Raises KTError."""
    for key in without_effect(s):
        events.emit("warning", what=t("train.no_effect", setting=key))
    if s.lora_dropout:
        events.emit("warning", what=t("train.dropout"))
    files = models.resolve(s.model_name_or_path)
    spec = experts_of.spec_of(files, s.experts_path)
    if s.finetuning_type != "lora":
        base.refuse(spec.formats, s)
    machine = probe()
    estimate.check(spec, s, machine, processes)
    tokenizer = load_tokenizer(files)
    use_template(tokenizer, s.template)
    rows: list[Any]
    if s.stage == "dpo":
        pairs = load_pairs(s.dataset, s.dataset_dir, s.max_samples)
        rows, report = preference.encode_pairs(pairs, tokenizer, s.cutoff_len)
    else:
        samples = load(s.dataset, s.dataset_dir, s.max_samples)
        rows, report = encode_all(samples, tokenizer, s.cutoff_len, s.packing, s.train_on_prompt or s.stage == "pt")
    events.emit("report", text=report.text(), **vars(report))
    steps = estimate.steps(len(rows) // processes.count, s)
    batch = s.per_device_train_batch_size * s.gradient_accumulation_steps * processes.count
    tokens = int(steps * batch * report.tokens / report.rows)
    threads = s.threads or default_threads(machine)[0]
    time = None if processes.gpu else estimate.seconds(spec, s, tokens, profile.of(machine), threads)
    _tell_plan(spec, s, steps, time, processes, events)
    return files, tokenizer, rows


def _tell_plan(
    spec: ModelSpec, s: Settings, steps: int, time: float | None, processes: Processes, events: Events
) -> None:
    parts = estimate.memory(spec, s, processes)
    gpu = estimate.gpu_memory(spec, s, processes) if processes.gpu else 0
    told = [t("train.plan", size=f"{sum(parts.values()) / 2**30:.1f}")]
    if gpu:
        told.append(t("train.plan_gpu", count=processes.count, size=f"{gpu / 2**30:.1f}"))
    if steps:
        told.append(t("train.plan_steps", steps=steps))
    if time:
        told.append(t("train.plan_time", time=f"{int(time) // 3600}:{int(time) // 60 % 60:02}:{int(time) % 60:02}"))
    events.emit("plan", text=", ".join(told), steps=steps, bytes=parts, gpu_bytes=gpu, seconds=time)


def run(s: Settings, events: Events) -> None:
    """Train, tell how it goes, and leave the adapter, or the trained model, in `output_dir`. Raises KTError."""
    started = arguments(s)
    processes = Processes(ranks.count(), gpu=started.device.type == "cuda")  # asked for its device, it meets the others
    set_threads(s)
    folder = Path(s.output_dir)
    whole = s.finetuning_type != "lora"
    if processes.count > 1 and (whole or s.resume_from_checkpoint):
        raise Unsupported("train.one_process", count=processes.count)
    resumed = resume_from(s, base.WEIGHTS if whole else described.WEIGHTS)
    device = placing.chosen(s, started.device.type, processes.count)
    files, tokenizer, rows = plan(s, events, processes)
    ranks.wait()  # nobody reads an older run's traces any more
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError("train.no_folder", folder=folder, reason=error.strerror or error) from None
    model, facts = prepared(s, files, events, device)
    if device:
        placing.settle(model, s, device, events, estimate.activations(experts_of.spec_of(files, s.experts_path), s))
    facts["template"] = tokenizer.chat_template
    keeping = _of_weights(model, open_weights(files), s) if whole else _of_adapter(model, s, facts)
    filler = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id or 0
    held, rows = split(rows, s)
    pairs = s.stage == "dpo"
    trainer = _kind(s)(
        model,
        started,
        partial(preference.collate_pairs if pairs else collate, filler=filler),
        rows,
        held or None,
        keeping=keeping,
        most=s.save_total_limit,
        optimizer_cls_and_kwargs=_adamw(model, s) if whole else None,
    )
    trainer.add_callback(Telling(events, folder, trainer))
    trainer.train(resume_from_checkpoint=resumed)
    if held:
        trainer.evaluate()
    leave(keeping, folder)
    if ranks.first():
        tokenizer.save_pretrained(folder)
    if s.plot_loss and ranks.first():
        plot(trainer.state.log_history, folder, events)
    events.emit("done", folder=str(folder), steps=trainer.state.global_step)


def _kind(s: Settings) -> Any:
    if s.stage != "dpo":
        return RunTrainer
    return partial(preference.PairTrainer, beta=s.pref_beta, gamma=s.simpo_gamma, kind=s.pref_loss)


def _adamw(model: Any, s: Settings) -> tuple[Any, dict[str, Any]]:
    experts = [module for module in model.modules() if isinstance(module, lora.TrainedExperts)]
    return AdamW, {"experts": experts, "lr": s.learning_rate}


def _of_adapter(model: Any, s: Settings, facts: dict[str, Any]) -> Keeping:
    save = partial(adapter.save, model, settings=s, facts=facts)
    return Keeping(save, partial(adapter.load, model, scale=s.scale), described.WEIGHTS)


def _of_weights(model: Any, weights: Weights, s: Settings) -> Keeping:
    """A complete checkpoint in the base's float type, and beside it what is trained as it is, to go on from."""
    plain = skeleton(weights)
    dtype = checkpoint.dtype_of(weights.config())

    def tensor(name: str) -> torch.Tensor:
        path, _, leaf = name.rpartition(".")
        module = model.get_submodule(path)
        if not isinstance(module, lora.TrainedExperts):
            found: torch.Tensor = getattr(module, leaf).detach()
            return found
        return module.fused(leaf) if module.masters() else weights.tensor(name, dtype)

    def save(folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        checkpoint.write(plain, checkpoint.names(plain), tensor, folder, dtype)
        if not s.save_only_model:
            base.save(model, folder)

    return Keeping(save, partial(base.load, model), base.WEIGHTS)


def leave(keeping: Keeping, folder: Path) -> None:
    """The result into the folder, its files written beside and moved; what only a run goes on from is left out."""
    partial_folder = folder / STAGING
    shutil.rmtree(partial_folder, ignore_errors=True)
    keeping.save(partial_folder)
    if not ranks.first():
        return
    (partial_folder / base.WEIGHTS).unlink(missing_ok=True)
    for file in sorted(partial_folder.iterdir(), key=lambda path: path.suffix == ".safetensors"):
        file.replace(folder / file.name)
    partial_folder.rmdir()


def split(rows: list[Any], s: Settings) -> tuple[list[Any], list[Any]]:
    """Rows that are held out to measure the loss on, by `val_size` and `seed`, and those to train on."""
    count = int(s.val_size if s.val_size >= 1 else s.val_size * len(rows))
    if count >= len(rows):
        raise UsageError("train.too_many_held", count=count, rows=len(rows))
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(s.seed)).tolist()
    held = set(order[:count])
    return [rows[i] for i in sorted(held)], [row for i, row in enumerate(rows) if i not in held]


def set_threads(s: Settings) -> None:
    """Threads of the kernels and of torch, as asked for or all cores; one group for each of kt_threadpool_count."""
    threads = s.threads or default_threads(probe())[0]
    kernels.set_pools(thread_groups(threads, min(threads, s.kt_config.get("kt_threadpool_count") or 1)))
    torch.set_num_threads(max(1, threads // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))


def prepared(s: Settings, files: ModelFiles, events: Events, device: str = "") -> tuple[Any, dict[str, Any]]:
    """The model with its adapter, or with its own weights to be trained, and what is kept beside an adapter of how it was made.

    Weights of torch's modules are bfloat16 with `bf16`, else float32; what is trained is float32 always. `device`: where experts may
    lie that placing.settle then shares out.
    """
    whole = s.finetuning_type != "lora"
    weights = experts_of.opened(files, s.experts_path)
    with placing.rules(device, s.kt_config.get("kt_num_gpu_experts") or 0) if device else nullcontext(RULES) as rules:
        model = build(weights, events.progress, rules)
    model.tie_weights()
    set_seed(s.seed)
    counts = base.thaw(model, s) if whole else {}
    for parameter in model.parameters() if s.bf16 else ():
        if not (whole and parameter.requires_grad):
            parameter.data = parameter.data.to(torch.bfloat16)
    shape = lora.Shape(s.lora_rank, s.scale, s.lora_dropout, s.keep_activations)
    counts = counts or lora.adapt(model, s.lora_target, shape)
    if not whole and lora.EXPERTS in counts and counts.keys() & {f"{part}_proj" for part in lora.PARTS}:
        events.emit("warning", what=t("train.peft_partial"))
    if s.adapter_name_or_path and not whole:
        adapter.load(model, Path(s.adapter_name_or_path), s.scale)
    for module in model.modules():
        if isinstance(module, lora.TrainedExperts):
            module.revisited = not s.disable_gradient_checkpointing
    model.config.use_cache = False
    total = sum(p.numel() for p in lora.trainable(model).values())
    layers = ", ".join(f"{kind} x{count}" for kind, count in counts.items())
    events.emit("coverage", text=t("train.coverage", count=total, layers=layers), parameters=total, layers=counts)
    return model, {"coverage": counts, "base_fingerprint": adapter.fingerprint(weights)}


def frozen(s: Settings, files: ModelFiles, events: Events) -> Any:
    """The model as it is, in torch's types as `prepared` has them."""
    model = build(open_weights(files), events.progress, RULES)
    model.tie_weights()
    return model.to(torch.bfloat16) if s.bf16 else model


def use_template(tokenizer: Any, template: str | None) -> None:
    """A chat template from a file; else the model's own, by whatever name it is called."""
    if template and Path(template).suffix in (".jinja", ".jinja2"):
        tokenizer.chat_template = paths.text(Path(template))


def plot(history: list[dict[str, float]], folder: Path, events: Events) -> None:
    """training_loss.png; a warning where matplotlib is not installed."""
    try:
        from kt_core.train.plot import draw
    except ImportError:
        events.emit("warning", what=t("train.no_plot"))
        return
    draw([(int(e["step"]), e["loss"]) for e in history if "loss" in e], folder / "training_loss.png")
