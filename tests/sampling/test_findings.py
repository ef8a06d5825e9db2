"""What a run notices about its own draws, and that ordinary runs have nothing to say."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints

import relbo
from relbo.sampling.diagnostics import tail_index
from relbo.sampling.findings import (
    Finding,
    UnconstrainedChains,
    findings_of_chains,
    findings_of_edges,
    findings_of_rounds,
    findings_of_simplices,
    findings_of_tails,
)
from relbo.sampling.posterior import Posterior

NAMES = ["a", "b"]
FLOAT32 = float(jnp.finfo(jnp.float32).eps)


def normal_chains(rng, *, length=50, num_chains=64, loc=0.0, scale=1.0):
    """Independent draws of a normal, with their scores."""
    white = rng.normal(size=(length, num_chains, len(NAMES)))
    logdensity = -0.5 * np.sum(white**2, 2)
    acceptance = np.full(logdensity.shape, 0.8)
    return UnconstrainedChains(loc + scale * white, -white / scale, logdensity, acceptance)


def texts(found):
    return " ".join(finding.text for finding in found)


@pytest.mark.parametrize("seed", range(5))
def test_exact_draws_give_no_finding(seed):
    chains = normal_chains(np.random.default_rng(seed), loc=3.0, scale=0.1)
    assert findings_of_chains(chains, NAMES, FLOAT32) == []


@pytest.mark.parametrize("seed", range(5))
def test_heavy_tails_give_no_finding(seed):
    """Student t with 3 degrees of freedom: the scores have all moments."""
    draws = np.random.default_rng(seed).standard_t(3, size=(50, 64, 2))
    score = -4 * draws / (3 + draws**2)
    logdensity = -2 * np.sum(np.log1p(draws**2 / 3), 2)
    chains = UnconstrainedChains(draws, score, logdensity, np.full((50, 64), 0.8))
    assert findings_of_chains(chains, NAMES, FLOAT32) == []


@pytest.mark.parametrize("factor", [0.7, 1.3])
def test_draws_of_another_width_than_the_density_are_noticed(factor):
    chains = normal_chains(np.random.default_rng(0))
    wide = chains.draws * np.array([1.0, factor])
    (finding,) = findings_of_chains(chains._replace(draws=wide), NAMES, FLOAT32)
    assert "at b" in finding.text
    assert "not as wide as the density" in finding.text
    assert finding.is_fatal


def test_draws_beside_the_density_are_noticed():
    chains = normal_chains(np.random.default_rng(1))
    (finding,) = findings_of_chains(
        chains._replace(score=chains.score + np.array([0.5, 0.0])), NAMES, FLOAT32
    )
    assert "at a" in finding.text
    assert "rises or falls" in finding.text


def test_a_small_error_does_not_matter():
    """3 % too wide, which very many draws show clearly."""
    chains = normal_chains(np.random.default_rng(2), length=1000)
    wide = chains._replace(draws=1.03 * chains.draws)
    assert findings_of_chains(wide, NAMES, FLOAT32) == []


def test_chains_that_drift_are_noticed():
    chains = normal_chains(np.random.default_rng(3))
    ramp = np.linspace(-0.5, 0.5, len(chains.draws))[:, None, None] * np.array([0.0, 1.0])
    moved = chains._replace(draws=chains.draws + ramp, score=chains.score - ramp)
    (finding,) = findings_of_chains(moved, NAMES, FLOAT32)
    assert "drift at b" in finding.text


def test_chains_that_stay_apart_are_noticed():
    rng = np.random.default_rng(4)
    places = rng.normal(size=(1, 64, 2)) * np.array([1.0, 0.0])
    rest = normal_chains(rng)
    draws = places + 0.5 * rest.draws * np.array([1.0, 2.0])
    chains = rest._replace(draws=draws, score=-draws / np.array([1.25, 1.0]))
    (finding,) = findings_of_chains(chains, NAMES, FLOAT32)
    assert "too short for a" in finding.text


def test_a_chain_that_does_not_move_is_noticed():
    chains = normal_chains(np.random.default_rng(5))
    chains.acceptance[:, 7] = 0.0
    assert "stuck" in texts(findings_of_chains(chains, NAMES, FLOAT32))


def test_numbers_that_the_precision_cannot_resolve_are_noticed():
    chains = normal_chains(np.random.default_rng(6), loc=np.array([0.0, 1e6]))
    (finding,) = findings_of_chains(chains, NAMES, FLOAT32)
    assert finding.kind == "precision"
    assert "low for b" in finding.text
    assert findings_of_chains(chains, NAMES, float(np.finfo(float).eps)) == []
    offset = normal_chains(np.random.default_rng(6))
    offset = offset._replace(logdensity=offset.logdensity + 1e7)
    (finding,) = findings_of_chains(offset, NAMES, FLOAT32)
    assert finding.kind == "precision"
    assert "log density" in finding.text


def test_draws_that_are_not_finite_are_noticed():
    chains = normal_chains(np.random.default_rng(7))
    chains.draws[3, 5, 0] = np.inf
    assert "not finite" in texts(findings_of_chains(chains, NAMES, FLOAT32))


def test_draws_rounded_to_an_edge_are_noticed():
    rng = np.random.default_rng(8)
    logdensity = rng.normal(size=(64, 50))
    inside = rng.uniform(size=(64, 50))
    assert findings_of_edges({"x": inside}, logdensity) == []
    rounded = np.where(inside > 0.9, np.float32(1.0), inside)
    (finding,) = findings_of_edges({"y": inside, "x": rounded}, logdensity)
    assert "of x are rounded to 1" in finding.text
    assert finding.kind == "precision"
    # A chain that rejects repeats its value: no rounding.
    still = inside.copy()
    still[3], logdensity[3] = still[3].max() + 1.0, 0.0
    assert findings_of_edges({"x": still}, logdensity) == []


@pytest.mark.parametrize("resolution", [1e-7, 2e-16])
def test_a_simplex_whose_last_element_is_lost_is_noticed(resolution):
    sticks = np.random.default_rng(0).normal(size=(8, 100, 3))
    values = {"p": np.full((8, 100, 4), 0.25)}
    assert findings_of_simplices(values, {"p": sticks}, resolution) == []
    sticks[:2, :4, 1] = 34.0
    (finding,) = findings_of_simplices(values, {"p": sticks}, resolution)
    assert finding.kind == "precision"
    assert "1.0% of the draws of p" in finding.text
    # Other sites have as many values as unconstrained ones.
    assert findings_of_simplices({"p": sticks}, {"p": sticks}, resolution) == []


@pytest.mark.parametrize("seed", range(5))
def test_two_runs_of_one_law_agree(seed):
    rng = np.random.default_rng(seed)
    one, other = rng.normal(size=(64, 50, 2)), rng.normal(size=(64, 200, 2))
    assert findings_of_rounds(one, other, NAMES) == []


def test_two_runs_that_differ_in_a_tail_are_noticed():
    """One run has not reached the last 5 % of the second coordinate, as in a funnel's neck."""
    rng = np.random.default_rng(9)
    one, other = rng.normal(size=(64, 50, 2)), rng.normal(size=(64, 200, 2))
    one[..., 1] = np.maximum(one[..., 1], -1.64 + 0.05 * rng.uniform(size=one.shape[:2]))
    (finding,) = findings_of_rounds(one, other, NAMES)
    assert "a tail of b" in finding.text


