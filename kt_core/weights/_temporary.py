import numpy as np

from kt_core.weights.decode import _E2M1, _F8_E4M3, decode


def _scale(m):
    s = m.scales
    if m.scale_format == "E8M0":
        return np.where(s == 255, np.nan, np.exp2(s.astype(np.float64) - 127)).astype(np.float32)
    return decode({"E4M3": "F8_E4M3"}.get(m.scale_format, m.scale_format), np.ascontiguousarray(s))


def _nib(words, n):
    w = np.ascontiguousarray(words).view("<u4")
    return w[..., None] >> np.arange(0, 32, 4, dtype=np.uint32) & 15


def decode_matrix(m):
    N, K = m.rows, m.cols
    s = _scale(m)
    if m.format == "FP8_BLOCK":
        return _F8_E4M3[m.data] * np.repeat(np.repeat(s, 128, 0)[:N], 128, 1)[:, :K]
    if m.format in ("FP8_CHANNEL", "MXFP8"):
        return _F8_E4M3[m.data] * np.repeat(s, m.group, 1)
    if m.format == "INT8_CHANNEL":
        return m.data.view(np.int8).astype(np.float32) * s
    if m.format in ("MXFP4_HF", "NVFP4", "INT4"):
        q = np.stack([m.data & 15, m.data >> 4], -1).reshape(N, K)
        if m.format == "INT4":
            z = 8.0
            if m.zeros is not None:
                z = np.stack([m.zeros & 15, m.zeros >> 4], -1).reshape(N, -1)[:, : K // m.group]
                z = np.repeat(z.astype(np.float32), m.group, 1)
            return ((q.astype(np.float32) - z) * np.repeat(s, m.group, 1)).astype(np.float32)
        return (_E2M1[q] * np.repeat(s, m.group, 1) * np.float32(m.multiplier)).astype(np.float32)
    order = np.arange(8) if m.format == "GPTQ" else np.array([0, 4, 1, 5, 2, 6, 3, 7])
    z = 8.0
    if m.zeros is not None:
        z = _nib(m.zeros, 8)[..., order].reshape(K // m.group, N).astype(np.float32) + (m.format == "GPTQ")
        z = np.repeat(z, m.group, 0)
    if m.format == "GPTQ":
        q = _nib(m.data, 8).transpose(0, 2, 1).reshape(K, N)
    else:
        q = _nib(m.data, 8)[..., order].reshape(K, N)
    return np.ascontiguousarray(((q.astype(np.float32) - z) * np.repeat(s, m.group, 0)).T.astype(np.float32))
