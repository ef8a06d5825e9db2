"""Modes that are images of each other are named as such."""

import numpy as np

from relbo.sampling.chain_draws import ChainDraws
from relbo.sampling.symmetries import Site, findings_of_symmetry

SITES = (Site("loading", (3,)), Site("score", (2,)), Site("scale", ()))


def around(rng, centre, logdensity):
    draws = np.asarray(centre) + 0.1 * rng.normal(size=(20, 8, len(centre)))
    values = np.apply_along_axis(logdensity, 2, draws)
    return ChainDraws(
        draws, draws, values, values + 1.0, values, values > 1, values.astype(int), 0.5, 4
    )


def text_of(logdensity, *centres, sites=SITES):
    rng = np.random.default_rng(0)
    modes = [around(rng, centre, logdensity) for centre in centres]
    every = lambda points: np.apply_along_axis(logdensity, 1, points)
    found = findings_of_symmetry(modes, sites, every)
    assert all(not finding.is_fatal for finding in found)
    return " ".join(finding.text for finding in found)


def of_products(z):
    """Depends on the products of loadings and scores, and on the scale."""
    return -np.sum((np.outer(z[:3], z[3:5]) - 1.0) ** 2) - z[5] ** 4 - z[5]


def test_changed_signs_are_named_by_site():
    # The second score is close to zero, and its sign is not clear.
    centre = np.array([1.0, 2.0, -1.0, 1.5, 0.02, 0.7])
    image = centre * [-1, -1, -1, -1, -1, 1]
    assert "the signs of loading, score changes nothing" in text_of(of_products, centre, image)


def test_signs_of_some_coordinates_are_named_one_by_one():
    even = lambda z: -(z[1] ** 4) - np.sum((z[[0, 2, 3, 4, 5]] - 1.0) ** 2)
    centre = np.ones(6)
    text = text_of(even, centre, centre * [1, -1, 1, 1, 1, 1])
    assert "the signs of loading[1] changes" in text


def test_exchanged_elements_are_named():
    sites = (Site("mean", (3,)), Site("sd", (3,)))
    exchangeable = lambda z: -np.sum((z[:3] - z[3:]) ** 2) - np.sum(z**3)
    centre = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    turned = centre.reshape(2, 3)[:, [1, 2, 0]].ravel()
    text = text_of(exchangeable, centre, turned, sites=sites)
    assert "the order of mean, sd changes nothing" in text


def test_modes_that_are_no_images_are_not_called_so():
    centre = np.array([1.0, 2.0, -1.0, 1.5, 1.0, 0.7])
    uneven = lambda z: of_products(z) + z[0]
    assert text_of(uneven, centre, -centre) == ""
    assert text_of(of_products, centre, centre + 3.0) == ""
