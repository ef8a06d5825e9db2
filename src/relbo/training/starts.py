"""Where a fit starts: seeds, and a normal fitted by natural gradients."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, Key
from numpyro.infer.autoguide import (
    AutoContinuous,
    AutoDiagonalNormal,
    AutoMultivariateNormal,
)

from relbo.gaussian import NormalFitter, WhiteningNormal, compiled_evaluate, points_per_step
from relbo.problem import Problem, read
from relbo.problem.call import Call
from relbo.problem.traces import Model
from relbo.training.optimiser import normal_base
from relbo.training.stopping import check_at_least_one, check_bool
from relbo.training.update import InitialValues

NUM_POINTS = 64
Values = dict[str, np.ndarray]


@dataclass(frozen=True, kw_only=True)
class Starts:
    """Says how many runs a fit makes at once and where they start.

    Args:
        num_seeds: number of runs, each from its own initial values. `Fit.params` has the
            parameters of the best one, `Fit.seed_params` those of all.
        warm: whether to fit a normal by natural gradients first, if the guide has a normal
            base. It finds the scales of a posterior that Adam alone would not reach.
    """

    num_seeds: int = 1
    warm: bool = True

    def __post_init__(self) -> None:
        check_at_least_one("num_seeds", self.num_seeds)
        check_bool("warm", self.warm)


def warm_values(
    keys: Key[Array, " s"],
    model: Model,
    guide: Any,
    call: Call,
    initial: InitialValues,
    report: Callable[..., None],
    deadline: float,
) -> Values:
    """Fits a normal for each seed, from where the guide's base would have started.

    Args:
        keys: one key per seed.
        model, guide, call: the model, its guide and their arguments.
        initial: the initial values of all seeds.
        report: is told about progress.
        deadline: a time of `time.monotonic`.

    Returns:
        Constrained values of the base's parameters, along a leading axis of seeds; none if the
        guide has no normal base, the model has no density, or no normal was found.
    """
    base = normal_base(guide)
    if base is None or base.create_plates is not None:
        return {}
    try:
        problem = read(model, call.args, call.kwargs)
    except ValueError:
        # Minibatches, free parameters or discrete sites: there is no density to fit.
        return {}
    warm_start = WarmStart(base, problem)
    found = []
    for seed, key in enumerate(keys):
        start = {name: np.asarray(initial.params[name][seed]) for name in warm_start.locations}
        entropy = np.ravel(jr.key_data(key)).tolist()
        found.append(warm_start(entropy, start, report, deadline))
    if any(values is None for values in found):
        return {}
    return jax.tree.map(lambda *x: np.stack(x), *found)


class WarmStart:
    """Fits a normal to a model and converts it to parameters of a guide's base.

    Args:
        base: the normal guide.
        problem: the posterior.
    """

    def __init__(self, base: Any, problem: Problem):
        self.base, self.problem = base, problem
        self.positions = _positions(base, problem)

    def __call__(
        self, entropy: list[int], start: Values, report: Callable[..., None], deadline: float
    ) -> Values | None:
        """Fits a normal from several places, among them where the base would have started.

        Args:
            entropy: seeds the noise.
            start: initial values of the guide's parameters.
            report: is told about progress.
            deadline: a time of `time.monotonic`.

        Returns:
            Values of the base's parameters, or `None` if no normal was found.
        """
        size = self.problem.size
        fitter = NormalFitter(
            np.random.default_rng(entropy),
            compiled_evaluate(self.problem, NUM_POINTS),
            size,
            points_per_step(NUM_POINTS, size),
            NUM_POINTS,
            report=lambda _, fraction: report("warm start", fraction),
            is_late=lambda: time.monotonic() > deadline,
        )
        try:
            found = fitter.fit(self._location(start)[np.argsort(self.positions)])
        except (ValueError, np.linalg.LinAlgError):
            return None
        normal = found.modes[0].reordered(self.positions)
        if not all(np.all(np.isfinite(part)) for part in (normal.loc, normal.factor)):
            return None
        return self._parameters(normal)

    @property
    def locations(self) -> list[str]:
        """The names of the parameters that say where the base starts."""
        if isinstance(self.base, AutoContinuous):
            return [f"{self.base.prefix}_loc"]
        return [f"{name}_{self.base.prefix}_loc" for name, _ in self.problem.sites]

    def _location(self, start: Values) -> Float[np.ndarray, " d"]:
        """Returns the base's own start as one vector, in the order of the base."""
        parts = [np.ravel(start[name]) for name in self.locations]
        return np.concatenate(parts).astype(float)

    def _parameters(self, normal: WhiteningNormal) -> Values:
        prefix = self.base.prefix
        if isinstance(self.base, AutoMultivariateNormal):
            tril = normal.scale_tril()
            values = {f"{prefix}_loc": normal.loc, f"{prefix}_scale_tril": tril}
        elif isinstance(self.base, AutoDiagonalNormal):
            values = {f"{prefix}_loc": normal.loc, f"{prefix}_scale": normal.conditional_sd()}
        else:
            values, begin, scale = {}, 0, normal.conditional_sd()
            for name, shape in self.problem.sites:
                end = begin + int(np.prod(shape))
                values[f"{name}_{prefix}_loc"] = normal.loc[begin:end].reshape(shape)
                values[f"{name}_{prefix}_scale"] = scale[begin:end].reshape(shape)
                begin = end
        dtype = np.dtype(jnp.result_type(float))
        return {name: value.astype(dtype) for name, value in values.items()}


def _positions(base: Any, problem: Problem) -> np.ndarray:
    """Returns the index of each entry of the base's vector in the problem's vector."""
    if not isinstance(base, AutoContinuous):
        return np.arange(problem.size)
    places = base._unpack_latent(jnp.arange(problem.size, dtype=float))
    ours = np.concatenate([np.ravel(places[name]) for name, _ in problem.sites])
    return np.argsort(ours.round().astype(int))
