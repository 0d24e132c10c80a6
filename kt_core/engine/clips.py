"""Videos of the families that are shown them frame by frame, each behind the time at which it stands.

transformers makes these inputs with torchvision, which has to fit torch's build; here Pillow scales the frames, whose levels then
differ by one or two of 255.
"""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kt_core import media
from kt_core.errors import UsageError
from kt_core.types import Attachment

FAMILIES = ("qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe")
# Of all frames together: about 4900 tokens, as four large images. Processors' own limits are five times that.
MOST_PIXELS = 10_035_200
_NARROWEST = 200  # of the longer side to the shorter one, as the families' own processors refuse
_FIELDS: dict[str, Any] = {
    "fps": 2, "min_frames": 4, "max_frames": 768, "patch_size": 16, "temporal_patch_size": 2, "merge_size": 2,
    "image_mean": [0.5] * 3, "image_std": [0.5] * 3, "rescale_factor": 1 / 255,
    "size": {"shortest_edge": 128 * 32 * 32, "longest_edge": 32 * 32 * 768},
}  # fmt: skip
_SHARED = ("patch_size", "temporal_patch_size", "merge_size", "image_mean", "image_std", "rescale_factor")


class Clips:
    """How a model is shown videos: `fields` of its video processor, the marks around a frame, its tokenizer."""

    def __init__(self, fields: dict[str, Any], marks: tuple[int, int, int], tokenizer: Any) -> None:
        self._fields = _FIELDS | fields
        self._mark, self._start, self._end = marks
        self._tokenizer = tokenizer

    @classmethod
    def of(cls, config: Any, folder: Path, tokenizer: Any, images: Any) -> "Clips | None":
        """Those of a model's folder, with what it does not say as for `images`, its image processor; None for a family that
        is shown videos in another way, or not at all."""
        if config.model_type not in FAMILIES:
            return None
        marks = (config.video_token_id, config.vision_start_token_id, config.vision_end_token_id)
        same = {name: getattr(images, name) for name in _SHARED}
        return cls(same | _video_fields(folder), marks, tokenizer)

    def bare(self, ids: Sequence[int]) -> list[int]:
        """The prompt without the marks that a template puts around a whole video: each frame has its own."""
        found: list[int] = []
        for token in ids:
            if token == self._end and found[-2:] == [self._start, self._mark]:
                del found[-2]
            else:
                found.append(token)
        return found

    def look(self, attachment: Attachment) -> tuple[dict[str, torch.Tensor], list[int]]:
        """The vision part's inputs, and the prompt's tokens for it. Raises UsageError."""
        fields = self._fields
        clip = media.video(attachment, self._chosen)
        together = fields["temporal_patch_size"]
        frames, times = _filled(clip.frames, together), _filled(clip.times, together)
        size = self._size(len(clip.frames), *clip.frames[0].size)
        pixels = np.stack([np.asarray(frame.resize(size, 3), np.float32) for frame in frames])  # 3: bicubic
        pixels = (pixels * fields["rescale_factor"] - fields["image_mean"]) / fields["image_std"]
        grid, patches = _patches(pixels, fields["patch_size"], fields["merge_size"], together)
        inputs = {"pixel_values_videos": torch.from_numpy(patches), "video_grid_thw": torch.tensor([grid])}
        count = grid[1] * grid[2] // fields["merge_size"] ** 2
        tokens = []
        for at in range(0, len(times), together):
            time = (times[at] + times[at + together - 1]) / 2
            said = self._tokenizer.encode(f"<{time:.1f} seconds>", add_special_tokens=False)
            tokens += [*said, self._start, *[self._mark] * count, self._end]
        return inputs, tokens

    def _chosen(self, count: int, rate: float) -> Sequence[int]:
        """Frames at the processor's own rate, evenly spread; at least its fewest, where the video has as many."""
        fields = self._fields
        wanted = min(max(int(count / rate * fields["fps"]), fields["min_frames"]), fields["max_frames"], count)
        chosen: list[int] = np.linspace(0, count - 1, wanted).round().astype(int).tolist()
        return chosen

    def _size(self, count: int, width: int, height: int) -> tuple[int, int]:
        """(width, height) in whole patches that merge, near the video's own shape, with as many pixels as is allowed."""
        fields = self._fields
        factor, together = fields["patch_size"] * fields["merge_size"], fields["temporal_patch_size"]
        scale = max(1.0, factor / height, factor / width)
        sides = [int(side * scale) for side in (width, height)]
        if max(sides) > _NARROWEST * min(sides):
            raise UsageError("media.shape", reason=f"{width} x {height}")
        whole = [round(side / factor) * factor for side in sides]
        total = round(count / together) * together * whole[0] * whole[1]
        least, most = fields["size"]["shortest_edge"], min(fields["size"]["longest_edge"], MOST_PIXELS)
        if least <= total <= most:
            return whole[0], whole[1]
        bound, rounded = (most, math.floor) if total > most else (least, math.ceil)
        shrink = math.sqrt(count * sides[0] * sides[1] / bound)
        width, height = (max(factor, rounded(side / shrink / factor) * factor) for side in sides)
        return width, height


def _video_fields(folder: Path) -> dict[str, Any]:
    """What the folder says of its video processor, by either file that transformers writes it to."""
    for name in ("video_preprocessor_config.json", "processor_config.json"):
        try:
            found = json.loads((folder / name).read_bytes())
            found = found if name.startswith("video") else found["video_processor"]
        except (OSError, ValueError, KeyError, RecursionError):
            continue
        return {key: found[key] for key in _FIELDS if found.get(key) is not None}
    return {}


def _filled(values: list[Any], together: int) -> list[Any]:
    """The last one again, until they can be put together."""
    return values + values[-1:] * (-len(values) % together)


def _patches(pixels: Any, patch: int, merge: int, together: int) -> tuple[list[int], Any]:
    """From [frames, height, width, 3] to ((time, height, width) in patches, float32 [patches, numbers]).

    Patches that become one token stand together; the numbers of a patch go by color, time, row and column.
    """
    count, height, width, colors = pixels.shape
    grid = [count // together, height // patch, width // patch]
    cut = pixels.reshape(
        grid[0], together, grid[1] // merge, merge, patch, grid[2] // merge, merge, patch, colors
    ).transpose(0, 2, 5, 3, 6, 8, 1, 4, 7)
    return grid, np.ascontiguousarray(cut, np.float32).reshape(math.prod(grid), -1)
