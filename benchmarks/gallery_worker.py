"""Runs `relbo.infer` on one case of the gallery, and judges what it returns."""

import time
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import numpy as np

import relbo
from gallery_cases import CASES
from gallery_judge import judge
from gallery_truth import Truth


@cache
def _truth(name: str) -> dict[str, Truth]:
    return CASES[name].truth()


def run_case(name: str, seed: int, begin: Callable[[], None]) -> dict[str, Any]:
    """Runs a case.

    Args:
        name: the case.
        seed: the seed of `infer`.
        begin: is called when the truth is known and `infer` begins.

    Returns:
        Whether the result is right (`None` without draws) and trusted, and how long it took.
    """
    case, truths = CASES[name], _truth(name)
    model, args, kwargs = case.build()
    # Each run compiles its programs, as the first run of a user does.
    jax.clear_caches()
    begin()
    start = time.perf_counter()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            posterior = relbo.infer(seed, model, args, kwargs, progress=False)
            check = posterior.check()
    except Exception as error:  # whatever is raised is not trusted
        seconds = time.perf_counter() - start
        advice = f"{type(error).__name__}: {error}".splitlines()[0]
        right = None if case.proper else False
        return _cell(right, [], False, seconds, advice, {})
    seconds = time.perf_counter() - start
    numbers = {"rhat": check.rhat, "ess": check.ess, "seconds": posterior.seconds}
    numbers |= _evidence_ends(posterior)
    advice = next((line for text in check.advice for line in text.splitlines()), "")
    if not case.proper:
        return _cell(False, [], check.trustworthy, seconds, advice, numbers)
    chains = {site: np.asarray(values) for site, values in posterior.chains.items()}
    errors = judge(case, truths, chains)
    wrong = [str(error) for error in errors if not error.ratio <= 1]
    numbers["largest error over allowed"] = errors[0].ratio
    return _cell(not wrong, wrong, check.trustworthy, seconds, advice, numbers)


def _evidence_ends(posterior: relbo.Posterior) -> dict[str, Any]:
    """Returns the distance of the two estimates of the evidence, and the number of latents."""
    latents = sum(int(np.prod(values.shape[2:])) for values in posterior.chains.values())
    if posterior.log_weights is None:
        return {"latents": latents, "evidence gap": None}
    gap = posterior.log_weights.upper[0] - posterior.log_weights.lower[0]
    return {"latents": latents, "evidence gap": gap}


def _cell(
    right: bool | None,
    wrong_by: list[str],
    trusted: bool,
    seconds: float,
    advice: str,
    numbers: dict[str, Any],
) -> dict[str, Any]:
    return {
        "right": right,
        "wrong_by": wrong_by,
        "trusted": bool(trusted),
        "seconds": seconds,
        "advice": advice,
        "numbers": numbers,
    }
