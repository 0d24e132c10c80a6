"""Counts of experts in a file, as our recorder writes them and placement by frequency reads them."""

import pytest
import torch

from kt_core.engine import counts
from kt_core.errors import BadData

FOUND = {"layers": [1, 3], "asked": [[5, 0, 2, 1], [0, 9, 0, 3]], "elsewhere": [[], []]}


def test_what_is_written_is_read(tmp_path):
    path = tmp_path / "some" / "model.pt"
    counts.write(path, 4, FOUND)
    stored = torch.load(path, weights_only=True)["logical_count"]
    assert stored.shape == (1, 4, 4) and stored[0, [0, 2]].sum() == 0
    assert counts.read(str(path), [1, 3], 4, 4).tolist() == FOUND["asked"]
    for _ in range(20):
        counts.write(path, 4, FOUND)
    assert torch.load(path, weights_only=True)["logical_count"].shape == (16, 4, 4)
    assert counts.read(str(path), [1, 3], 4, 4).tolist() == [[16 * n for n in row] for row in FOUND["asked"]]
    assert [item.name for item in path.parent.iterdir()] == ["model.pt"]
    counts.write(path, 7, FOUND)  # the model has changed
    assert torch.load(path, weights_only=True)["logical_count"].shape == (1, 7, 4)


def test_files_of_the_existing_layout(tmp_path):
    """A tensor or a dictionary, of all layers or of those with experts."""
    whole = torch.arange(2 * 4 * 3).view(2, 4, 3)
    torch.save(whole, tmp_path / "tensor.pt")
    assert torch.equal(counts.read(str(tmp_path / "tensor.pt"), [1, 2], 4, 3), whole.double().sum(0)[1:3])
    torch.save({"logical_count": whole[:, 1:3]}, tmp_path / "dict.pt")
    assert torch.equal(counts.read(str(tmp_path / "dict.pt"), [1, 2], 4, 3), whole.double().sum(0)[1:3])


@pytest.mark.parametrize("content", [b"no file of torch", None], ids=["noise", "another model"])
def test_other_files_are_refused(tmp_path, content):
    path = tmp_path / "file.pt"
    path.write_bytes(content) if content else torch.save(torch.ones(1, 5, 3), path)
    with pytest.raises(BadData):
        counts.read(str(path), [1, 2], 4, 3)


def test_nothing_asked_is_nothing_written(tmp_path):
    counts.write(tmp_path / "none.pt", 4, {"layers": [1], "asked": [[0, 0]]})
    assert not (tmp_path / "none.pt").exists()
