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

    `config` defaults to the model's. Raises Unfit.
    """
    program = model.read(transformers_model)
    program.choices = check.choose(transformers_model, program)
    return program


__all__ = ["Program", "Unfit", "build"]
