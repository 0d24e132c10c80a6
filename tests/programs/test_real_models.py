"""A file with weights of few bits: the program against transformers' eager float32 over the decoded weights."""

import torch
from stepping import Driver
from test_parity import KL_BOUND, known_logits, prompts_of

from kt_core import programs
from kt_core.engine.loader import build
from kt_core.engine.runners.program import ProgramRunner
from kt_core.models import resolve
from kt_core.weights import open_weights


@torch.no_grad()
def test_the_demo(smollm2_gguf, demo_file, once):
    prompts = prompts_of(smollm2_gguf, once)  # the bound was found with text: random tokens take twice as much
    prompt, expected = prompts[0], known_logits("demo", demo_file, prompts, once)[0]
    program = programs.build(build(open_weights(resolve(str(demo_file))), lambda *_: None))
    ours = Driver(ProgramRunner(program, 256)).cut(0, prompt, [30, 1, 1, len(prompt) - 32])
    p, q = expected.double().log_softmax(-1), ours.double().log_softmax(-1)
    kl = (p.exp() * (p - q)).sum(-1)
    bound = KL_BOUND["int8"]
    assert kl.mean() < bound and kl.max() < 10 * bound, f"KL mean {kl.mean():.2e} max {kl.max():.2e}"
