"""Whether an objective is a lower bound on the evidence: the one place that decides."""

from typing import Literal, NamedTuple

from relbo.entropy import (
    AbstractEntropy,
    ChangeOfVariables,
    Gaussian,
    MonteCarlo,
    Particle,
    ReverseKernel,
)
from relbo.kernels import (
    PSGLD,
    SGD,
    SGLD,
    SGLDR,
    SVGD,
    AbstractKernel,
    FokkerPlanckFlow,
    Underdamped,
)

Subsampling = Literal["none", "independent", "shared"]


class Bound(NamedTuple):
    """Whether an objective is a lower bound on the log evidence, and why."""

    valid: bool | None
    """True, False, or None where it depends on what cannot be read off the combination."""
    reason: str


def bound(
    kernel: AbstractKernel,
    entropy: AbstractEntropy,
    num_steps: int,
    *,
    dimension: int | None = None,
    subsampling: Subsampling = "none",
    importance_weighted: bool = False,
    base_has_density: bool = True,
) -> Bound:
    """Says whether the refined objective of a combination is a lower bound on log p(x).

    Args:
        kernel: what moves.
        entropy: what stands for log q.
        num_steps: T.
        dimension: of the position (times the particles that interact), where it is known; an
            estimated determinant is used above the account's threshold.
        subsampling: `"none"`; `"independent"` where the kernel's minibatch and the objective's
            are independent; `"shared"` where they are one.
        importance_weighted: whether the objective averages weights before the logarithm.
        base_has_density: false for a Dirac.

    Returns:
        A `Bound`.

    Example:
        >>> bound(SGLD(), ReverseKernel(), 5).valid
        True
        >>> bound(SGD(), Particle(), 5).valid
        False
    """
    check_pair(kernel, entropy)
    if not base_has_density:
        return Bound(False, "a point has no density: this is a MAP objective")
    if subsampling != "none" and importance_weighted:
        return Bound(False, "the logarithm of a subsampled weight is biased")
    if num_steps == 0:
        return Bound(True, "no step: the base's own ELBO")
    if subsampling == "shared":
        return Bound(False, "one minibatch both moves the particle and scores it")
    if entropy.redraws:
        return Bound(True, "given the path, the density of the fresh draw is exact")
    if entropy.counts_forward and entropy.counts_reverse:
        return Bound(True, "the reverse kernel extends the target to the whole path")
    if entropy.counts_volume:
        return _volume_bound(entropy, dimension)
    if entropy.counts_forward:
        return Bound(False, "the path's auxiliary positions have no reverse kernel")
    return Bound(False, "the volume that the steps contract is not paid for")


def _volume_bound(entropy: AbstractEntropy, dimension: int | None) -> Bound:
    estimated = (
        isinstance(entropy, ChangeOfVariables)
        and dimension is not None
        and not entropy.is_exact(dimension)
    )
    if estimated:
        return Bound(
            False,
            f"the log determinant is estimated, with a bias: {dimension} values move together, "
            "more than max_exact_dimension",
        )
    return Bound(
        None,
        "while the steps are one-to-one wherever the base goes and the score does not jump; "
        "guide.share_folded looks for folds, and relbo.evaluate.check_bound holds it against "
        "an annealed estimate",
    )


def check_pair(kernel: AbstractKernel, entropy: AbstractEntropy) -> None:
    """Raises `ValueError` for a kernel and an account that make no sense together."""
    kernel_name, account = type(kernel).__name__, type(entropy).__name__
    if entropy.counts_volume and kernel.randomness != "none":
        raise ValueError(
            f"{account} needs a deterministic kernel, and {kernel_name} adds noise: use "
            f"ReverseKernel with {kernel_name}, or {account} with SGD"
        )
    if entropy.counts_forward and kernel.randomness == "none":
        raise ValueError(
            f"{account} needs the density of a step, and {kernel_name} has no noise: use "
            f"ChangeOfVariables with {kernel_name}, or {account} with SGLD"
        )
    if entropy.counts_reverse and not kernel.reversible:
        raise ValueError(
            f"{account} needs a move back that is known from where it starts, and the metric "
            f'of {kernel_name} depends on the path behind: use {kernel_name}(metric="local") '
            "or a constant metric, or SGLD"
        )
    if (
        entropy.counts_forward
        and not entropy.counts_reverse
        and kernel.randomness != "position"
    ):
        raise ValueError(
            f"{account} needs the density of a position given the last, and {kernel_name} "
            f"has noise in its momentum only: use ReverseKernel with {kernel_name}, or "
            f"{account} with SGLD"
        )
    if isinstance(entropy, Gaussian) and entropy.start_from == "mean" and kernel.interacting:
        raise ValueError(
            f'Gaussian(start_from="mean") puts all particles of {kernel_name} in one point, '
            'where nothing sets them apart: use Gaussian(start_from="draw")'
        )


def validity_table(num_steps: int = 8) -> str:
    """The whole matrix of kernels and accounts, as Markdown."""
    kernels = {
        "SGD": SGD(),
        "SGLD": SGLD(),
        'PSGLD (metric="rmsprop")': PSGLD(),
        'PSGLD (metric="local" or constant)': PSGLD(metric="local"),
        "SVGD": SVGD(),
        "SGLDR": SGLDR(),
        "FokkerPlanckFlow": FokkerPlanckFlow(),
        "Underdamped": Underdamped(),
    }
    accounts = [
        Particle(),
        MonteCarlo(),
        Gaussian("draw"),
        ChangeOfVariables(),
        ReverseKernel(),
    ]
    header = ["kernel", *(type(account).__name__ for account in accounts)]
    rows = [header, ["---"] * len(header)]
    for name, kernel in kernels.items():
        rows.append([name, *(_verdict(kernel, account, num_steps) for account in accounts)])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _verdict(kernel: AbstractKernel, entropy: AbstractEntropy, num_steps: int) -> str:
    try:
        valid = bound(kernel, entropy, num_steps).valid
    except ValueError:
        return "refused"
    return {True: "**bound**", False: "surrogate", None: "bound while one-to-one"}[valid]
