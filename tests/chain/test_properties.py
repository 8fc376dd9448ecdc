"""Laws that chain inference must obey on inputs of any size."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from seqfield import chain
from seqfield.chain import ChainScores, _chunks
from seqfield.chain._numba import RANGE, TINY
from seqfield.chain.reference import enumerate_labellings
from seqfield.data.schemes import SpanCodes
from seqfield.errors import InputError, NoPathError


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def log_sum(x):
    high = x.max(axis=-1)
    return high + np.log(np.exp(x - high[..., None]).sum(axis=-1))


def random_scores(lengths, n_labels, *, seed=0, positional=False, ends=True, scale=1.0, forbid=0.0):
    rng = np.random.default_rng(seed)
    offsets = np.r_[0, np.cumsum(lengths)]
    n_tokens = offsets[-1]
    shape = (n_tokens, n_labels, n_labels) if positional else (n_labels, n_labels)
    edge = scale * rng.normal(size=shape)
    edge[rng.random(shape) < forbid] = -np.inf
    edge[..., np.arange(n_labels), np.arange(n_labels)] = 0.5 * scale  # a path always exists
    if positional:
        edge[offsets[:-1]] = 1.0  # ignored
    start, end = scale * rng.normal(size=(2, n_labels))
    node = scale * rng.normal(size=(n_tokens, n_labels))
    return ChainScores(node, edge, offsets, start if ends else None, end if ends else None)


class Arguments:
    """Everything a public function can be given besides the scores."""

    def __init__(self, scores, seed=1):
        rng = np.random.default_rng(seed)
        s = scores.n_labels
        shape = scores.node.shape
        self.allowed = rng.random(shape) < 0.8
        self.allowed[:, 0] = True  # label 0 all along is a path
        self.weights = rng.normal(size=scores.n_sequences)
        self.labels = np.zeros(shape[0], np.int32)
        self.gold = rng.integers(s, size=shape[0]).astype(np.int32)
        self.node_hits = rng.integers(0, 2, size=shape)
        self.pair_hits = rng.integers(0, 2, size=(s, s))
        self.d_node = rng.normal(size=shape)
        self.d_edge = rng.normal(size=scores.edge.shape)


def subtracted(scores, labels, weights, *, each=False):
    """What `subtract_path` returns and what it leaves of gradients of zeros."""
    s = scores.n_labels
    d_node, d_edge = np.zeros(scores.node.shape), np.zeros((s, s))
    if each:
        d_edge = np.zeros((scores.n_tokens, s, s))
    total = chain.subtract_path(scores, labels, weights, d_node, d_edge)
    return [np.array(total), d_node, d_edge]


def spans_of(scores):
    """The first label as one that is no span, the others as the begins of spans."""
    kind = np.arange(scores.n_labels) - 1
    no = np.zeros(scores.n_labels, bool)
    return SpanCodes(kind, ~no, no, [str(k) for k in kind[1:]])


def first_spans(scores, n_jobs):
    """The probability of the first span that each sequence is likely to have."""
    found = chain.likely_spans(scores, spans_of(scores), 0.01, n_jobs=n_jobs)
    sequences, first = np.unique(found.rows[:, 0], return_index=True)
    out = np.zeros(scores.n_sequences)
    out[sequences] = found.probability[first]
    return out


CALLS = {
    "log_partition": lambda x, a, **kw: chain.log_partition(x, **kw),
    "marginals": lambda x, a, **kw: [
        *chain.marginals(x, pairs="sum", weights=a.weights, **kw),
        *chain.marginals(x, **kw)[:2],
    ],
    "marginals each": lambda x, a, **kw: chain.marginals(x, pairs="each", **kw),
    "viterbi": lambda x, a, **kw: chain.viterbi(x, **kw),
    "nbest": lambda x, a, **kw: [
        part for one in chain.nbest(x, 3, **kw) for y, p in one for part in (y, np.array(p))
    ],
    "posterior_decode": lambda x, a, **kw: chain.posterior_decode(x, **kw),
    "sample": lambda x, a, **kw: chain.sample(x, 3, random_state=7, **kw),
    "log_prob": lambda x, a, **kw: chain.log_prob(x, a.labels, **kw),
    "entropy": lambda x, a, **kw: chain.entropy(x, **kw),
    "count_distribution": lambda x, a, **kw: chain.count_distribution(
        x, a.node_hits, a.pair_hits, **kw
    ),
    "tangent": lambda x, a, **kw: chain.tangent(x, a.d_node, a.d_edge, **kw),
    "tangent each": lambda x, a, **kw: chain.tangent(x, a.d_node, a.d_edge, pairs="each", **kw),
    "expectation": lambda x, a, **kw: chain.expectation(x, a.d_node, a.d_edge, **kw),
    "hamming_augmented": lambda x, a, **kw: chain.hamming_augmented(x, a.gold, 2.0).node,
    "viterbi_by_distance": lambda x, a, **kw: [
        part
        for pair in chain.viterbi_by_distance(x, a.gold, n_jobs=kw.get("n_jobs"))
        for part in pair
    ],
}
CALLS["others"] = lambda x, a, **kw: chain.others(x, a.gold, n_jobs=kw.get("n_jobs"))
CALLS["window_prob"] = lambda x, a, **kw: chain.window_prob(
    x, x.offsets[:-1], [np.ones((1, x.n_labels), bool)] * x.n_sequences, n_jobs=kw.get("n_jobs")
)
CALLS["span_prob"] = lambda x, a, **kw: chain.span_prob(
    x,
    spans_of(x),
    [(i, 0, t, t) for i, t in enumerate(x.offsets[:-1])],
    n_jobs=kw.get("n_jobs"),
)
CALLS["likely_spans"] = lambda x, a, **kw: first_spans(x, kw.get("n_jobs"))
CALLS["subtract_path"] = lambda x, a, **kw: subtracted(x, a.gold, a.weights)
WITHOUT_CHUNKS = ("hamming_augmented", "subtract_path")
WITHOUT_ALLOWED = (
    *WITHOUT_CHUNKS,
    "viterbi_by_distance",
    "others",
    "window_prob",
    "span_prob",
    "likely_spans",
)
every_function = pytest.mark.parametrize("name", list(CALLS))


def call(name, scores, arguments, **kw):
    """The result as a list of arrays."""
    result = CALLS[name](scores, arguments, **kw)
    if isinstance(result, np.ndarray):
        return [result]
    return [part for part in result if part is not None]


def same_bits(one, other):
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


def test_every_public_function_is_in_the_table():
    public = {name for name in chain.__all__ if name.islower()}
    assert public == {name.split()[0] for name in CALLS}


# Special cases with a closed form


@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("scale", [1.0, 50.0, 1e3])
def test_length_one_is_softmax(ends, scale):
    scores = random_scores([1] * 50, 5, ends=ends, scale=scale)
    total = scores.node + (scores.start + scores.end if ends else 0.0)
    p = softmax(total)
    ours = chain.marginals(scores, pairs="each")
    np.testing.assert_allclose(ours.node, p, rtol=1e-11, atol=1e-15)
    np.testing.assert_allclose(ours.log_z, log_sum(total), rtol=1e-13)
    assert not ours.pairs.any()
    log_p = np.log(np.maximum(p, 1e-300))
    np.testing.assert_allclose(chain.entropy(scores), -(p * log_p).sum(axis=1), atol=1e-12)
    np.testing.assert_array_equal(chain.viterbi(scores).labels, total.argmax(axis=1))
    np.testing.assert_array_equal(chain.posterior_decode(scores), p.argmax(axis=1))
    # the Hessian of log Z of one token: diag(p) - p p'
    d = np.random.default_rng(0).normal(size=p.shape)
    change = chain.tangent(scores, d)
    expected = p * (d - (p * d).sum(axis=1, keepdims=True))
    np.testing.assert_allclose(change.node, expected, rtol=1e-11, atol=1e-14)
    assert not change.pairs.any()


@pytest.mark.parametrize("scale", [1.0, 100.0])
def test_zero_transitions_are_independent_tokens(scale):
    rng = np.random.default_rng(0)
    lengths = [4, 1, 30, 2]
    node = scale * rng.normal(size=(sum(lengths), 4))
    offsets = np.r_[0, np.cumsum(lengths)]
    p = softmax(node)
    for edge in (np.zeros((4, 4)), np.zeros((len(node), 4, 4)), np.full((4, 4), 3.0)):
        scores = ChainScores(node, edge, offsets)
        ours = chain.marginals(scores, pairs="each")
        np.testing.assert_allclose(ours.node, p, rtol=1e-10, atol=1e-14)
        inner = np.setdiff1d(np.arange(len(node)), offsets[:-1])
        expected = p[inner - 1][:, :, None] * p[inner][:, None, :]
        np.testing.assert_allclose(ours.pairs[inner], expected, rtol=1e-10, atol=1e-14)
        constant = edge.flat[0] * (np.array(lengths) - 1)
        log_z = np.add.reduceat(log_sum(node), offsets[:-1]) + constant
        np.testing.assert_allclose(ours.log_z, log_z, rtol=1e-12)
        h = np.add.reduceat(-(p * np.log(np.maximum(p, 1e-300))).sum(axis=1), offsets[:-1])
        np.testing.assert_allclose(chain.entropy(scores), h, rtol=1e-10, atol=1e-14)
        # V of one token does not move the others
        d = np.zeros_like(node)
        d[6] = rng.normal(size=4)
        change = chain.tangent(scores, d).node
        np.testing.assert_allclose(change[6], p[6] * (d[6] - p[6] @ d[6]), rtol=1e-10, atol=1e-15)
        np.testing.assert_allclose(np.delete(change, 6, axis=0), 0.0, atol=1e-14)


def test_one_label():
    rng = np.random.default_rng(0)
    node, edge = rng.normal(size=(7, 1)) * 1e5, np.array([[-3e4]])
    scores = ChainScores(node, edge, [0, 1, 7], start=[2.0], end=[-1.0])
    total = [node[0, 0] + 1.0, node[1:].sum() + 5 * -3e4 + 1.0]
    ours = chain.marginals(scores, pairs="sum")
    np.testing.assert_allclose(ours.log_z, total, rtol=1e-14)
    np.testing.assert_allclose(ours.node, 1.0, rtol=1e-15)
    np.testing.assert_allclose(ours.pairs, [[5.0]], rtol=1e-15)
    assert [len(one) for one in chain.nbest(scores, 4)] == [1, 1]
    np.testing.assert_allclose(chain.entropy(scores), 0.0, atol=1e-14)
    np.testing.assert_array_equal(chain.sample(scores, 2, random_state=0), np.zeros((2, 7)))


def test_ties_are_broken_towards_low_labels_from_the_last_token_back():
    scores = ChainScores(np.zeros((4, 3)), np.zeros((3, 3)))
    np.testing.assert_array_equal(chain.viterbi(scores).labels, [0, 0, 0, 0])
    np.testing.assert_array_equal(chain.posterior_decode(scores), [0, 0, 0, 0])
    alternating = ChainScores(np.zeros((2, 2)), -np.eye(2))
    np.testing.assert_array_equal(chain.viterbi(alternating).labels, [1, 0])


# Derivatives


def central(function, x, step=1e-4):
    """Numerical gradient, fourth order, of a scalar function of an array."""
    out = np.zeros_like(x)
    for k in np.ndindex(x.shape):
        values = []
        for factor in (-2, -1, 1, 2):
            moved = x.copy()
            moved[k] += factor * step
            values.append(function(moved))
        out[k] = (values[0] - 8 * values[1] + 8 * values[2] - values[3]) / (12 * step)
    return out


@pytest.mark.parametrize("positional", [False, True])
@pytest.mark.parametrize("scale", [1.0, 40.0])
def test_marginals_are_the_gradient_of_log_z(positional, scale):
    x = random_scores([4, 1, 3], 3, seed=5, positional=positional, scale=scale)
    ours = chain.marginals(x, pairs="each" if positional else "sum")

    def log_z(node=x.node, edge=x.edge, start=x.start, end=x.end):
        return chain.log_partition(ChainScores(node, edge, x.offsets, start, end)).sum()

    tolerance = {"rtol": 1e-8, "atol": 1e-9 * scale}
    np.testing.assert_allclose(central(lambda v: log_z(node=v), x.node), ours.node, **tolerance)
    np.testing.assert_allclose(central(lambda v: log_z(edge=v), x.edge), ours.pairs, **tolerance)
    first, last = ours.node[x.offsets[:-1]].sum(axis=0), ours.node[x.offsets[1:] - 1].sum(axis=0)
    np.testing.assert_allclose(central(lambda v: log_z(start=v), x.start), first, **tolerance)
    np.testing.assert_allclose(central(lambda v: log_z(end=v), x.end), last, **tolerance)


@pytest.mark.parametrize("positional", [False, True])
@pytest.mark.parametrize("scale", [1.0, 40.0])
def test_tangent_is_the_derivative_of_the_marginals(positional, scale):
    x = random_scores([6, 1, 4], 3, seed=6, positional=positional, scale=scale, forbid=0.2)
    a = Arguments(x)

    def moved(step):
        scores = ChainScores(
            x.node + step * a.d_node, x.edge + step * a.d_edge, x.offsets, x.start, x.end
        )
        return chain.marginals(scores, allowed=a.allowed, pairs="each")

    def slope(k):
        step = 1e-3
        f = [moved(i * step)[k] for i in (-2, -1, 1, 2)]
        return (f[0] - 8 * f[1] + 8 * f[2] - f[3]) / (12 * step)

    ours = chain.tangent(x, a.d_node, a.d_edge, allowed=a.allowed, pairs="each")
    for k, part in enumerate(ours):
        np.testing.assert_allclose(part, slope(k), rtol=1e-7, atol=2e-10 * scale)
    total = chain.tangent(x, a.d_node, a.d_edge, allowed=a.allowed)
    np.testing.assert_allclose(total.pairs, ours.pairs.sum(axis=0), rtol=1e-12, atol=1e-14)


def test_the_hessian_is_symmetric_and_positive():
    x = random_scores([15, 8], 4, seed=8, forbid=0.2)
    rng = np.random.default_rng(0)
    u, v = rng.normal(size=(2, *x.node.shape))
    hu, hv = chain.tangent(x, u).node, chain.tangent(x, v).node
    assert (v * hu).sum() == pytest.approx((u * hv).sum(), rel=1e-12)
    assert (u * hu).sum() > 0
    # constants are in its null space
    flat = chain.tangent(x, np.repeat(rng.normal(size=(x.n_tokens, 1)), 4, axis=1)).node
    np.testing.assert_allclose(flat, 0.0, atol=1e-13)


# Long chains


@pytest.mark.parametrize("scale", [1.0, 200.0])
def test_a_million_tokens(scale):
    rng = np.random.default_rng(0)
    l, s = 1_000_000, 3
    node, edge = scale * rng.normal(size=(l, s)), scale * rng.normal(size=(s, s))
    scores = ChainScores(node, edge)
    ours = chain.marginals(scores, pairs="each")
    np.testing.assert_allclose(ours.node.sum(axis=1), 1.0, rtol=0, atol=1e-12)
    assert ours.node.min() >= 0
    pairs = ours.pairs[1:]
    np.testing.assert_allclose(pairs.sum(axis=2), ours.node[:-1], rtol=0, atol=1e-12)
    np.testing.assert_allclose(pairs.sum(axis=1), ours.node[1:], rtol=0, atol=1e-12)
    total = chain.marginals(scores, pairs="sum")
    np.testing.assert_allclose(total.pairs, pairs.sum(axis=0), rtol=1e-9)
    assert total.pairs.sum() == pytest.approx(l - 1, rel=1e-12)
    # the best labelling cannot be more probable than 1, and is that probable
    best = chain.viterbi(scores)
    log_p = chain.log_prob(scores, best.labels)[0]
    assert best.score[0] - ours.log_z[0] == pytest.approx(log_p, abs=1e-9 * ours.log_z[0])
    assert log_p < 0
    # E[score] = log Z - H: three independent passes agree
    mean = (ours.node * node).sum() + (total.pairs * edge).sum()
    assert mean == pytest.approx(ours.log_z[0] - chain.entropy(scores)[0], rel=1e-11)


def test_a_long_chain_is_far_from_its_ends():
    """The marginals in the middle forget what happens 500 tokens away."""
    x = random_scores([1001], 4, seed=2, ends=False)
    middle = chain.marginals(ChainScores(x.node[400:601], x.edge)).node[100]
    np.testing.assert_allclose(chain.marginals(x).node[500], middle, rtol=1e-12)


# Inputs of other kinds, and what must not depend on anything


@pytest.mark.parametrize("positional", [False, True])
def test_single_precision_scores(positional):
    x = random_scores([30, 1, 12], 5, seed=3, positional=positional)
    single = ChainScores(x.node.astype(np.float32), x.edge, x.offsets, x.start, x.end)
    rounded = ChainScores(single.node.astype(np.float64), x.edge, x.offsets, x.start, x.end)
    a = Arguments(x)
    for name in CALLS:
        one, other = call(name, single, a), call(name, rounded, a)
        for p, q in zip(one, other, strict=True):
            tolerance = 1e-6 if name in WITHOUT_CHUNKS else 0.0
            np.testing.assert_allclose(p, q, rtol=tolerance)
    for name in ("log_partition", "marginals", "marginals each", "entropy", "tangent"):
        for p, q in zip(call(name, single, a), call(name, x, a), strict=True):
            np.testing.assert_allclose(p, q, rtol=1e-4, atol=1e-5)


def test_memory_layout_does_not_matter():
    x = random_scores([9, 4], 4, seed=4, positional=True)
    a = Arguments(x)
    wide = np.zeros((x.n_tokens * 2, 8))
    wide[::2, ::2] = x.node
    frozen = x.node.copy(), x.edge.copy(), x.offsets.copy()
    for part in frozen:
        part.flags.writeable = False
    others = [
        ChainScores(
            np.asfortranarray(x.node), np.asfortranarray(x.edge), x.offsets, x.start, x.end
        ),
        ChainScores(wide[::2, ::2], x.edge, x.offsets, x.start, x.end),
        ChainScores(x.node.tolist(), x.edge.tolist(), x.offsets.tolist(), x.start, x.end),
        ChainScores(x.node.astype(">f8"), x.edge.astype(">f8"), x.offsets, x.start, x.end),
    ]
    for name in ("log_partition", "marginals each", "viterbi", "entropy", "log_prob"):
        for other in others:
            same_bits(call(name, other, a), call(name, x, a))
    plain = ChainScores(x.node, x.edge, x.offsets)
    for name in ("log_partition", "viterbi"):
        same_bits(call(name, ChainScores(*frozen), a), call(name, plain, a))


def test_integer_scores():
    node, edge = np.array([[3, 0], [-2, 1], [0, 0]]), np.array([[1, -1], [0, 2]])
    whole, real = ChainScores(node, edge), ChainScores(node.astype(float), edge.astype(float))
    a = Arguments(whole)
    for name in CALLS:
        for p, q in zip(call(name, whole, a), call(name, real, a), strict=True):
            np.testing.assert_array_equal(p, q)
    np.testing.assert_array_equal(
        chain.hamming_augmented(whole, [0, 0, 0], 0.5).node, [[3, 0.5], [-2, 1.5], [0, 0.5]]
    )


@pytest.fixture(scope="module")
def positional_batch():
    lengths = np.random.default_rng(0).integers(1, 25, size=450)
    x = random_scores(lengths, 12, seed=9, positional=True, scale=3.0, forbid=0.1)
    return x, Arguments(x)


@pytest.fixture(scope="module")
def stationary_batch():
    lengths = np.random.default_rng(1).integers(1, 25, size=1500)
    x = random_scores(lengths, 40, seed=10, scale=6.0, forbid=0.1)
    x.node[: x.n_tokens // 20] *= 30  # sequences in the log form, in one chunk
    return x, Arguments(x)


@pytest.fixture
def chunks(monkeypatch):
    """The numbers of chunks that the calls of one test are cut into."""
    numbers = []

    def counted(*args):
        bounds = bounds_of(*args)
        numbers.append(len(bounds))
        return bounds

    bounds_of = _chunks.chunk_bounds
    monkeypatch.setattr(_chunks, "chunk_bounds", counted)
    return numbers


@every_function
def test_number_of_threads_changes_no_bit(positional_batch, chunks, name):
    x, a = positional_batch
    for allowed in (None, a.allowed):
        one = call(name, x, a, allowed=allowed, n_jobs=1)
        for n_jobs in (2, 4):
            same_bits(one, call(name, x, a, allowed=allowed, n_jobs=n_jobs))
    assert name in WITHOUT_CHUNKS or min(chunks) > 4


@pytest.mark.parametrize(
    "name", [n for n in CALLS if "each" not in n and n not in ("viterbi_by_distance", "nbest")]
)
def test_number_of_threads_changes_no_bit_of_stationary_chains(stationary_batch, chunks, name):
    x, a = stationary_batch
    one = call(name, x, a, n_jobs=1)
    for n_jobs in (2, 4):
        same_bits(one, call(name, x, a, n_jobs=n_jobs))
    assert name in WITHOUT_CHUNKS or min(chunks) > 4


@pytest.mark.parametrize("n_jobs", [1, 2, 4])
def test_the_first_impossible_sequence_is_named_whatever_the_threads(positional_batch, n_jobs):
    x, a = positional_batch
    allowed = np.ones(x.node.shape, bool)
    for i in (431, 117, 290):
        allowed[x.offsets[i + 1] - 1] = False
    for name in CALLS:
        if name in WITHOUT_ALLOWED:
            continue
        with pytest.raises(NoPathError, match=r"^sequence 117 has no allowed labelling"):
            call(name, x, a, allowed=allowed, n_jobs=n_jobs)


def permuted(x, a, order):
    tokens = np.concatenate([np.arange(*x.offsets[i : i + 2]) for i in order])
    edge = x.edge if x.stationary else x.edge[tokens]
    offsets = np.r_[0, np.cumsum(np.diff(x.offsets)[order])]
    b = Arguments(x)
    for name in ("allowed", "labels", "gold", "node_hits", "d_node"):
        setattr(b, name, getattr(a, name)[tokens])
    b.weights = a.weights[order]
    b.d_edge = a.d_edge if x.stationary else a.d_edge[tokens]
    return ChainScores(x.node[tokens], edge, offsets, x.start, x.end), b, tokens


@pytest.mark.parametrize("positional", [False, True])
@pytest.mark.parametrize("name", [n for n in CALLS if n not in ("sample",)])
def test_permuting_sequences_permutes_results(name, positional):
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 9, size=200)
    x = random_scores(lengths, 9, seed=12, positional=positional, scale=5.0, forbid=0.1)
    # some sequences in the log form among those in the scaled form
    x.node[np.repeat(rng.random(200) < 0.3, lengths)] *= 40
    a = Arguments(x)
    order = rng.permutation(200)
    y, b, tokens = permuted(x, a, order)
    one, other = call(name, x, a, allowed=a.allowed), call(name, y, b, allowed=b.allowed)
    if name == "nbest":
        one = chain.nbest(x, 3, allowed=a.allowed)
        other = chain.nbest(y, 3, allowed=b.allowed)
        for i, ours in zip(order, other, strict=True):
            assert [p for _, p in ours] == [p for _, p in one[i]]
            assert [v.tolist() for v, _ in ours] == [v.tolist() for v, _ in one[i]]
        return
    if name == "count_distribution":
        for i, ours in zip(order, other, strict=True):
            np.testing.assert_array_equal(ours, one[i])
        return
    if name == "viterbi_by_distance":
        for k, i in enumerate(order):
            np.testing.assert_array_equal(other[2 * k], one[2 * i])
            np.testing.assert_array_equal(other[2 * k + 1], one[2 * i + 1])
        return
    for p, q in zip(one, other, strict=True):
        if p.ndim and len(p) == x.n_tokens:
            np.testing.assert_array_equal(q, p[tokens])
        elif p.ndim and len(p) == x.n_sequences:
            np.testing.assert_array_equal(q, p[order])
        else:  # a sum over sequences, in another order
            np.testing.assert_allclose(q, p, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("positional", [False, True])
@pytest.mark.parametrize("ends", [False, True])
@every_function
def test_inputs_are_never_modified(name, positional, ends):
    x = random_scores([6, 1, 9], 4, seed=13, positional=positional, ends=ends)
    for factor in (1.0, 300.0):
        scores = ChainScores(x.node * factor, x.edge, x.offsets, x.start, x.end)
        a = Arguments(scores)
        arrays = {
            **{k: getattr(scores, k) for k in ("node", "edge", "offsets", "start", "end")},
            **vars(a),
        }
        copies = {k: None if v is None else v.copy() for k, v in arrays.items()}
        for allowed in (None, a.allowed):
            result = call(name, scores, a, allowed=allowed)
            for k, v in arrays.items():
                np.testing.assert_array_equal(v, copies[k], err_msg=k)
                for part in result:
                    assert v is None or not np.shares_memory(part, v), k


@pytest.mark.parametrize("size", [1.0, 100.0, 1e4])
@pytest.mark.parametrize("positional", [False, True])
def test_a_constant_added_to_a_token_moves_log_z_alone(size, positional):
    x = random_scores([7, 1, 12], 4, seed=14, positional=positional, forbid=0.2)
    added = size * np.random.default_rng(0).normal(size=(x.n_tokens, 1))
    moved = ChainScores(x.node + added, x.edge, x.offsets, x.start, x.end)
    a = Arguments(x)
    constant = np.add.reduceat(added[:, 0], x.offsets[:-1])
    rounding = 1e-13 * max(10.0, size)
    np.testing.assert_allclose(
        chain.log_partition(moved), chain.log_partition(x) + constant, rtol=1e-12, atol=rounding
    )
    np.testing.assert_allclose(
        chain.viterbi(moved).score, chain.viterbi(x).score + constant, rtol=1e-12, atol=rounding
    )
    np.testing.assert_array_equal(chain.viterbi(moved).labels, chain.viterbi(x).labels)
    same = ("posterior_decode", "sample", "entropy", "log_prob", "count_distribution")
    for name in (*same, "tangent", "tangent each", "expectation", "nbest"):
        for p, q in zip(call(name, moved, a), call(name, x, a), strict=True):
            np.testing.assert_allclose(p, q, rtol=1e-9, atol=rounding, err_msg=name)
    for p, q in zip(
        chain.marginals(moved, pairs="each")[1:], chain.marginals(x, pairs="each")[1:], strict=True
    ):
        np.testing.assert_allclose(p, q, rtol=1e-9, atol=rounding)


# Partial knowledge


@pytest.mark.parametrize("positional", [False, True])
@pytest.mark.parametrize("scale", [1.0, 300.0])
def test_one_allowed_label_for_each_token(positional, scale):
    x = random_scores([8, 1, 5, 20], 4, seed=15, positional=positional, scale=scale)
    y = np.random.default_rng(1).integers(4, size=x.n_tokens)
    allowed = np.eye(4, dtype=bool)[y]
    path = np.zeros(x.n_sequences)
    for i in range(x.n_sequences):
        a, b = x.offsets[i : i + 2]
        path[i] = x.start[y[a]] + x.end[y[b - 1]] + x.node[np.arange(a, b), y[a:b]].sum()
        for t in range(a + 1, b):
            path[i] += (x.edge[t] if positional else x.edge)[y[t - 1], y[t]]
    known = chain.log_partition(x, allowed=allowed)
    np.testing.assert_allclose(known, path, rtol=1e-12, atol=1e-12 * scale)
    np.testing.assert_allclose(
        chain.log_prob(x, y), known - chain.log_partition(x), rtol=1e-10, atol=1e-12 * scale
    )
    np.testing.assert_allclose(chain.log_prob(x, y, allowed=allowed), 0.0, atol=1e-12 * scale)
    np.testing.assert_allclose(chain.marginals(x, allowed=allowed).node, allowed, rtol=1e-15)
    np.testing.assert_array_equal(chain.viterbi(x, allowed=allowed).labels, y)
    np.testing.assert_array_equal(chain.posterior_decode(x, allowed=allowed), y)
    np.testing.assert_allclose(chain.entropy(x, allowed=allowed), 0.0, atol=1e-13)
    np.testing.assert_array_equal(chain.sample(x, 2, allowed=allowed), np.stack([y, y]))
    assert [len(one) for one in chain.nbest(x, 3, allowed=allowed)] == [1] * x.n_sequences


@pytest.mark.parametrize("scale", [1.0, 30.0, 300.0])
def test_conditional_probability_is_a_ratio_of_partition_functions(scale):
    """Z(allowed) / Z = p(every label is allowed); with one token restricted it is a marginal."""
    x = random_scores([50], 4, seed=16, scale=scale, forbid=0.2)
    p = chain.marginals(x).node
    z = chain.log_partition(x)
    for t in (0, 1, 25, 49):
        for j in range(4):
            if p[t, j] > 1e-200:
                allowed = np.ones((50, 4), bool)
                allowed[t] = np.arange(4) == j
                ratio = chain.log_partition(x, allowed=allowed) - z
                np.testing.assert_allclose(ratio, np.log(p[t, j]), rtol=1e-9, atol=1e-11 * scale)


@pytest.mark.parametrize("positional", [False, True])
@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("kind", [np.float64, np.float32])
def test_subtract_path(positional, ends, kind):
    """The gradient of the weighted log loss is the marginals less the path."""
    x = random_scores([8, 1, 5], 3, seed=27, positional=positional, ends=ends)
    x = ChainScores(x.node.astype(kind), x.edge, x.offsets, x.start, x.end)
    a = Arguments(x)
    for labels in (a.gold, a.gold.astype(np.int64)):
        path = chain.log_prob(x, a.gold) + chain.log_partition(x)
        total, d_node, d_edge = subtracted(x, labels, a.weights)
        assert total == pytest.approx(a.weights @ path, rel=1e-12)
        per_token = np.repeat(a.weights, np.diff(x.offsets))
        one = np.eye(3)[a.gold]
        np.testing.assert_array_equal(d_node, -per_token[:, None] * one)
        pairs = np.zeros((x.n_tokens, 3, 3))
        inner = np.setdiff1d(np.arange(x.n_tokens), x.offsets[:-1])
        pairs[inner] = one[inner - 1][:, :, None] * one[inner][:, None, :]
        pairs *= per_token[:, None, None]
        np.testing.assert_allclose(d_edge, -pairs.sum(axis=0), rtol=1e-13, atol=1e-14)
        again, d_node, d_edge = subtracted(x, labels, a.weights, each=True)
        assert again == total
        np.testing.assert_array_equal(d_edge, -pairs)
    # it adds to what is there
    d_node, d_edge = np.full(x.node.shape, 5.0), np.full((3, 3), 7.0)
    chain.subtract_path(x, a.gold, a.weights, d_node, d_edge)
    np.testing.assert_allclose(d_node, 5.0 - per_token[:, None] * one, rtol=1e-14)
    np.testing.assert_allclose(d_edge, 7.0 - pairs.sum(axis=0), rtol=1e-13)


# Samples


def test_sampling_frequencies():
    x = random_scores([5, 1, 3], 3, seed=17, positional=True, forbid=0.3)
    a = Arguments(x)
    n = 20_000
    for allowed in (None, a.allowed):
        expected = chain.marginals(x, allowed=allowed, pairs="each")
        draws = chain.sample(x, n, random_state=1, allowed=allowed)
        assert draws.shape == (n, x.n_tokens)
        one = np.eye(3)[draws]
        node = one.mean(axis=0)
        assert (np.abs(node - expected.node) <= sigma(expected.node, n)).all()
        inner = np.setdiff1d(np.arange(x.n_tokens), x.offsets[:-1])
        pairs = np.einsum("nti,ntj->tij", one[:, inner - 1], one[:, inner]) / n
        p = expected.pairs[inner]
        assert (np.abs(pairs - p) <= sigma(p, n)).all()
        # tokens of different sequences are independent
        across = one[:, x.offsets[1] - 1].T @ one[:, x.offsets[1]] / n
        product = np.outer(expected.node[x.offsets[1] - 1], expected.node[x.offsets[1]])
        assert (np.abs(across - product) <= sigma(product, n)).all()
        # what has probability 0 is never drawn
        assert not node[expected.node == 0].any()
        assert not pairs[p == 0].any()


def sigma(p, n):
    """Four standard errors of a frequency; nothing at 0 and at 1."""
    return 4 * np.sqrt(p * np.maximum(1 - p, 0) / n) + 1e-12


def test_sampled_labellings_follow_the_joint_distribution():
    x = random_scores([4], 2, seed=18, scale=2.0)
    n = 40_000
    draws = chain.sample(x, n, random_state=3)
    frequency = np.bincount(draws @ [8, 4, 2, 1], minlength=16) / n
    p = enumerate_labellings(x).probabilities
    assert (np.abs(frequency - p) <= sigma(p, n)).all()


@pytest.mark.parametrize("scale", [1.0, 40.0, 300.0])
def test_samples_are_never_forbidden(scale):
    x = random_scores([40, 1, 7], 5, seed=19, scale=scale, forbid=0.5)
    x.node[np.random.default_rng(0).random(x.node.shape) < 0.3] = -np.inf
    x.node[:, 0] = 0.0
    a = Arguments(x)
    draws = chain.sample(x, 300, random_state=0, allowed=a.allowed)
    for labels in draws:
        assert a.allowed[np.arange(x.n_tokens), labels].all()
        assert (chain.log_prob(x, labels, allowed=a.allowed) > -np.inf).all()


def test_samples_depend_on_the_seed_alone():
    x = random_scores([20, 3], 4, seed=20)
    one = chain.sample(x, 5, random_state=11)
    np.testing.assert_array_equal(one, chain.sample(x, 5, random_state=11))
    assert (one != chain.sample(x, 5, random_state=12)).any()
    generator = np.random.default_rng(11)
    np.testing.assert_array_equal(one, chain.sample(x, 5, random_state=generator))
    assert (one != chain.sample(x, 5, random_state=generator)).any()


# Ill-formed input


def good():
    return {"node": np.zeros((3, 2)), "edge": np.zeros((2, 2)), "offsets": [0, 1, 3]}


def broken(array, place, value):
    array = np.array(array, dtype=float)
    array[place] = value
    return array


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"node": broken(np.zeros((3, 2)), (1, 0), np.nan)}, r"node\[1, 0\] is nan"),
        ({"node": broken(np.zeros((3, 2)), (2, 1), np.inf)}, r"node\[2, 1\] is inf"),
        ({"node": np.full((3, 2), np.nan, np.float32)}, r"node\[0, 0\] is nan"),
        ({"edge": broken(np.zeros((2, 2)), (0, 1), np.nan)}, r"edge\[0, 1\] is nan"),
        ({"edge": broken(np.zeros((3, 2, 2)), (2, 0, 1), np.inf)}, r"edge\[2, 0, 1\] is inf"),
        ({"start": [0.0, np.nan]}, r"start\[1\] is nan"),
        ({"end": [np.inf, 0.0]}, r"end\[0\] is inf"),
        ({"node": np.zeros(3)}, r"node .*\(3,\)"),
        ({"node": np.zeros((3, 2, 2))}, r"node .*\(3, 2, 2\)"),
        ({"node": np.zeros((3, 0)), "edge": np.zeros((0, 0))}, "at least one label"),
        ({"node": np.array([["a", "b"]] * 3)}, "node must be a numeric"),
        ({"node": np.array([[None, 1.0]] * 3)}, "node must be a numeric"),
        ({"node": np.zeros((3, 2), complex)}, "node"),
        ({"edge": np.zeros((3, 3))}, r"edge must be .*got \(3, 3\)"),
        ({"edge": np.zeros((2, 2, 2))}, r"edge must be .*got \(2, 2, 2\)"),
        ({"edge": np.zeros(2)}, r"edge must be .*got \(2,\)"),
        ({"start": [0.0]}, r"start must have shape \(2,\), got \(1,\)"),
        ({"end": np.zeros((2, 1))}, r"end must have shape \(2,\), got \(2, 1\)"),
        ({"offsets": [0, 1, 2]}, "offsets must run from 0 to 3, got 0 to 2"),
        ({"offsets": [1, 3]}, "offsets must run from 0 to 3, got 1 to 3"),
        ({"offsets": [0, 4]}, "offsets must run from 0 to 3, got 0 to 4"),
        ({"offsets": [0, 2, 1, 3]}, "sequence 1 is empty"),
        ({"offsets": [0, 1, 1, 3]}, "sequence 1 is empty"),
        ({"offsets": [0]}, "offsets"),
        ({"offsets": [[0, 3]]}, "offsets"),
        ({"offsets": [0.0, 1.5, 3.0]}, "offsets"),
        ({"node": np.zeros((0, 2)), "offsets": None}, "sequence 0 is empty"),
    ],
)
def test_ill_formed_scores(change, message):
    with pytest.raises(InputError, match=message):
        ChainScores(**{**good(), **change})


LABELLED = {
    "log_prob": lambda x, y: chain.log_prob(x, y),
    "hamming_augmented": lambda x, y: chain.hamming_augmented(x, y),
    "viterbi_by_distance": lambda x, y: chain.viterbi_by_distance(x, y),
}


@pytest.mark.parametrize("name", list(LABELLED))
@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, 2, 1], r"labels\[1\] is 2: codes run from 0 to 1"),
        ([0, 1, -1], r"labels\[2\] is -1: codes run from 0 to 1"),
        (np.array([0, 2**32, 1]), r"labels\[1\] is 4294967296"),
        (np.array([0, 1, -(2**32)]), r"labels\[2\] is -4294967296"),
        (np.array([0.0, 0.5, 1.0]), "labels"),
        ([0, 1], r"labels must have shape \(3,\), got \(2,\)"),
        ([0, 1, 0, 0], r"labels must have shape \(3,\), got \(4,\)"),
        ([[0], [1], [0]], r"labels must have shape \(3,\), got \(3, 1\)"),
    ],
)
def test_ill_formed_labels(name, labels, message):
    with pytest.raises(InputError, match=message):
        LABELLED[name](ChainScores(**good()), labels)


@pytest.mark.parametrize("labels", [[2, 0, 0], [0, -1, 0], [0, 0, 0, 0]])
def test_ill_formed_labels_of_subtract_path(labels):
    """A code out of range would change the gradient of another label, or memory beyond it."""
    with pytest.raises(InputError, match="labels"):
        subtracted(ChainScores(**good()), np.array(labels, np.int32), np.ones(2))


@pytest.mark.parametrize(
    "shape", [(3,), (2, 2), (3, 3), (2, 3), (1, 2), (4, 2), (1, 3, 2)], ids=str
)
def test_ill_formed_allowed_sets(shape):
    x = ChainScores(**good())
    a = Arguments(x)
    for name in CALLS:
        if name not in WITHOUT_ALLOWED:
            with pytest.raises(InputError, match=r"allowed must have shape \(3, 2\)"):
                call(name, x, a, allowed=np.ones(shape, bool))


@pytest.mark.parametrize("n", [1, 3, 0])
def test_ill_formed_weights(n):
    """Too few weights would be read past their end."""
    x = ChainScores(**good())
    with pytest.raises(InputError, match="weights"):
        chain.marginals(x, pairs="sum", weights=np.ones(n))
    with pytest.raises(InputError, match="weights"):
        chain.marginals(x, pairs="sum", weights=np.ones((2, 1)))


@pytest.mark.parametrize("function", [chain.tangent, chain.expectation])
@pytest.mark.parametrize(
    ("node", "edge"),
    [
        ((3,), None),
        ((2, 2), None),
        ((3, 1), None),
        ((3, 2), (2,)),
        ((3, 2), (3, 3)),
        ((3, 2), (1, 2, 2)),
        ((3, 2), (2, 2, 2)),
        ((3, 2), (4, 2, 2)),
        ((3, 2), (1, 3, 2, 2)),
    ],
)
def test_ill_formed_directions(function, node, edge):
    """Too short a direction would be read past its end."""
    with pytest.raises(InputError, match="direction"):
        function(ChainScores(**good()), np.ones(node), None if edge is None else np.ones(edge))


@pytest.mark.parametrize(
    ("node", "pair"),
    [
        (np.ones((2, 2), int), None),
        (np.ones(3, int), None),
        (np.ones((3, 2), int), np.ones((3, 2), int)),
        (np.ones((3, 2), int), np.ones(2, int)),
        (-np.ones((3, 2), int), None),
        (np.ones((3, 2), int), np.array([[0, 0], [0, -1]])),
        (np.full((3, 2), 0.5), None),
        (np.ones((3, 2)), np.full((2, 2), 1.7)),
    ],
)
def test_ill_formed_hits(node, pair):
    with pytest.raises(InputError, match="hits"):
        chain.count_distribution(ChainScores(**good()), node, pair)


def test_hits_may_be_booleans_or_whole_floats():
    x = ChainScores(**good())
    hits = np.array([[0, 1], [1, 0], [0, 1]])
    for kind in (bool, float, np.int8):
        for p, q in zip(
            chain.count_distribution(x, hits.astype(kind), np.eye(2).astype(kind)),
            chain.count_distribution(x, hits, np.eye(2, dtype=int)),
            strict=True,
        ):
            np.testing.assert_array_equal(p, q)


@pytest.mark.parametrize("n", [0, -1])
def test_nbest_needs_a_number_of_labellings(n):
    with pytest.raises(InputError, match=r"^n\b"):
        chain.nbest(ChainScores(**good()), n)


@pytest.mark.parametrize("cost", [np.nan, np.inf])
def test_hamming_cost_must_be_finite(cost):
    with pytest.raises(InputError, match="cost"):
        chain.hamming_augmented(ChainScores(**good()), [0, 0, 0], cost)


def test_unknown_kind_of_pairs():
    x = ChainScores(**good())
    with pytest.raises(InputError, match="pairs"):
        chain.marginals(x, pairs="all")
    with pytest.raises(InputError, match="pairs"):
        chain.tangent(x, np.zeros((3, 2)), pairs="all")


# Inputs made to break the compiled loops


def test_large_weights_do_not_overflow_the_pair_sums():
    """A forbidden pair next to messages at the edge of underflow, times a large weight.

    Label 0 has all the forward mass until the last token forbids it, so P/pred is about 1e298.
    """
    gap, level = 1.0, -228.5
    l = int(-np.log(TINY) / gap)
    edge = np.full((3, 3), -np.inf)
    edge[0, 0], edge[1, 1], edge[2, 2] = level, level - gap, 0.0
    assert -edge[1, 1] <= RANGE
    node = np.zeros((l, 3))
    node[:, 2] = -np.inf
    node[-1, 0] = -np.inf
    for weight in (1.0, 1e6, 1e10, 1e12, 1e100):
        ours = chain.marginals(ChainScores(node, edge), pairs="sum", weights=np.array([weight]))
        expected = np.zeros((3, 3))
        expected[1, 1] = weight * (l - 1)
        np.testing.assert_allclose(ours.pairs, expected, rtol=1e-12)


def test_a_sequence_in_the_log_form_does_not_touch_its_neighbours():
    x = random_scores([5] * 30, 3, seed=21, ends=False)
    hard = np.repeat(np.arange(30) % 3 == 1, 5)
    mixed = ChainScores(np.where(hard[:, None], 500 * x.node, x.node), x.edge, x.offsets)
    a = Arguments(x)
    for name in ("marginals each", "tangent each", "log_partition", "entropy", "expectation"):
        for p, q in zip(call(name, mixed, a), call(name, x, a), strict=True):
            easy = ~hard if len(p) == x.n_tokens else ~hard[::5]
            np.testing.assert_array_equal(p[easy], q[easy])
    total = chain.marginals(mixed, pairs="sum", weights=a.weights).pairs
    each = chain.marginals(mixed, pairs="each").pairs
    np.testing.assert_allclose(total, np.tensordot(np.repeat(a.weights, 5), each, 1), rtol=1e-11)


def test_a_weight_of_zero_leaves_a_sequence_out():
    x = random_scores([5, 7, 3], 3, seed=22, scale=100.0)
    weights = np.array([0.0, 2.0, 0.0])
    alone = ChainScores(x.node[5:12], x.edge, None, x.start, x.end)
    np.testing.assert_allclose(
        chain.marginals(x, pairs="sum", weights=weights).pairs,
        2 * chain.marginals(alone, pairs="sum").pairs,
        rtol=1e-13,
    )


@pytest.mark.parametrize("level", [-1e8, 1e8, 1e12])
def test_scores_far_from_zero(level):
    """Only differences matter; a common level costs no more than its own rounding."""
    rng = np.random.default_rng(23)
    node, edge = rng.integers(-3, 4, size=(10, 3)) / 4, rng.integers(-3, 4, size=(3, 3)) / 4
    near, far = ChainScores(node, edge), ChainScores(node + level, edge - level)
    one, other = chain.marginals(near, pairs="sum"), chain.marginals(far, pairs="sum")
    np.testing.assert_allclose(other.node, one.node, rtol=1e-12)
    np.testing.assert_allclose(other.pairs, one.pairs, rtol=1e-12)
    np.testing.assert_allclose(other.log_z, one.log_z + level, rtol=1e-14 * 20)
    np.testing.assert_array_equal(chain.viterbi(far).labels, chain.viterbi(near).labels)


@pytest.mark.parametrize("size", [1e150, 1e300])
def test_huge_scores_are_not_mistaken_for_forbidden_ones(size):
    """Differences of 1e300 leave one labelling; -inf alone forbids."""
    node = np.array([[0.0, -size], [-size, 0.0], [0.0, -size]])
    edge = np.array([[0.0, -1.0], [-2.0, 0.0]])
    x = ChainScores(node, edge)
    ours = chain.marginals(x, pairs="sum")
    np.testing.assert_allclose(ours.log_z, [-3.0], rtol=1e-14)
    np.testing.assert_array_equal(ours.node, [[1, 0], [0, 1], [1, 0]])
    np.testing.assert_array_equal(ours.pairs, [[0, 1], [1, 0]])
    np.testing.assert_array_equal(chain.viterbi(x).labels, [0, 1, 0])
    np.testing.assert_array_equal(chain.entropy(x), [0.0])
    lone = ChainScores(np.array([[-size], [-size]]), np.zeros((1, 1)))
    np.testing.assert_array_equal(chain.log_partition(lone), [-2 * size])
    np.testing.assert_array_equal(chain.marginals(lone).node, [[1.0], [1.0]])


def test_functions_do_not_depend_on_the_error_state_of_numpy():
    """Exponentials that underflow on purpose are no error, even where the caller traps them."""
    x = random_scores([6, 6], 3, seed=24, scale=400.0)
    a = Arguments(x)
    for name in CALLS:
        expected = call(name, x, a)
        with np.errstate(all="raise"):
            same_bits(call(name, x, a), expected)


def test_dead_ends_leave_the_others_their_probabilities():
    """A label without a successor takes almost all of the forward mass, then none."""
    s, l = 4, 30
    rng = np.random.default_rng(25)
    for gap in (10.0, 100.0, 200.0, 229.0, 1e3):
        node = rng.normal(size=(l, s))
        node[:, 0] += gap
        edge = rng.normal(size=(s, s))
        edge[0, 1:] = -np.inf  # once 0, always 0
        end = np.array([-np.inf, 0.0, 0.0, 0.0])
        ours = chain.marginals(ChainScores(node, edge, end=end), pairs="each")
        rest = chain.marginals(ChainScores(node[:, 1:], edge[1:, 1:], end=end[1:]), pairs="each")
        np.testing.assert_allclose(ours.log_z, rest.log_z, rtol=1e-12)
        np.testing.assert_allclose(ours.node[:, 1:], rest.node, rtol=1e-11)
        np.testing.assert_allclose(ours.pairs[:, 1:, 1:], rest.pairs, rtol=1e-11, atol=1e-15)
        assert not ours.node[:, 0].any()


def test_periodic_structure_of_zeros():
    """Only i -> i + 1 (mod S) is possible: S labellings, whatever the length."""
    s, l = 5, 1003
    edge = np.full((s, s), -np.inf)
    edge[np.arange(s), (np.arange(s) + 1) % s] = np.linspace(-1, 1, s)
    node = np.random.default_rng(26).normal(size=(l, s))
    x = ChainScores(node, edge)
    totals = np.zeros(s)
    for first in range(s):
        y = (first + np.arange(l)) % s
        totals[first] = node[np.arange(l), y].sum() + edge[y[:-1], y[1:]].sum()
    np.testing.assert_allclose(chain.log_partition(x), [log_sum(totals)], rtol=1e-12)
    p = chain.marginals(x).node
    np.testing.assert_allclose(p[0], softmax(totals), rtol=1e-10)
    np.testing.assert_allclose(p[s * 100], p[0], rtol=1e-10)
    found = chain.nbest(x, 9)[0]
    assert len(found) == s
    np.testing.assert_allclose(
        [v for _, v in found], np.sort(totals)[::-1] - log_sum(totals), atol=1e-10
    )


# Properties on generated inputs

special = st.sampled_from(
    [0.0, -0.0, 1.0, 114.9, 115.0, 115.1, 229.9, 230.0, 230.1, 460.5, 745.2, 1e4]
)
score = st.one_of(
    st.floats(-5, 5), special, special.map(lambda v: -v), st.just(-np.inf)
)  # fmt: skip


@st.composite
def small_chains(draw):
    s, l = draw(st.integers(1, 3)), draw(st.integers(1, 5))
    node = draw(hnp.arrays(np.float64, (l, s), elements=score))
    shape = draw(st.sampled_from([(s, s), (l, s, s)]))
    edge = draw(hnp.arrays(np.float64, shape, elements=score))
    if edge.ndim == 3:
        edge[0] = 0.0
    start, end = (draw(st.none() | hnp.arrays(np.float64, (s,), elements=score)) for _ in range(2))
    allowed = draw(st.none() | hnp.arrays(np.bool_, (l, s), elements=st.booleans()))
    return ChainScores(node, edge, None, start, end), allowed


@settings(max_examples=400, deadline=None, derandomize=True)
@given(small_chains())
def test_generated_chains_against_enumeration(case):
    x, allowed = case
    found = enumerate_labellings(x, 0, allowed)
    if found.log_z == -np.inf:
        for function in (chain.log_partition, chain.marginals, chain.viterbi, chain.entropy):
            with pytest.raises(NoPathError, match=r"^sequence 0 has"):
                function(x, allowed=allowed)
        return
    ours = chain.marginals(x, allowed=allowed, pairs="each")
    np.testing.assert_allclose(ours.log_z, found.log_z, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(ours.node, found.node(x.n_labels), rtol=1e-10, atol=1e-11)
    np.testing.assert_allclose(ours.pairs, found.pairs(x.n_labels), rtol=1e-10, atol=1e-11)
    best = chain.viterbi(x, allowed=allowed)
    np.testing.assert_allclose(best.score, found.scores.max(), rtol=1e-13, atol=1e-11)
    assert chain.log_prob(x, best.labels, allowed=allowed)[0] > -np.inf


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.integers(2, 5), st.data())
def test_partition_functions_add_up(seed, l, s, data):
    """Splitting the labels of one token in two parts splits Z."""
    scale = data.draw(st.sampled_from([0.1, 1.0, 30.0, 300.0]))
    x = random_scores([l], s, seed=seed, scale=scale, forbid=0.2)
    t = data.draw(st.integers(0, l - 1))
    cut = data.draw(st.integers(1, s - 1))
    parts = []
    for inside in (np.arange(s) < cut, np.arange(s) >= cut):
        allowed = np.ones((l, s), bool)
        allowed[t] = inside
        try:
            parts.append(chain.log_partition(x, allowed=allowed)[0])
        except NoPathError:
            parts.append(-np.inf)
    whole = chain.log_partition(x)[0]
    assert np.logaddexp(*parts) == pytest.approx(whole, rel=1e-11, abs=1e-12 * l * scale)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.integers(0, 2**32 - 1), st.integers(1, 30), st.integers(1, 5), st.booleans())
def test_reversing_a_chain_reverses_its_marginals(seed, l, s, positional):
    """Forward messages of one direction are backward messages of the other."""
    rng = np.random.default_rng(seed)
    scale = 10.0 ** rng.uniform(-1, 3)
    x = random_scores([l], s, seed=seed, positional=positional, scale=scale, forbid=0.1)
    edge = x.edge
    if positional:  # edge'[l - t] is edge[t] transposed
        edge = np.concatenate([edge[:1], edge[1:][::-1]])
    back = ChainScores(x.node[::-1], np.swapaxes(edge, -1, -2), None, start=x.end, end=x.start)
    one, other = chain.marginals(x, pairs="each"), chain.marginals(back, pairs="each")
    rounding = 1e-12 * max(1.0, scale)
    np.testing.assert_allclose(other.log_z, one.log_z, rtol=1e-11, atol=rounding)
    np.testing.assert_allclose(other.node[::-1], one.node, rtol=1e-9, atol=rounding)
    swapped = np.swapaxes(one.pairs[1:][::-1], 1, 2)
    np.testing.assert_allclose(other.pairs[1:], swapped, rtol=1e-9, atol=rounding)
    np.testing.assert_allclose(chain.entropy(back), chain.entropy(x), rtol=1e-9, atol=10 * rounding)
    np.testing.assert_allclose(chain.viterbi(back).score, chain.viterbi(x).score, rtol=1e-12)
