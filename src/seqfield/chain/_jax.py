"""The sum-product pass and Viterbi in JAX over padded sequences, for `_padded` and for training.

Sequences lie side by side in arrays (L, B, S): L places, B sequences. Shorter sequences are padded
at the end. One scan computes all forward messages and, on the reversed sequences, all backward
messages. With W = exp(node), T = exp(edge) and p_0 = 1

    v_r = p_r * W_r,   p_{r+1}[j] = sum_i v_r[i] T[i, j] / sum_i v_r[i]

(T is transposed on the way back). Let alpha = v / sum v, let b be the backward messages, and let
q_t = sum_j alpha_t[j] b_t[j]. Every marginal is normalised on its own:

    P_t = alpha_t * b_t / q_t,   pair_t[i, j] = alpha_{t-1}[i] T[i, j] P_t[j] / p_t[j].

If the scaled form is not safe for a sequence, the same recursion runs on logarithms for this
sequence. The rule is that of `_numba.shift_and_judge`, for the messages of both directions and for
q. Such sequences stay on the device, because training on a device must not leave it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from seqfield.chain._numba import RANGE, TINY
from seqfield.linalg._jax import jnp, lax, unroll

#: labels up to which sums over labels are written out term by term
WRITTEN_OUT = 24


class Posterior(NamedTuple):
    """The result of a pass over B sequences with L places.

    Pair marginals are before[i] edge[i, j] after[j], with ``before`` and ``after`` (L - 1, B, S).
    In the log form these are logarithms.
    """

    log_z: Any
    safe: Any
    node: Any
    before: Any
    after: Any
    edge: Any


def run(node: Any, edge: Any, real: Any, log: bool, both: bool = True) -> Posterior:
    """The pass in one of its two forms."""
    return (logarithmic if log else scaled)(node, edge, real, both)


def scaled(node: Any, edge: Any, real: Any, both: bool = True) -> Posterior:
    """The pass on exp of the scores ``node`` (L, B, S), ``edge`` (S, S) or (L, B, S, S).

    ``real`` (L, B) is False at padded places. Without ``both`` only forward messages and log Z are
    computed. Only results of sequences that are ``safe`` (B,) are valid.
    """
    s, lengths = node.shape[-1], real.sum(0)
    low, high = _span(node, real[..., None], (0, 2))
    inner = real.at[0].set(False)[..., None, None] if edge.ndim == 4 else True
    low_e, high_e = _span(edge, inner, (0, 2, 3) if edge.ndim == 4 else None)
    fits = (high - low) + (high_e - low_e) <= RANGE
    weight = jnp.where(real[..., None], jnp.exp(node - high[:, None]), 1.0)
    steps = jnp.exp(edge - (high_e[:, None, None] if edge.ndim == 4 else high_e))
    steps = jnp.where(inner, steps, 1.0)
    x, ways, there = _ways(weight, steps, real, both)
    # a column of ones makes the sum of v come out of the same sum over i
    ways = jnp.concatenate([ways, jnp.ones_like(ways[..., :1])], -1)

    def step(carry: Any, now: Any, way: Any) -> Any:
        return _times(carry[..., :s] / _positive(carry[..., s:]) * now, way)

    p = _scan(step, jnp.ones((*x.shape[1:-1], s + 1)), x, ways, there)
    p = p[..., :s] / _positive(p[..., s:])
    v = p * x
    c = v.sum(-1)
    share = v / _positive(c)[..., None]
    least = jnp.where(there[..., None] & (v > 0.0), share, 1.0).min((0, 1, 3))
    log_z = jnp.where(real, jnp.log(c[:, 0]), 0.0).sum(0)
    safe = fits & (least >= TINY)
    shift = lengths * high + (lengths - 1) * high_e
    if not both:
        return Posterior(log_z + shift, safe, None, None, None, steps)
    joint = share[:, 0] * p[::-1, 1]
    q = joint.sum(-1)
    safe &= (log_z == -jnp.inf) | jnp.where(real, q >= TINY, True).all(0)
    found = joint / _positive(q)[..., None]
    use, ahead = (real[1:] & safe)[..., None], p[1:, 0]
    before = jnp.where(use, share[:-1, 0], 0.0)
    after = jnp.where(use & (ahead > 0.0), found[1:] / _positive(ahead), 0.0)
    return Posterior(log_z + shift, safe, found, before, after, steps)


def logarithmic(node: Any, edge: Any, real: Any, both: bool = True) -> Posterior:
    """The same pass on logarithms: right for any scores, at several times the cost."""
    x, ways, there = _ways(node, edge, real, both)

    def step(p: Any, now: Any, way: Any) -> Any:
        v = p + now
        return _log_sum((v - _finite(v.max(-1, keepdims=True)))[..., :, None] + way, -2)

    p = _scan(step, jnp.zeros(x.shape[1:]), x, ways, there)
    v = p[:, 0] + node
    high = v.max(-1)
    last = real & ~jnp.concatenate([real[1:], jnp.zeros_like(real[:1])])
    log_z = jnp.where(last, _log_sum(v, -1), jnp.where(real, high, 0.0)).sum(0)
    safe = jnp.ones(real.shape[1], bool)
    if not both:
        return Posterior(log_z, safe, None, None, None, edge)
    behind = p[::-1, 1]
    norm = _finite(_log_sum(v + behind, -1))[..., None]
    before = (v - _finite(high)[..., None])[:-1]
    after = jnp.where(real[1:, :, None], (node + behind - norm)[1:], -jnp.inf)
    return Posterior(log_z, safe, jnp.exp(v + behind - norm), before, after, edge)


def _ways(node: Any, edge: Any, real: Any, both: bool) -> tuple[Any, Any, Any]:
    """The sequences and their transitions; if ``both``, the reversed sequences beside them."""
    if not both:
        return node[:, None], edge[None, None] if edge.ndim == 2 else edge[1:, None], real[:, None]
    if edge.ndim == 2:
        ways = jnp.stack([edge, edge.T])[:, None]
    else:
        ways = jnp.stack([edge[1:], edge[:0:-1].swapaxes(-1, -2)], 1)
    return jnp.stack([node, node[::-1]], 1), ways, jnp.stack([real, real[::-1]], 1)


def _scan(step: Callable[..., Any], first: Any, x: Any, ways: Any, there: Any) -> Any:
    """Messages at all places: ``first`` at the first token, and step(message, x, way) after one."""
    own = ways.ndim == 5

    def body(carry: Any, xs: Any) -> Any:
        now, is_there, way = xs if own else (*xs, ways)
        new = jnp.where(is_there[..., None], step(carry, now, way), first)
        return new, new

    xs = (x[:-1], there[:-1], ways) if own else (x[:-1], there[:-1])
    rest = lax.scan(body, first, xs, unroll=max(1, min(unroll(), len(x) - 1)))[1]
    return jnp.concatenate([first[None], rest])


def pair_sums(found: Posterior, weights: Any, log: bool, by_sequence: bool = False) -> Any:
    """Weighted sums of the pair marginals over all places: (S, S), or (B, S, S)."""
    if found.edge.ndim == 2 and not log:
        if by_sequence:
            outer = jnp.einsum("lbi,lbj->bij", found.before, found.after)
            outer = outer * weights[:, None, None]
        else:  # first the sum at each place: one long sum would run on one processor
            before = found.before * weights[:, None]
            outer = jnp.einsum("lbi,lbj->lij", before, found.after).sum(0)
        return jnp.where(found.edge > 0.0, outer * found.edge, 0.0)

    def body(total: Any, place: Any) -> Any:
        before, after, edge = place if found.edge.ndim == 4 else (*place, found.edge)
        new = _pairs(before, edge, after, log) * weights[:, None, None]
        return total + (new if by_sequence else new.sum(0)), None

    _, n, s = found.before.shape
    xs: tuple[Any, ...] = (found.before, found.after)
    if found.edge.ndim == 4:
        xs = (*xs, found.edge[1:])
    return lax.scan(body, jnp.zeros((n, s, s) if by_sequence else (s, s)), xs)[0]


def each_pair(found: Posterior, log: bool) -> Any:
    """Pair marginals (L, B, S, S), zero at the first place."""
    edge = found.edge[1:] if found.edge.ndim == 4 else found.edge
    rest = _pairs(found.before, edge, found.after, log)
    return jnp.concatenate([jnp.zeros_like(rest[:1]), rest])


def best_paths(node: Any, edge: Any, real: Any) -> tuple[Any, Any]:
    """Labels (L, B) of the best labellings and their scores (B,).

    d_t[j] = max_i (d_{t-1}[i] + edge[i, j]) + node_t[j]. On the way back, the best predecessor of
    the label on the path is computed again. Of equal scores the first label is taken.
    """
    own = edge.ndim == 4

    def forth(d: Any, xs: Any) -> Any:
        now, step = xs if own else (xs, edge)
        new = (d[:, :, None] + step).max(1) + now
        return new, new

    rest = lax.scan(forth, node[0], (node[1:], edge[1:]) if own else node[1:])[1]
    best = jnp.concatenate([node[:1], rest])
    last = real & ~jnp.concatenate([real[1:], jnp.zeros_like(real[:1])])

    def back(label: Any, xs: Any) -> Any:
        d, is_last, step = xs if own else (*xs, edge)
        if own:
            into = jnp.take_along_axis(step, label[:, None, None], 2)[..., 0]
        else:
            into = step.T[label]
        new = jnp.where(is_last, d.argmax(-1), (d + into).argmax(-1)).astype(jnp.int32)
        return new, new

    xs = (best, last, jnp.roll(edge, -1, axis=0)) if own else (best, last)
    labels = lax.scan(back, jnp.zeros(real.shape[1], jnp.int32), xs, reverse=True)[1]
    return labels, jnp.where(last, best.max(-1), 0.0).sum(0)


def _pairs(before: Any, edge: Any, after: Any, log: bool) -> Any:
    before, after = before[..., :, None], after[..., None, :]
    return jnp.exp(before + edge + after) if log else before * edge * after


def _times(v: Any, way: Any) -> Any:
    """sum_i v[i] way[i, j]; for few labels term by term, so that the compiler can fuse it."""
    s = v.shape[-1]
    if s > WRITTEN_OUT:
        return jnp.matmul(v[..., None, :], way)[..., 0, :]
    total = v[..., :1] * way[..., 0, :]
    for i in range(1, s):
        total += v[..., i : i + 1] * way[..., i, :]
    return total


def _span(x: Any, use: Any, axes: Any) -> tuple[Any, Any]:
    """Smallest and largest finite entry; (0, 0) if there is none."""
    use &= x > -jnp.inf
    high = jnp.where(use, x, -jnp.inf).max(axes)
    low = jnp.where(use, x, jnp.inf).min(axes)
    none = high == -jnp.inf
    return jnp.where(none, 0.0, low), jnp.where(none, 0.0, high)


def _positive(x: Any) -> Any:
    return jnp.where(x > 0.0, x, 1.0)


def _finite(x: Any) -> Any:
    return jnp.where(x > -jnp.inf, x, 0.0)


def _log_sum(x: Any, axis: int) -> Any:
    high = _finite(x.max(axis))
    return high + jnp.log(jnp.exp(x - jnp.expand_dims(high, axis)).sum(axis))
