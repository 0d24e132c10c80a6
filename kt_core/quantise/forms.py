"""Whether what is stored can become what is asked for: refused by name before anything is written."""

from collections.abc import Iterable

from kt_core.formats import FORMATS
from kt_core.formats.problems import Problems
from kt_core.quantise.layout import Piece
from kt_core.types import ModelFiles
from kt_core.weights.decode import DECODERS

INTEGERS = ("BOOL", "U8", "I8", "U16", "I16", "U32", "I32", "U64", "I64")
_NUMBERS = (".weight", ".bias")  # what names of a model's real numbers end in


def check(pieces: Iterable[Piece], files: ModelFiles) -> None:
    """Raises Unsupported, naming tensors and their types, for weights that cannot be decoded, and for integers in place of
    a model's numbers: what they stand for a quantisation that kt reads would have said."""
    problems = Problems()
    for piece in pieces:
        name, format = piece.weight.name, piece.weight.format
        if format in INTEGERS and (piece.scheme is not None or name.endswith(_NUMBERS)):
            problems.unsupported("quantise.integers", tensor=name, dtype=format)
        elif piece.scheme is not None and format in FORMATS and format not in DECODERS:
            problems.unsupported("quantise.undecodable", tensor=name, dtype=format)
    problems.raise_for(files.path, files.format)
