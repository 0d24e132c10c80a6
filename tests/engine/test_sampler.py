"""The sampler against an independent float64 model in numpy, and its frequencies against the distribution."""

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kt_core.engine import sampler
from kt_core.kernels.native import load
from kt_core.kernels.sampling import candidates, choose, largest
from kt_core.types import Sampling

VOCAB = 40
TIERS = [
    "scalar",
    *(tier["name"] for tier in load().tiers() if tier["runnable"] and tier["name"] in ("avx2", "avx512")),
]


def reference(logits: np.ndarray, s: Sampling, prompt: list[int], answer: list[int]) -> np.ndarray:
    """Probabilities [vocab] in float64, written from the definitions with loops and sorts."""
    return reference_with_margin(logits, s, prompt, answer)[0]


def reference_with_margin(logits: np.ndarray, s: Sampling, prompt: list[int], answer: list[int]):
    """Also how close the nearest cut came to falling elsewhere (exact ties aside)."""
    margins = [1.0]
    values = logits.astype(np.float64).copy()
    for i in range(len(values)):
        if i in prompt or i in answer:
            values[i] = values[i] / s.repetition_penalty if values[i] > 0 else values[i] * s.repetition_penalty
        count = answer.count(i)
        values[i] -= count * s.frequency_penalty + (s.presence_penalty if count else 0)
        values[i] += s.logit_bias.get(i, 0.0)
    if s.temperature == 0:
        out = np.zeros(len(values))
        out[int(np.argmax(values))] = 1
        return out, 1.0
    order = sorted(range(len(values)), key=lambda i: (-values[i], i))
    weights = np.exp((values - values.max()) / s.temperature)
    if 0 < s.top_k < len(order):
        margins.append(values[order[s.top_k - 1]] - values[order[s.top_k]] or 1.0)
        order = order[: s.top_k]
    share = weights[order] / weights[order].sum()
    if s.top_p < 1:
        mass, kept = 0.0, 0
        while kept < len(order) and mass < s.top_p:
            mass += share[kept]
            kept += 1
            margins.append(abs(mass - s.top_p))
        order = order[: max(kept, 1)]
        share = weights[order] / weights[order].sum()
    if s.min_p:
        margins += [gap for gap in abs(share / share.max() - s.min_p) if gap]
        order = [i for i, p in zip(order, share, strict=True) if p >= s.min_p * share.max()]
    if s.typical_p < 1:
        share = weights[order] / weights[order].sum()
        information = -np.log(np.maximum(share, 1e-300))
        distance = abs(information - (share * information).sum())
        nearest = sorted(range(len(order)), key=lambda place: (distance[place], order[place]))
        kept = max(int((np.cumsum(share[nearest]) < s.typical_p).sum()) + 1, 1)
        margins += abs(np.cumsum(share[nearest]) - s.typical_p).tolist()
        if kept < len(order):
            margins.append(distance[nearest[kept]] - distance[nearest[kept - 1]] or 1.0)
        order = [order[place] for place in nearest[:kept]]
    out = np.zeros(len(values))
    out[order] = weights[order] / weights[order].sum()
    return out, min(margins)


def ours(logits: np.ndarray, s: Sampling, prompt: list[int], answer: list[int]) -> np.ndarray:
    state = sampler.start(s, prompt, len(logits))
    for token in answer:
        state.add(token)
    ids, probabilities = candidates(sampler.penalize(logits, s, state), s)
    out = np.zeros(len(logits))
    out[ids] = probabilities / probabilities.sum(dtype=np.float64)
    return out


