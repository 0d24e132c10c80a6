"""How far an expert kernel's output may lie from the float64 reference, derived for each output.

A linear kernel's result may differ from its reference by `cases.TOLERANCE` of what is added up (test_linear.py), so
gate and up, and with them h, are known within a margin. `down` rounds h: where the margin crosses an edge of the
rounding, the rounded value may be the next one, a whole step away, and nowhere else. What remains is `down`'s own sum.
"""

import cases
import numpy as np

from kt_core.kernels import POLICY, reference
from kt_core.kernels.policy import GROUP

EPS = 2.0**-23  # of one float32 operation, doubled: the reference rounds too
SLOPE = 1.13  # the steepest slope of silu and of gelu_tanh
ACTIVATION = 2**-20  # relative error of the kernels' exponential and of what is made from it


def bound(x, ids, weights, parts, activation):
    """[T, H]: the largest |kernel - reference| of each output. Direct path."""
    total = np.zeros(x.shape)
    for token, slot in np.ndindex(*ids.shape):
        if (index := int(ids[token, slot])) not in parts:
            continue
        (gate_format, gate), (up_format, up), (down_format, down) = parts[index]
        g, dg = _linear(x[token], gate, gate_format)
        u, du = _linear(x[token], up, up_format)
        a = reference.hidden(g, np.ones_like(g), activation)
        h = a * u
        dh = (SLOPE * dg + ACTIVATION * np.abs(a)) * (np.abs(u) + du) + np.abs(a) * du + EPS * np.abs(h)
        rounded, moved = _rounded(h, dh, POLICY[down_format])
        terms = (np.abs(rounded) + moved) @ np.abs(down).T.astype(np.float64)
        error = moved @ np.abs(down).T.astype(np.float64) + (cases.TOLERANCE[down_format] + EPS) * terms
        total[token] += abs(float(weights[token, slot])) * (error + EPS * terms)
    return total


def _linear(x, weight, format):
    """A linear layer's reference result and the margin of a kernel's."""
    seen = reference.round_activations(x, format)
    return seen @ weight.T.astype(np.float64), cases.TOLERANCE[format] * (np.abs(seen) @ np.abs(weight).T)


def _rounded(h, dh, policy):
    """h as `down` sees it, and how far off a kernel's may be whose h lies within dh."""
    if policy == "f32":
        return h, dh
    if policy == "bf16":
        low, middle, high = (reference.round_bf16((h + d).astype(np.float32)) for d in (-dh, 0 * dh, dh))
        return middle.astype(np.float64), np.maximum(high - middle, middle - low).astype(np.float64)
    groups, margins = h.reshape(-1, GROUP), dh.reshape(-1, GROUP)
    largest = np.abs(groups).max(axis=1, keepdims=True)
    scale = np.where(largest == 0, 1, largest) / 127
    # the group's largest value, and so its scale, may be off by as much as any value of the group
    off = margins.max(axis=1, keepdims=True) / np.where(largest == 0, 1, largest) + 2 * EPS
    q = groups / scale
    near = np.abs(np.abs(q - np.rint(q)) - 0.5) <= margins / scale + np.abs(q) * off
    moved = scale * (np.abs(np.rint(q)) * off + near)
    return (np.rint(q) * scale).reshape(h.shape), moved.reshape(h.shape)
