"""What chains need to go on where they ended."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from relbo.gaussian import Dependence, LowRankFactor, WhiteningNormal
from relbo.sampling.hamiltonian import ChainMethod


class ChainTuning(NamedTuple):
    """The state of chains after sampling, and what their warm-up adapted."""

    normal: WhiteningNormal
    log_step: float
    length: float
    """The mean length of a trajectory in whitened coordinates."""
    method: ChainMethod
    ends: Float[np.ndarray, "c d"]
    """Where the chains are, in unconstrained space."""
    spacing: float = 1.0
    """Iterations per draw that was kept."""

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Returns arrays for a file."""
        factor, dependence = self.normal.factor, self.normal.dependence
        numbers = (self.log_step, self.length, *self.method, self.spacing)
        arrays = {"ends": self.ends, "loc": self.normal.loc, "numbers": np.array(numbers)}
        if isinstance(factor, LowRankFactor):
            arrays |= {f"factor_{name}": part for name, part in factor._asdict().items()}
        else:
            arrays["factor"] = factor
        if dependence is not None:
            parts = dependence._asdict().items()
            arrays |= {f"dependence_{name}": np.asarray(part) for name, part in parts}
        return arrays

    @classmethod
    def from_arrays(cls, arrays: dict[str, np.ndarray]) -> "ChainTuning":
        """Reads what `to_arrays` returned; raises `KeyError` or `ValueError` if it cannot."""
        size = arrays["loc"].size
        if "factor" in arrays:
            factor = arrays["factor"]
            _require_shape(factor, (size,) * factor.ndim)
        else:
            factor = LowRankFactor(*(arrays[f"factor_{n}"] for n in LowRankFactor._fields))
            _require_shape(np.asarray(factor.axes), (size, factor.stretch.size))
        dependence = None
        if "dependence_parents" in arrays:
            dependence = Dependence(*(arrays[f"dependence_{n}"] for n in Dependence._fields))
        if arrays["ends"].ndim != 2 or arrays["ends"].shape[1] != size:
            raise ValueError("the chains end in another space")
        log_step, length, *method, spacing = map(float, arrays["numbers"])
        target_acceptance, max_leapfrogs, num_stages, even_kick = method
        return cls(
            WhiteningNormal(arrays["loc"], factor, dependence),
            log_step,
            length,
            ChainMethod(target_acceptance, int(max_leapfrogs), int(num_stages), even_kick),
            arrays["ends"],
            spacing,
        )


def _require_shape(values: np.ndarray, shape: tuple[int, ...]) -> None:
    if values.shape != shape or not values.ndim:
        raise ValueError(f"expected an array of shape {shape}, got {values.shape}")
