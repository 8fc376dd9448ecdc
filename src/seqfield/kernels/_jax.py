"""The gram matrix on JAX's device, and products with it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from seqfield.errors import BudgetError
from seqfield.kernels._base import Floats, Kernel
from seqfield.kernels._pairs import NOISE, Rows
from seqfield.kernels.composite import Power, Product, Scaled, Sum
from seqfield.kernels.covariance import Covariance, Ints, span
from seqfield.kernels.functions import Function
from seqfield.kernels.gram import check_budget, check_dtype, gram
from seqfield.kernels.standard import (
    RBF,
    Constant,
    Linear,
    Matern,
    Normalized,
    Polynomial,
    RationalQuadratic,
)
from seqfield.linalg._jax import (
    check_device,
    double,
    free_bytes,
    is_out_of_memory,
    jax,
    jit,
    jnp,
    lax,
)

#: rows of G that are computed, multiplied and summed at once
ROWS = 512
#: k(x, z) from x . z, |x|^2, |z|^2 and |x - z|^2
Formula = Callable[[Any, Any, Any, Any], Any]


class OnDevice(Covariance):
    """G on the device in blocks of rows (k, h, n); the last block is padded with zeros.

    In float64 there is one block, and a product is one matrix product. In float32 a product
    multiplies in float32. It sums 512 tokens in float32, and these sums in float64. The relative
    error is about 5e-7, a few times the error of storing G in float32, and G is read once. To sum
    everything in float64, a GPU would have to write G in float64 for every product.
    """

    def __init__(self, kernel: Kernel, tokens: Any, blocks: Any) -> None:
        self.kernel, self.tokens, self.blocks = kernel, tokens, blocks
        self.size = int(tokens.shape[0])
        if blocks.dtype == np.float32:
            self.noise = 1e-5

    @classmethod
    def of(
        cls,
        kernel: Kernel,
        tokens: Any,
        *,
        budget: float,
        dtype: str,
        n_jobs: int | None = None,
        advice: str,
    ) -> OnDevice:
        """Compute G: on the device if the kernel is a formula of inner products and distances and
        the tokens are dense, else on the host."""
        check_device()
        n, kind = int(tokens.shape[0]), check_dtype(dtype)
        check_budget(n, n, kind, budget, advice)
        with double():
            blocks, own = _empty(n, kind), formula(kernel)
            if own is not None and isinstance(tokens, np.ndarray):
                blocks, finite = _fill(blocks, own, tokens)
                if finite:
                    return cls(kernel, tokens, blocks)
            # `gram` raises an error that names where the kernel is not finite
            held = gram(kernel, tokens, budget=budget, dtype=kind, n_jobs=n_jobs, advice=advice)
            for begin in _begins(blocks):
                rows = np.zeros((min(ROWS, n), n), kind)
                part = held[begin : begin + len(rows)]
                rows[: len(part)] = part
                blocks = _put(blocks, jnp.asarray(rows), begin)
            return cls(kernel, tokens, blocks)

    def multiply(self, v: Floats) -> Floats:
        """G V."""
        with double():
            return np.array(_product(self.blocks, jnp.asarray(v)))

    def columns(self, chosen: Ints) -> Floats:
        """G[:, chosen], read as rows."""
        height = self.blocks.shape[1]
        with double():
            return np.array(self.blocks[chosen // height, chosen % height], np.float64).T

    def function(self, coefficients: Floats) -> Function:
        """Over the tokens that have a coefficient."""
        return span(self.kernel, self.tokens, coefficients)


# --- products ------------------------------------------------------------------------------------


def product(blocks: Any, v: Any) -> Any:
    """G V for V (n, S) in float64.

    In float32, G being its own transpose, block k gives sum_h G[kh, :]' v[kh].
    """
    k, height, n = blocks.shape
    if blocks.dtype == jnp.float64:
        return blocks[0] @ v
    few = jnp.zeros((k * height, v.shape[1]), jnp.float32).at[:n].set(v.astype(jnp.float32))
    parts = jnp.einsum(
        "khn,khs->kns", blocks, few.reshape(k, height, -1), precision=lax.Precision.HIGHEST
    )
    return parts.sum(0, dtype=jnp.float64)


_product = jit(product)


# --- forming -------------------------------------------------------------------------------------


def _squares(inner: Any, left: Any, right: Any) -> Any:
    """|x - z|^2; exactly 0 if it is not above rounding errors."""
    norms = left + right
    found = norms - 2.0 * inner
    return jnp.where(found <= NOISE * norms, 0.0, found)


def _matern(kernel: Any) -> Formula:
    def value(*x: Any) -> Any:
        r = jnp.sqrt(x[3] * (2 * kernel.nu / kernel._scale() ** 2))
        rest = {0.5: 1.0, 1.5: 1.0 + r, 2.5: 1.0 + r + r * r / 3.0}[float(kernel.nu)]
        return jnp.exp(-r) * rest

    return value


def _rational(kernel: Any) -> Formula:
    scale = 2.0 * kernel.alpha * kernel._scale() ** 2
    return lambda *x: jnp.exp(-kernel.alpha * jnp.log1p(x[3] / scale))


def _cosine(kernel: Any, own: Formula) -> Formula:
    def root(norms: Any) -> Any:
        diagonal = own(norms, norms, norms, jnp.zeros_like(norms))
        return jnp.where(diagonal > 0.0, 1.0 / jnp.sqrt(diagonal), 0.0)

    return lambda i, a, b, d: own(i, a, b, d) * root(a) * root(b)


#: the formula of a kernel, given the formulas of its inner kernels
FORMULAS: dict[type[Kernel], Callable[..., Formula]] = {
    Linear: lambda k: lambda i, a, b, d: i,
    Constant: lambda k: lambda i, a, b, d: jnp.full_like(i, k.value),
    Polynomial: lambda k: lambda i, a, b, d: (i + k.coef0) ** int(k.degree),
    RBF: lambda k: lambda i, a, b, d: jnp.exp(d * (-0.5 / k._scale() ** 2)),
    Matern: _matern,
    RationalQuadratic: _rational,
    Normalized: _cosine,
    Sum: lambda k, left, right: lambda *x: left(*x) + right(*x),
    Product: lambda k, left, right: lambda *x: left(*x) * right(*x),
    Scaled: lambda k, own: lambda *x: k.scale * own(*x),
    Power: lambda k, own: lambda *x: own(*x) ** int(k.exponent),
}


def formula(kernel: Kernel) -> Formula | None:
    """The kernel as a function of inner products, squared norms and squared distances; None if it
    is no such function."""
    kernel.check()
    parts = [formula(part) for part in kernel.parts().values()]
    make = FORMULAS.get(type(kernel))
    return None if make is None or None in parts else make(kernel, *parts)


def _empty(n: int, kind: Any) -> Any:
    """Zeros for the blocks of an (n, n) matrix, or a `BudgetError` if the device is too small."""
    height = n if kind == np.float64 else min(ROWS, n)
    shape = (-(-n // height), height, n)
    need = float(np.prod(shape)) * kind.itemsize
    device = jax.devices()[0]
    try:
        if need <= free_bytes(device):
            return jnp.zeros(shape, kind).block_until_ready()
    except Exception as error:
        if not is_out_of_memory(error):
            raise
    raise BudgetError(
        f"the gram matrix of {n} x {n} tokens in {kind} needs {need / 2**30:.3g} GiB, which the "
        f"device {device} has not left. Use engine='numba', method='sparse', or halve the need "
        "with gram_dtype='float32'"
    )


def _begins(blocks: Any) -> list[int]:
    """The first row of each strip that is set at once; the last strip may overlap the others."""
    _, height, n = blocks.shape
    rows = min(ROWS, n)
    return [min(k, n - rows) if height == n else k for k in range(0, n, rows)]


def _fill(blocks: Any, own: Formula, tokens: Floats) -> tuple[Any, bool]:
    """The blocks filled by a formula, and whether all of it is finite."""
    n = len(tokens)
    # far from the origin, only distances of centred tokens keep their digits
    x, centred = (jnp.asarray(t, jnp.float64) for t in (tokens, Rows(tokens).centred.matrix))

    def products(x: Any, at: Any) -> tuple[Any, Any, Any]:
        """x . z, |x|^2 and |z|^2 of some rows and all."""
        norms = (x * x).sum(1)
        some = x.at[at].get(mode="fill", fill_value=0.0)
        squares = norms.at[at].get(mode="fill", fill_value=0.0)
        inner = jnp.matmul(some, x.T, precision=lax.Precision.HIGHEST)
        # on the diagonal a token is paired with itself
        return jnp.where(at[:, None] == jnp.arange(n), norms, inner), squares[:, None], norms

    @partial(jit, donate_argnums=0)
    def strip(blocks: Any, x: Any, centred: Any, begin: Any) -> tuple[Any, Any]:
        at = begin + jnp.arange(min(ROWS, n))
        # only what the formula uses is computed
        value = own(*products(x, at), _squares(*products(centred, at)))
        value = jnp.where(at[:, None] < n, value, 0.0)
        value = value.astype(blocks.dtype)  # it may overflow there
        return _put(blocks, value, begin), jnp.isfinite(value).all()

    flags = []
    for begin in _begins(blocks):
        blocks, finite = strip(blocks, x, centred, begin)
        flags.append(finite)
    return blocks, all(bool(flag) for flag in flags)


@partial(jit, donate_argnums=0)
def _put(blocks: Any, rows: Any, begin: Any) -> Any:
    """The blocks with a strip of rows set, in place."""
    height = blocks.shape[1]
    place = (begin // height, begin % height, 0)
    return lax.dynamic_update_slice(blocks, rows[None], place)
