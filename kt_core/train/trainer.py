"""transformers' Trainer for models of kt: what a checkpoint is, when it counts, what is told, and when to stop."""

import inspect
import json
import math
import os
import re
import resource
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.integrations.integration_utils import get_available_reporting_integrations

from kt_core.errors import EnvironmentProblem, KTError, NotFound, UsageError
from kt_core.events import Events
from kt_core.kernels import training
from kt_core.messages import t
from kt_core.train import head, ranks
from kt_core.train.encode import IGNORED
from kt_core.train.lora import trainable
from kt_core.train.settings import Settings

LOG = "trainer_log.jsonl"
CHECKPOINT = re.compile(r"checkpoint-(\d+)$")
STAGING = ".saving"


@dataclass(frozen=True)
class Keeping:
    """How what is trained goes to a folder and comes back from it, and the file by which a folder is known."""

    save: Callable[[Path], None]
    load: Callable[[Path], None]
    file: str


class RunTrainer(Trainer):  # type: ignore[misc]
    """Saves what is trained, each checkpoint whole or not at all; stops at a loss or gradient that is not finite."""

    def __init__(self, *args: Any, keeping: Keeping, most: int | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.keeping = keeping
        self.most = most
        self.tokens = 0
        self.waited = 0.0  # for data, in seconds

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        begin = time.perf_counter()
        batches = super().get_batch_samples(*args, **kwargs)
        self.waited += time.perf_counter() - begin
        return batches

    def training_step(self, model: nn.Module, inputs: dict[str, Any], *rest: Any, **kwargs: Any) -> torch.Tensor:
        self.tokens += (
            int(inputs["attention_mask"].sum()) if "attention_mask" in inputs else inputs["input_ids"].numel()
        )
        loss: torch.Tensor = super().training_step(model, inputs, *rest, **kwargs)
        if not math.isfinite(loss.item()):
            raise KTError("train.not_finite_loss", step=self.state.global_step + 1, folder=self._last())
        return loss

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Logits are made only where a label asks for them, the output matrix being the largest product of a small model; and, where
        it is a plain one, for some rows at a time."""
        if ranks.count() == 1 and not self.args.bf16 and head.splits(self.model):  # autocast is around the whole model
            loss = head.loss(self.model, inputs, num_items_in_batch)
            return (loss, {}) if return_outputs else loss
        if "logits_to_keep" in inspect.signature(type(self.model).forward).parameters:
            targets = nn.functional.pad(inputs["labels"], (0, 1), value=IGNORED)[:, 1:]
            asked = (targets != IGNORED).any(0).nonzero().squeeze(1)
            targets = targets[:, asked]
            inputs = {**inputs, "logits_to_keep": asked, "labels": targets, "shift_labels": targets}
        return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        self.keeping.save(Path(output_dir or self.args.output_dir))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        self.keeping.load(Path(resume_from_checkpoint))

    def _get_output_dir(self, trial: Any) -> str:
        return str(Path(self.args.output_dir) / STAGING)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """Written beside and renamed: a process that is killed meanwhile leaves the checkpoints before as they were."""
        super()._save_checkpoint(model, trial)
        ranks.wait()
        if ranks.first():
            self._rename(trial)
        ranks.wait()

    def _rename(self, trial: Any) -> None:
        name = f"checkpoint-{self.state.global_step}"
        staging, to = Path(self._get_output_dir(trial)), Path(self.args.output_dir) / name
        for file in (path for path in (staging / name).rglob("*") if path.is_file()):
            with file.open("rb") as written:
                os.fsync(written.fileno())
        shutil.rmtree(to, ignore_errors=True)
        (staging / name).replace(to)
        shutil.rmtree(staging, ignore_errors=True)
        for old in checkpoints(Path(self.args.output_dir))[: -self.most] if self.most else []:
            shutil.rmtree(old)

    def _last(self) -> str:
        found = checkpoints(Path(self.args.output_dir))
        return str(found[-1]) if found else "-"


class Telling(TrainerCallback):  # type: ignore[misc]
    """Events, the log of JSON lines, and the look at gradients before each step."""

    def __init__(self, events: Events, folder: Path, trainer: RunTrainer) -> None:
        self.events = events
        self.file = folder / LOG
        self.trainer = trainer
        self.began = (time.monotonic(), 0)
        self.last = self._clocks()

    def _clocks(self) -> tuple[float, float, float]:
        """Now, seconds in the experts and seconds of waiting for data, all since some time."""
        return time.perf_counter(), training.spent["seconds"], self.trainer.waited

    def _shares(self) -> dict[str, float]:
        """Where the time went since the last call."""
        now, before = self._clocks(), self.last
        self.last = now
        whole, experts, data = (a - b for a, b in zip(now, before, strict=True))
        return {"experts_share": experts / whole, "data_share": data / whole}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.began = (time.monotonic(), state.global_step)
        self.last = self._clocks()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        for name, parameter in trainable(kwargs["model"]).items():
            if parameter.grad is not None and not torch.isfinite(parameter.grad).all():
                raise KTError("train.not_finite_gradient", step=state.global_step + 1, name=name)

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        loss, step = kwargs["metrics"]["eval_loss"], state.global_step
        self._note({"current_steps": step, "eval_loss": loss})
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
            "tokens_per_second": ranks.count() * self.trainer.tokens / max(seconds, 1e-9),
            **self._shares(),
            "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        }
        self._note(entry)
        self.events.emit("step", **entry)

    def _note(self, entry: dict[str, Any]) -> None:
        if ranks.first():
            with self.file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")


def arguments(s: Settings) -> TrainingArguments:
    """transformers' own arguments for the settings that it knows. What is trained is float32; where that is whole layers, `bf16`
    lets torch round to it in each product. Raises UsageError for what transformers does not
    take, EnvironmentProblem for a program to report to that is not installed."""
    wanted = [s.report_to] if isinstance(s.report_to, str) else s.report_to
    have = get_available_reporting_integrations()
    for name in wanted:
        if name not in (*have, "none", "all"):
            raise EnvironmentProblem("train.needs_report", name=name, known=", ".join(have) or "-")
    try:
        return _arguments(s)
    except (ValueError, ImportError) as error:
        raise UsageError("train.not_taken", reason=" ".join(str(error).split())) from None


def _arguments(s: Settings) -> TrainingArguments:
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
        use_cpu=s.use_cpu or not torch.cuda.is_available(),
        bf16=s.bf16 and s.finetuning_type != "lora",
    )


def checkpoints(folder: Path) -> list[Path]:
    """Whole checkpoints of a run, in the order of their steps."""
    found = [path for path in folder.glob("checkpoint-*") if CHECKPOINT.search(path.name)]
    return sorted(found, key=lambda path: int(path.name.rpartition("-")[2]))


def resume_from(s: Settings, known_by: str) -> str | None:
    """The checkpoint to go on from, a folder with a file `known_by`. Raises NotFound; UsageError where an older run's results would be overwritten.

    With `overwrite_output_dir` an older run's checkpoints and log are removed.
    """
    folder = Path(s.output_dir)
    older = checkpoints(folder)
    if isinstance(s.resume_from_checkpoint, str) and s.resume_from_checkpoint not in ("true", "false"):
        if not Path(s.resume_from_checkpoint, known_by).is_file():
            raise NotFound("train.no_checkpoint", folder=s.resume_from_checkpoint)
        return s.resume_from_checkpoint
    if s.resume_from_checkpoint in (True, "true"):
        if not older:
            raise NotFound("train.no_checkpoint", folder=folder)
        return str(older[-1])
    if older and not s.overwrite_output_dir:
        raise UsageError("train.older_run", folder=folder, last=older[-1])
    if ranks.first():
        for path in older:
            shutil.rmtree(path)
        (folder / LOG).unlink(missing_ok=True)
    return None
