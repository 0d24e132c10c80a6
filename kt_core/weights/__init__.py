"""Memory-mapped weights under transformers' names, and their reference decoding."""

from kt_core.weights.decode import decode, decode_matrix
from kt_core.weights.matrix import Matrix
from kt_core.weights.store import Weights, open_weights

__all__ = ["Matrix", "Weights", "decode", "decode_matrix", "open_weights"]
