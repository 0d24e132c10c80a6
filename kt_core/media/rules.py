"""How many images and videos one request may bring."""

from collections.abc import Sequence
from dataclasses import dataclass

from kt_core.errors import UsageError
from kt_core.types import Attachment


@dataclass(frozen=True)
class Rule:
    images: int = 16  # each takes seconds of a CPU before the first token
    videos: int = 1
    mixed: bool = True  # whether images and a video may come together


# Model types that were trained with less.
FAMILIES = {"glm5_next": Rule(images=8, mixed=False)}


def check(attachments: Sequence[Attachment], family: str) -> None:
    """Raises UsageError for more than a model of this type takes in one request."""
    rule = FAMILIES.get(family, Rule())
    images = sum(attachment.kind == "image" for attachment in attachments)
    videos = len(attachments) - images
    if images > rule.images or videos > rule.videos:
        raise UsageError(
            "media.too_many", images=images, videos=videos, most_images=rule.images, most_videos=rule.videos
        )
    if images and videos and not rule.mixed:
        raise UsageError("media.mixed")
