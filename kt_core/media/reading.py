"""From a file's bytes to pixels, with bounds that hold before anything is unpacked.

Videos are what Pillow reads: animated GIF, WebP and PNG, and lists of images. Others need a decoder that kt does not bring.
"""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from PIL import Image, ImageOps, ImageSequence

from kt_core.errors import UsageError
from kt_core.events import one_line
from kt_core.types import Attachment

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")  # others of Pillow's readers are older and less tried by bad files
FILE_BYTES = 32 << 20
PIXELS = 64 << 20  # of an image before it is scaled: 192 MiB as RGB
CLIP_PIXELS = 1 << 30  # of all frames of a video, which are unpacked one after the other: seconds
CHOSEN_PIXELS = 128 << 20  # of those that are kept
LIST_RATE = 2.0  # frames a second of a list of images: as many as models are shown of a video
_USUAL_MS = 100  # of a frame without a duration, as browsers take it

# From (frames, frames a second) to the numbers of the frames that a model is shown, rising.
Choice = Callable[[int, float], Sequence[int]]


@dataclass(frozen=True)
class Clip:
    """A video's chosen frames, RGB of one size, and when each is shown, in seconds."""

    frames: list[Any]
    times: list[float]


def image(attachment: Attachment) -> Any:
    """An RGB image, turned as its camera says. Raises UsageError for what is no image, too large, or of another format."""
    with _opened(attachment.data) as found:
        return _rgb(found)


def video(attachment: Attachment, choose: Choice) -> Clip:
    """The frames that `choose` picks. Raises UsageError as `image` does, and for frames of several sizes."""
    if attachment.frames:
        if len(attachment.frames) < 2:
            raise UsageError("media.no_video", format="JPEG")
        chosen = list(choose(len(attachment.frames), LIST_RATE))
        frames = [image(Attachment("image", attachment.frames[at])) for at in chosen]
        if len({frame.size for frame in frames}) > 1:
            raise UsageError("media.sizes")
        return Clip(frames, [at / LIST_RATE for at in chosen])
    with _opened(attachment.data) as found:
        return _clip(found, choose)


def _clip(found: Any, choose: Choice) -> Clip:
    count = getattr(found, "n_frames", 1)
    if count < 2:
        raise UsageError("media.no_video", format=found.format)
    if count * found.width * found.height > CLIP_PIXELS:
        raise UsageError("media.large", width=found.width, height=found.height, frames=count)
    starts, at = [], 0.0
    for frame in ImageSequence.Iterator(found):
        frame.load()  # only then do all formats tell how long it is shown
        starts.append(at / 1000)
        at += frame.info.get("duration") or _USUAL_MS
    chosen = list(choose(count, 1000 * count / at))
    if len(chosen) * found.width * found.height > CHOSEN_PIXELS:
        raise UsageError("media.large", width=found.width, height=found.height, frames=len(chosen))
    frames = []
    for number in chosen:
        found.seek(number)
        frames.append(found.convert("RGB"))
    return Clip(frames, [starts[number] for number in chosen])


def _rgb(found: Any) -> Any:
    return ImageOps.exif_transpose(found).convert("RGB")


class _opened:
    """The image of `data`, its header read; what any reader raises in the block, while it unpacks, is UsageError."""

    def __init__(self, data: bytes) -> None:
        if len(data) > FILE_BYTES:
            raise UsageError("media.file", size=len(data) >> 20, limit=FILE_BYTES >> 20)
        self._data = data

    def __enter__(self) -> Any:
        try:
            found = Image.open(io.BytesIO(self._data), formats=FORMATS)
        except Exception as error:  # a reader may fail in any way over bytes that are not its format's
            raise UsageError("media.unreadable", reason=type(error).__name__, known=", ".join(FORMATS)) from error
        if found.width * found.height > PIXELS:
            raise UsageError("media.large", width=found.width, height=found.height, frames=1)
        return found

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, Exception) and not isinstance(error, UsageError):
            raise UsageError("media.unreadable", reason=one_line(error), known=", ".join(FORMATS)) from error
