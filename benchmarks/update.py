"""Updates of a posterior for new data, compared with a fit from nothing.

For each of ten cases a posterior is inferred from a part of generated data. Then the rest
arrives, and `Posterior.update` is compared with `relbo.infer` on all of them: evaluations of
the model (value and gradient at one point; those of the old and the new posterior both count),
CPU seconds with compilation, and the error. An error is the largest distance of a
parameter's mean from that of a long reference run, in posterior standard deviations, averaged
over the seeds; the added error is the update's minus that of the fit from nothing.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import relbo
from _common import argument_parser, write_results
from relbo.gaussian import WhiteningNormal
from relbo.sampling import ensemble, tempering, updating

NUM_REFERENCE_DRAWS = 64_000
MAX_ADDED_ERROR, MIN_RATIO = 0.05, 5.0


class Case(NamedTuple):
    """A model, and its arguments before and after new data arrived."""

    name: str
    model: Callable[..., Any]
    old: tuple
    new: tuple


def normal_mean(y: Any) -> None:
    mean = numpyro.sample("mean", dist.Normal(0.0, 10.0))
    scale = numpyro.sample("scale", dist.HalfNormal(5.0))
    numpyro.sample("y", dist.Normal(mean, scale), obs=y)


def linear(x: Any, y: Any) -> None:
    slopes = numpyro.sample("slopes", dist.Normal(0.0, 2.0).expand([x.shape[1]]).to_event(1))
    scale = numpyro.sample("scale", dist.HalfNormal(2.0))
    numpyro.sample("y", dist.Normal(x @ slopes, scale), obs=y)


def robust(x: Any, y: Any) -> None:
    slopes = numpyro.sample("slopes", dist.Normal(0.0, 2.0).expand([x.shape[1]]).to_event(1))
    scale = numpyro.sample("scale", dist.HalfNormal(2.0))
    freedom = numpyro.sample("freedom", dist.Gamma(2.0, 0.2))
    numpyro.sample("y", dist.StudentT(freedom, x @ slopes, scale), obs=y)


def logistic(x: Any, y: Any) -> None:
    slopes = numpyro.sample("slopes", dist.Normal(0.0, 2.0).expand([x.shape[1]]).to_event(1))
    numpyro.sample("y", dist.Bernoulli(logits=x @ slopes), obs=y)


def poisson(x: Any, y: Any) -> None:
    slopes = numpyro.sample("slopes", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    numpyro.sample("y", dist.Poisson(jnp.exp(x @ slopes)), obs=y)


def groups(group: Any, y: Any, num_groups: int) -> None:
    mean: Any = numpyro.sample("mean", dist.Normal(0.0, 5.0))
    spread = numpyro.sample("spread", dist.HalfNormal(2.0))
    with numpyro.plate("groups", num_groups):
        effect: Any = numpyro.sample("effect", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal((mean + spread * effect)[group], 1.0), obs=y)


def counts(group: Any, y: Any, num_groups: int) -> None:
    mean = numpyro.sample("mean", dist.Normal(0.0, 2.0))
    spread = numpyro.sample("spread", dist.HalfNormal(1.0))
    with numpyro.plate("groups", num_groups):
        effect: Any = numpyro.sample("effect", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Poisson(jnp.exp(mean + spread * effect)[group]), obs=y)


def schools(y: Any, sigma: Any) -> None:
    mean: Any = numpyro.sample("mean", dist.Normal(0.0, 5.0))
    spread = numpyro.sample("spread", dist.HalfCauchy(5.0))
    with numpyro.plate("schools", len(sigma)):
        effect: Any = numpyro.sample("effect", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal((mean + spread * effect)[:, None], sigma[:, None]), obs=y)


def autoregression(y: Any) -> None:
    slope = numpyro.sample("slope", dist.Uniform(-1.0, 1.0))
    mean = numpyro.sample("mean", dist.Normal(0.0, 3.0))
    scale = numpyro.sample("scale", dist.HalfNormal(2.0))
    numpyro.sample("y", dist.Normal(mean + slope * (y[:-1] - mean), scale), obs=y[1:])


def cases() -> list[Case]:
    """Generates the data; a fifth to a half of them, or one observation per group, is new."""
    rng = np.random.default_rng(25)
    reals = lambda *shape: rng.normal(size=shape).astype(np.float32)
    x, slopes = reals(300, 10), reals(10)
    wide, wide_slopes = reals(400, 40), reals(40)
    lines = x @ slopes
    sigma = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0], np.float32)
    school_effects = 5.0 + 6.0 * reals(8, 1) + sigma[:, None] * reals(8, 5)
    group, group_effects = np.arange(240) % 12, reals(12)
    count_data = rng.poisson(np.exp(1.0 + 0.5 * group_effects[group]))
    group_data = 1.0 + group_effects[group] + reals(240)
    series = np.zeros(250, np.float32)
    for step in range(1, len(series)):
        series[step] = 0.7 * series[step - 1] + reals(1)[0]
    binary = lambda logits: (rng.logistic(size=len(logits)) < logits).astype(np.float32)
    first = lambda number, *data: tuple(part[:number] for part in data)
    regression = (x, lines + reals(300))
    tails = (x, lines + rng.standard_t(3, 300).astype(np.float32))
    choices, many = (x, binary(lines)), (wide, binary(0.3 * wide @ wide_slopes))
    events = (x, rng.poisson(np.exp(0.2 * lines)))
    outcomes = 3.0 + 2.0 * reals(100)
    return [
        Case("normal, 80 + 20", normal_mean, (outcomes[:80],), (outcomes,)),
        Case("linear regression, 240 + 60", linear, first(240, *regression), regression),
        Case("robust regression, 240 + 60", robust, first(240, *tails), tails),
        Case("logistic regression, 200 + 100", logistic, first(200, *choices), choices),
        Case("40 slopes, 320 + 80", logistic, first(320, *many), many),
        Case("Poisson regression, 200 + 100", poisson, first(200, *events), events),
        Case(
            "12 groups, 200 + 40",
            groups,
            (*first(200, group, group_data), 12),
            (group, group_data, 12),
        ),
        Case(
            "12 groups of counts, 200 + 40",
            counts,
            (*first(200, group, count_data), 12),
            (group, count_data, 12),
        ),
        Case(
            "eight schools, 4 + 1 each",
            schools,
            (school_effects[:, :4], sigma),
            (school_effects, sigma),
        ),
        Case("autoregression, 200 + 50", autoregression, (series[:200],), (series,)),
    ]


class Counter:
    """Counts evaluations of models."""

    def __init__(self) -> None:
        self.number = 0

    def take(self) -> int:
        number, self.number = self.number, 0
        return number


@contextmanager
def counted_evaluations() -> Iterator[Counter]:
    """Counts every value and gradient that chains, fits and updates compute."""
    counter = Counter()
    run, compiled, step = ensemble.advance, updating.compiled_evaluate, tempering._step

    def advance(
        problem: Any, whitening: Any, state: Any, noise: Any, settings: Any, **more: Any
    ):
        after = run(problem, whitening, state, noise, settings, **more)
        leapfrogs = np.asarray(after[1].num_leapfrogs)[: int(settings.num_iterations)]
        per_chain = int(leapfrogs.sum()) + int(np.asarray(state.is_new))
        counter.number += per_chain * len(state.proposal)
        return after

    def compiled_evaluate(problem: Any, batch_size: int) -> Any:
        evaluate = compiled(problem, batch_size)

        def counting(normal: WhiteningNormal, white: np.ndarray) -> Any:
            counter.number += len(white)
            return evaluate(normal, white)

        return counting

    def annealed_step(ends: Any, points: Any, *rest: Any) -> Any:
        # Both densities after every leapfrog.
        counter.number += 2 * rest[-1] * len(points.position)
        return step(ends, points, *rest)

    ensemble.advance, tempering._step = advance, annealed_step
    updating.compiled_evaluate = compiled_evaluate
    try:
        yield counter
    finally:
        ensemble.advance, tempering._step = run, step
        updating.compiled_evaluate = compiled


def error_of(posterior: relbo.Posterior, reference: relbo.Posterior) -> float:
    """Returns the largest error of a mean, in posterior standard deviations."""
    found = []
    assert reference.problem is not None
    for site in reference.problem.sites:
        truth, draws = reference.draws[site.name], posterior.draws[site.name]
        found.append(np.max(np.abs(draws.mean(0) - truth.mean(0)) / truth.std(0)))
    return float(max(found))


def evidence_of(posterior: relbo.Posterior) -> float:
    return np.nan if posterior.log_evidence is None else posterior.log_evidence


def measure(case: Case, seeds: int, counter: Counter) -> dict[str, Any]:
    """Compares updates with fits from nothing, over some seeds."""
    infer = lambda seed, data, **options: relbo.infer(
        seed, case.model, data, progress=False, **options
    )
    reference = infer(10_000, case.new, num_draws=NUM_REFERENCE_DRAWS)
    rows = []
    for seed in range(seeds):
        old = infer(seed, case.old)
        counter.take()
        began = time.process_time()
        fresh = infer(seeds + seed, case.new)
        fresh_cost = (counter.take(), time.process_time() - began)
        began = time.process_time()
        try:
            update, refused = old.update(case.new, progress=False), ""
        except ValueError as error:
            update, refused = None, str(error)
        update_cost = (counter.take(), time.process_time() - began)
        error_of_update = np.inf if update is None else error_of(update, reference)
        rows.append(
            {
                "refused": refused,
                "procedure": "" if update is None else update.procedure,
                "evaluations": fresh_cost[0],
                "evaluations of the update": update_cost[0],
                "seconds": fresh_cost[1],
                "seconds of the update": update_cost[1],
                "error": error_of(fresh, reference),
                "error of the update": error_of_update,
                "increment": None if update is None else update.log_evidence_increment,
                "difference of evidences": evidence_of(fresh) - evidence_of(old),
                "trusted": update is not None and update.check().trustworthy,
            }
        )
    mean = lambda name: float(np.mean([row[name] for row in rows]))
    ratio = mean("evaluations") / mean("evaluations of the update")
    added = mean("error of the update") - mean("error")
    return {
        "case": case.name,
        "times fewer evaluations": ratio,
        "times less CPU": mean("seconds") / mean("seconds of the update"),
        "error": mean("error"),
        "added error": added,
        "trusted": mean("trusted"),
        "passes": bool(ratio >= MIN_RATIO and added <= MAX_ADDED_ERROR),
        "reference is trusted": reference.check().trustworthy,
        "runs": rows,
    }


def show(row: dict[str, Any]) -> None:
    numbers = [row[name] for name in ("times fewer evaluations", "times less CPU")]
    errors = [row[name] for name in ("error", "added error")]
    annealed = sum("annealed in" in run["procedure"] for run in row["runs"])
    print(
        f"{row['case']:32s}{numbers[0]:10.1f}{numbers[1]:10.1f}{errors[0]:10.3f}"
        f"{errors[1]:+10.3f}{row['trusted']:9.0%}{annealed:9d}  "
        f"{'pass' if row['passes'] else 'fail'}",
        flush=True,
    )


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--seeds", type=int, default=3, help="runs of each case")
    args = parser.parse_args()
    began = time.perf_counter()
    print(
        f"{'case':32s}{'fewer ev.':>10s}{'less CPU':>10s}{'error':>10s}{'added':>10s}"
        f"{'trusted':>9s}{'annealed':>9s}"
    )
    rows = []
    with counted_evaluations() as counter:
        for case in cases()[: 2 if args.quick else None]:
            rows.append(measure(case, 1 if args.quick else args.seeds, counter))
            show(rows[-1])
    passed = sum(row["passes"] for row in rows)
    print(f"{passed} of {len(rows)} cases are {MIN_RATIO:g} times cheaper without added error")
    seconds = time.perf_counter() - began
    write_results(
        "update", {"cases": rows, "passed": passed}, quick=args.quick, seconds=seconds
    )


if __name__ == "__main__":
    main()
