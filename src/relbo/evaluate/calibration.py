"""The result of simulation-based calibration: ranks, a verdict and a plot."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from relbo.evaluate.uniformity import uniform_envelope, uniformity_pvalue

NUM_SHOWN = 12
"""The largest number of rows of the printed table."""


@dataclass(frozen=True)
class Calibration:
    """Ranks of parameters among posterior draws, one row per simulation.

    If inference is right, every column of `pits` is uniform between 0 and 1.
    """

    names: list[str]
    """The tested quantities, such as `theta[3]`."""
    pits: Float[np.ndarray, "simulations quantities"]
    """The rank of each parameter divided by the number of ranks, with a random part that
    makes it continuous (probability integral transform)."""
    num_draws: Int[np.ndarray, " simulations"]
    """The number of thinned draws that each parameter was ranked among."""
    is_trusted: Bool[np.ndarray, " simulations"] | None
    """Whether `check()` trusted each run; `None` if the draws came without a check."""
    failures: dict[int, str]
    """The errors of simulations without draws, which have no row."""
    level: float = 0.05
    """The probability of a false alarm, over all quantities."""

    @property
    def ranks(self) -> Int[np.ndarray, "simulations quantities"]:
        """The number of thinned draws below each parameter, from 0 to `num_draws`."""
        return np.floor(self.pits * (self.num_draws[:, None] + 1)).astype(int)

    @property
    def pvalues(self) -> dict[str, float]:
        """P-values of the test of uniformity, for each quantity alone."""
        columns = zip(self.names, self.pits.T, strict=True)
        return {name: uniformity_pvalue(column) for name, column in columns}

    @property
    def rejected(self) -> list[str]:
        """Quantities whose ranks are not uniform, the worst first.

        Their p-value times the number of quantities (Bonferroni) is at most `level`.
        """
        found = sorted((p, name) for name, p in self.pvalues.items())
        return [name for p, name in found if p * len(self.names) <= self.level]

    @property
    def is_calibrated(self) -> bool:
        """Whether no quantity was rejected and no run failed."""
        return not self.rejected and not self.failures

    @property
    def verdict(self) -> str:
        """The conclusion in words."""
        number, rejected = len(self.pits), self.rejected
        words = [f"No sign of wrong posteriors in {number} simulations."]
        if rejected:
            shown = ", ".join(f"{name} ({self._defect(name)})" for name in rejected[:3])
            more = f" and {len(rejected) - 3} more" if len(rejected) > 3 else ""
            words = [f"Not calibrated: {shown}{more}, in {number} simulations."]
        if self.failures:
            first = next(iter(self.failures.values()))
            words.append(f"{len(self.failures)} runs failed; the first error: {first}")
        if self.is_trusted is not None:
            doubted = int(np.sum(~self.is_trusted))
            words.append(f"check() did not trust {doubted} of {number} runs.")
            if doubted and rejected and doubted < number:
                still = ", ".join(self.trusted_only().rejected[:3])
                words.append(
                    f"Among the others the ranks of {still} are not uniform either."
                    if still
                    else "The ranks of the others can be uniform."
                )
        return " ".join(words)

    def trusted_only(self) -> "Calibration":
        """Returns the result for the runs that `check()` trusted.

        Given any selection by the data alone, ranks are uniform if inference is right. The
        check does not see the true parameters, so the ranks of the trusted runs must be
        uniform too.
        """
        if self.is_trusted is None or not self.is_trusted.any():
            raise ValueError("there are no runs that a check trusted")
        kept = self.is_trusted
        chosen = {
            name: getattr(self, name)[kept] for name in ("pits", "num_draws", "is_trusted")
        }
        return replace(self, failures={}, **chosen)

    def __str__(self) -> str:
        pvalues = self.pvalues
        worst = sorted(self.names, key=pvalues.__getitem__)[:NUM_SHOWN]
        width = max(map(len, worst), default=0)
        lines = [
            self.verdict,
            f"Thinned draws per simulation: {self.num_draws.min()} to {self.num_draws.max()}.",
            f"{'':{width}}{'p-value':>10}{'mean':>8}{'sd':>8}",
        ]
        for name in worst:
            column = self._column(name)
            numbers = f"{pvalues[name]:>10.2g}{column.mean():>8.3f}{column.std():>8.3f}"
            lines.append(f"{name:{width}}{numbers}")
        hidden = len(self.names) - len(worst)
        lines += [f"({hidden} quantities with larger p-values are not shown)"] if hidden else []
        lines.append("Uniform ranks have mean 0.5 and sd 0.289.")
        return "\n".join(lines)

    def plot(self, ax: Any = None) -> Any:
        """Plots the distribution functions of the ranks minus that of uniform ones.

        The darker area contains the line of one quantity with probability 1 - `level`, the
        lighter one those of all quantities. A line above it at the left means that too many
        parameters are below their draws; one that is first above and then below it means that
        the draws are too narrow.

        Args:
            ax: the axes of matplotlib to draw on; new ones by default.

        Returns:
            The axes.
        """
        if ax is None:
            import matplotlib.pyplot as plt

            _, ax = plt.subplots(figsize=(6.5, 4), layout="constrained")
        number, rejected = len(self.pits), self.rejected
        # The lines are drawn at the points where they are tested, and at the ends.
        points = np.array([0.0, *uniform_envelope(number, self.level).points, 1.0])
        for level, shade in ((self.level / len(self.names), "0.93"), (self.level, "0.85")):
            inner, low, high = uniform_envelope(number, level)
            edges = (np.array([0.0, *(edge - inner), 0.0]) for edge in (low, high))
            ax.fill_between(points, *edges, color=shade, lw=0, zorder=0)
        for name in [n for n in self.names if n not in rejected] + rejected[::-1]:
            below = np.searchsorted(np.sort(self._column(name)), points, side="right") / number
            is_bad = name in rejected
            style: dict[str, Any] = {"lw": 1.6, "label": name} if is_bad else {"lw": 0.8}
            colour = f"C{rejected.index(name) % 10}" if is_bad else "0.4"
            ax.plot(points, below - points, color=colour, **style)
        ax.set(xlabel="rank / number of ranks", ylabel="ECDF - uniform", xlim=(0, 1))
        ax.set_title("Not calibrated" if rejected else "No sign of wrong posteriors")
        if rejected:
            ax.legend(fontsize="small", frameon=False)
        return ax

    def _column(self, name: str) -> Float[np.ndarray, " simulations"]:
        return self.pits[:, self.names.index(name)]

    def _defect(self, name: str) -> str:
        """Says how the draws of a quantity are wrong."""
        centred = self._column(name) - 0.5
        # In standard errors: the variances of u and of its square are 1/12 and 1/180.
        errors = {
            "too low": centred.mean() * (12 * len(centred)) ** 0.5,
            "too narrow": (np.mean(centred**2) - 1 / 12) * (180 * len(centred)) ** 0.5,
        }
        opposite = {"too low": "too high", "too narrow": "too wide"}
        worst = max(errors, key=lambda kind: abs(errors[kind]))
        if abs(errors[worst]) < 2:
            return "draws of the wrong shape"
        return f"draws {worst if errors[worst] > 0 else opposite[worst]}"
