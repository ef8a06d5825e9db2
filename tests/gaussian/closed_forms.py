"""Densities whose evidence is known, evaluated in NumPy."""

import numpy as np

from relbo.gaussian import WhiteEvaluation


def normal_density(rng, scales):
    """A normal density with correlations: its mean, its covariance and its evaluator."""
    size = len(scales)
    mean = scales * rng.normal(size=size)
    root = scales[:, None] * (np.eye(size) + 0.4 * rng.normal(size=(size, size)))
    covariance = root @ root.T
    precision = np.linalg.inv(covariance)
    log_z = -0.5 * np.linalg.slogdet(2 * np.pi * covariance)[1]

    def evaluate(normal, white):
        centred = normal.push(white) - mean
        force = -centred @ precision
        value = log_z + 0.5 * np.sum(centred * force, 1)
        pulled = force @ normal.factor if normal.is_dense else force * normal.factor
        return WhiteEvaluation(white, value, pulled)

    return mean, covariance, evaluate
