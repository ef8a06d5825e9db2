"""Where a normal base begins: at a normal fitted by natural gradients, whatever the scales."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from numpyro.infer.autoguide import (
    AutoContinuous,
    AutoDiagonalNormal,
    AutoMultivariateNormal,
)

from relbo._chains import Ensemble
from relbo._fitting.units import normal_base
from relbo._normal import Normal
from relbo._program import Call, Model
from relbo._target import Data, Target, target_of

NUM_POINTS = 64
Values = dict[str, np.ndarray]


class WarmStart:
    """Fits a normal to a model and writes it into the parameters of a guide's base.

    Args:
        base: the normal guide.
        target, data: the posterior.
    """

    def __init__(self, base: Any, target: Target, data: Data):
        self.base, self.target, self.data = base, target, data
        self.positions = _positions(base, target)

    def __call__(
        self, seed: list[int], start: Values, report: Callable[..., None], deadline: float
    ) -> Values | None:
        """Fits a normal from where the base would have begun, among other places.

        Args:
            seed: where all noise comes from.
            start: initial values of the guide's parameters.
            report: told about progress.
            deadline: of `time.monotonic`.

        Returns:
            Values of the base's parameters, or `None` where no normal was found.
        """
        ensemble = Ensemble(
            np.random.default_rng(seed),
            self.target,
            self.data,
            NUM_POINTS,
            report=lambda _, fraction: report("warm start", fraction),
            deadline=deadline,
        )
        try:
            ensemble.fit(self._locations(start)[np.argsort(self.positions)])
        except (ValueError, np.linalg.LinAlgError):
            return None
        normal = _reordered(ensemble.normal, self.positions)
        if not all(np.all(np.isfinite(part)) for part in (normal.loc, normal.factor)):
            return None
        return self._written(normal)

    @property
    def locations(self) -> list[str]:
        """The names of the parameters that say where the base begins."""
        if isinstance(self.base, AutoContinuous):
            return [f"{self.base.prefix}_loc"]
        return [f"{name}_{self.base.prefix}_loc" for name, _ in self.target.sites]

    def _locations(self, start: Values) -> Float[np.ndarray, " d"]:
        """The base's own start as one vector, in the order of the base."""
        parts = [np.ravel(start[name]) for name in self.locations]
        return np.concatenate(parts).astype(float)

    def _written(self, normal: Normal) -> Values:
        prefix = self.base.prefix
        if isinstance(self.base, AutoMultivariateNormal):
            tril = _lower_triangular(normal)
            values = {f"{prefix}_loc": normal.loc, f"{prefix}_scale_tril": tril}
        elif isinstance(self.base, AutoDiagonalNormal):
            values = {f"{prefix}_loc": normal.loc, f"{prefix}_scale": _conditional_sd(normal)}
        else:
            values, begin, scale = {}, 0, _conditional_sd(normal)
            for name, shape in self.target.sites:
                end = begin + int(np.prod(shape))
                values[f"{name}_{prefix}_loc"] = normal.loc[begin:end].reshape(shape)
                values[f"{name}_{prefix}_scale"] = scale[begin:end].reshape(shape)
                begin = end
        kind = np.dtype(jnp.result_type(float))
        return {name: value.astype(kind) for name, value in values.items()}


def warm_start_for(model: Model, guide: Any, call: Call) -> WarmStart | None:
    """A warm start, or `None` where the guide has no normal base or the model no density."""
    base = normal_base(guide)
    if base is None or base.create_plates is not None:
        return None
    try:
        target, data = target_of(model, call.args, call.kwargs, {})
    except ValueError:
        # Minibatches, free parameters or discrete sites: there is no density to fit.
        return None
    return WarmStart(base, target, data)


def _positions(base: Any, target: Target) -> np.ndarray:
    """Where each entry of the base's vector is in the target's."""
    if not isinstance(base, AutoContinuous):
        return np.arange(target.size)
    places = base._unpack_latent(jnp.arange(target.size, dtype=float))
    ours = np.concatenate([np.ravel(places[name]) for name, _ in target.sites])
    return np.argsort(ours.round().astype(int))


def _reordered(normal: Normal, positions: np.ndarray) -> Normal:
    return Normal(normal.loc[positions], normal.factor[positions])


def _conditional_sd(normal: Normal) -> Float[np.ndarray, " d"]:
    """The standard deviation of each coordinate given all the others.

    It is the scale of the best mean-field normal.
    """
    if not normal.is_dense:
        return np.abs(normal.factor)
    inverse = np.linalg.inv(normal.factor)
    return 1.0 / np.linalg.norm(inverse, axis=0)


def _lower_triangular(normal: Normal) -> Float[np.ndarray, "d d"]:
    if not normal.is_dense:
        return np.diag(np.abs(normal.factor))
    # By QR: the covariance itself would square the condition number.
    upper = np.asarray(np.linalg.qr(normal.factor.T, mode="r"))
    return upper.T * np.sign(np.diagonal(upper))
