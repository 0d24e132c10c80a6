"""A mixture of experts: a router, routed experts, and maybe a shared one, with a gate or without."""

from typing import Any

from torch import nn

from kt_core import kernels
from kt_core.kernels.program import Norm, Rows, Source
from kt_core.operators.experts import Experts
from kt_core.programs import routers
from kt_core.programs.code import Code
from kt_core.programs.mlp import Mlp
from kt_core.programs.unfit import Unfit, float_matrix, kernel_of, only

ROUTERS = ("gate", "router")
SHARED = ("shared_experts", "shared_expert")


class Moe:
    """mixtral, qwen2_moe, qwen3_moe, deepseek_v3, glm4_moe, gpt-oss and what is built like them."""

    def __init__(self, module: nn.Module, config: Any) -> None:
        only(module, {*ROUTERS, *SHARED, "shared_expert_gate", "experts", *routers.BIASES})
        if not isinstance(module.experts, Experts):
            raise Unfit("programs.not_ours", part="experts", cls=type(module.experts).__name__)
        self.experts = module.experts.kernel
        router = next(getattr(module, name) for name in ROUTERS if name in module._modules)
        self.rule, self.choice_bias = routers.read(router, module, config)
        self.router = kernels.Linear(float_matrix(router.weight), getattr(router, "bias", None))
        shared = next((getattr(module, name) for name in SHARED if name in module._modules), None)
        self.shared = Mlp(shared) if shared is not None else None
        gated = "shared_expert_gate" in module._modules
        self.shared_gate = kernel_of(module, "shared_expert_gate") if gated else None

    @staticmethod
    def fits(module: nn.Module) -> bool:
        """Whether the module is one of these, by its parts."""
        return "experts" in module._modules and any(name in module._modules for name in ROUTERS)

    def emit(self, code: Code, x: Rows, before: Norm) -> None:
        """x += moe(norm(x))"""
        program = code.program
        normed = code.rows("moe.normed", x.width)
        source = Source(x, norm=before, keep=normed)
        logits = code.rows("moe.logits", self.router.out_features)
        beside: list[tuple[kernels.Linear, Rows | None, bool]] = [(self.router, logits, False)]
        gate = code.rows("moe.gate", 1)
        if self.shared_gate:
            beside.append((self.shared_gate, gate, False))
        if self.shared:
            self.shared.begin(code, source, beside)
        else:
            program.linear(source, beside)
        program.route(logits, self.rule, self.choice_bias)
        program.experts(self.experts, normed, x, True)
        if self.shared:
            self._add_shared(code, self.shared, x, gate)

    def _add_shared(self, code: Code, shared: Mlp, x: Rows, gate: Rows) -> None:
        if not self.shared_gate:
            shared.end(code, x, True)
            return
        result = code.rows("moe.shared", x.width)
        shared.end(code, result, False)
        code.program.add_gated(result, gate, x)