def flat(name, support=constraints.real):
    return numpyro.sample(name, dist.ImproperUniform(support, (), ()))


def no_data():
    flat("x")


def one_observation():
    numpyro.sample("y", dist.Normal(0.0, flat("s", constraints.positive)), obs=1.5)


def separable():
    x, y = np.array([-2.0, -1.0, 1.0, 2.0]), np.array([0, 0, 1, 1])
    numpyro.sample("y", dist.Bernoulli(logits=flat("b") * x), obs=y)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numbers overflow
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2))]
)
@pytest.mark.parametrize("model", [no_data, one_observation, separable])
def test_improper_posteriors_are_never_trusted(model, seed):
    posterior = relbo.infer(seed, model, num_draws=1600, progress=False)
    check = posterior.check()
    assert not check.trustworthy
    assert any(finding.is_fatal for finding in posterior.findings)
    assert set(posterior.notes) <= set(check.advice)


LOCATION = 1e8 + np.array([-0.4, 0.1, 0.9])


def far_away():
    mean = numpyro.sample("mean", dist.Normal(0.0, 1e9))
    numpyro.sample("y", dist.Normal(mean, 1.0), obs=LOCATION)


def test_float32_that_is_too_coarse_is_noticed_and_float64_is_used_instead():
    coarse = relbo.sample(jr.key(0), far_away, num_draws=1600, progress=False)
    assert coarse.needs_precision
    assert not coarse.check().trustworthy
    assert "float64" in str(coarse.check())
    fine = relbo.infer(jr.key(0), far_away, num_draws=1600, progress=False)
    check = fine.check()
    assert check.trustworthy
    assert "float64 was used instead" in str(check)
    assert not jax.config.read("jax_enable_x64")
    mean, sd = LOCATION.mean(), 3**-0.5
    assert fine.draws["mean"].dtype == np.float64
    assert abs(fine.draws["mean"].mean() - mean) < 4 * sd / check.ess**0.5
    assert abs(np.log(fine.draws["mean"].std() / sd)) < 4 / (2 * check.ess) ** 0.5


