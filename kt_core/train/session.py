"""One fine-tuning run, from settings to an adapter folder."""

from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import set_seed

from kt_core import kernels, models
from kt_core.engine.loader import build
from kt_core.engine.tokenizer import load_tokenizer
from kt_core.errors import UsageError
from kt_core.events import Events
from kt_core.kernels.pool import thread_groups
from kt_core.machine import default_threads, probe
from kt_core.messages import t
from kt_core.train import adapter, estimate, lora, preference
from kt_core.train.data import load, load_pairs
from kt_core.train.encode import collate, encode_all
from kt_core.train.settings import Settings, without_effect
from kt_core.train.trainer import AdapterTrainer, Telling, arguments, resume_from
from kt_core.types import ModelFiles
from kt_core.weights import open_weights

RULES = Path(__file__).with_name("rules.yaml")


def plan(s: Settings, events: Events) -> tuple[ModelFiles, Any, list[Any]]:
    """The model's files, its tokenizer and the data; tells what the run will take. Raises KTError."""
    for key in without_effect(s):
        events.emit("warning", what=t("train.no_effect", setting=key))
    if s.lora_dropout:
        events.emit("warning", what=t("train.dropout"))
    files = models.resolve(s.model_name_or_path)
    parts = estimate.check(models.read_spec(files), s, probe())
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
    steps, total = estimate.steps(len(rows), s), sum(parts.values())
    events.emit("plan", text=t("train.plan", steps=steps, size=f"{total / 2**30:.1f}"), steps=steps, bytes=parts)
    return files, tokenizer, rows


def run(s: Settings, events: Events) -> None:
    """Train, tell how it goes, and leave the adapter in `output_dir`. Raises KTError."""
    set_threads(s)
    folder = Path(s.output_dir)
    checkpoint = resume_from(s)
    files, tokenizer, rows = plan(s, events)
    folder.mkdir(parents=True, exist_ok=True)
    model, facts = prepared(s, files, events)
    filler = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id or 0
    facts["template"] = tokenizer.chat_template
    held, rows = split(rows, s)
    pairs = s.stage == "dpo"
    kind: Any = partial(preference.PairTrainer, beta=s.pref_beta, kind=s.pref_loss) if pairs else AdapterTrainer
    trainer = kind(
        model,
        arguments(s),
        partial(preference.collate_pairs if pairs else collate, filler=filler),
        rows,
        held or None,
        save_adapter=partial(adapter.save, model, settings=s, facts=facts),
        keep=s.save_total_limit,
    )
    trainer.add_callback(Telling(events, folder, lambda: trainer.tokens))
    trainer.train(resume_from_checkpoint=checkpoint)
    if held:
        trainer.evaluate()
    adapter.save(model, folder, s, facts)
    tokenizer.save_pretrained(folder)
    if s.plot_loss:
        plot(trainer.state.log_history, folder, events)
    events.emit("done", folder=str(folder), steps=trainer.state.global_step)


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
    torch.set_num_threads(threads)


def prepared(s: Settings, files: ModelFiles, events: Events) -> tuple[Any, dict[str, Any]]:
    """The model with its adapter, and what is kept beside the adapter of how it was made.

    Weights of torch's modules are bfloat16 with `bf16`, else float32; what is trained is float32 always.
    """
    weights = open_weights(files)
    model = build(weights, events.progress, RULES)
    if s.bf16:
        model.to(torch.bfloat16)
    set_seed(s.seed)
    shape = lora.Shape(s.lora_rank, s.scale, s.lora_dropout, s.keep_activations)
    counts = lora.adapt(model, s.lora_target, shape)
    if lora.EXPERTS in counts and counts.keys() & {f"{part}_proj" for part in lora.PARTS}:
        events.emit("warning", what=t("train.peft_partial"))
    model.config.use_cache = False
    total = sum(p.numel() for p in lora.trainable(model).values())
    layers = ", ".join(f"{kind} x{count}" for kind, count in counts.items())
    events.emit("coverage", text=t("train.coverage", count=total, layers=layers), parameters=total, layers=counts)
    return model, {"coverage": counts, "base_fingerprint": adapter.fingerprint(weights)}


def use_template(tokenizer: Any, template: str | None) -> None:
    """A chat template from a file; else the model's own, by whatever name it is called."""
    if template and Path(template).suffix in (".jinja", ".jinja2"):
        tokenizer.chat_template = Path(template).read_text(encoding="utf-8")


def plot(history: list[dict[str, float]], folder: Path, events: Events) -> None:
    """training_loss.png; a warning where matplotlib is not installed."""
    try:
        from kt_core.train.plot import draw
    except ImportError:
        events.emit("warning", what=t("train.no_plot"))
        return
    draw([(int(e["step"]), e["loss"]) for e in history if "loss" in e], folder / "training_loss.png")
