"""Draws from a posterior, and whether to trust them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax.random as jr
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Float

from relbo._progress import Callback
from relbo.core.random import KeyLike, as_key
from relbo.problem import Problem, read
from relbo.problem.call import Call, Keywords
from relbo.problem.problem import coordinate_names
from relbo.sampling.diagnostics import convergence, effective_sample_size, stuck_chains
from relbo.sampling.evidence import EvidenceIncrement, LogWeights
from relbo.sampling.exports import (
    arviz_data,
    given_groups,
    html_of,
    plot_traces,
    prior_groups,
)
from relbo.sampling.findings import Finding
from relbo.sampling.posterior_file import SavedPosterior, read_posterior, write_posterior
from relbo.sampling.tuning import ChainTuning
from relbo.sampling.verdict import Check, Summary, check_draws


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
        tuning: what the chains need to go on; `None` if they cannot.
        increment: by how much the last update changed the evidence, if there was one.
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
        tuning: ChainTuning | None = None,
        increment: EvidenceIncrement | None = None,
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
        self.problem = problem
        self.tuning = tuning
        self.increment = increment

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
        if self.log_weights is None:
            return None
        of_updates = 0.0 if self.increment is None else self.increment.total_stderr
        return float(np.hypot(self.log_weights.lower[1], of_updates))

    @property
    def log_evidence_upper(self) -> float | None:
        """An estimate of log p(x) from the draws, assuming that they have converged.

        In expectation it is an upper bound.
        """
        return None if self.log_weights is None else self.log_weights.upper[0]

    @property
    def log_evidence_increment(self) -> float | None:
        """After `update`, an estimate of log p(new data | old data); otherwise `None`."""
        return None if self.increment is None else self.increment.value

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
        return self.replaced(
            chains=chains,
            num_draws=min(self.num_draws, number),
            sample_stats=stats,
            num_superchains=int(kept.sum()),
            tuning=None,
        )

    def replaced(self, **changes: Any) -> "Posterior":
        """Returns a copy in which some arguments of the constructor are others."""
        names = (*SavedPosterior._fields, "problem")
        return Posterior(**{name: getattr(self, name) for name in names} | changes)

    def extend(
        self,
        num_draws: int,
        *,
        key: KeyLike | None = None,
        seconds: float | None = None,
        mesh: Mesh | None = None,
        progress: bool = True,
        callback: Callback | None = None,
    ) -> "Posterior":
        """Draws more: the chains go on from where they ended, without a fit or a warm-up.

        Args:
            num_draws: number of draws to add.
            key: a random key, or an integer seed; by default the noise depends on the draws.
            seconds: time budget in seconds.
            mesh: the devices that share the chains, as for `relbo.sample`.
            progress: whether to show a progress bar.
            callback: called with a `RunState` after each chunk; the run ends if it returns
                `True`, with the draws that there are by then.

        Returns:
            A posterior with the same chains, each of them longer. What was noticed about the
            old draws is kept. `ValueError` is raised if the chains were of several modes, of a
            given kernel or of a guide, or if a loaded posterior has no model.

        Example:
            >>> import jax.numpy as jnp, relbo
            >>> model = relbo.model_from_logdensity(lambda z: -jnp.sum(z**2), jnp.zeros(2))
            >>> relbo.infer(0, model, num_draws=1000).extend(3000).num_draws
            4000
        """
        # Imported here, since it imports this file.
        from relbo.sampling.continuing import extended

        return extended(
            self,
            num_draws,
            key=key,
            seconds=seconds,
            mesh=mesh,
            progress=progress,
            callback=callback,
        )

    def update(
        self,
        args: tuple = (),
        kwargs: Keywords = None,
        *,
        model: Any = None,
        key: KeyLike | None = None,
        seconds: float | None = None,
        progress: bool = True,
        callback: Callback | None = None,
    ) -> "Posterior":
        """Returns the posterior for new data, from the draws of this one.

        The draws are moved to where the new posterior is, by annealed steps if an affine map is
        not enough, and Metropolis steps accept or reject them by their importance weights. It
        takes few evaluations of the model if the two posteriors are similar. The weights also
        give the incremental evidence, `log_evidence_increment`.

        Args:
            args, kwargs: the arguments of the model with all the data, old and new.
            model: the model, if it is another one or if it takes no arguments; it must have
                the same latent sites.
            key: a random key, or an integer seed; by default the noise depends on the draws.
            seconds: time budget in seconds. The draws are always moved to the new posterior;
                chains that start there end when the time is up.
            progress: whether to show a progress bar.
            callback: called with a `RunState` after each annealed step and each chunk of the
                chains, which end if it returns `True`.

        Returns:
            A `Posterior`. `ValueError` is raised if the sites are others, or if the posteriors
            are so different that the weights collapse; then
            `relbo.infer(key, model, args, start=posterior)` is the way.

        Example:
            >>> import jax.numpy as jnp, numpyro, numpyro.distributions as dist
            >>> def model(y):
            ...     mean = numpyro.sample("mean", dist.Normal(0.0, 10.0))
            ...     numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)
            >>> posterior = relbo.infer(0, model, (jnp.ones(10),))
            >>> posterior.update((jnp.ones(12),))
        """
        # Imported here, since it imports this file.
        from relbo.sampling.updating import updated

        return updated(
            self,
            args,
            kwargs,
            model=model,
            key=key,
            seconds=seconds,
            progress=progress,
            callback=callback,
        )

    def summary(self, sites: Sequence[str] | None = None) -> Summary:
        """Summarises each coordinate: mean, sd, quantiles, effective draws and R-hat.

        Args:
            sites: the sites to summarise; by default all.
        """
        names, columns = [], []
        for site, values in self._chains_of(sites).items():
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
        return check_draws(self)

    def to_arviz(
        self,
        *,
        log_likelihood: bool = False,
        posterior_predictive: bool = False,
        prior: int = 0,
        coords: dict[str, Any] | None = None,
        dims: dict[str, list[str]] | None = None,
        seed: int = 0,
    ) -> Any:
        """Converts the posterior for ArviZ.

        Axes are named after the model's plates.

        Args:
            log_likelihood: whether to add the pointwise log likelihoods, for LOO.
            posterior_predictive: whether to add draws of new observations.
            prior: number of draws from the prior to add.
            coords: labels along axes, by the axis' name.
            dims: names of the axes of sites, where they should be others.
            seed: the seed for the new observations and the prior.

        Returns:
            `InferenceData` with ArviZ before 1.0, `DataTree` from then on.
        """
        groups: dict[str, Any] = {"posterior": self.chains, "sample_stats": self.sample_stats}
        if self.problem is not None:
            groups |= given_groups(self.problem)
            dims = self.problem.program.dims(self.problem.data) | (dims or {})
            coords = self.problem.program.coords(self.problem.data) | (coords or {})
        if log_likelihood:
            groups["log_likelihood"] = self._by_chain(self._model.log_likelihood(self._rows))
        if posterior_predictive:
            predicted = self._model.predict(jr.key(seed), self._rows)
            groups["posterior_predictive"] = self._by_chain(predicted)
        if prior:
            groups |= prior_groups(self._model, seed, prior)
        return arviz_data(groups, coords, dims, self.seconds, self.tuning)

    def predict(self, key: KeyLike, *args: Any, **kwargs: Any) -> dict[str, np.ndarray]:
        """Draws new observations, one for each draw.

        Args:
            key: a random key, or an integer seed.
            args, kwargs: other arguments of the model, such as new inputs; by default those of
                the fit. The data that are to be predicted may be `None` if the model allows it.

        Returns:
            The draws by observed site, `[num_draws, ...]`.
        """
        call = Call(args, kwargs) if args or kwargs else None
        values = self._model.predict(as_key(key), self.draws, call)
        return {name: np.asarray(value) for name, value in values.items()}

    def to_dataframe(self) -> Any:
        """Returns the draws as a pandas frame: a column for each coordinate."""
        # Imported here, since it is optional and slow.
        import pandas

        index = np.indices(self.sample_stats["lp"].shape).reshape(2, -1)[:, : self.num_draws]
        columns = dict(zip(("chain", "draw"), index, strict=True))
        for site, values in self.draws.items():
            names = coordinate_names(site, values.shape[1:])
            columns |= dict(zip(names, values.reshape(self.num_draws, -1).T, strict=True))
        return pandas.DataFrame(columns)

    def plot(self, sites: Sequence[str] | None = None, *, num_chains: int = 4) -> Any:
        """Plots densities and traces of some chains, by ArviZ.

        Args:
            sites: the sites to show; by default all.
            num_chains: the number of chains to show, evenly spaced: those of many chains cannot
                be told apart.

        Returns:
            The axes.
        """
        total = len(self.sample_stats["lp"])
        shown = np.linspace(0, total - 1, min(num_chains, total)).round().astype(int)
        chosen = {name: values[shown] for name, values in self._chains_of(sites).items()}
        return plot_traces(chosen, shown, total)

    def _chains_of(self, sites: Sequence[str] | None) -> dict[str, np.ndarray]:
        if sites is None:
            return self.chains
        wanted = [sites] if isinstance(sites, str) else list(sites)
        unknown = [name for name in wanted if name not in self.chains]
        if unknown or not wanted:
            raise ValueError(f"sites: expected some of {list(self.chains)}, got {sites!r}")
        return {name: self.chains[name] for name in wanted}

    def _repr_html_(self) -> str:
        return html_of(repr(self), self.summary(), str(self.check()))

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
    def load(
        cls, path: str | Path, model: Any = None, args: tuple = (), kwargs: Keywords = None
    ) -> "Posterior":
        """Loads a saved posterior.

        Args:
            path: the file.
            model, args, kwargs: the model and its arguments, as for `infer`, which a file does
                not have: predictions, likelihoods, `extend` and `update` need them.
        """
        problem = None if model is None else read(model, args, kwargs)
        return cls(**read_posterior(path)._asdict(), problem=problem)

    def __repr__(self) -> str:
        sites = ", ".join(f"{n}{list(v.shape[2:])}" for n, v in self.chains.items())
        evidence = (
            "" if self.log_evidence is None else f", log evidence {self.log_evidence:.2f}"
        )
        return f"Posterior({self.num_draws} draws of {sites}{evidence})"

    def _flat(self, values: np.ndarray) -> np.ndarray:
        return values.reshape(-1, *values.shape[2:])[: self.num_draws]

    @property
    def _model(self) -> Problem:
        if self.problem is None:
            raise ValueError(
                "log likelihoods and predictions need the model, which a file does not have: "
                "load it with Posterior.load(path, model, args), or convert before saving"
            )
        return self.problem

    @property
    def _rows(self) -> dict[str, np.ndarray]:
        """All draws, one chain after another."""
        return {n: v.reshape(-1, *v.shape[2:]) for n, v in self.chains.items()}

    def _by_chain(self, rows: dict[str, Any]) -> dict[str, np.ndarray]:
        shape = self.sample_stats["lp"].shape
        return {n: np.asarray(v).reshape(*shape, *v.shape[1:]) for n, v in rows.items()}


def _pareto_k(log_weights: Float[np.ndarray, " n"]) -> float | None:
    from relbo.evaluate import importance_estimate

    return importance_estimate(log_weights).pareto_k
