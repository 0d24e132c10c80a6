"""transformers' Trainer with kt's adapters: what a checkpoint is, when it counts, what is told, and when to stop."""

import inspect
import json
import math
import os
import re
import resource
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments

from kt_core.errors import KTError, NotFound, UsageError
from kt_core.events import Events
from kt_core.messages import t
from kt_core.train import adapter, described
from kt_core.train.encode import IGNORED
from kt_core.train.lora import trainable
from kt_core.train.settings import Settings

LOG = "trainer_log.jsonl"
CHECKPOINT = re.compile(r"checkpoint-(\d+)$")
STAGING = ".saving"


class AdapterTrainer(Trainer):  # type: ignore[misc]
    """Saves adapters, each checkpoint whole or not at all; stops at a loss or gradient that is not finite."""

    def __init__(self, *args: Any, save_adapter: Callable[[Path], None], keep: int | None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.save_adapter = save_adapter
        self.keep = keep
        self.tokens = 0

    def training_step(self, model: nn.Module, inputs: dict[str, Any], *rest: Any, **kwargs: Any) -> torch.Tensor:
        self.tokens += (
            int(inputs["attention_mask"].sum()) if "attention_mask" in inputs else inputs["input_ids"].numel()
        )
        loss: torch.Tensor = super().training_step(model, inputs, *rest, **kwargs)
        if not math.isfinite(loss.item()):
            raise KTError("train.not_finite_loss", step=self.state.global_step + 1, folder=self._last())
        return loss

    def compute_loss(self, model: nn.Module, inputs: dict[str, Any], *rest: Any, **kwargs: Any) -> Any:
        """Logits are made only where a label asks for them: the output matrix is the largest product of a small model."""
        if "logits_to_keep" in inspect.signature(self.model.forward).parameters:
            targets = nn.functional.pad(inputs["labels"], (0, 1), value=IGNORED)[:, 1:]
            asked = (targets != IGNORED).any(0).nonzero().squeeze(1)
            targets = targets[:, asked]
            inputs = {**inputs, "logits_to_keep": asked, "labels": targets, "shift_labels": targets}
        return super().compute_loss(model, inputs, *rest, **kwargs)

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        self.save_adapter(Path(output_dir or self.args.output_dir))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        adapter.load(model or self.model, Path(resume_from_checkpoint))

    def _get_output_dir(self, trial: Any) -> str:
        return str(Path(self.args.output_dir) / STAGING)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """Written beside and renamed: a process that is killed meanwhile leaves the checkpoints before as they were."""
        super()._save_checkpoint(model, trial)
        name = f"checkpoint-{self.state.global_step}"
        staging, to = Path(self._get_output_dir(trial)), Path(self.args.output_dir) / name
        for file in (staging / name).iterdir():
            with file.open("rb") as written:
                os.fsync(written.fileno())
        shutil.rmtree(to, ignore_errors=True)
        (staging / name).replace(to)
        shutil.rmtree(staging, ignore_errors=True)
        for old in checkpoints(Path(self.args.output_dir))[: -self.keep] if self.keep else []:
            shutil.rmtree(old)

    def _last(self) -> str:
        found = checkpoints(Path(self.args.output_dir))
        return str(found[-1]) if found else "-"


class Telling(TrainerCallback):  # type: ignore[misc]
    """Events, the log of JSON lines, and the look at gradients before each step."""

    def __init__(self, events: Events, folder: Path, tokens: Callable[[], int]) -> None:
        self.events = events
        self.file = folder / LOG
        self.tokens = tokens
        self.began = (time.monotonic(), 0)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.began = (time.monotonic(), state.global_step)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        for name, parameter in trainable(kwargs["model"]).items():
            if parameter.grad is not None and not torch.isfinite(parameter.grad).all():
                raise KTError("train.not_finite_gradient", step=state.global_step + 1, name=name)

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        loss, step = kwargs["metrics"]["eval_loss"], state.global_step
        with self.file.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"current_steps": step, "eval_loss": loss}) + "\n")
        self.events.emit("evaluated", text=t("train.evaluated", step=step, loss=f"{loss:.4f}"), step=step, loss=loss)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any) -> None:
        if not logs or "loss" not in logs:
            return
        seconds, steps = time.monotonic() - self.began[0], state.global_step - self.began[1]
        entry = {
            "current_steps": state.global_step,
            "total_steps": state.max_steps,
            "loss": logs["loss"],
            "lr": logs.get("learning_rate"),
            "grad_norm": logs.get("grad_norm"),
            "epoch": state.epoch,
            "elapsed_seconds": seconds,
            "remaining_seconds": seconds / max(1, steps) * (state.max_steps - state.global_step),
            "tokens_per_second": self.tokens() / max(seconds, 1e-9),
            "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        }
        with self.file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
        self.events.emit("step", **entry)


def arguments(s: Settings) -> TrainingArguments:
    """transformers' own arguments for the settings that it knows."""
    return TrainingArguments(
        output_dir=s.output_dir,
        per_device_train_batch_size=s.per_device_train_batch_size,
        gradient_accumulation_steps=s.gradient_accumulation_steps,
        learning_rate=s.learning_rate,
        num_train_epochs=s.num_train_epochs,
        max_steps=s.max_steps,
        lr_scheduler_type=s.lr_scheduler_type,
        warmup_steps=s.warmup_steps or s.warmup_ratio,
        weight_decay=s.weight_decay,
        max_grad_norm=s.max_grad_norm,
        optim=s.optim,
        seed=s.seed,
        logging_steps=s.logging_steps,
        logging_nan_inf_filter=False,
        eval_strategy=s.eval_strategy,
        eval_steps=s.eval_steps,
        per_device_eval_batch_size=s.per_device_eval_batch_size,
        prediction_loss_only=True,
        save_strategy=s.save_strategy,
        save_steps=s.save_steps,
        save_only_model=s.save_only_model,
        report_to=s.report_to,
        run_name=s.run_name,
        dataloader_num_workers=s.dataloader_num_workers,
        gradient_checkpointing=not s.disable_gradient_checkpointing,
        gradient_checkpointing_kwargs={"use_reentrant": False},
        remove_unused_columns=False,
        disable_tqdm=True,
        use_cpu=True,
    )


def checkpoints(folder: Path) -> list[Path]:
    """Whole checkpoints of a run, in the order of their steps."""
    found = [path for path in folder.glob("checkpoint-*") if CHECKPOINT.search(path.name)]
    return sorted(found, key=lambda path: int(path.name.rpartition("-")[2]))


def resume_from(s: Settings) -> str | None:
    """The checkpoint to go on from. Raises NotFound; UsageError where an older run's results would be overwritten.

    With `overwrite_output_dir` an older run's checkpoints and log are removed.
    """
    folder = Path(s.output_dir)
    older = checkpoints(folder)
    if isinstance(s.resume_from_checkpoint, str) and s.resume_from_checkpoint not in ("true", "false"):
        if not Path(s.resume_from_checkpoint, described.WEIGHTS).is_file():
            raise NotFound("train.no_checkpoint", folder=s.resume_from_checkpoint)
        return s.resume_from_checkpoint
    if s.resume_from_checkpoint in (True, "true"):
        if not older:
            raise NotFound("train.no_checkpoint", folder=folder)
        return str(older[-1])
    if older and not s.overwrite_output_dir:
        raise UsageError("train.older_run", folder=folder, last=older[-1])
    for path in older:
        shutil.rmtree(path)
    (folder / LOG).unlink(missing_ok=True)
    return None
