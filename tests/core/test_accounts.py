"""The change of variables beyond the laws: exact, estimated, joint and monotone."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import relbo
from registry import plain_refinement, refine
from targets import funnel, mixture

pytestmark = pytest.mark.usefixtures("x64")


@pytest.mark.parametrize(
    "kernel", [relbo.SGD(0.1), relbo.SVGD(0.3), relbo.FokkerPlanckFlow(0.05)]
)
def test_log_volume_is_the_log_determinant_of_the_whole_map(kernel):
    """The Jacobian of all particles jointly, bandwidth included, over all steps at once."""
    size = 3 if kernel.interacting else None
    particle, volume = (
        plain_refinement(kernel, account, num_steps=3, max_step_size=1.0)
        for account in (relbo.ParticleAccount(), relbo.ChangeOfVariablesAccount())
    )
    shape = (3, 2) if kernel.interacting else (2,)
    start = jr.normal(jr.key(0), shape)

    class Fixed(relbo.AbstractBase):
        """A base that 'draws' given points, to move the start at will."""

        points: jax.Array
        has_density = True

        @property
        def centre(self):
            return jnp.zeros(2)

        def sample(self, key):
            index = jnp.argmax(jr.key_data(key)[0] == jr.key_data(jr.split(BASE_KEY, 3))[:, 0])
            point = self.points[index] if self.points.ndim == 2 else self.points
            return point, jnp.zeros(())

        def log_prob(self, position):
            return jnp.zeros(())

    BASE_KEY = jr.split(jr.key(1), 3)[0]

    @jax.jit
    def moved(flat):
        base = Fixed(flat.reshape(shape))
        return particle(jr.key(1), base, mixture, num_particles=size).position.reshape(-1)

    # Finite differences, so that the derivatives of the library do not check themselves.
    flat, step = np.asarray(start).reshape(-1), 1e-6
    shifts = step * np.eye(flat.size)
    jacobian = np.stack(
        [(moved(flat + shift) - moved(flat - shift)) / (2 * step) for shift in shifts], axis=1
    )
    expected = np.linalg.slogdet(jacobian)[1]
    log_q = refine(volume, jr.key(1), Fixed(start), mixture, num_particles=size).log_q
    np.testing.assert_allclose(-log_q, expected, rtol=1e-5)
    assert abs(expected) > 0.01


def contraction(eigenvalues):
    """A quadratic target whose gradient step has the given Jacobian eigenvalues, less one."""
    rotation, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(len(eigenvalues),) * 2))
    matrix = jnp.asarray(rotation @ np.diag(eigenvalues) @ rotation.T)
    return lambda z: 0.5 * z @ matrix @ z


@pytest.mark.parametrize("num_terms", [2, 4, 8])
def test_estimated_log_determinant_has_the_documented_bias(num_terms):
    """Its mean is the truncated series, within the documented bound of the exact value."""
    eigenvalues = -np.linspace(0.1, 0.6, 8)
    account = relbo.ChangeOfVariablesAccount(0, num_terms=num_terms, num_probes=4000)
    refinement = plain_refinement(relbo.SGD(1.0), account, num_steps=1, max_step_size=2.0)
    refined = refine(refinement, jr.key(0), relbo.Dirac(jnp.zeros(8)), contraction(eigenvalues))
    estimate = -refined.log_q
    powers = np.arange(1, num_terms + 1)
    truncated = sum((-1) ** (k + 1) / k * np.sum(eigenvalues**k) for k in powers)
    exact = np.sum(np.log1p(eigenvalues))
    rho = 0.6
    bound = 8 * rho ** (num_terms + 1) / ((num_terms + 1) * (1 - rho))
    # A probe's variance is at most that of the trace estimate, 2 |A|_F^2 (1 + ...)^2.
    error = np.sqrt(2 * np.sum(eigenvalues**2)) / (1 - rho) / np.sqrt(4000)
    assert abs(estimate - truncated) < 4 * error
    assert abs(truncated - exact) < bound
    # The estimate is too high for a contracting flow, and so is the objective.
    assert truncated > exact


def test_estimate_with_many_terms_is_unbiased_and_not_a_bound():
    eigenvalues = -np.linspace(0.05, 0.3, 8)
    account = relbo.ChangeOfVariablesAccount(4, num_terms=20, num_probes=2000)
    refinement = plain_refinement(relbo.SGD(0.999), account, num_steps=1, max_step_size=2.0)
    logdensity_fn = contraction(eigenvalues)
    base = relbo.DiagonalNormal(jnp.zeros(8))
    estimate = eqx.filter_jit(relbo.refined_objective)(
        jr.key(0), refinement, base, logdensity_fn
    )
    assert estimate.bound.valid is False
    assert estimate.name == "surrogate"
    exact = plain_refinement(
        relbo.SGD(0.999), relbo.ChangeOfVariablesAccount(8), num_steps=1, max_step_size=2.0
    )
    value = eqx.filter_jit(relbo.refined_objective)(jr.key(0), exact, base, logdensity_fn)
    assert value.bound.valid is None
    np.testing.assert_allclose(estimate.value, value.value, atol=0.1)


def test_folds_are_reported():
    """A gradient step longer than 1 / lambda reverses the orientation of space."""
    base = relbo.DiagonalNormal(jnp.zeros(1))
    for step_size, kept in [(0.5, True), (1.5, False)]:
        refinement = plain_refinement(
            relbo.SGD(step_size), relbo.ChangeOfVariablesAccount(), num_steps=1
        )
        refined = refinement(jr.key(0), base, lambda z: -0.5 * jnp.sum(z**2))
        assert bool(refined.one_to_one) is kept


def test_weights_count_preimages_where_steps_fold():
    """Quadrature on the funnel's z2 axis would average 1; a folding step averages more."""
    base = relbo.DiagonalNormal(jnp.zeros(2), 1.5)
    refinement = plain_refinement(
        relbo.SGD(3.0), relbo.ChangeOfVariablesAccount(), num_steps=1, max_step_size=10.0
    )
    estimate = eqx.filter_jit(relbo.refined_objective)(
        jr.key(0), refinement, base, funnel, num_draws=200_000
    )
    assert jnp.mean(jnp.exp(estimate.log_weights)) > 1.3
    assert estimate.bound.valid is None


