"""JAX behind one door: its import, float64 in a scope of its own, and what the device can do.

Whatever uses JAX imports it from here or in a file of the same name, so that a plain install works
without it and says what is missing when asked for it.
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

# without types, so that checks do not depend on the version of JAX, nor on its being there
jax: Any = _jax
jit, jnp, lax = jax.jit, jax.numpy, jax.lax

#: steps of a scan that are compiled into one: fewer launches on accelerators, whose launches cost
#: more than the steps, and short compilation on CPUs
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
    except Exception as error:  # each backend fails in a way of its own
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
    """What a device has left; infinite if it does not say."""
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
    """Whether JAX raised this for want of memory."""
    # of a class that has no public name in all versions
    return "RESOURCE_EXHAUSTED" in str(error) or "Out of memory" in str(error)


def _no_double(device: Any) -> CapabilityError:
    return CapabilityError(
        f"engine='jax' computes in float64, which the device {device} cannot do: use "
        "engine='numba', or another device (JAX_PLATFORMS=cpu)"
    )


def unroll() -> int:
    """Steps of a scan to compile into one."""
    return 1 if on_cpu() else UNROLL
