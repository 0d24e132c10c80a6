"""Experts that a device's stream asks the CPU for while a graph is replayed: no Python between two layers."""

import torch

from kt_core.kernels.experts import Experts
from kt_core.kernels.native import dtype_name, load

WORDS = 128  # bytes of a question's words: two cache lines
PATIENCE = 60.0  # seconds for what the device does between two layers


class Relay:
    """The questions of one captured step. What they refer to lives as long as they do."""

    def __init__(self) -> None:
        self.native = load().Relay()
        self._held: list[object] = []

    def add(
        self,
        experts: Experts,
        x: torch.Tensor,
        ids: torch.Tensor,
        weights: torch.Tensor,
        out: torch.Tensor,
        words: torch.Tensor,
    ) -> tuple[int, int, int]:
        """One more question, which computes `out` = experts(x, ids, weights), all contiguous in host memory, as Experts takes it.

        `words` are WORDS zeros of host memory, uint8. Returns the addresses of the word that the device sets to 1 to ask, of
        the one that is 1 once it is answered, and of the question, for `answer_from_host`.
        """
        addresses = (x.data_ptr(), ids.data_ptr(), weights.data_ptr(), out.data_ptr())
        elsewhere = 0 if experts.elsewhere is None else experts.elsewhere.data_ptr()
        rows, slots = ids.shape
        at = words.data_ptr()
        question = self.native.add(experts.native, addresses, dtype_name(x), rows, slots, elsewhere, at)
        self._held.append((experts, x, ids, weights, out, words))
        return at, at + WORDS // 2, int(question)

    def __len__(self) -> int:
        return len(self.native)

    def serve(self, patience: float = PATIENCE) -> None:
        """Answers every question as the device asks it, on this thread and the pool's. Raises RuntimeError when an answer fails,
        once the device has gone on without it, and when the device does not ask for `patience` seconds."""
        self.native.serve(patience)

    def check(self) -> None:
        """Raises what an answer that a device's driver asked for has raised."""
        self.native.check()


def answer_from_host() -> int:
    """The address of the C function that answers the question at the address which it is called with."""
    return int(load().answer_from_host())
