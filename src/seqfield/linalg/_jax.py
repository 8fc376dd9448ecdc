"""The one import of JAX: float64 in a scoped context, and checks of the device.

Code that uses JAX imports it from here, or lies in a file of the same name. So a plain install
works without JAX, and an error names what is missing when JAX is asked for.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import numpy as np

from seqfield.errors import CapabilityError

try:
    import jax as _jax
except ImportError as error:
    raise CapabilityError(
        "engine='jax' needs JAX, which is not installed: pip install 'seqfield[jax]'"
    ) from error

__all__ = [
    "check_device",
    "double",
    "free_bytes",
    "is_out_of_memory",
    "jax",
    "jit",
    "jnp",
    "lax",
    "on_cpu",
    "unroll",
]

# without types, so that type checks do not depend on whether and which JAX is installed
jax: Any = _jax
jit, jnp, lax = jax.jit, jax.numpy, jax.lax

#: steps of a scan that are compiled into one. On accelerators a launch costs more than a step, so
#: fewer launches are better; on CPUs a short compilation is better
UNROLL = 8


def double() -> Any:
    """A context in which JAX computes in float64; the user's own setting stays as it is."""
    if hasattr(jax, "enable_x64"):
        return jax.enable_x64(True)
    import jax.experimental as found  # where older versions have it

    older: Any = found
    return older.enable_x64()


def on_cpu() -> bool:
    """True if JAX computes on the CPU."""
    return str(jax.default_backend()) == "cpu"


@cache
def check_device() -> None:
    """Raise a `CapabilityError` unless there is a device that computes in float64."""
    try:
        device = jax.devices()[0]
    except Exception as error:  # every backend fails with another error
        asked = os.environ.get("JAX_PLATFORMS", "")
        raise CapabilityError(
            f"engine='jax': JAX finds no device (JAX_PLATFORMS={asked}): use engine='numba', or "
            "another device (JAX_PLATFORMS=cpu)"
        ) from error
    try:
        with double():
            found = np.asarray(jnp.full(2, 1.0, jnp.float64) + 2.0**-40)
    except Exception as error:
        raise _no_double(device) from error
    if found.dtype != np.float64 or found[0] != 1.0 + 2.0**-40:
        raise _no_double(device)


def free_bytes(device: Any) -> float:
    """Free memory of a device in bytes; infinite if it does not tell."""
    stats = device.memory_stats()
    if stats is None and device.platform == "cpu":
        return _free_on_host()
    stats = stats or {}
    return float(stats.get("bytes_limit", np.inf) - stats.get("bytes_in_use", 0))


def _free_on_host() -> float:
    try:
        with open("/proc/meminfo") as file:
            lines = dict(line.split(":", 1) for line in file)
        return 1024.0 * float(lines["MemAvailable"].split()[0])
    except (OSError, KeyError, ValueError):  # not on Linux
        return np.inf


def is_out_of_memory(error: BaseException) -> bool:
    """Whether JAX raised this error because memory ran out."""
    # its class has no public name in some versions
    return "RESOURCE_EXHAUSTED" in str(error) or "Out of memory" in str(error)


def _no_double(device: Any) -> CapabilityError:
    return CapabilityError(
        f"engine='jax' computes in float64, which the device {device} cannot do: use "
        "engine='numba', or another device (JAX_PLATFORMS=cpu)"
    )


def unroll() -> int:
    """Steps of a scan to compile into one."""
    return 1 if on_cpu() else UNROLL
