"""One step of every kernel against its formula, written out with loops."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import relbo

pytestmark = pytest.mark.usefixtures("x64")

K, D, ETA = 4, 2, 0.2


@pytest.fixture
def cloud():
    keys = jr.split(jr.key(0), 3)
    return [np.asarray(jr.normal(key, (K, D), jnp.float64)) for key in keys]


def radial(position, width):
    """Returns k(z_i, z_j) and its gradient in z_i, computed by loops."""
    gram, grad = np.zeros((K, K)), np.zeros((K, K, D))
    for i in range(K):
        for j in range(K):
            gram[i, j] = np.exp(-np.sum((position[i] - position[j]) ** 2) / width)
            grad[i, j] = -2 / width * (position[i] - position[j]) * gram[i, j]
    return gram, grad


def median_width(position):
    pairs = [np.sum((position[i] - position[j]) ** 2) for i in range(K) for j in range(i)]
    return np.median(pairs) / np.log(K + 1)


def stein(position, score, gram, grad):
    drift = np.zeros_like(position)
    for i in range(K):
        for j in range(K):
            # grad[j, i] is the gradient in z_j of k(z_j, z_i)
            drift[i] += (gram[j, i] * score[j] + grad[j, i]) / K
    return drift


@pytest.mark.parametrize("bandwidth", [None, 0.8])
def test_svgd(cloud, bandwidth):
    position, score, _ = cloud
    width = median_width(position) if bandwidth is None else bandwidth
    kernel = relbo.SVGD(ETA, bandwidth=bandwidth)
    moved = kernel.depart(None, jnp.asarray(position), jnp.asarray(score), None).position
    expected = position + ETA * stein(position, score, *radial(position, width))
    np.testing.assert_allclose(moved, expected, rtol=1e-10)


def test_fokker_planck(cloud):
    position, score, _ = cloud
    gram, grad = radial(position, 0.8)
    expected = np.array(position)
    for i in range(K):
        own = sum(grad[i, k] for k in range(K)) / sum(gram[i, j] for j in range(K))
        others = sum(grad[i, k] / sum(gram[j, k] for j in range(K)) for k in range(K))
        expected[i] += ETA * (score[i] - own - others)
    kernel = relbo.FokkerPlanckFlow(ETA, bandwidth=0.8)
    moved = kernel.depart(None, jnp.asarray(position), jnp.asarray(score), None).position
    np.testing.assert_allclose(moved, expected, rtol=1e-10)


def test_stochastic_svgd_has_the_mean_of_svgd_and_the_kernel_as_covariance(cloud):
    position, score, _ = cloud
    kernel = relbo.SGLDR(ETA, bandwidth=0.8)
    position_, score_ = jnp.asarray(position), jnp.asarray(score)
    gram, grad = radial(position, 0.8)
    mean = position + ETA * stein(position, score, gram, grad)
    still = kernel.depart(jnp.zeros((K, D)), position_, score_, position_)
    np.testing.assert_allclose(still.position, mean, rtol=1e-10)
    # The move is linear in the noise: its covariance is the map times its transpose.
    root = jax.jacfwd(
        lambda noise: kernel.depart(noise, position_, score_, position_).position
    )(jnp.zeros((K, D)))
    covariance = jnp.einsum("iakc,jbkc->iajb", root, root)
    expected = np.einsum("ij,ab->iajb", 2 * ETA / K * (gram + 1e-4 * np.eye(K)), np.eye(D))
    np.testing.assert_allclose(covariance, expected, atol=1e-12)


def test_stochastic_svgd_densities(cloud):
    from scipy.stats import multivariate_normal

    position, score, noise = cloud
    kernel = relbo.SGLDR(ETA, bandwidth=0.8)
    gram, grad = radial(position, 0.8)
    mean = position + ETA * stein(position, score, gram, grad)
    covariance = np.kron(2 * ETA / K * (gram + 1e-4 * np.eye(K)), np.eye(D))
    left = kernel.depart(*(jnp.asarray(x) for x in (noise, position, score)), None)
    expected = multivariate_normal(mean.ravel(), covariance).logpdf(
        np.asarray(left.position).ravel()
    )
    np.testing.assert_allclose(left.log_forward, expected, rtol=1e-10)
    behind = noise
    arrived = kernel.arrive(*(jnp.asarray(x) for x in (position, score, position - behind)))
    expected = multivariate_normal(mean.ravel(), covariance).logpdf(behind.ravel())
    np.testing.assert_allclose(arrived.log_reverse, expected, rtol=1e-10)


def test_a_single_particle_follows_the_gradient():
    position, score = jnp.array([[0.3, -1.0]]), jnp.array([[1.0, 2.0]])
    for kernel in (relbo.SVGD(ETA), relbo.FokkerPlanckFlow(ETA)):
        moved = kernel.depart(None, position, score, None).position
        np.testing.assert_allclose(moved, position + ETA * score, rtol=1e-12)


def test_particles_at_one_point_stay_finite():
    together = jnp.zeros((3, 2))
    score = jnp.ones((3, 2))
    for kernel in (relbo.SVGD(ETA), relbo.FokkerPlanckFlow(ETA)):
        moved = kernel.depart(None, together, score, None).position
        np.testing.assert_allclose(moved, ETA * score, rtol=1e-10)


def test_sgd_takes_a_step_size_for_each_coordinate():
    kernel = relbo.SGD(jnp.array([0.1, 0.5]))
    moved = kernel.depart(None, jnp.zeros(2), jnp.array([1.0, -2.0]), None).position
    np.testing.assert_allclose(moved, [0.1, -1.0])


def normal(x, mean, variance):
    return np.sum(-0.5 * (x - mean) ** 2 / variance - 0.5 * np.log(2 * np.pi * variance))


@pytest.mark.parametrize(
    ("make", "metric"),
    [
        (lambda: relbo.SGLD(ETA), lambda g: np.ones(2)),
        (lambda: relbo.PSGLD(ETA, metric=0.3), lambda g: np.full(2, 0.3)),
        (
            lambda: relbo.PSGLD(ETA, metric="local", damping=0.5),
            lambda g: 1 / (0.5 + np.abs(g)),
        ),
    ],
    ids=["sgld", "constant", "local"],
)
def test_langevin_kernels(make, metric):
    kernel = make()
    position, score = np.array([0.3, -0.7]), np.array([1.1, -0.4])
    noise, arrival_score = np.array([0.5, -1.2]), np.array([0.2, 0.9])
    memory = kernel.init(jnp.asarray(noise), jnp.asarray(position))
    left = kernel.depart(*(jnp.asarray(x) for x in (noise, position, score)), memory)
    step = ETA * metric(score)
    moved = position + step * score + np.sqrt(2 * step) * noise
    np.testing.assert_allclose(left.position, moved, rtol=1e-10)
    forward = normal(moved, position + step * score, 2 * step)
    np.testing.assert_allclose(left.log_forward, forward, rtol=1e-10)
    arrived = kernel.arrive(left.position, jnp.asarray(arrival_score), left.memory)
    step = ETA * metric(arrival_score)
    back = normal(position, moved + step * arrival_score, 2 * step)
    np.testing.assert_allclose(arrived.log_reverse, back, rtol=1e-10)


def test_rmsprop_metric_is_a_running_mean_of_squares():
    kernel = relbo.PSGLD(ETA, metric="rmsprop", decay=0.8, damping=0.1)
    position, memory = jnp.zeros(1), kernel.init(jnp.zeros(1), jnp.zeros(1))
    average, weight = 0.0, 0.0
    for score in (1.0, -3.0, 0.5):
        left = kernel.depart(jnp.zeros(1), position, jnp.array([score]), memory)
        average = 0.8 * average + 0.2 * score**2
        weight = 0.8 * weight + 0.2
        expected = position + ETA * score / (0.1 + np.sqrt(average / weight))
        np.testing.assert_allclose(left.position, expected, rtol=1e-8)
        position, memory = left.position, left.memory


def test_leapfrog_is_reversible_and_preserves_volume():
    kernel = relbo.Underdamped(0.3, 0.0)
    grad = jax.grad(lambda z: -jnp.sum(z**4) - z[0] * z[1])

    def leapfrog(state):
        position, momentum = state[:2], state[2:]
        left = kernel.depart(momentum, position, grad(position), (momentum, 0))
        arrived = kernel.arrive(left.position, grad(left.position), left.memory)
        return jnp.concatenate([left.position, arrived.memory[0]])

    state = jnp.array([0.3, -0.5, 0.8, 0.1])
    flip = jnp.array([1.0, 1.0, -1.0, -1.0])
    np.testing.assert_allclose(leapfrog(leapfrog(state) * flip) * flip, state, rtol=1e-10)
    assert np.linalg.slogdet(jax.jacfwd(leapfrog)(state)) == pytest.approx((1.0, 0.0))


def test_refreshment_leaves_the_momentum_normal():
    damping = 0.7
    kernel = relbo.Underdamped(0.1, damping)
    position, score = jnp.zeros(1), jnp.zeros(1)
    move = lambda noise, momentum: kernel.depart(noise, position, score, (momentum, 0)).memory[
        0
    ]
    from_noise = jax.jacfwd(move)(jnp.zeros(1), jnp.zeros(1))
    from_momentum = jax.jacfwd(move, 1)(jnp.zeros(1), jnp.zeros(1))
    np.testing.assert_allclose(from_momentum, damping, rtol=1e-10)
    np.testing.assert_allclose(from_noise**2 + from_momentum**2, 1.0, rtol=1e-10)
