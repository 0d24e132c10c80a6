"""Pages that a device has given up come back from the CPU's memory, and from disk after a restart."""

import time

import pytest
import tinymodel
import torch
from killed import ask
from references import save_tiny
from test_on_a_gpu import GPUS, gpu

from kt_core.device import open_device
from kt_core.engine.disk import Folder, Host
from kt_core.engine.engine import Engine
from kt_core.engine.loader import build
from kt_core.engine.placing import Placing
from kt_core.engine.runners import device_runner_for
from kt_core.models import resolve
from kt_core.operators.crossing import Crossing
from kt_core.weights import open_weights

ON_A_GPU = [pytest.mark.gpu, pytest.mark.skipif(not GPUS, reason="torch finds no GPU here")]


@pytest.mark.parametrize("there", ["cpu", pytest.param("gpu", marks=ON_A_GPU)])
@pytest.mark.parametrize("family", ["qwen3_moe", "deepseek_v3"])
def test_evicted_pages_come_back(family, there, tmp_path):
    save_tiny(family, tmp_path / "model", torch.float32)
    device = open_device("cpu") if there == "cpu" else gpu()
    first, second = (torch.randint(3, 128, (200,), generator=torch.Generator().manual_seed(n)).tolist() for n in (6, 7))
    found = []

    def served(prompts):
        placing = Placing(device, Crossing(device), None, 2)
        model = build(open_weights(resolve(str(tmp_path / "model"))), lambda *_: None, placing=placing)
        runner = device_runner_for(model, 256, torch.float32, placing.crossing, 256, ())
        folder = Folder(tmp_path / "pages", b"tiny", runner.page_bytes, 1 << 30)
        host = Host(1 << 30, runner.page_bytes, folder)
        engine = Engine(runner, tinymodel.tokenizer(), pages=4, disk=host)  # for one of them at a time
        for prompt in prompts:
            chunks = list(engine.submit(ask(prompt, 24)))
            found.append(([t for c in chunks for t in c.tokens], chunks[-1].usage.cached_tokens))
            end = time.monotonic() + 10
            while (
                len(host) < 3 * min(len(found), 2) and time.monotonic() < end
            ):  # else the next takes their places first
                time.sleep(0.01)
        engine.close(10)
        assert len(host) == 6  # three full pages of each

    served((first, second, first, second))
    assert [cached for _, cached in found] == [0, 0, 192, 192]
    served((first, second))  # from disk
    assert [cached for _, cached in found[4:]] == [192, 192]
    answers = [tokens for tokens, _ in found]
    assert answers[0] == answers[2] == answers[4] and answers[1] == answers[3] == answers[5]
