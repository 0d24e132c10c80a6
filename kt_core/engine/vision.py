"""What a request's images become: tokens in the prompt, and rows of embeddings that stand in their places.

The vision part of a model is transformers' own, its linear layers kt's unless it is on a device. It computes an image once, when a
step first comes to its tokens; what it brought stays until the request has ended. A prompt's pages are found by `Seen.keys`, which hold digests
of the pixels in the places of images, so no other image's pages are ever taken for them.
"""

import inspect
import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b, shake_256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoImageProcessor
from transformers.utils import ModelOutput

from kt_core import media
from kt_core.engine.clips import Clips
from kt_core.errors import UsageError
from kt_core.events import one_line
from kt_core.messages import t
from kt_core.types import Attachment, Plan
from kt_core.weights.store import read_config

# An image is scaled down to so many pixels, as much as 1120 x 1120: about 1200 tokens, seconds of a CPU. Attention in a vision
# part grows with their square, and processors' own limits let one image take minutes.
MOST_PIXELS = 1_254_400
KINDS = {"image": 1, "video": 2}  # as get_rope_index numbers them


log = logging.getLogger(__name__)


class Blind(Exception):
    """A model that cannot be shown images; the text says why."""


class Eyes:
    """A model's image processor, found before the model is built, since it decides of which class that is."""

    def __init__(self, name: str, path: Path, processor: Any) -> None:
        self._name = name
        self._path = path
        self.processor = processor  # None: the model reads text alone

    @classmethod
    def of(cls, plan: Plan) -> "Eyes":
        """The planned model's; without a processor for a model without a vision part, and, with a warning, where kt cannot
        show it images."""
        path = Path(plan.model.path)
        eyes = cls(plan.model.name, path, None)
        if plan.model.format == "gguf" or "vision_config" not in read_config(path):
            return eyes
        try:
            eyes.processor = processor_of(path)
        except Blind as reason:
            log.warning("%s", t("media.text_only", name=plan.model.name, reason=reason))
        return eyes

    def vision(self, model: Any, tokenizer: Any) -> "Vision | None":
        """What shows images to the model that was built."""
        if self.processor is None:
            return None
        try:
            vision = Vision(model, self.processor, Clips.of(model.config, self._path, tokenizer, self.processor))
        except Blind as reason:
            log.warning("%s", t("media.text_only", name=self._name, reason=reason))
            return None
        log.info("images are read%s", "" if vision.clips is None else ", and videos")
        return vision


