"""Decoded states against the best and the mean of all paths."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from relbo.statespace import HiddenMarkov, decode_states

INITIAL = np.array([0.6, 0.3, 0.1])
TRANSITION = np.array([[0.7, 0.3, 0.0], [0.1, 0.5, 0.4], [0.3, 0.3, 0.4]])
LIKELIHOODS = np.random.default_rng(0).gamma(0.5, size=(5, 3))


def all_paths():
    """Every path and its joint probability with the observations."""
    paths = np.array(list(itertools.product(range(3), repeat=5)))
    joint = INITIAL[paths[:, 0]] * LIKELIHOODS[np.arange(5), paths].prod(axis=1)
    for before, after in zip(paths[:, :-1].T, paths[:, 1:].T, strict=True):
        joint = joint * TRANSITION[before, after]
    return paths, joint


def test_path_is_the_best_of_all_and_probabilities_are_sums(x64):
    paths, joint = all_paths()
    found = decode_states(INITIAL, TRANSITION, np.log(LIKELIHOODS))
    assert found.path.tolist() == paths[joint.argmax()].tolist()
    assert float(found.log_joint) == pytest.approx(np.log(joint.max()))
    expected = [[joint[paths[:, t] == k].sum() for k in range(3)] for t in range(5)]
    np.testing.assert_allclose(np.exp(found.log_probs), expected / joint.sum())


def test_an_impossible_transition_is_not_taken(x64):
    likely = np.where(np.arange(3)[None] == np.array([0, 2, 2, 0, 2])[:, None], 0.0, -1.0)
    path = np.asarray(decode_states(INITIAL, TRANSITION, likely).path)
    assert (TRANSITION[path[:-1], path[1:]] > 0).all()


def test_a_batch_of_draws_is_decoded_at_once(x64):
    draws = jnp.stack([TRANSITION, np.full((3, 3), 1 / 3)])
    decode = lambda transition: decode_states(INITIAL, transition, np.log(LIKELIHOODS))
    found = jax.vmap(decode)(draws)
    assert found.path.shape == (2, 5)
    # Without memory each step is decided on its own.
    assert found.path[1, 1:].tolist() == LIKELIHOODS[1:].argmax(axis=1).tolist()


def test_symbols_are_decoded_too(x64):
    chain = HiddenMarkov(np.array([0.5, 0.5]), np.array([[0.9, 0.1], [0.1, 0.9]]), np.eye(2))
    series = np.array([0, 0, 1, np.nan, 1])
    found = chain.decode(series)
    assert found.path.tolist() == [0, 0, 1, 1, 1]
    np.testing.assert_allclose(found.log_probs, chain.smooth(series))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("transition", {"transition": np.ones((2, 3))}),
        ("log_likelihoods", {"log_likelihoods": np.zeros((5, 2))}),
        ("initial", {"initial": np.zeros((0,))}),
    ],
)
def test_wrong_shapes_are_named(name, change):
    given = {"initial": INITIAL, "transition": TRANSITION, "log_likelihoods": LIKELIHOODS}
    with pytest.raises(ValueError, match=f"^{name}: expected the shape"):
        decode_states(**{**given, **change})
