"""`Kernel`: the base class of covariance functions over tokens, with operators to combine them."""

from __future__ import annotations

import copy
import inspect
import math
import numbers
from abc import ABC, abstractmethod
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator

from seqfield.errors import CapabilityError, InputError
from seqfield.kernels._pairs import Pairs, as_matrix
from seqfield.kernels.explicit import Expansion
from seqfield.persist import Arrays, Family, Header, State, prefixed, under

Floats = NDArray[np.float64]

#: kernels that model files can hold
KERNELS: Family[Kernel, []] = Family("kernel")

#: rows of the blocks whose diagonals give derivatives of the diagonal
DIAGONAL_BLOCK = 32


# scikit-learn has no types, so its classes are Any to mypy
class Kernel(BaseEstimator, ABC):
    """Base class of kernels: positive semi-definite functions of two tokens.

    A subclass defines three hooks: ``_value``, ``_derivatives`` and ``_diagonal``. Positive
    parameters can be learned. They are handled as logarithms, by ``log_parameters`` and
    `with_log_parameters`; a parameter with the value 0 stays 0. The parameters of a kernel come
    first, then those of the kernels in it.

    Kernels can be added and multiplied, with each other and with numbers, and raised to whole
    powers:

    >>> from seqfield.kernels import Linear, Normalized
    >>> k = Linear() + 5 * Normalized(Linear()) ** 3
    >>> k
    Linear() + 5.0 * Normalized(Linear()) ** 3
    >>> k(np.array([[3.0, 4.0], [0.0, 2.0]])).round(2)
    array([[30.  , 10.56],
           [10.56,  9.  ]])
    >>> k.parameter_names
    ['right.scale']
    """

    #: names of the constructor arguments that are positive numbers to be learned
    _positive: tuple[str, ...] = ()
    #: names of the constructor arguments that are kernels
    _parts: tuple[str, ...] = ()
    #: False if the values might not be those of a covariance, and must be checked
    _trusted = True
    #: precedence of the operator that `repr` writes the kernel with
    _binding = 4
    # so that numpy's numbers leave the operators to the kernel
    __array_ufunc__ = None

    # --- hooks ----------------------------------------------------------------------------------

    @abstractmethod
    def _value(self, pairs: Pairs) -> Floats:
        """k(x, z) for all pairs (N, M); a fresh array."""

    @abstractmethod
    def _derivatives(self, pairs: Pairs) -> list[Floats]:
        """dk/dlog p (N, M) for each free parameter p, in the order of ``log_parameters``."""

    @abstractmethod
    def _diagonal(self, x: Any) -> Floats:
        """k(x, x) of each row (N,); a fresh array."""

    def _check(self) -> None:
        """Raise an `InputError` for a bad argument; `check` looks at arguments that are kernels."""

    def _own(self) -> State:
        """Own constructor arguments as JSON, and arrays: what `_load` takes."""
        own = self.get_params(deep=False)
        return State({name: _plain(own[name]) for name in own if name not in self._parts}, {})

    def _load(self, header: Header, arrays: Arrays) -> None:
        """Set what `_own` gave; called on a kernel whose parts are already set."""
        expected = set(self._get_param_names()) - set(self._parts)
        if set(header) != expected:
            raise InputError(f"damaged kernel: {type(self).__name__} takes {sorted(expected)}")
        for name, value in header.items():
            setattr(self, name, value)

    def fit(self, x: Any, names: list[str] | None = None) -> Self:
        """A fitted copy: a kernel with everything that it takes from the data.

        ``x`` holds all training tokens, ``names`` the names of their columns. The kernel itself is
        not changed.
        """
        self.check()
        out = copy.copy(self)
        for name, part in self.parts().items():
            setattr(out, name, part.fit(x, names))
        return out

    def seen(self, x: Any) -> Any:
        """Tokens as the inner kernels get them; the kernel must be fitted."""
        return x

    def expansion(self, x: Any, budget: float = math.inf) -> Expansion | None:
        """Explicit features: a map to features whose inner products are this kernel.

        The map is learned on the training tokens x. The result is None if there is no finite map,
        or none that is worth using for such x. If the features of x need more than ``budget``
        bytes, a `BudgetError` is raised.
        """
        return None

    # --- use ------------------------------------------------------------------------------------

    def __call__(self, x: Any, z: Any = None) -> Floats:
        """k(x, z) for every row of x (N, D) and every row of z (M, D), as an array (N, M).

        If z is None, it is x.
        """
        self.check()
        return self._value(Pairs(x, z))

    def derivatives(self, x: Any, z: Any = None) -> list[Floats]:
        """dk/dlog p (N, M) for each free parameter."""
        self.check()
        return self._derivatives(Pairs(x, z))

    def diagonal(self, x: Any) -> Floats:
        """k(x, x) of each row (N,)."""
        self.check()
        return self._diagonal(as_matrix(x))

    def diagonal_derivatives(self, x: Any) -> list[Floats]:
        """dk(x, x)/dlog p of each row (N,) for each free parameter."""
        self.check()
        x = as_matrix(x)
        out = [np.empty(x.shape[0]) for _ in self.log_parameters]
        for a in range(0, x.shape[0] if out else 0, DIAGONAL_BLOCK):
            part = x[a : a + DIAGONAL_BLOCK]
            for total, square in zip(out, self._derivatives(Pairs(part)), strict=True):
                total[a : a + DIAGONAL_BLOCK] = np.diagonal(square)
        return out

    def check(self) -> None:
        """Raise an `InputError` if an argument of the kernel or of an inner kernel is bad."""
        for name in self._parts:
            part = getattr(self, name)
            if not isinstance(part, Kernel):
                raise InputError(f"{type(self).__name__}: {name} must be a kernel, got {part!r}")
            part.check()
        self._check()

    def parts(self) -> dict[str, Kernel]:
        """The inner kernels by argument name."""
        return {name: getattr(self, name) for name in self._parts}

    @property
    def trusted(self) -> bool:
        """False if the values of it or of an inner kernel might not be those of a covariance."""
        return self._trusted and all(part.trusted for part in self.parts().values())

    # --- parameters -----------------------------------------------------------------------------

    def _free(self) -> list[str]:
        """Own parameters that can be learned."""
        values = {name: getattr(self, name) for name in self._positive}
        # "auto" is not a number until `fit` sets it
        return [name for name, v in values.items() if not isinstance(v, str) and v > 0]

    @property
    def log_parameters(self) -> Floats:
        """Logarithms of the free parameters: its own, then those of its inner kernels."""
        own = np.log(np.array([getattr(self, name) for name in self._free()], dtype=np.float64))
        return np.concatenate([own, *(part.log_parameters for part in self.parts().values())])

    @property
    def parameter_names(self) -> list[str]:
        """Names of the free parameters, such as ``left.length_scale``."""
        inner = [(name, part.parameter_names) for name, part in self.parts().items()]
        return self._free() + [f"{name}.{within}" for name, found in inner for within in found]

    def with_log_parameters(self, values: Any) -> Self:
        """A copy whose free parameters have these logarithms; what `fit` learned is kept.

        >>> from seqfield.kernels import Linear
        >>> (2 * Linear()).with_log_parameters([0.0])
        1.0 * Linear()
        """
        v = np.asarray(values, dtype=np.float64)
        n = len(self.log_parameters)
        if v.shape != (n,):
            raise InputError(f"{self!r} has {n} free parameters, got an array of shape {v.shape}")
        if not (np.abs(v) < 700).all():  # also NaN
            raise InputError(f"logarithms of parameters must be between -700 and 700, got {v}")
        out = copy.copy(self)
        own = self._free()
        for name, value in zip(own, v[: len(own)], strict=True):
            setattr(out, name, math.exp(value))
        at = len(own)
        for name, part in self.parts().items():
            m = len(part.log_parameters)
            setattr(out, name, part.with_log_parameters(v[at : at + m]))
            at += m
        return out

    # --- model files ----------------------------------------------------------------------------

    def state(self) -> State:
        """Header and arrays of the kernel and of those in it."""
        self.check()
        own, arrays = self._own()
        parts: Header = {}
        for name, part in self.parts().items():
            parts[name], found = KERNELS.state(part)
            arrays |= prefixed(name, found)
        return State({"own": own, "parts": parts}, arrays)

    @classmethod
    def restore(cls, header: Header, arrays: Arrays) -> Self:
        """The kernel of what `state` gave.

        >>> from seqfield.kernels import RBF
        >>> RBF.restore(*RBF(2.0).state())
        RBF(length_scale=2.0)
        """
        own, parts = dict(header["own"]), dict(header["parts"])
        if set(parts) != set(cls._parts):
            raise InputError(f"damaged kernel: {cls.__name__} is made of {list(cls._parts)}")
        out = object.__new__(cls)
        for name, part in parts.items():
            setattr(out, name, KERNELS.restore(part, under(name, arrays)))
        out._load(own, arrays)
        out.check()
        return out

    # --- operators ------------------------------------------------------------------------------

    def __add__(self, other: Any) -> Any:
        return _combined("Sum", self, other)

    def __radd__(self, other: Any) -> Any:
        return _combined("Sum", other, self)

    def __mul__(self, other: Any) -> Any:
        return _combined("Product", self, other)

    def __rmul__(self, other: Any) -> Any:
        return _combined("Product", other, self)

    def __pow__(self, exponent: Any) -> Kernel:
        return KERNELS.named("Power")(self, exponent)

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        shown = []
        for name, argument in inspect.signature(type(self)).parameters.items():
            value = getattr(self, name)
            if name in self._parts:
                shown.append(repr(value))
            elif not _equal(value, argument.default):
                shown.append(f"{name}={value!r}")
        return f"{type(self).__name__}({', '.join(shown)})"