def processor_of(folder: Path) -> Any:
    """transformers' image processor of a model's folder, the one that needs no torchvision. Raises Blind."""
    try:
        processor = AutoImageProcessor.from_pretrained(
            folder, backend="pil", local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # missing files, damaged ones, classes that exist for torchvision alone
        raise Blind(f"its image processor cannot be had: {one_line(error)}") from error
    size = processor.size
    if most := getattr(size, "longest_edge", None):
        size.longest_edge = min(most, MOST_PIXELS)
    return processor


@dataclass
class Look:
    """One image or video, ready for the vision part: `inputs` by the names that it is called with, `tokens` of the prompt."""

    kind: str
    inputs: dict[str, torch.Tensor]
    tokens: list[int]


class Vision:
    """The parts of a model that look at images: its processor, its marks, how rotary embeddings turn over images.

    Raises Blind, with the reason, for a model that kt cannot show images to.
    """

    def __init__(self, model: Any, processor: Any, clips: Clips | None = None) -> None:
        forward = inspect.signature(model.forward).parameters
        config = model.config
        if "mm_encoder_outputs" not in forward or not hasattr(model, "get_image_features"):
            raise Blind(f"{type(model).__name__} takes no embeddings of images")
        if not hasattr(processor, "merge_size") or not isinstance(getattr(config, "image_token_id", None), int):
            raise Blind(f"how many tokens an image of {config.model_type} takes is not known")
        self.model = model
        self.device = next((p.device for p in model.parameters()), torch.device("cpu"))
        self._processor = processor
        self.clips = clips
        self._marks: dict[str, int] = {kind: getattr(config, f"{kind}_token_id", -1) for kind in KINDS}
        self._lock = threading.Lock()  # one request's images at a time are unpacked, which bounds memory

    def look(self, ids: Sequence[int], attachments: Sequence[Attachment]) -> "Seen":
        """The prompt `ids`, which has one mark for each attachment, with what stands for them.

        Raises UsageError for attachments that are too many, cannot be read, or have no places.
        """
        media.check(attachments, self.model.config.model_type)
        ids = self.clips.bare(ids) if self.clips else ids
        with self._lock:
            looks = [self._clip(a) if a.kind == "video" else self._image(a) for a in attachments]
        tokens: list[int] = []
        for kind in {look.kind for look in looks}:
            places, count = ids.count(self._marks[kind]), sum(look.kind == kind for look in looks)
            if places != count:
                raise UsageError("media.places", places=places, kind=kind, count=count)
        left = {kind: iter([look for look in looks if look.kind == kind]) for kind in KINDS}
        kinds = {self._marks[kind]: kind for kind in KINDS if any(look.kind == kind for look in looks)}
        order = []
        for token in ids:
            if token in kinds:
                order.append(next(left[kinds[token]]))
                tokens += order[-1].tokens
            else:
                tokens.append(token)
        return self._seen(tokens, order)

    def _image(self, attachment: Attachment) -> Look:
        picture = media.image(attachment)
        try:
            inputs = dict(self._processor([picture], return_tensors="pt"))
        except ValueError as error:  # too narrow, for one
            raise UsageError("media.shape", reason=one_line(error)) from error
        count = int(inputs["image_grid_thw"].prod()) // self._processor.merge_size**2
        return Look("image", inputs, [self._marks["image"]] * count)

    def _clip(self, attachment: Attachment) -> Look:
        if self.clips is None:
            raise UsageError("media.no_videos")
        inputs, tokens = self.clips.look(attachment)
        return Look("video", inputs, tokens)

    def _seen(self, tokens: list[int], looks: list[Look]) -> "Seen":
        ids = np.array(tokens)
        kinds = np.zeros(len(ids), np.int64)
        for kind in {look.kind for look in looks}:
            kinds[ids == self._marks[kind]] = KINDS[kind]
        keys = ids.copy()
        for kind, number in KINDS.items():
            drawn = [_digits(look, look.tokens.count(self._marks[kind])) for look in looks if look.kind == kind]
            if drawn:
                keys[kinds == number] = np.concatenate(drawn)
        return Seen(tokens, keys.tolist(), kinds, self._turns(ids, kinds, looks), looks, self)

    def _turns(self, ids: Any, kinds: Any, looks: list[Look]) -> torch.Tensor | None:
        """Positions [3, T] of rotary embeddings that turn by time, height and width; None for a model whose do not."""
        rope_index = getattr(getattr(self.model, "model", None), "get_rope_index", None)
        if rope_index is None:
            return None
        grids = {
            f"{kind}_grid_thw": torch.cat([look.inputs[f"{kind}_grid_thw"] for look in looks if look.kind == kind])
            for kind in {look.kind for look in looks}
        }
        row = torch.from_numpy(ids)[None]
        positions: torch.Tensor = rope_index(row, mm_token_type_ids=torch.from_numpy(kinds)[None], **grids)[0]
        return positions[:, 0]


@dataclass
class Seen:
    """A prompt with images or videos. `tokens`, `keys` and `kinds` have one entry for each of its tokens."""

    tokens: list[int]
    keys: list[int]
    kinds: Any  # int64 [T]: 0 text, else of KINDS
    turns: torch.Tensor | None
    looks: list[Look]
    vision: Vision
    _found: dict[str, "tuple[torch.Tensor, list[torch.Tensor]]"] = field(default_factory=dict)

    def named(self, begin: int, tokens: Sequence[int]) -> list[int]:
        """The keys of tokens that stand at `begin`, of the prompt and of the answer behind it."""
        known = self.keys[begin : begin + len(tokens)]
        return [*known, *tokens[len(known) :]]

    def positions(self, begin: int, end: int) -> torch.Tensor:
        """Of rotary embeddings, [3, end - begin]; an answer goes on behind the largest of the prompt."""
        if self.turns is None:
            return torch.arange(begin, end).expand(3, -1)
        length = self.turns.shape[1]
        behind = torch.arange(max(begin, length), max(end, length)) + int(self.turns.max()) + 1 - length
        return torch.cat([self.turns[:, begin:end], behind.expand(3, -1)], 1)

    def rows(self, kind: str, begin: int, end: int) -> tuple[torch.Tensor, list[torch.Tensor]] | None:
        """Embeddings [n, hidden] of the tokens of this kind in these places, and what some layers add to them."""
        own = self.kinds == KINDS[kind]
        first, last = int(own[:begin].sum()), int(own[:end].sum())
        if first == last:
            return None
        if kind not in self._found:
            self._found[kind] = self._computed(kind)
        pooled, deep = self._found[kind]
        return pooled[first:last], [layer[first:last] for layer in deep]

    def _computed(self, kind: str) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Image by image, so that memory does not grow with their number."""
        compute, device = getattr(self.vision.model, f"get_{kind}_features"), self.vision.device
        inputs = [
            {name: part.to(device) for name, part in look.inputs.items()} for look in self.looks if look.kind == kind
        ]
        with torch.inference_mode():
            found = [compute(**one, return_dict=True) for one in inputs]
        pooled = torch.cat([part for each in found for part in each.pooler_output])
        layers = zip(*(getattr(each, "deepstack_features", ()) for each in found), strict=True)
        return pooled, [torch.cat([part for parts in layer for part in parts]) for layer in layers]


@dataclass
class _Rows(ModelOutput):  # type: ignore[misc]
    """What a vision part brings, as the families' forward reads it: [n, hidden], and the same for some layers."""

    pooler_output: tuple[torch.Tensor, ...] | None = None
    deepstack_features: list[tuple[torch.Tensor, ...]] | None = None


def arguments(parts: Sequence[tuple[Seen | None, int, int]]) -> dict[str, Any]:
    """What a forward of these tokens, one sequence's (its images, begin, end) after the other, takes besides them."""
    if not any(seen for seen, _, _ in parts):
        return {}
    more: dict[str, Any] = {}
    if any(seen and seen.turns is not None for seen, _, _ in parts):
        turns = [seen.positions(b, e) if seen else torch.arange(b, e).expand(3, -1) for seen, b, e in parts]
        more["position_ids"] = torch.cat(turns, 1)[:, None]
    outputs = {}
    for kind in KINDS:
        found = [rows for seen, b, e in parts if seen and (rows := seen.rows(kind, b, e))]
        if found:
            deep = [(torch.cat(layer),) for layer in zip(*(deep for _, deep in found), strict=True)]
            outputs[kind] = _Rows((torch.cat([rows for rows, _ in found]),), deep)
    return {**more, "mm_encoder_outputs": outputs} if outputs else more


def _digits(look: Look, count: int) -> Any:
    """`count` numbers that stand for what is seen, no token's own: 62 bits each of a digest of the pixels."""
    digest = blake2b(look.kind.encode())
    for name, tensor in sorted(look.inputs.items()):
        digest.update(f"{name}{tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().numpy().tobytes())
    drawn = np.frombuffer(shake_256(digest.digest()).digest(8 * count), np.int64)
    return drawn & (2**62 - 1) | 2**62
