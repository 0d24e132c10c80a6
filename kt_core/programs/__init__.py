"""A model's whole step as one native call.

`build` reads what a transformers model with kt's operators in place is made of, by its parts and settings, and checks
every kind of layer against transformers' own modules. A model with a part that no file here knows, or that computes
something else, is Unfit, with the reason, and runs module by module. To add a kind of part: a file with a class like
those of gqa.py (attention) or moe.py (feed-forward), and its name in decoder.py.
"""

from typing import Any

from kt_core.programs import check, model
from kt_core.programs.model import Program
from kt_core.programs.unfit import Unfit


def build(transformers_model: Any, config: Any = None) -> Program:
    """The program of a causal language model that engine.loader built.

    `config` defaults to the model's own. Raises Unfit. Whatever a part of a family that nobody has tried raises on the
    way is a reason as well: the model then runs module by module.
    """
    try:
        config = config or transformers_model.config
        program = model.read(transformers_model, config)
        program.choices = check.choose(transformers_model, program, config)
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as e:
        reason = f"{type(e).__name__}: {str(e).splitlines()[0] if str(e) else '-'}"
        raise Unfit("programs.failed", cls=type(transformers_model).__name__, reason=reason) from e
    return program


__all__ = ["Program", "Unfit", "build"]