def linear_volume(matrix, **options):
    """Returns the log volume of a linear step, and whether it is one-to-one."""
    left = _linear_step(relbo.ChangeOfVariablesAccount(**options), jnp.asarray(matrix))
    return float(left.log_volume), bool(left.one_to_one)


@eqx.filter_jit
def _linear_step(account, matrix):
    return account.leave(None, lambda z: (matrix @ z, z), jnp.zeros(len(matrix)))


def test_monotone_volume_equals_the_exact_one_for_symmetric_steps():
    matrix = np.array([[0.7, 0.3], [0.3, 0.6]])
    found, one_to_one = linear_volume(matrix, monotone=True)
    np.testing.assert_allclose(found, linear_volume(matrix)[0], rtol=1e-12)
    np.testing.assert_allclose(found, np.log(0.7 * 0.6 - 0.3**2), rtol=1e-12)
    assert one_to_one


def test_monotone_walk_equals_the_exact_one_for_short_steps():
    base = relbo.DiagonalNormal(jnp.zeros(2), jnp.full(2, 0.3))
    accounts = (relbo.ChangeOfVariablesAccount(monotone=monotone) for monotone in (False, True))
    plain, monotone = (
        refine(
            plain_refinement(relbo.SGD(0.02), account, num_steps=3),
            jr.key(0),
            base,
            funnel,
            num_draws=50,
        )
        for account in accounts
    )
    assert jnp.all(monotone.one_to_one)
    np.testing.assert_allclose(monotone.log_q, plain.log_q, rtol=1e-10)


