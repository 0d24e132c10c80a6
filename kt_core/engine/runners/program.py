"""A runner whose steps are one native call each."""

from collections.abc import Mapping

import torch

from kt_core.engine.step import NO_EXPERTS, NOTHING_MOVED, Counted, Step
from kt_core.kernels.attention import new_pages
from kt_core.lora import Adapter
from kt_core.programs import Program, lora

ROW_BYTES = 256 << 20  # that a program's rows may take
MOST_TOKENS = 2048  # of a step: more would not make an expert's part of it cheaper
LEAST_TOKENS = 128


class ProgramRunner:
    """Runner of engine.step over a model's program; keys and values are kept in `dtype`, bfloat16 or float32.

    Raises Unfit when the rotary embedding differs at that context.
    """

    shareable = True
    experts: Mapping[int, Counted] = NO_EXPERTS
    moved: Mapping[str, int] = NOTHING_MOVED

    def __init__(
        self,
        program: Program,
        max_context: int,
        dtype: torch.dtype = torch.bfloat16,
        max_tokens: int | None = None,
        page: int = 64,
    ) -> None:
        self.max_context = max_context
        self.vocab = program.vocab
        self.eos_ids = program.eos_ids
        self.page = page
        self._embedding = program.embedding
        self._parts = program.parts
        if max_tokens is None:
            row = program.code(1, 1, dtype, page).program.nbytes
            max_tokens = max(LEAST_TOKENS, min(MOST_TOKENS, ROW_BYTES // row, max_context))
        self.max_tokens = max_tokens
        self.code = program.code(max_tokens, max_context, dtype, page).program
        self.page_bytes = sum(layout.page_bytes for layout in self.code.layouts)
        self.storage: list[torch.Tensor] = []

    def allocate(self, pages: int) -> None:
        """Memory for pages 0 .. pages - 1 of every layer; called once, before the first step."""
        self.storage = [new_pages(layout, pages) for layout in self.code.layouts]
        for number, layer in enumerate(self.storage):
            self.code.set_pages(number, layer)

    def forward(self, step: Step) -> torch.Tensor:
        """Writes the step's keys and values into its slots; returns float32 [R, vocab]. Raises ValueError for a step
        that does not fit."""
        embedded = self._embedding(step.tokens) if self.code.given else None
        return self.code.run(step.tokens, step.positions, step.slots, step.batch, step.outputs, embedded, step.adapters)

    def release(self, sequence: int) -> None:
        """Nothing is kept beside the pages."""

    def adapt(self, number: int, adapter: Adapter) -> None:
        """Raises what programs.lora.adapt raises."""
        lora.adapt(self.code, self._parts, number, adapter)

    def forget_adapter(self, number: int) -> None:
        """No sequence of a step takes it any more."""
        self.code.forget(number)
