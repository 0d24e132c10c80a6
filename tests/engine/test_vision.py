"""Images and videos through the engine against transformers' own generation, on tiny random checkpoints."""

import importlib.util
import io
import itertools
import logging
import sys
from pathlib import Path

import numpy as np
import pytest
import tinyvision
import torch
import transformers
from PIL import Image
from safetensors.torch import load_file, save_file
from tinyvision import moving, picture
from transformers import AutoModelForImageTextToText

from kt_core.engine.clips import Clips, _patches
from kt_core.engine.engine import Engine
from kt_core.engine.loader import build
from kt_core.engine.placing import Placing
from kt_core.engine.runners import device_runner_for, runner_for
from kt_core.engine.vision import Eyes, Vision, processor_of
from kt_core.errors import UsageError
from kt_core.models import resolve
from kt_core.types import Attachment, ModelFiles, Request, Sampling
from kt_core.weights import open_weights

FAMILIES = ["qwen3_vl_moe", "qwen3_5_moe"]  # on pages, with features added to layers; with states of linear attention
TOKENS = 10
COUNTER = itertools.count()


class Case:
    """A checkpoint, the engine over it, and transformers' model of it."""

    def __init__(self, family: str, folder: Path, placing: Placing | None = None) -> None:
        tinyvision.save(family, folder)
        self.folder = folder
        self.reference = AutoModelForImageTextToText.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager"
        ).eval()
        self.tokenizer = tinyvision.tokenizer()
        self.processor = processor_of(folder)
        model = build(open_weights(resolve(str(folder)), vision=True), lambda *_: None, placing=placing)
        clips = Clips.of(model.config, folder, self.tokenizer, self.processor)
        self.vision = Vision(model, self.processor, clips)
        if placing:
            runner = device_runner_for(model, 1600, torch.float32, placing.crossing, 512, placing.captured)
        else:
            runner = runner_for(model, 1600, torch.float32)
        if not runner.shareable:
            runner.state_bytes = 1 << 24
        self.engine = Engine(runner, self.tokenizer, vision=self.vision)

    def submit(self, *parts, **more):
        """A request whose user says these parts: texts, and attachments."""
        content = [{"type": "text", "text": p} if isinstance(p, str) else {"type": p.kind} for p in parts]
        seen = tuple(part for part in parts if isinstance(part, Attachment))
        fields = {"max_tokens": TOKENS, "ignore_eos": True, "sampling": Sampling(temperature=0), **more}
        messages = ({"role": "user", "content": content},)
        return self.engine.submit(Request(str(next(COUNTER)), messages=messages, attachments=seen, **fields))

    def ask(self, *parts):
        """(the greedy answer's tokens, how many of the prompt's were cached)"""
        stream = self.submit(*parts)
        return answer(stream)

    def expected(self, *parts):
        """transformers' answer. The prompt and the pixels are made here, from the processor alone."""
        ids, pixels, grids = self.tokenizer.encode("user:", add_special_tokens=False), [], []
        config = self.reference.config
        for part in parts:
            if isinstance(part, str):
                ids += self.tokenizer.encode(part, add_special_tokens=False)
                continue
            made = self.processor([Image.open(io.BytesIO(part.data)).convert("RGB")], return_tensors="pt")
            count = int(made["image_grid_thw"].prod()) // 4
            ids += [config.vision_start_token_id, *[config.image_token_id] * count, config.vision_end_token_id]
            pixels.append(made["pixel_values"])
            grids.append(made["image_grid_thw"])
        ids += self.tokenizer.encode(";a:", add_special_tokens=False)
        row = torch.tensor([ids])
        more = {"pixel_values": torch.cat(pixels), "image_grid_thw": torch.cat(grids)} if pixels else {}
        return self.generated(row, (row == config.image_token_id).long(), more)

    def generated(self, row, kinds, more):
        with torch.no_grad():
            found = self.reference.generate(
                input_ids=row, attention_mask=torch.ones_like(row), mm_token_type_ids=kinds, max_new_tokens=TOKENS,
                do_sample=False, eos_token_id=None, pad_token_id=0, **more,
            )  # fmt: skip
        return found[0, row.shape[1] :].tolist()