def test_monotone_volume_is_below_the_exact_one_for_other_steps():
    for seed in range(20):
        matrix = np.eye(3) + 0.25 * np.random.default_rng(seed).uniform(-1, 1, (3, 3))
        found, one_to_one = linear_volume(matrix, monotone=True)
        assert one_to_one
        assert found < linear_volume(matrix)[0]
        symmetric = np.log(np.linalg.det((matrix + matrix.T) / 2))
        np.testing.assert_allclose(found, symmetric, rtol=1e-10)


def test_monotone_volume_charges_for_folds():
    """The charge grows with the fold, so that its gradient points back."""
    charge = lambda value: linear_volume(np.diag([0.5, value]), monotone=True)
    for value in (0.05, 0.0, -0.7):
        lack = 1 - value / 0.1
        expected = np.log(0.5) + np.log(0.1) - lack - 5 * lack**2
        found, one_to_one = charge(value)
        np.testing.assert_allclose(found, expected, rtol=1e-12)
        assert not one_to_one
    assert charge(0.11)[1]


def test_monotone_account_keeps_the_learned_step_size_from_folding():
    """The plain account rewards a long step for the volume that it seems to create."""
    base = relbo.DiagonalNormal(jnp.zeros(2))
    logdensity_fn = lambda z: -0.5 * jnp.sum(jnp.array([1.0, 4.0]) * z**2)

    def slope(monotone):
        account = relbo.ChangeOfVariablesAccount(monotone=monotone)
        refinement = plain_refinement(relbo.SGD(0.3), account, num_steps=1)
        log_q = lambda r: r(jr.key(0), base, logdensity_fn).log_q
        return eqx.filter_jit(eqx.filter_grad(log_q))(refinement).kernel.step_size.raw

    assert slope(monotone=False) < 0 < slope(monotone=True)


def test_gaussian_account_from_the_mean_walks_once_for_all_draws():
    """The path does not depend on the draw, so its cost does not grow with their number."""
    base = relbo.DiagonalNormal(jnp.zeros(64))
    matrix = jnp.ones((64, 4096)) / 64

    def flops(start_from):
        refinement = plain_refinement(
            relbo.SGD(0.1), relbo.GaussianAccount(start_from), num_steps=4
        )
        logdensity_fn = lambda z: -jnp.sum((z @ matrix) ** 2)
        walk = jax.jit(lambda key: refinement(key, base, logdensity_fn, num_draws=20).position)
        return walk.lower(jr.key(0)).compile().cost_analysis()["flops"]

    assert flops("mean") < 0.1 * flops("draw")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_exact_dimension": -1}, "max_exact_dimension"),
        ({"num_terms": 0}, "num_terms"),
        ({"num_probes": 0}, "num_probes"),
    ],
)
def test_wrong_arguments_of_the_change_of_variables_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        relbo.ChangeOfVariablesAccount(**arguments)


@pytest.mark.usefixtures("wrong_types")
def test_wrong_start_is_refused():
    with pytest.raises(ValueError, match="start_from"):
        relbo.GaussianAccount("mode")


def test_jumps_of_the_score_are_counted_twice_and_not_reported():
    """A step of eta on exp(-|z|) / 2 leads to |z| < eta from both sides, each with slope 1."""
    step, number = 0.5, 200_000
    refinement = plain_refinement(
        relbo.SGD(step), relbo.ChangeOfVariablesAccount(), num_steps=1, max_step_size=1.0
    )
    base = relbo.DiagonalNormal(jnp.zeros(1), jnp.full(1, 2.0))
    laplace = lambda z: -jnp.sum(jnp.abs(z)) - jnp.log(2.0)
    refined = refine(refinement, jr.key(0), base, laplace, num_draws=number)
    weights = np.exp(jax.vmap(laplace)(refined.position) - refined.log_q)
    error = weights.std() / number**0.5
    assert abs(weights.mean() - (2 - np.exp(-step))) < 4 * error
    assert error < 0.01
    assert np.all(refined.one_to_one)