def as_kernel(thing: Any) -> Kernel:
    """A kernel from a kernel, from a function (x, z) -> (N, M), or from a name such as "poly2".

    >>> as_kernel("poly2")
    Polynomial()
    """
    if isinstance(thing, Kernel):
        return thing
    if isinstance(thing, str) and thing in NAMES:
        name, arguments, inside = NAMES[thing]
        return KERNELS.named(name)(*(KERNELS.named(part)() for part in inside), **arguments)
    if callable(thing) and not isinstance(thing, type):
        return KERNELS.named("Callable")(thing)
    raise InputError(
        f"a kernel is a Kernel, a function (x, z) -> (N, M), or one of {', '.join(NAMES)}; "
        f"got {thing!r}"
    )


#: short names: class, arguments, and the classes of inner kernels
NAMES: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "linear": ("Linear", {}, ()),
    "poly2": ("Polynomial", {"degree": 2}, ()),
    "poly3": ("Polynomial", {"degree": 3}, ()),
    "rbf": ("RBF", {}, ()),
    "matern": ("Matern", {}, ()),
    "rational_quadratic": ("RationalQuadratic", {}, ()),
    "cosine": ("Normalized", {}, ("Linear",)),
}


def written(part: Any, binding: int) -> str:
    """The kernel as text, in parentheses if its operator binds less tightly than ``binding``."""
    # other objects are written too, for the message of the error that refuses them
    return repr(part) if getattr(part, "_binding", 4) >= binding else f"({part!r})"


def _combined(name: str, left: Any, right: Any) -> Any:
    """Sum or product of two kernels, or of a kernel and a number."""
    if isinstance(left, Kernel) and isinstance(right, Kernel):
        return KERNELS.named(name)(left, right)
    first = isinstance(left, Kernel)
    kernel, value = (left, right) if first else (right, left)
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        return NotImplemented
    if name == "Product":
        return KERNELS.named("Scaled")(kernel, float(value))
    constant = KERNELS.named("Constant")(float(value))
    return KERNELS.named(name)(kernel, constant) if first else KERNELS.named(name)(constant, kernel)


def _plain(value: Any) -> Any:
    """A constructor argument as JSON."""
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    raise CapabilityError(f"{value!r} cannot be saved: model files hold numbers, strings and None")


def _equal(value: Any, default: Any) -> bool:
    """True if an argument is its default; arrays and functions never are."""
    simple = value is None or bool(np.isscalar(value))
    return type(value) is type(default) and simple and value == default