def answer(stream):
    chunks = list(stream)
    assert stream.error is None, stream.error
    return [token for chunk in chunks for token in chunk.tokens], chunks[-1].usage.cached_tokens


@pytest.fixture(scope="module", params=FAMILIES)
def case(request, tmp_path_factory):
    case = Case(request.param, tmp_path_factory.mktemp(request.param))
    yield case
    case.engine.close(5)


def image(seed, **more):
    return Attachment("image", picture(seed, **more))


PROMPTS = {
    "one": ("what is this?", image(1)),
    "two": (image(1), " and ", image(2, width=30, height=60)),
    "between": ("look: ", image(3), " is it green?"),
    "text": ("no image at all",),
    "long": ("a" * 90, image(4), "b" * 700, image(5, width=90), "c" * 50),  # a step takes 512 tokens
}


@pytest.mark.parametrize("name", PROMPTS)
def test_images_are_answered_as_by_transformers(case, name):
    assert case.ask(*PROMPTS[name])[0] == case.expected(*PROMPTS[name])


def test_requests_with_other_images_run_together(case):
    asked = [PROMPTS["one"], ("what is this?", image(6)), ("what is this?",), PROMPTS["two"]]
    streams = [case.submit(*parts) for parts in asked]
    found = [answer(stream)[0] for stream in streams]
    assert found == [case.expected(*parts) for parts in asked]
    assert found[0] != found[1] != found[2]  # the image matters


def test_a_prefix_is_found_again_by_what_is_seen(case):
    tail = "d" * 200
    first = case.ask("same words ", image(7), tail)
    again = case.ask("same words ", image(7), tail)
    assert again[0] == first[0] == case.expected("same words ", image(7), tail)
    assert again[1] > 60
    other = case.ask("same words ", image(8), tail)  # of the same size: the same tokens
    assert other[1] == 0
    assert other[0] == case.expected("same words ", image(8), tail)
    assert case.ask("same words ", image(8), "e" * 200)[0] == case.expected("same words ", image(8), "e" * 200)


def test_choices_share_an_image(case):
    stream = case.submit("three ", image(9), "f" * 80, choices=3)
    chunks = list(stream)
    answers = [[t for c in chunks if c.choice == choice for t in c.tokens] for choice in range(3)]
    assert answers == [case.expected("three ", image(9), "f" * 80)] * 3


def test_a_video_is_shown_frame_by_frame(case):
    """Inputs and prompt are made here as the family's processor describes them."""
    clip = Attachment("video", moving(range(20, 26), "WEBP"))
    frames = [np.asarray(Image.open(io.BytesIO(picture(seed)))) for seed in range(20, 26)]
    config, fields = case.reference.config, case.vision.clips._fields
    width, height = case.vision.clips._size(6, 40, 30)
    scaled = np.stack(
        [np.asarray(Image.fromarray(f).resize((width, height), Image.Resampling.BICUBIC)) for f in frames]
    )
    pixels = torch.from_numpy(scaled).permute(0, 3, 1, 2)[None] / 127.5 - 1
    patches, *grid = reference_module().Qwen3VLVideoProcessor.patchify(None, pixels, 4, 2, 2)
    count = grid[1] * grid[2] // fields["merge_size"] ** 2
    ids = case.tokenizer.encode("user:see ", add_special_tokens=False)
    for time in ("0.2", "1.2", "2.2"):  # between two frames, half a second apart
        ids += case.tokenizer.encode(f"<{time} seconds>", add_special_tokens=False)
        ids += [config.vision_start_token_id, *[config.video_token_id] * count, config.vision_end_token_id]
    row = torch.tensor([ids + case.tokenizer.encode(";a:", add_special_tokens=False)])
    more = {"pixel_values_videos": patches[0].float(), "video_grid_thw": torch.tensor([grid])}
    expected = case.generated(row, (row == config.video_token_id).long() * 2, more)
    stream = case.submit("see ", clip)
    assert stream.prompt == row[0].tolist()
    assert answer(stream)[0] == expected


