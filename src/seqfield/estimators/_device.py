"""What estimators can do with engine="jax"."""

from __future__ import annotations

from typing import Any, NamedTuple

from seqfield.errors import CapabilityError


class OnDevice(NamedTuple):
    """What runs there, in words, and the arguments that ask for it."""

    what: str
    allowed: dict[str, tuple[Any, ...]]

    def check(self, model: Any) -> None:
        """Raise a `CapabilityError` for an argument that is not among these, or without JAX."""
        for name, values in self.allowed.items():
            given = getattr(model, name)
            if given not in values:
                raise CapabilityError(
                    f"engine='jax' runs {self.what}: set {name}={values[0]!r} instead of "
                    f"{given!r}, or use engine='numba'"
                )
        from seqfield.linalg._jax import check_device

        check_device()


GPSC_ON_DEVICE = OnDevice(
    "the dense MAP estimate of the log loss by L-BFGS",
    {
        "method": ("dense",),
        "posterior": ("map",),
        "loss": ("log", "softmax_margin"),
        "solver": ("lbfgs",),
        "explicit": (False, "auto"),
        "n_inducing": (None,),
    },
)
GPSTRUCT_ON_DEVICE = OnDevice("elliptical slice sampling", {"sampler": ("ess",)})
