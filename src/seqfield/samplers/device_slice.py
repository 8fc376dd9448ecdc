"""Elliptical slice sampling with all chains on JAX's device; see `elliptical_slice`.

On a device a step of a hundred chains costs about as much as a step of one, so use many chains. The
host gets the watched scalars of a block of steps, and the kept draws.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from seqfield.errors import BudgetError
from seqfield.linalg._jax import check_device, double, free_bytes, is_out_of_memory, jax, jnp
from seqfield.objectives._jax_chains import chains_of
from seqfield.objectives.needs import LOG_LIKELIHOOD, NO_PRIOR, ROOTED, check
from seqfield.objectives.problems import WhitenedProblem
from seqfield.samplers._base import Chain, Draws, Move, Plan, Teller, joined
from seqfield.samplers._jax_slice import Function, Model, advance, bytes_needed, start
from seqfield.solvers._base import Callback, Floats

#: steps that the device makes at once
BLOCK = 64


@dataclass(frozen=True)
class DeviceSlice:
    """Chains of ``plan`` side by side."""

    plan: Plan
    seed: int = 0
    needs = (ROOTED, LOG_LIKELIHOOD, NO_PRIOR)

    @property
    def max_iter(self) -> int:
        """Steps of all chains."""
        return self.plan.n_steps * self.plan.n_chains

    def sample(self, problem: WhitenedProblem, callback: Callback | None = None) -> Draws:
        """Draw."""
        check(self, problem)
        check_device()
        try:
            with double():
                return self._run(problem, Teller(callback))
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            raise self._too_much(problem) from error

    def _run(self, problem: WhitenedProblem, told: Teller) -> Draws:
        plan, architecture = self.plan, problem.architecture
        root = jnp.asarray(architecture.root)
        model = Model(root, jnp.asarray(architecture.root_eta), chains_of(problem.table))
        need = bytes_needed(model, plan.n_chains)
        if need > free_bytes(jax.devices()[0]):
            raise self._too_much(problem, f"at least {need / 2**30:.3g} GiB, ")
        # of the generators the one that devices make fastest
        state = start(model, jax.random.key(self.seed, impl="rbg"), plan.n_chains)
        room = jnp.zeros((BLOCK, plan.n_chains, 2))
        wanted = [set(plan.kept(k).tolist()) for k in range(plan.n_chains)]
        kept: list[list[Floats]] = [[] for _ in wanted]
        watched: list[Floats] = []
        done, stops = 0, sorted(set.union(*wanted) | {plan.n_steps - 1})
        for stop in stops:
            stopped = False
            while done <= stop and not stopped:
                n = min(BLOCK, stop + 1 - done)
                state, room = advance(model, state, n, room)
                watched.append(np.asarray(room[:n]))
                done += n
                # the parameters themselves stay on the device
                told.count += n * plan.n_chains - 1
                stopped = told(Move(np.zeros(0), float(room[n - 1, :, 0].mean())))
            thetas = _parameters(state.at, architecture.n_parameters)
            for mine, steps, row in zip(kept, wanted, thetas, strict=True):
                if done - 1 in steps or (stopped and steps and not mine):
                    mine.append(row)
            if stopped:
                break
        every = np.concatenate(watched).transpose(1, 0, 2)
        # at least the last step of chains that were stopped early
        after = every[:, min(plan.n_burnt, done - 1) :]
        empty = np.zeros((0, architecture.n_parameters))
        found = [Chain(np.array(k) if k else empty, w) for k, w in zip(kept, after, strict=True)]
        return joined(found, int(state.n_evaluations), done * plan.n_chains)

    def _too_much(self, problem: WhitenedProblem, need: str = "") -> BudgetError:
        n, rank = problem.architecture.root.shape
        return BudgetError(
            f"{self.plan.n_chains} chains side by side over {n} distinct tokens (rank {rank}) need "
            f"{need}more memory than the device {jax.devices()[0]} has left: lower n_chains, set "
            "n_inducing or a lower one, give fewer sequences, or use engine='numba'"
        )


def _parameters(at: Function, n_parameters: int) -> Floats:
    """theta (k, P) as on the host."""
    parts = [np.asarray(part).reshape(len(part), -1) for part in (at.b, at.steps)]
    return np.hstack(parts)[:, :n_parameters]
