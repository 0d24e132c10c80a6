"""Files of requests: what is read, and that nothing else gets past with another error than the one for clients."""

import io
import sys
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

sys.path.insert(0, str(Path(__file__).parent.parent / "engine"))
from tinyvision import moving, picture

from kt_core import media
from kt_core.errors import UsageError
from kt_core.media import reading
from kt_core.types import Attachment


def every(count, rate):
    return range(count)


def refused(call, *args):
    with pytest.raises(UsageError) as caught:
        call(*args)
    return caught.value.key


@pytest.mark.parametrize("form", ["PNG", "BMP", "GIF", "WEBP", "JPEG"])
def test_images_come_as_rgb(form):
    found = media.image(Attachment("image", picture(1, form=form)))
    assert (found.mode, found.size) == ("RGB", (40, 30))


def test_an_image_is_turned_as_its_camera_says():
    file, exif = io.BytesIO(), Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter
    Image.open(io.BytesIO(picture(1))).save(file, "JPEG", exif=exif)
    assert media.image(Attachment("image", file.getvalue())).size == (30, 40)


@pytest.mark.parametrize("form", ["GIF", "WEBP", "PNG"])
def test_a_video_has_the_times_of_its_frames(form):
    data = moving(range(4), form, milliseconds=250)
    clip = media.video(Attachment("video", data), lambda count, rate: [0, 3] if (count, rate) == (4, 4.0) else [])
    assert clip.times == [0, 0.75]
    if form != "GIF":  # which has 256 colors
        expected = [media.image(Attachment("image", picture(seed))).tobytes() for seed in (0, 3)]
        assert [frame.tobytes() for frame in clip.frames] == expected


def test_a_list_of_images_is_a_video_too():
    frames = tuple(picture(seed, form="JPEG") for seed in range(3))
    assert media.video(Attachment("video", frames=frames), every).times == [0, 0.5, 1]
    assert refused(media.video, Attachment("video", frames=frames[:1]), every) == "media.no_video"
    other = (*frames, picture(4, width=50))
    assert refused(media.video, Attachment("video", frames=other), every) == "media.sizes"


def test_bounds_hold_before_anything_is_unpacked(monkeypatch):
    monkeypatch.setattr(Image.Image, "load", None)  # nothing may be
    assert refused(media.image, Attachment("image", head_of(9000, 9000))) == "media.large"
    assert (
        refused(media.image, Attachment("image", head_of(40000, 30000))) == "media.unreadable"
    )  # by Pillow's own bound
    monkeypatch.setattr(reading, "FILE_BYTES", 10)
    assert refused(media.image, Attachment("image", head_of(40, 30))) == "media.file"


def head_of(width, height):
    """A PNG file that says so, and whose pixels are missing."""
    chunks = [(b"IHDR", width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes([8, 2, 0, 0, 0])), (b"IDAT", b"")]
    parts = [len(d).to_bytes(4, "big") + n + d + zlib.crc32(n + d).to_bytes(4, "big") for n, d in chunks]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def test_a_long_video_is_refused_before_its_frames_are_unpacked(monkeypatch):
    data = moving(range(4), "WEBP")
    monkeypatch.setattr(reading, "CLIP_PIXELS", 4 * 40 * 30 - 1)
    assert refused(media.video, Attachment("video", data), every) == "media.large"
    monkeypatch.setattr(reading, "CLIP_PIXELS", 4 * 40 * 30)
    monkeypatch.setattr(reading, "CHOSEN_PIXELS", 2 * 40 * 30)
    assert refused(media.video, Attachment("video", data), every) == "media.large"
    assert len(media.video(Attachment("video", data), lambda count, rate: [1, 2]).frames) == 2


FILES = [picture(1, form=form) for form in ("PNG", "JPEG", "GIF", "WEBP", "BMP")] + [moving(range(2), "WEBP")]


@given(st.sampled_from(FILES), st.data())
@settings(max_examples=150, deadline=None)
def test_damaged_files_are_refused_or_read(file, data):
    damaged = bytearray(file[: data.draw(st.integers(0, len(file)))])
    for at in data.draw(st.lists(st.integers(0, max(0, len(damaged) - 1)), max_size=4)) if damaged else ():
        damaged[at] = data.draw(st.integers(0, 255))
    for call in (lambda a: media.image(a), lambda a: media.video(a, every)):
        try:
            call(Attachment("image", bytes(damaged)))
        except UsageError as error:
            assert error.key.startswith("media.") and str(error)


@pytest.mark.parametrize(
    ("family", "images", "videos", "key"),
    [
        ("qwen3_vl", 16, 1, None),
        ("qwen3_vl", 17, 0, "media.too_many"),
        ("qwen3_vl", 0, 2, "media.too_many"),
        ("glm5_next", 8, 0, None),
        ("glm5_next", 9, 0, "media.too_many"),
        ("glm5_next", 1, 1, "media.mixed"),
        ("glm5_next", 0, 1, None),
    ],
)
def test_a_familys_rule(family, images, videos, key):
    attachments = [Attachment("image")] * images + [Attachment("video")] * videos
    if key:
        assert refused(media.check, attachments, family) == key
    else:
        media.check(attachments, family)
