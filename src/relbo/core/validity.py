"""Whether an objective is a lower bound on the evidence: the only place that decides."""

from typing import Literal, NamedTuple, get_args

from relbo.core.accounts import (
    ACCOUNTS,
    AbstractAccount,
    ChangeOfVariablesAccount,
    GaussianAccount,
)
from relbo.core.checks import check_choice, check_integer
from relbo.core.kernels import KERNELS, AbstractKernel

Subsampling = Literal["none", "independent", "shared"]


class Bound(NamedTuple):
    """Whether an objective is a lower bound on the log evidence, and why."""

    valid: bool | None
    """True, False, or None where it depends on more than the combination."""
    reason: str


def bound(
    kernel: AbstractKernel,
    account: AbstractAccount,
    num_steps: int,
    *,
    dimension: int | None = None,
    subsampling: Subsampling = "none",
    importance_weighted: bool = False,
    base_has_density: bool = True,
) -> Bound:
    """Returns whether the refined objective of a combination is a lower bound on log p(x).

    Args:
        kernel: how a step moves.
        account: what stands for log q.
        num_steps: T.
        dimension: of the position (times the number of interacting particles), where it is
            known; above the account's threshold the determinant is estimated.
        subsampling: `"none"`; `"independent"` where the kernel's minibatch and the objective's
            are independent; `"shared"` where they are the same.
        importance_weighted: whether the objective averages weights before the logarithm.
        base_has_density: false for a Dirac.

    Returns:
        A `Bound`.

    Example:
        >>> bound(SGLD(), ReverseKernelAccount(), 5).valid
        True
        >>> bound(SGD(), ParticleAccount(), 5).valid
        False
    """
    check_integer("num_steps", num_steps, 0)
    check_integer("dimension", dimension, 1, optional=True)
    check_choice("subsampling", subsampling, get_args(Subsampling))
    check_pair(kernel, account)
    if not base_has_density:
        return Bound(False, "a point has no density: this is a MAP objective")
    if subsampling != "none" and importance_weighted:
        return Bound(False, "the logarithm of a subsampled weight is biased")
    if num_steps == 0:
        return Bound(True, "no steps: the ELBO of the base")
    if subsampling == "shared":
        return Bound(False, "the same minibatch moves the particle and scores it")
    if account.redraws:
        return Bound(True, "given the path, the density of the fresh draw is exact")
    if account.counts_forward and account.counts_reverse:
        return Bound(True, "the reverse kernel extends the target to the whole path")
    if account.counts_volume:
        return _volume_bound(account, dimension)
    if account.counts_forward:
        return Bound(False, "the path's auxiliary positions have no reverse kernel")
    return Bound(False, "the account ignores that the steps contract volume")


def _volume_bound(account: AbstractAccount, dimension: int | None) -> Bound:
    estimated = (
        isinstance(account, ChangeOfVariablesAccount)
        and dimension is not None
        and not account.is_exact(dimension)
    )
    if estimated:
        return Bound(
            False,
            f"the estimate of the log determinant is biased: {dimension} values move together, "
            "more than max_exact_dimension",
        )
    return Bound(
        None,
        "while the steps are one-to-one wherever the base goes and the score is continuous; "
        "guide.share_folded looks for folds, and relbo.evaluate.check_bound compares the "
        "objective with an annealed estimate",
    )


def check_pair(kernel: AbstractKernel, account: AbstractAccount) -> None:
    """Raises `ValueError` for a kernel and an account that do not go together."""
    kernel_name, name = type(kernel).__name__, type(account).__name__
    if account.counts_volume and kernel.randomness != "none":
        raise ValueError(
            f"{name} needs a deterministic kernel, and {kernel_name} adds noise: use "
            f"ReverseKernelAccount with {kernel_name}, or {name} with SGD"
        )
    if account.counts_forward and kernel.randomness == "none":
        raise ValueError(
            f"{name} needs the density of a step, and {kernel_name} has no noise: use "
            f"ChangeOfVariablesAccount with {kernel_name}, or {name} with SGLD"
        )
    if account.counts_reverse and not kernel.reversible:
        raise ValueError(
            f"{name} needs a reverse move that depends on its starting point alone, and the "
            f"metric of {kernel_name} depends on the past of the path: use "
            f'{kernel_name}(metric="local") or a constant metric, or SGLD'
        )
    if (
        account.counts_forward
        and not account.counts_reverse
        and kernel.randomness != "position"
    ):
        raise ValueError(
            f"{name} needs the density of a position given the previous one, and {kernel_name} "
            f"has noise in its momentum only: use ReverseKernelAccount with {kernel_name}, or "
            f"{name} with SGLD"
        )
    if (
        isinstance(account, GaussianAccount)
        and account.start_from == "mean"
        and kernel.interacting
    ):
        raise ValueError(
            f'GaussianAccount(start_from="mean") starts all particles of {kernel_name} at one '
            'point, where they stay identical: use GaussianAccount(start_from="draw")'
        )


def validity_table(num_steps: int = 8) -> str:
    """Returns the table of all kernels and accounts, in Markdown."""
    rows = [["kernel", *ACCOUNTS], ["---"] * (1 + len(ACCOUNTS))]
    for name, kernel in KERNELS.items():
        verdicts = (verdict(kernel(0.1), account(), num_steps) for account in ACCOUNTS.values())
        rows.append([name, *verdicts])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def verdict(kernel: AbstractKernel, account: AbstractAccount, num_steps: int) -> str:
    """Returns the entry of `validity_table` for one combination."""
    try:
        valid = bound(kernel, account, num_steps).valid
    except ValueError:
        return "refused"
    return {True: "**bound**", False: "surrogate", None: "bound while one-to-one"}[valid]
