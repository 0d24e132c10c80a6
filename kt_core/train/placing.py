"""Which experts a device computes in training: as many as are asked for lie there, and of the others as many are brought there
for each pass as come in the time in which the CPU computes the rest."""

import json
import logging
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from kt_core.device import Device, open_device
from kt_core.errors import Unsupported
from kt_core.events import Events
from kt_core.kernels.training import train
from kt_core.messages import t
from kt_core.operators.packed import Form, Unfit
from kt_core.train import head
from kt_core.train.lora import TrainedExperts
from kt_core.train.settings import Settings
from kt_core.train.shares import Gradients
from kt_core.train.streams import BUFFERS, Streams

log = logging.getLogger(__name__)

LINK_BYTES = 128 << 20  # of a copy that is timed
LEAST = 0.02  # of a layer's experts; fewer are not worth copies
KEPT = 2 << 30  # bytes of the device that copies leave alone


@contextmanager
def rules(device: str, resident: int) -> Iterator[Path]:
    """A rule file that gives so many experts of each layer to the device."""
    kwargs = {"device": device, "resident": resident}
    rule = {
        "match": {"name": r"\.experts$"},
        "replace": {"class": "kt_core.train.lora.TrainedExperts", "kwargs": kwargs},
        "recursive": False,
    }
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rules.yaml"
        file.write_text(json.dumps([rule]))
        yield file


def chosen(s: Settings, device: str, processes: int) -> str:
    """The device that experts may lie on, "" for none. Raises Unsupported where the settings ask for what it cannot do."""
    asked = s.kt_config.get("kt_num_gpu_experts") or 0
    if device == "cpu" or processes > 1 or s.finetuning_type != "lora":
        if asked:
            raise Unsupported("train.gpu_experts", count=asked)
        return ""
    return device


def settle(model: Any, s: Settings, name: str, events: Events, needed: int = 0) -> None:
    """Bring the model to its device, and share the experts out, by what the CPU and the link are measured to take; `needed`: bytes
    that activations will take there."""
    device = open_device(name)
    head.keep_table(model)
    model.to(device.torch)
    policy = s.kt_config.get("kt_activation_policy") or {}
    keep = policy.get("gpu", "recompute" if s.disable_gradient_checkpointing else "retain") == "retain"
    count = balanced(
        model,
        s.per_device_train_batch_size * s.cutoff_len,
        not (s.disable_gradient_checkpointing or s.keep_activations),
        needed,
    )
    try:
        share(model, device, count, keep)
    except (RuntimeError, OSError, Unfit) as reason:
        log.warning("experts are not brought to the device: %s", str(reason).splitlines()[0])
        share(model, device, 0, keep)
    first = layers(model)[0]
    left = first.kernel.num_experts - first.resident - first.streamed
    parts = {"resident": first.resident, "streamed": first.streamed, "left": left}
    events.emit("placed", text=t("train.placed", device=name, **parts), **parts)


def share(model: Any, device: Device, streamed: int, keep: bool = False) -> Streams:
    """Give the device its experts, `streamed` of each layer brought there; `keep`: it keeps what it would compute again on the way
    back. Raises RuntimeError, OSError, Unfit."""
    gradients, streams = Gradients(device), Streams(device)
    for layer in layers(model):
        layer.shares.clear()
        layer.streamed = min(streamed, layer.kernel.num_experts - layer.resident)
        layer.share(gradients, streams, keep)
    if streamed:
        streams.prepare()
    return streams


def layers(model: Any) -> list[TrainedExperts]:
    return [module for module in model.modules() if isinstance(module, TrainedExperts)]


def balanced(model: Any, tokens: int, again: bool, needed: int = 0) -> int:
    """Experts of each layer to bring for passes of so many tokens, by what the CPU and the link are measured to take; `again`:
    the CPU's way forward is gone twice, as with gradient checkpoints that keep nothing. 0 where the device cannot use them as they lie, or has no
    room for them beside `needed` bytes."""
    layer = layers(model)[0]
    kernel, begin = layer.kernel, layer.resident
    left = kernel.num_experts - begin
    if not left or layer.device is None:
        return 0
    try:
        form = Form(layer.orig_module, kernel, begin)
    except Unfit:
        return 0
    forward, back = _measured(layer, tokens)
    there = 2 * left * form.bytes / _link(layer.device)
    here = forward * (2 if again else 1) + back
    count = round(left * here / (here + there))
    each = BUFFERS * form.bytes + 2 * sum(form.sizes(1))
    free = layer.device.memory()[0] - KEPT - needed
    count = min(count, max(0, free // each))
    return int(count) if count >= LEAST * left else 0


def _measured(layer: TrainedExperts, tokens: int) -> tuple[float, float]:
    """Seconds of the CPU, there and back, for all experts that do not lie on the device, asked for evenly."""
    kernel = layer.kernel
    slots = max(1, int(getattr(layer.orig_module.config, "num_experts_per_tok", 0) or 1))
    x = torch.randn(tokens, kernel.hidden).bfloat16().requires_grad_()
    ids = torch.randint(0, kernel.num_experts, (tokens, slots))
    weights = torch.full(ids.shape, 1 / slots)
    found = (0.0, 0.0)
    for _ in range(2):  # the first one finds its memory
        start = time.perf_counter()
        y = train(kernel, x, ids, weights)
        middle = time.perf_counter()
        y.backward(torch.ones_like(y))
        found = middle - start, time.perf_counter() - middle
    return found


def _link(device: Device) -> float:
    """Bytes a second from pinned memory to the device."""
    host = device.pinned(LINK_BYTES)
    there = torch.empty(LINK_BYTES, dtype=torch.uint8, device=device.torch)
    best = 0.0
    for _ in range(3):
        start = time.perf_counter()
        there.copy_(host, non_blocking=True)
        device.reached()()
        best = max(best, LINK_BYTES / (time.perf_counter() - start))
    return best
