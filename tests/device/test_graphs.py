"""Decoding steps as graphs, on a device that records them: the protocol between stream and CPU, and whole steps."""

import pytest
import torch
from recorded import Recording
from references import save_tiny
from stepping import Driver
from test_hybrid import check, runner_of

from kt_core.kernels.relay import Relay


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    save_tiny("qwen3_moe", folder, torch.float32)
    return folder


def recording_runner(folder, words=True, experts=2, captured=(1, 3), **more):
    device = Recording(words)
    runner, _ = runner_of(folder, experts, captured=captured, device=device, **more)
    device.crossing = runner.crossing
    return runner, device


def decoded(runner, sequences):
    """Logits of tokens that sequences of different lengths decode together."""
    at = Driver(runner)
    for number in range(sequences):
        at.step({number: list(range(3, 9 + 4 * number))})
    return torch.stack([at.step({number: [20 + step + number] for number in range(sequences)}) for step in range(4)])


@pytest.mark.parametrize("sequences", [1, 2, 3, 4])
@pytest.mark.parametrize("words", [True, False], ids=["words", "functions"])
def test_replayed_steps_are_those_computed(folder, words, sequences):
    plain, _ = runner_of(folder, 2)
    runner, device = recording_runner(folder, words)
    check(decoded(runner, sequences), decoded(plain, sequences))
    assert device.captures == (sequences < 4) and device.replays == (3 if sequences < 4 else 0)


def test_a_captured_step_owns_what_its_work_reads(folder):
    """A GPU's allocator gives memory that nobody holds to the next who asks, whatever a graph does with it."""
    runner, device = recording_runner(folder)
    read, capture = [], device.capture

    def noted(function, beside):
        read.extend(cell.cell_contents for cell in function.__closure__ if isinstance(cell.cell_contents, torch.Tensor))
        return capture(function, beside)

    device.capture = noted
    decoded(runner, 1)
    (captured,) = runner._graphs._captured.values()
    assert read and {id(tensor) for tensor in read} <= {id(captured.inputs), *map(id, captured.kept)}


@pytest.mark.parametrize("experts", [0, 99], ids=["none", "all"])
def test_all_on_one_side(folder, experts):
    plain, _ = runner_of(folder, 1)
    runner, device = recording_runner(folder, experts=experts)
    check(decoded(runner, 2), decoded(plain, 2))
    assert device.replays == 3


def test_what_cannot_be_captured_goes_on_without(folder, caplog):
    caplog.set_level("INFO")
    runner, device = recording_runner(folder)
    plain, _ = runner_of(folder, 2)

    def capture(function, beside):
        device.captures += 1
        raise RuntimeError("operation not permitted\nwhen the stream is capturing")

    device.capture = capture
    check(decoded(runner, 2), decoded(plain, 2))
    said = [record.message for record in caplog.records if "not captured" in record.message]
    assert said == ["steps are not captured as graphs: operation not permitted"] and device.captures == 1


def test_a_device_that_does_not_ask_is_not_waited_for_for_ever():
    relay = Relay()
    relay.serve(0.0)  # no question, no wait
    words = torch.zeros(128, dtype=torch.uint8)
    from kt_core.kernels import Experts

    x, ids, weights = torch.zeros(1, 16), torch.zeros(1, 1, dtype=torch.int64), torch.zeros(1, 1)
    relay.add(Experts(1, 16, 16), x, ids, weights, torch.zeros(1, 16), words)
    with pytest.raises(RuntimeError, match="did not ask"):
        relay.serve(0.01)