@settings(max_examples=300, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    temperature=st.sampled_from([0.05, 0.7, 1.0, 2.0]),
    top_k=st.sampled_from([0, 1, 5, VOCAB, VOCAB + 9]),
    top_p=st.sampled_from([0.0, 0.1, 0.63, 0.95, 1.0]),
    min_p=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    frequency=st.sampled_from([0.0, 0.7, -1.5]),
    presence=st.sampled_from([0.0, 1.1]),
    repetition=st.sampled_from([1.0, 1.3, 0.8]),
    typical_p=st.sampled_from([0.0, 0.3, 0.9, 1.0, 1.0]),
    ties=st.booleans(),
)
def test_distribution(seed, temperature, top_k, top_p, min_p, frequency, presence, repetition, typical_p, ties):
    rng = np.random.default_rng(seed)
    # Quarters are exact in float32, so that ties are ties in both models; penalties break them alike.
    raw = rng.integers(-8, 8, VOCAB) / 4 if ties else rng.normal(0, 2, VOCAB)
    logits = np.array(raw, np.float32)
    s = Sampling(
        temperature, top_k, top_p, min_p, None, frequency, presence, repetition, {3: 1.5, 9: -100.0}, typical_p
    )
    prompt, answer = rng.integers(0, VOCAB, 6).tolist(), rng.integers(0, VOCAB, 4).tolist()
    expected, margin = reference_with_margin(logits, s, prompt, answer)
    # A cut between tokens that differ only in the last bits of float32 may fall either way.
    assume(margin > 1e-5)
    got = ours(logits, s, prompt, answer)
    # A float32 logit is off by |l| * 2^-23 < 3e-6 after penalties and bias; divided by 0.05 that is 6e-5 in the exponent.
    np.testing.assert_allclose(got, expected, rtol=2e-4, atol=1e-9)
    assert math.isclose(got.sum(), 1.0, rel_tol=1e-6)


def test_top_k_of_equal_logits_keeps_exactly_k():
    ids, probabilities = candidates(np.zeros(VOCAB, np.float32), Sampling(top_k=5))
    assert ids.tolist() == [0, 1, 2, 3, 4]
    assert (probabilities / probabilities.sum()).tolist() == pytest.approx([0.2] * 5)


