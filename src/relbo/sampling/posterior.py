"""Draws from a posterior, and whether to trust them."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax.random as jr
import numpy as np
from jaxtyping import Float

from relbo.problem import Problem
from relbo.problem.problem import coordinate_names
from relbo.sampling.diagnostics import convergence, effective_sample_size, stuck_chains
from relbo.sampling.evidence import LogWeights
from relbo.sampling.findings import Finding
from relbo.sampling.posterior_file import SavedPosterior, read_posterior, write_posterior


class Check(NamedTuple):
    """The verdict on a posterior, with the numbers behind it."""

    trustworthy: bool
    rhat: float
    """The largest nested R-hat."""
    worst_site: str
    """The site with the largest R-hat."""
    ess: float
    """The smallest effective sample size."""
    acceptance: float | None
    """The mean acceptance rate; `None` for chains without a Metropolis test."""
    bad_chains: list[int]
    pareto_k: float | None
    """Pareto k of the weights behind the evidence; they are reliable below 0.7."""
    evidence_is_known: bool | None
    """Whether the estimates of the evidence from both sides agree; `None` without them."""
    advice: list[str]
    """What is wrong and what to try, in plain words."""
    procedure: str = ""
    """How the draws were made, in plain words."""

    def __str__(self) -> str:
        verdict = (
            "Trust it, for the modes found." if self.trustworthy else "Do not trust it yet."
        )
        numbers = [
            f"R-hat {self.rhat:.3f} (worst: {self.worst_site})",
            f"effective draws {self.ess:.0f}",
        ]
        if self.acceptance is not None:
            numbers.append(f"acceptance {self.acceptance:.2f}")
        if self.pareto_k is not None:
            numbers.append(f"Pareto k of the evidence {self.pareto_k:.2f}")
        lines = [f"{verdict} {', '.join(numbers)}.", self.procedure, *self.advice]
        return "\n".join(filter(None, lines))


class Summary(NamedTuple):
    """Means, standard deviations, quantiles and diagnostics by coordinate."""

    names: list[str]
    columns: dict[str, Float[np.ndarray, " n"]]

    def __str__(self) -> str:
        width = max(map(len, self.names), default=0)
        lines = [" " * width + "".join(f"{name:>10}" for name in self.columns)]
        for row, name in enumerate(self.names):
            cells = (_cell(column, values[row]) for column, values in self.columns.items())
            lines.append(f"{name:{width}}" + "".join(f"{cell:>10}" for cell in cells))
        return "\n".join(lines)


def _cell(column: str, value: float) -> str:
    if column == "ess":
        return f"{value:.0f}"
    return f"{value:.3f}" if column == "rhat" else f"{value:.3g}"


class Posterior:
    """Draws from a posterior, the evidence, and what is needed to judge them.

    Args:
        chains: constrained draws by site, including deterministic sites, as arrays
            `[num_chains, draws, ...]`.
        num_draws: number of draws in `draws`.
        sample_stats: arrays `[num_chains, draws]`: `lp`, the log density in unconstrained
            space, and `acceptance_rate` where the chains were Metropolis-adjusted.
        num_superchains: number of points that the chains started from.
        step_size: the step size of the adjusted sampler, in whitened coordinates.
        log_weights: log weights of annealed paths, from which the evidence is estimated.
        findings: what the sampler noticed.
        seconds: seconds of each phase.
        problem: the model with its data, which `to_arviz` needs for likelihoods.
        procedure: how the draws were made, in plain words.
    """

    def __init__(
        self,
        chains: dict[str, np.ndarray],
        *,
        num_draws: int,
        sample_stats: dict[str, np.ndarray],
        num_superchains: int,
        step_size: float | None,
        log_weights: LogWeights | None = None,
        findings: Sequence[Finding] = (),
        seconds: dict[str, float] | None = None,
        problem: Problem | None = None,
        procedure: str = "",
    ):
        self.chains = chains
        self.num_draws = num_draws
        self.sample_stats = sample_stats
        self.num_superchains = num_superchains
        self.step_size = step_size
        self.log_weights = log_weights
        self.findings = tuple(findings)
        self.seconds = dict(seconds or {})
        self.procedure = procedure
        self._problem = problem

    @property
    def draws(self) -> dict[str, np.ndarray]:
        """Draws by site, `[num_draws, ...]`, one chain after another."""
        return {name: self._flat(values) for name, values in self.chains.items()}

    @property
    def log_evidence(self) -> float | None:
        """An estimate of log p(x): in expectation a lower bound."""
        return None if self.log_weights is None else self.log_weights.lower[0]

    @property
    def log_evidence_stderr(self) -> float | None:
        """The standard error of `log_evidence`."""
        return None if self.log_weights is None else self.log_weights.lower[1]

    @property
    def log_evidence_upper(self) -> float | None:
        """An estimate of log p(x) from the draws, assuming that they have converged.

        In expectation it is an upper bound.
        """
        return None if self.log_weights is None else self.log_weights.upper[0]

    @property
    def pareto_k(self) -> float | None:
        """Pareto k of the weights behind the evidence; they are reliable below 0.7."""
        return None if self.log_weights is None else _pareto_k(self.log_weights.forward)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the sampler noticed, in words."""
        return tuple(finding.text for finding in self.findings)

    @property
    def needs_precision(self) -> bool:
        """Whether more digits would make the draws better."""
        return any(finding.kind == "precision" for finding in self.findings)

    def add_note(self, text: str) -> None:
        """Adds a remark that `check` shows."""
        self.findings = (Finding(text, is_fatal=False), *self.findings)

    @property
    def bad_chains(self) -> np.ndarray:
        """Marks chains that hardly moved or are far from all others."""
        logdensity = self.sample_stats["lp"]
        acceptance = self.sample_stats.get("acceptance_rate", np.ones_like(logdensity))
        return stuck_chains(acceptance, logdensity)

    def without_bad_chains(self) -> "Posterior":
        """Returns the posterior without bad chains."""
        kept = ~self.bad_chains
        if not kept.any():
            raise ValueError("all chains are bad: check() says what to try")
        if kept.all():
            return self
        chains = {name: values[kept] for name, values in self.chains.items()}
        stats = {name: values[kept] for name, values in self.sample_stats.items()}
        number = int(np.prod(stats["lp"].shape))
        # The superchains no longer have one size, so every chain is one of its own.
        return Posterior(
            chains,
            num_draws=min(self.num_draws, number),
            sample_stats=stats,
            num_superchains=int(kept.sum()),
            step_size=self.step_size,
            log_weights=self.log_weights,
            findings=self.findings,
            seconds=self.seconds,
            problem=self._problem,
            procedure=self.procedure,
        )

    def summary(self) -> Summary:
        """Summarises each coordinate: mean, sd, quantiles, effective draws and R-hat."""
        names, columns = [], []
        for site, values in self.chains.items():
            flat = values.reshape(*values.shape[:2], -1).astype(float)
            names += coordinate_names(site, values.shape[2:])
            columns.append(flat)
        draws = np.concatenate(columns, 2)
        low, middle, high = np.quantile(draws, [0.05, 0.5, 0.95], axis=(0, 1))
        return Summary(
            names,
            {
                "mean": draws.mean((0, 1)),
                "sd": draws.std((0, 1), ddof=1),
                "5%": low,
                "50%": middle,
                "95%": high,
                "ess": effective_sample_size(draws),
                "rhat": convergence(draws, self.num_superchains),
            },
        )

    def check(self) -> Check:
        """Checks whether to trust the draws, and says what to try if not."""
        summary = self.summary()
        rhat, ess = summary.columns["rhat"], summary.columns["ess"]
        worst = int(np.argmax(rhat))
        bad = np.flatnonzero(self.bad_chains).tolist()
        rate = self.sample_stats.get("acceptance_rate")
        acceptance = None if rate is None else float(rate.mean())
        weights, pareto_k = self.log_weights, self.pareto_k
        # A constant has no effective sample size.
        smallest = float(np.nanmin(ess)) if np.any(np.isfinite(ess)) else float("nan")
        advice = _advice(summary.names[worst], float(rhat[worst]), smallest, acceptance, bad)
        trustworthy = bool(
            rhat[worst] <= 1.02
            and smallest >= 100
            and not bad
            and (acceptance is None or acceptance >= 0.4)
            and not any(finding.is_fatal for finding in self.findings)
        )
        advice = [*self.notes, *advice]
        has_met = weights is not None and weights.has_met and (pareto_k or 0.0) <= 0.7
        is_known = has_met and trustworthy
        if weights is not None and not has_met:
            advice.append(
                f"The evidence is uncertain: {weights.lower[0]:.2f} from below and "
                f"{weights.upper[0]:.2f} from above (Pareto k {pareto_k:.2f}). Estimate it "
                "with relbo.evaluate.log_evidence; this says nothing about the draws."
            )
        return Check(
            trustworthy,
            float(rhat[worst]),
            summary.names[worst],
            smallest,
            acceptance,
            bad,
            pareto_k,
            is_known if weights is not None else None,
            advice,
            self.procedure,
        )

    def to_arviz(
        self,
        *,
        log_likelihood: bool = False,
        posterior_predictive: bool = False,
        seed: int = 0,
    ) -> Any:
        """Converts the posterior for ArviZ.

        Args:
            log_likelihood: whether to add the pointwise log likelihoods, for LOO.
            posterior_predictive: whether to add draws of new observations.
            seed: the seed for the new observations.

        Returns:
            `InferenceData` with ArviZ before 1.0, `DataTree` from then on.
        """
        groups: dict[str, Any] = {"posterior": self.chains, "sample_stats": self.sample_stats}
        if log_likelihood or posterior_predictive:
            groups |= self._from_model(log_likelihood, posterior_predictive, seed)
        return _from_dict(groups)

    def save(self, path: str | Path) -> Path:
        """Saves the draws and what is needed to judge them in one file.

        Args:
            path: its name; `.npz` is appended if it does not end so.

        Returns:
            The path of the file.
        """
        saved = {name: getattr(self, name) for name in SavedPosterior._fields}
        return write_posterior(path, SavedPosterior(**saved))

    @classmethod
    def load(cls, path: str | Path) -> "Posterior":
        """Loads a saved posterior; it has no model, so `to_arviz` adds no likelihoods."""
        return cls(**read_posterior(path)._asdict())

    def __repr__(self) -> str:
        sites = ", ".join(f"{n}{list(v.shape[2:])}" for n, v in self.chains.items())
        evidence = (
            "" if self.log_evidence is None else f", log evidence {self.log_evidence:.2f}"
        )
        return f"Posterior({self.num_draws} draws of {sites}{evidence})"

    def _flat(self, values: np.ndarray) -> np.ndarray:
        return values.reshape(-1, *values.shape[2:])[: self.num_draws]

    def _from_model(
        self, log_likelihood: bool, posterior_predictive: bool, seed: int
    ) -> dict[str, dict[str, np.ndarray]]:
        """Returns the groups of an ArviZ object that need the model."""
        problem = self._problem
        if problem is None:
            raise ValueError(
                "log likelihoods and predictions need the model, which a loaded posterior does "
                "not have: convert before saving"
            )
        flat = {n: v.reshape(-1, *v.shape[2:]) for n, v in self.chains.items()}
        shape = self.sample_stats["lp"].shape
        by_chain = lambda values: {
            n: np.asarray(v).reshape(*shape, *v.shape[1:]) for n, v in values.items()
        }
        groups = {"observed_data": {n: np.asarray(v) for n, v in problem.observed().items()}}
        if log_likelihood:
            groups["log_likelihood"] = by_chain(problem.log_likelihood(flat))
        if posterior_predictive:
            groups["posterior_predictive"] = by_chain(problem.predict(jr.key(seed), flat))
        return groups


