"""Images and videos that requests bring: their number, and their pixels, before anything computes with them."""

from kt_core.media.reading import Clip, image, video
from kt_core.media.rules import check

__all__ = ["Clip", "check", "image", "video"]
