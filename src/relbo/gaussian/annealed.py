"""Annealed draws from a normal, with weights that average to the evidence."""

import numpy as np
from jaxtyping import Float

from relbo.core.dynamics import end_leapfrog, log_weight_increment, refresh, start_leapfrog
from relbo.gaussian.evaluation import Evaluate, WhiteEvaluation
from relbo.gaussian.whitening import WhiteningNormal


@np.errstate(over="ignore", invalid="ignore")
def annealed_draws(
    rng: np.random.Generator,
    evaluate: Evaluate,
    normal: WhiteningNormal,
    *,
    num_points: int,
    num_steps: int,
    step_size: float,
    damping: float = 0.9,
) -> tuple[Float[np.ndarray, "c d"], Float[np.ndarray, " c"]]:
    r"""Refines draws of the normal by annealed underdamped steps, and weighs them.

    The same path as `relbo.Refinement` with `Underdamped` and `ReverseKernelAccount` takes, in
    white coordinates: the weights average to the evidence.

    Returns:
        The draws, and the logarithms of their weights.
    """
    white = rng.standard_normal((num_points, len(normal.loc)))
    momentum = rng.standard_normal(white.shape)
    log_weight = 0.5 * np.sum(white**2 + np.log(2 * np.pi), 1) + normal.log_det
    here = evaluate(normal, white)
    for step in range(1, num_steps + 1):
        beta = step / num_steps
        moved, after = start_leapfrog(here.white, momentum, _tempered(here, beta), step_size)
        here = evaluate(normal, moved)
        after = end_leapfrog(after, _tempered(here, beta), step_size)
        log_weight = log_weight + log_weight_increment(momentum, after)
        momentum = refresh(after, rng.standard_normal(white.shape), damping)
    log_weight = np.where(here.is_finite, log_weight + here.logdensity, -np.inf)
    return normal.push(here.white), np.where(np.isnan(log_weight), -np.inf, log_weight)


@np.errstate(over="ignore", invalid="ignore")
def reversed_log_weights(
    rng: np.random.Generator,
    evaluate: Evaluate,
    normal: WhiteningNormal,
    white: Float[np.ndarray, "c d"],
    *,
    num_steps: int,
    step_size: float,
    damping: float = 0.9,
) -> Float[np.ndarray, " c"]:
    r"""Runs the path of `annealed_draws` backwards from draws of the posterior.

    From exact draws the inverse weights average to the inverse of the evidence: minus the log
    of their mean is an upper bound in expectation, as the log mean of the forward weights is a
    lower one.

    Args:
        white: draws of the posterior in white coordinates.

    Returns:
        The logarithms of the weights of the reversed paths.
    """
    momentum = rng.standard_normal(white.shape)
    here = evaluate(normal, white)
    log_weight = np.where(here.is_finite, here.logdensity, np.inf)
    for step in range(num_steps, 0, -1):
        beta = step / num_steps
        # The refreshment is reversible, and a leapfrog backwards is one with momenta reversed.
        after = refresh(momentum, rng.standard_normal(white.shape), damping)
        moved, reverse = start_leapfrog(here.white, -after, _tempered(here, beta), step_size)
        here = evaluate(normal, moved)
        momentum = -end_leapfrog(reverse, _tempered(here, beta), step_size)
        log_weight = log_weight + log_weight_increment(momentum, after)
    log_weight = log_weight + 0.5 * np.sum(here.white**2 + np.log(2 * np.pi), 1)
    return np.where(np.isnan(log_weight), np.inf, log_weight + normal.log_det)


def _tempered(here: WhiteEvaluation, beta: float) -> Float[np.ndarray, "c d"]:
    """Returns the score on the path from the standard normal to the target."""
    return beta * here.score - (1 - beta) * here.white