def _advice(
    worst: str, rhat: float, ess: float, acceptance: float | None, bad_chains: list[int]
) -> list[str]:
    """Says what is wrong with the chains, and what to try."""
    advice = []
    if rhat > 1.02:
        advice.append(
            f"The chains have not converged (R-hat {rhat:.3f} at {worst}). Run them longer "
            "(more seconds, more draws), or write the model so that scales and what they scale "
            "are independent (non-centred)."
        )
    if ess < 400:
        advice.append(f"The draws are worth only {ess:.0f} independent ones: draw more.")
    if bad_chains:
        advice.append(
            f"Chains {bad_chains} are stuck or far from the others: look at them, or leave "
            "them out with without_bad_chains()."
        )
    if acceptance is None:
        advice.append(
            "The chains were not Metropolis-adjusted, so their draws have the bias of a finite "
            'step, which no diagnostic here detects: compare with method="hmc".'
        )
    elif acceptance < 0.4:
        advice.append(
            f"Only {acceptance:.0%} of the proposals were accepted: the posterior has narrow "
            "necks or edges; a non-centred form often removes them."
        )
    return advice


def _pareto_k(log_weights: Float[np.ndarray, " n"]) -> float | None:
    from relbo.evaluate import importance_estimate

    return importance_estimate(log_weights).pareto_k


def _from_dict(groups: dict[str, Any]) -> Any:
    with warnings.catch_warnings():
        # ArviZ 0.23 warns of its successor and of many short chains.
        warnings.simplefilter("ignore")
        # Imported here, since ArviZ takes seconds to import.
        import arviz

        # From 1.0 on, ArviZ takes one dictionary and returns a DataTree.
        is_new = int(arviz.__version__.partition(".")[0]) >= 1
        return arviz.from_dict(groups) if is_new else arviz.from_dict(**groups)