def reference_module():
    """transformers' video processor, whose module is hidden where torchvision is missing."""
    name = "transformers.models.qwen3_vl.video_processing_qwen3_vl"
    if name not in sys.modules:
        file = Path(transformers.__file__).parent / "models" / "qwen3_vl" / "video_processing_qwen3_vl.py"
        spec = importlib.util.spec_from_file_location(name, file)
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


def test_frames_have_the_size_that_transformers_gives_them():
    clips = Clips({}, (1, 2, 3), None)
    least, most = (clips._fields["size"][name] for name in ("shortest_edge", "longest_edge"))
    for count, width, height in itertools.product((2, 5, 8, 40), (20, 64, 333, 1920), (31, 480, 1080)):
        expected = reference_module().smart_resize(count, height, width, 2, 32, least, most)
        assert clips._size(count, width, height) == expected[::-1]


def test_patches_are_cut_as_by_transformers():
    pixels = np.random.default_rng(0).random((6, 48, 64, 3), dtype=np.float32)
    grid, found = _patches(pixels, 8, 2, 2)
    expected, *where = reference_module().Qwen3VLVideoProcessor.patchify(
        None, torch.from_numpy(pixels).permute(0, 3, 1, 2)[None], 8, 2, 2
    )
    assert grid == where
    assert torch.equal(torch.from_numpy(found), expected[0])


@pytest.mark.parametrize(
    ("parts", "key"),
    [
        ((*[image(1)] * 17,), "media.too_many"),
        (("<|image_pad|>", image(1)), "media.places"),
        ((Attachment("image", b"no image"),), "media.unreadable"),
        ((Attachment("image", picture(1, width=3000, height=2)),), "media.shape"),
        ((Attachment("video", picture(1)),), "media.no_video"),
    ],
)
def test_what_cannot_be_looked_at_is_refused(case, parts, key):
    with pytest.raises(UsageError) as caught:
        case.submit(*parts)
    assert caught.value.key == key


def test_experts_are_read_transposed_as_they_are_published(tmp_path):
    tinyvision.save("qwen3_vl_moe", tmp_path)
    own = open_weights(resolve(str(tmp_path)), vision=True)
    stored = load_file(tmp_path / "model.safetensors")
    turned = {name: t.transpose(1, 2).contiguous() if ".experts." in name else t for name, t in stored.items()}
    (tmp_path / "published").mkdir()
    save_file(turned, tmp_path / "published" / "model.safetensors")
    (tmp_path / "published" / "config.json").write_bytes((tmp_path / "config.json").read_bytes())
    published = open_weights(resolve(str(tmp_path / "published")), vision=True)
    prefix = "model.language_model.layers.1.mlp.experts"
    assert own.experts(prefix) == published.experts(prefix) == 4
    for part in ("gate_up_proj", "down_proj"):
        assert torch.equal(own.tensor(f"{prefix}.{part}"), published.tensor(f"{prefix}.{part}"))


def test_a_model_of_text_alone_says_so():
    engine = Engine.__new__(Engine)
    engine._vision = None
    with pytest.raises(UsageError) as caught:
        engine.prompt(
            Request("x", messages=({"role": "user", "content": [{"type": "image"}]},), attachments=(image(1),))
        )
    assert caught.value.key == "media.no_vision"


def test_a_missing_image_processor_is_told_at_the_start(case, tmp_path, caplog):
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).write_bytes((case.folder / name).read_bytes())
    plan = type("Plan", (), {"model": ModelFiles("tiny", str(tmp_path), "safetensors", ())})
    with caplog.at_level(logging.WARNING):
        eyes = Eyes.of(plan)
    assert eyes.processor is None
    assert "tiny" in caplog.text
    assert eyes.vision(None, None) is None
