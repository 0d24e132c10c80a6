"""Traces of which experts tokens ask for, and what a step costs by them."""

import numpy as np

EXPERTS, SLOTS = 128, 8
# Of a machine with a GPU (docs/benchmarks.md): bytes of an expert in Q4_K, bytes a second that 16 threads read, that a link
# copies, and that both do together; seconds of a step that are not the CPU's experts; layers
BYTES, READS, COPIES, TOGETHER, REST, LAYERS = 2.65e6, 106e9, 50e9, 127e9, 8.1e-3, 48


def drifting(tokens, layers, seed, repeated=0.45, near=0.74, drift=40):
    """[tokens, layers, SLOTS]: of the experts of a token 45 % were those of the one before, 80 % of one of the eight before; the
    others come by how popular they are, which changes: every `drift` tokens two change places."""
    random = np.random.default_rng(seed)
    popular = 1 / np.arange(1, EXPERTS + 1) ** 0.6
    popular /= popular.sum()
    order = np.array([random.permutation(EXPERTS) for _ in range(layers)])
    found = np.zeros((tokens, layers, SLOTS), np.int64)
    for token in range(tokens):
        for layer in range(layers):
            if random.random() < 1 / drift:
                a, b = random.integers(0, EXPERTS, 2)
                order[layer, [a, b]] = order[layer, [b, a]]
            before = found[max(0, token - 8) : token, layer]
            last = random.permutation(before[-1]).tolist() if token else []
            others = random.permutation(np.setdiff1d(before, last)).tolist() if token else []
            chosen = set()
            while len(chosen) < SLOTS:
                way = random.random()
                if way < repeated and last:
                    chosen.add(last.pop())
                elif repeated <= way < near and others:
                    chosen.add(others.pop())
                elif way >= near or not token:
                    chosen.add(int(order[layer, random.choice(EXPERTS, p=popular)]))
            found[token, layer] = random.permutation(list(chosen))
    return found


def even(tokens, layers, seed):
    """Every expert as likely as another, whatever came before."""
    random = np.random.default_rng(seed)
    return np.argsort(random.random((tokens, layers, EXPERTS)), -1)[..., :SLOTS]


def repeats(trace):
    """Of the experts of a token: the part that the token before asked for, and one of the eight before."""
    tokens, layers, slots = trace.shape
    last = near = 0
    for layer in range(layers):
        for token in range(8, tokens):
            now = trace[token, layer]
            last += np.isin(now, trace[token - 1, layer]).sum()
            near += np.isin(now, trace[token - 8 : token, layer]).sum()
    return last / ((tokens - 8) * layers * slots), near / ((tokens - 8) * layers * slots)


def seconds(hits, moved):
    """Of a step of one token: `hits` is the part of its experts that the device has, `moved` are experts that come meanwhile.

    Copies go on beside everything; those that the rest of the step has no time for share memory with the CPU's reads.
    """
    reads, copies = (1 - hits) * LAYERS * SLOTS * BYTES, moved * BYTES
    beside = max(0.0, copies - COPIES * REST)
    return REST + max(reads / READS, (reads + beside) / TOGETHER, beside / COPIES)