@pytest.mark.parametrize("vocab", [900, 5000, 50000])
def test_top_p_of_equal_tokens(vocab):
    ids, _ = candidates(np.zeros(vocab, np.float32), Sampling(top_p=0.5))
    # vocab/2 times 1/vocab may round to just below one half.
    assert ids.tolist() in (list(range(vocab // 2)), list(range(vocab // 2 + 1)))


FILTERS = {
    "temperature": {"temperature": 0.6},
    "hot": {"temperature": 1.7},
    "top_k": {"top_k": 25},
    "top_p": {"top_p": 0.8},
    "min_p": {"min_p": 0.05},
    "typical_p": {"typical_p": 0.7},
    "repetition": {"repetition_penalty": 1.4},
    "frequency": {"frequency_penalty": 0.8},
    "presence": {"presence_penalty": 1.2},
    "bias": {"logit_bias": {0: 2.0, 5: -3.0}},
}
SAMPLERS = [{}, *FILTERS.values(), {k: v for f in FILTERS.values() for k, v in f.items()}]


@pytest.mark.parametrize("fields", SAMPLERS, ids=["none", *FILTERS, "all"])
def test_frequencies(fields):
    """Pearson's chi-square against the reference, at a level of one in a million; 300 tokens are several columns of the sampler."""
    vocab, draws, s = 300, 4000, Sampling(**fields)
    logits = np.array(np.random.default_rng(len(fields)).normal(0, 1.5, vocab), np.float32)
    prompt, answer = list(range(20)), [5, 5, 30, 31]
    expected = reference(logits, s, prompt, answer)
    state = sampler.start(Sampling(seed=5), prompt, vocab)
    for token in answer:
        state.add(token)
    row = sampler.penalize(logits, s, state)
    drawn = choose([(row, s, uniform) for uniform in state.generator.random(draws)])
    counts = np.bincount([token for token, _ in drawn], minlength=vocab)
    assert (counts[expected == 0] == 0).all()
    likely = draws * expected >= 8  # the others count together
    counts = np.append(counts[likely], counts[~likely].sum())
    mean = draws * np.append(expected[likely], expected[~likely].sum())
    kept = mean > 1e-9
    chi = ((counts - mean)[kept] ** 2 / mean[kept]).sum()
    freedom = max(int(kept.sum()) - 1, 1)
    # Wilson-Hilferty: the cube root of chi-square/freedom is close to normal; 4.75 is its one-in-a-million point.
    bound = freedom * (1 - 2 / (9 * freedom) + 4.75 * math.sqrt(2 / (9 * freedom))) ** 3
    assert chi < bound


@pytest.mark.parametrize("vocab", [1, 127, 128, 129, 5000])
def test_found_by_columns_is_what_sorting_finds(vocab):
    random = np.random.default_rng(vocab)
    for kind in ("normal", "ties", "banned"):
        values = random.normal(size=vocab).astype(np.float32)
        if kind == "ties":
            values = values.round()
        if kind == "banned":
            values[random.random(vocab) < 0.99] = -np.inf
        expected = [token for token in np.argsort(-values, kind="stable") if values[token] > -np.inf]
        for k in {1, min(7, vocab), min(300, vocab), vocab}:
            assert largest(values, k).tolist() == expected[:k], (kind, k)


@pytest.mark.parametrize("mass", [0.0, 0.1, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("kind", ["wide", "narrow", "ties"])
def test_the_nucleus_is_what_sorting_finds(kind, mass):
    values = np.random.default_rng(7).normal(size=5000)
    values = {"wide": values * 5, "narrow": values * 0.01, "ties": values.round()}[kind].astype(np.float32)
    exact = np.exp(values.astype(np.float64))
    order = np.argsort(-values, kind="stable")
    sums = np.cumsum(exact[order]) / exact.sum()
    assert abs(sums - mass).min() > 1e-7
    ids, _ = candidates(values, Sampling(top_p=mass))
    assert sorted(ids) == sorted(order[: int(np.searchsorted(sums, mass)) + 1])


def test_draws_only_what_has_a_probability():
    logits = np.full(1000, -np.inf, np.float32)
    logits[[0, 400, 999]] = [-69.0, 0.0, 0.0]  # the first one's chance is 1e-30
    uniforms = [0.0, *np.random.default_rng(3).random(200), np.nextafter(1.0, 0.0)]
    tokens = [token for token, _ in choose([(logits, Sampling(), uniform) for uniform in uniforms])]
    assert tokens[0] == 0 and set(tokens[1:]) == {400, 999}


@pytest.mark.parametrize("fall", [1.3, 2.2])
@pytest.mark.parametrize("fields", [*SAMPLERS[:5], {"typical_p": 0.9}, {"top_k": 800, "typical_p": 0.5}], ids=str)
def test_every_tier_chooses_the_same_of_a_large_vocabulary(fields, fall):
    """Their exponentials differ in the last place, which parts them in one draw of a million."""
    random, vocab = np.random.default_rng(5), 151_936
    ranks = -fall * np.log(np.arange(1, vocab + 1))
    logits = (random.permutation(ranks) + random.normal(0, 0.1, vocab)).astype(np.float32)
    rows = [(logits, Sampling(**fields), uniform) for uniform in random.random(20)]
    found = {tier: choose(rows, tier) for tier in TIERS}
    assert len({tuple(chosen) for chosen in found.values()}) == 1
    ids, weights = candidates(logits, Sampling(**fields))
    share = weights / weights.sum(dtype=np.float64)
    expected = _probabilities(logits, Sampling(**fields))
    np.testing.assert_allclose(share, expected[ids], rtol=1e-4, atol=1e-12)
    assert expected[ids].sum() == pytest.approx(1.0, abs=1e-5)


def _probabilities(logits, s):
    """As `reference`, in arrays: a hundred and fifty thousand tokens in its loops take a minute."""
    order = np.argsort(-logits, kind="stable")
    share = np.exp((logits.astype(np.float64)[order] - logits.max()) / s.temperature)
    kept = np.ones(len(order), bool)
    if s.top_k:
        kept[s.top_k :] = False
    share = share * kept / (share * kept).sum()
    if s.top_p < 1:
        share[int(np.searchsorted(np.cumsum(share), s.top_p)) + 1 :] = 0
    share[share < s.min_p * share.max()] = 0
    share /= share.sum()
    if s.typical_p < 1:
        information = -np.log(np.maximum(share, 1e-300))
        nearest = np.argsort(abs(information - (share * information).sum()), kind="stable")
        share[nearest[int(np.searchsorted(np.cumsum(share[nearest]), s.typical_p)) + 1 :]] = 0
    out = np.zeros(len(order))
    out[order] = share / share.sum()
    return out


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_bounds_rule_tokens_out(temperature):
    s = Sampling(temperature=temperature, seed=1)
    bounds = np.full(VOCAB, -np.inf, np.float32)
    bounds[[4, 30]] = np.inf
    logits = np.random.default_rng(1).normal(size=VOCAB).astype(np.float32)
    state = sampler.start(s, [], VOCAB)
    assert {sampler.sample(logits, s, state, bounds) for _ in range(50)} <= {4, 30}
    with pytest.raises(sampler.BadLogits):
        sampler.sample(logits, s, state, np.full(VOCAB, -np.inf, np.float32))
    logits[7] = math.nan  # of a token that is ruled out, and a fault of the model's all the same
    with pytest.raises(sampler.BadLogits):
        sampler.sample(logits, s, state, bounds)


def sequence(s: Sampling, choice: int = 0, steps: int = 30) -> list[int]:
    state = sampler.start(s, [1, 2], VOCAB, choice)
    rng = np.random.default_rng(2)
    return [sampler.sample(np.array(rng.normal(0, 1, VOCAB), np.float32), s, state) for _ in range(steps)]


def test_seed_repeats_and_choices_differ():
    assert sequence(Sampling(seed=11)) == sequence(Sampling(seed=11))
    assert sequence(Sampling(seed=11)) != sequence(Sampling(seed=12))
    assert sequence(Sampling(seed=11), choice=1) == sequence(Sampling(seed=12))
    assert sequence(Sampling()) != sequence(Sampling())
    for extreme in (-(2**63), 2**63 - 1, 0, -1):
        assert sequence(Sampling(seed=extreme), 1) == sequence(Sampling(seed=extreme), 1)


def test_greedy_takes_the_first_of_equal_logits():
    s = Sampling(temperature=0.0)
    for vocab, first, second in [(40, 7, 21), (40, 0, 39), (150001, 7, 9), (150001, 70000, 149999)]:
        logits = np.zeros(vocab, np.float32)
        logits[[first, second]] = 1.0
        assert sampler.sample(logits, s, sampler.start(s, [], vocab)) == first


def test_tiny_temperature_is_greedy():
    logits = np.array([1.0, 3.0, 2.0], np.float32)
    for temperature in (1e-300, 1e-9, 1e-3):
        s = Sampling(temperature=temperature, seed=1)
        assert sampler.sample(logits, s, sampler.start(s, [], 3)) == 1


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    "logits", [[math.nan, 1.0, 2.0], [-math.inf] * 3, [math.inf, 0.0, 0.0], [math.nan] * 3], ids=str
)
def test_unusable_logits_are_an_error(logits, temperature):
    s = Sampling(temperature=temperature)
    with pytest.raises(sampler.BadLogits):
        sampler.sample(np.array(logits, np.float32), s, sampler.start(s, [], 3))


def test_some_minus_infinity_is_fine():
    s = Sampling(top_p=0.9, top_k=2, seed=3)
    logits = np.array([-math.inf, 0.0, -math.inf], np.float32)
    assert sampler.sample(logits, s, sampler.start(s, [], 3)) == 1


def test_input_is_left_alone():
    logits = np.array([1.0, 2.0, 3.0], np.float32)
    s = Sampling(logit_bias={0: 5.0}, repetition_penalty=2.0, presence_penalty=1.0)
    sampler.sample(logits, s, sampler.start(s, [1], 3))
    assert logits.tolist() == [1.0, 2.0, 3.0]


def test_logprobs_come_from_raw_logits():
    raw = np.random.default_rng(3).normal(0, 3, VOCAB)
    logits = np.array(raw, np.float32)
    exact = logits.astype(np.float64)
    exact = exact - np.log(np.exp(exact - exact.max()).sum()) - exact.max()
    entry = sampler.logprobs(logits, 4, 5)
    assert entry.logprob == pytest.approx(exact[4], abs=1e-6)
    assert [token for token, _ in entry.top] == np.argsort(-exact)[:5].tolist()
    assert [value for _, value in entry.top] == pytest.approx(np.sort(exact)[::-1][:5].tolist(), abs=1e-6)
    assert sum(math.exp(value) for _, value in sampler.logprobs(logits, 4, VOCAB).top) <= 1 + 1e-6
    assert sampler.logprobs(logits, 4, 0).top == ()