def test_draws_of_a_beta_at_its_edges_are_noticed():
    model = lambda: numpyro.sample("x", dist.Beta(0.05, 0.05))
    posterior = relbo.sample(jr.key(0), model, progress=False)
    assert posterior.needs_precision
    assert "the edge of its support" in texts(posterior.findings)


def hierarchy():
    y = np.array([0.3, -1.2, 0.8, 2.0, -0.5, 1.1])
    tau = numpyro.sample("tau", dist.HalfNormal(1.0))
    t = numpyro.sample("t", dist.Normal(0.0, 1.0).expand([6]).to_event(1))
    numpyro.sample("y", dist.Normal(tau * t, 0.7), obs=y)


def skewed():
    numpyro.sample("a", dist.Gamma(2.0, 1.0))
    numpyro.sample("b", dist.Gumbel(0.0, 1.0))


def student():
    numpyro.sample("x", dist.StudentT(5.0, 0.0, 1.0).expand([3]).to_event(1))


def simplex():
    numpyro.sample("p", dist.Dirichlet(np.array([2.0, 3.0, 4.0])))


def regression():
    x = np.linspace(-1, 1, 20)
    slope = numpyro.sample("slope", dist.Normal(0.0, 5.0))
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    numpyro.sample("y", dist.Normal(slope * x, scale), obs=2 * x + 0.3 * np.sin(7 * x))


@pytest.mark.parametrize("model", [hierarchy, skewed, student, simplex, regression])
def test_ordinary_posteriors_are_trusted(model):
    posterior = relbo.infer(jr.key(1), model, num_draws=1600, progress=False)
    assert not any(finding.is_fatal for finding in posterior.findings), posterior.notes
    assert posterior.check().trustworthy


def test_findings_decide_and_are_never_dropped(tmp_path):
    chains = np.random.default_rng(10).normal(size=(64, 25))
    stats = {"lp": -0.5 * chains**2, "acceptance_rate": np.full(chains.shape, 0.8)}

    def posterior(findings):
        return Posterior(
            {"x": chains},
            num_draws=chains.size,
            sample_stats=stats,
            num_superchains=8,
            step_size=0.5,
            findings=findings,
        )

    assert posterior([]).check().trustworthy
    remark, reason = Finding("A remark.", is_fatal=False), Finding("A reason.")
    assert posterior([remark]).check().trustworthy
    check = posterior([remark, reason]).check()
    assert not check.trustworthy
    assert check.advice[:2] == ["A remark.", "A reason."]
    assert "A remark." in str(check)
    loaded = Posterior.load(posterior([remark, reason]).save(tmp_path / "run"))
    assert loaded.findings == (remark, reason)
    assert loaded.check() == check


def test_heavy_tails_are_mentioned_and_light_ones_are_not():
    rng = np.random.default_rng(0)
    draws = {
        "cauchy": rng.standard_cauchy((40, 100)),
        "normal": rng.normal(size=(40, 100)),
        "exponential": rng.exponential(size=(40, 100)),
    }
    (finding,) = findings_of_tails(draws)
    assert not finding.is_fatal
    assert finding.text.startswith("The tails of cauchy are heavy")
    assert "variance" in finding.text


@pytest.mark.parametrize("degrees", [1.0, 2.0, 4.0])
def test_tail_index_is_one_over_the_degrees_of_freedom(degrees):
    draws = np.random.default_rng(1).standard_t(degrees, size=(100_000, 1))
    # The standard error of Hill's estimator with m draws is k / sqrt(m).
    error = 1 / degrees / (3 * 100_000**0.5) ** 0.5
    assert abs(tail_index(draws)[0] - 1 / degrees) < 4 * error + 0.05
