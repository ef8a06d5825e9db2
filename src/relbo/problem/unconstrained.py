"""A NumPyro program of a density that another library defines, for guides."""

import dataclasses
from typing import Any

import jax
import numpyro
from numpyro.distributions import ImproperUniform, constraints
from numpyro.infer import init_to_value

from relbo.problem.problem import AbstractProgram


@dataclasses.dataclass(frozen=True)
class UnconstrainedModel:
    """A density over unconstrained values as a NumPyro program without arguments.

    A site `x` of the density is the latent site `x_unconstrained`; its constrained value is the
    deterministic site `x`, next to everything else that the density reports.
    """

    program: AbstractProgram

    def __call__(self) -> None:
        position = {
            site.name: numpyro.sample(
                _latent(site.name), ImproperUniform(constraints.real, (), site.shape)
            )
            for site in self.program.sites
        }
        numpyro.factor("logdensity", self.program.logdensity(position, ()))
        # No loss depends on these values, and some densities cannot differentiate them.
        values = self.program.constrain(jax.lax.stop_gradient(position), ())
        for name, value in values.items():
            numpyro.deterministic(name, value)

    def init_loc_fn(self, site: dict[str, Any] | None = None) -> Any:
        """Starts a guide where the density says."""
        start = self.program.start or {}
        values = {_latent(name): value for name, value in start.items()}
        return init_to_value(site, values=values)


def _latent(name: str) -> str:
    return f"{name}_unconstrained"
