"""Rotary embeddings of every kind: fixed frequencies become tables, others are found unfit at the length they change at."""

import pytest
import torch
from references import from_folder, save_tiny
from stepping import Driver

from kt_core import programs
from kt_core.engine.loader import build
from kt_core.engine.runners.program import ProgramRunner
from kt_core.models import resolve
from kt_core.programs import Unfit
from kt_core.weights import open_weights

PAIRS = 12  # of save_tiny's heads
FIXED = {
    "linear": {"factor": 4.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 16},
    "llama3": {
        "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16,
    },
}  # fmt: skip
CHANGING = {
    "dynamic": {"factor": 2.0},
    "longrope": {
        "short_factor": [1.0] * PAIRS, "long_factor": [4.0] * PAIRS, "original_max_position_embeddings": 64, "factor": 4.0,
    },
}  # fmt: skip


def program_of(kind, settings, folder, **changes):
    rope = {"rope_type": kind, "rope_theta": 10000.0, **settings}
    save_tiny("qwen3_moe", folder, torch.float32, rope_parameters=rope, num_hidden_layers=2, **changes)
    return programs.build(build(open_weights(resolve(str(folder))), lambda *_: None))


@pytest.mark.parametrize("kind", FIXED)
@torch.no_grad()
def test_fixed_frequencies(kind, tmp_path):
    program = program_of(kind, FIXED[kind], tmp_path, max_position_embeddings=64)
    tokens = list(range(3, 53))
    expected = from_folder(tmp_path)(torch.tensor([tokens])).logits[0]
    ours = Driver(ProgramRunner(program, 64, torch.float32)).cut(0, tokens, [40, 1, 9])
    assert (ours - expected).abs().max() / expected.abs().max() < 1e-5


@pytest.mark.parametrize("kind", CHANGING)
def test_frequencies_that_change_with_the_length(kind, tmp_path):
    program = program_of(kind, CHANGING[kind], tmp_path, max_position_embeddings=64)
    ProgramRunner(program, 64)
    with pytest.raises(Unfit, match="depend on the length"):
        ProgramRunner(program, 256)
