"""Maps to white coordinates, with scales and locations that depend on other coordinates."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import relbo
from relbo.gaussian import Dependence, WhiteningNormal, compiled_evaluate
from relbo.problem import read

SIZE, NUMBER = 5, 40
PARENTS, CHILDREN = [1, 3], [0, 2, 4]


def bent_normal(rng, is_dense):
    """A normal with arbitrary slopes on two parents; the other places are padding."""
    none = Dependence.none(SIZE)
    parents = none.parents.copy()
    parents[: len(PARENTS)] = PARENTS

    def slopes():
        found = np.zeros((SIZE, 3, len(parents)))
        found[CHILDREN, :, : len(PARENTS)] = 0.4 * rng.normal(size=(3, 3, len(PARENTS)))
        return found.reshape(SIZE, -1)

    factor = np.eye(SIZE) + 0.3 * rng.normal(size=(SIZE, SIZE))
    return WhiteningNormal(
        rng.normal(size=SIZE),
        factor if is_dense else np.diagonal(factor).copy(),
        Dependence(parents, slopes(), slopes()),
    )


def by_hand(normal, white):
    """z and the log determinant of the bent part, from the formula, for one point."""
    parents, log_scale, curve = normal.dependence
    hinge = lambda value: 0.5 * jnp.log1p(jnp.exp(2 * value))
    w = white[parents]
    scales = jnp.concatenate([w, hinge(w + 1), hinge(w - 1)]) @ log_scale.T
    shifts = jnp.concatenate([hinge(w + 1), hinge(w - 1), w**2 - 1]) @ curve.T
    bent = white * jnp.exp(scales) + shifts
    moved = normal.factor @ bent if normal.is_dense else normal.factor * bent
    return normal.loc + moved, jnp.sum(scales)


def logdensity(z):
    """Neither normal nor symmetric, so that every term of a score counts."""
    return -0.1 * jnp.sum(z**4) + jnp.sum(jnp.sin(z)) + z[0] * z[1] - 0.3 * z[2] * z[4]


@pytest.fixture(params=[True, False], ids=["dense", "diagonal"])
def normal(request):
    return bent_normal(np.random.default_rng(0), request.param)


@pytest.fixture
def white():
    return np.random.default_rng(1).normal(size=(NUMBER, SIZE))


def test_push_is_the_formula_and_pull_its_inverse(normal, white, x64):
    points = normal.push(white)
    expected, _ = jax.vmap(lambda u: by_hand(normal, u))(white)
    np.testing.assert_allclose(points, expected, rtol=1e-10)
    np.testing.assert_allclose(normal.pull(points), white, atol=1e-9)
    assert normal.parents == PARENTS


def test_log_determinant_is_that_of_the_jacobian(normal, white, x64):
    jacobians = jax.vmap(jax.jacfwd(lambda u: by_hand(normal, u)[0]))(white)
    _, expected = jnp.linalg.slogdet(jacobians)
    _, of_dependence = normal.dependence.bend(white)
    np.testing.assert_allclose(normal.log_det + of_dependence, expected, atol=1e-9)


def test_score_against_finite_differences(normal, white, x64):
    def pulled(u):
        z, log_det = by_hand(normal, u)
        return logdensity(z) + log_det

    found = normal.score(white, np.asarray(jax.vmap(jax.grad(pulled))(white)))
    points, step = normal.push(white), 1e-5
    for axis, unit in enumerate(step * np.eye(SIZE)):
        ends = [jax.vmap(logdensity)(points + sign * unit) for sign in (1, -1)]
        slope = (ends[0] - ends[1]) / (2 * step)
        np.testing.assert_allclose(found[:, axis], slope, rtol=1e-4, atol=1e-4)


def test_evaluation_has_the_jacobian_of_the_bent_part(normal, white, x64):
    problem = read(relbo.model_from_logdensity(logdensity, jnp.zeros(SIZE)))
    found = compiled_evaluate(problem, NUMBER // 2)(normal, white)

    def pulled(u):
        z, log_det = by_hand(normal, u)
        return logdensity(z) + log_det

    value, score = jax.vmap(jax.value_and_grad(pulled))(white)
    np.testing.assert_allclose(found.logdensity, value, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found.score, score, rtol=1e-8, atol=1e-8)


def test_rescaled_is_the_same_map_in_other_units(normal, white):
    loc, scale = np.arange(SIZE) - 2.0, np.logspace(-2, 2, SIZE)
    other = normal.rescaled(loc, scale)
    np.testing.assert_allclose(other.push(white), loc + scale * normal.push(white), rtol=1e-10)


def test_no_dependence_is_the_identity(white):
    bent, log_det = Dependence.none(SIZE).bend(white)
    np.testing.assert_array_equal(bent, white)
    np.testing.assert_array_equal(log_det, 0.0)
    assert WhiteningNormal(np.zeros(SIZE), np.ones(SIZE), Dependence.none(SIZE)).parents == []
