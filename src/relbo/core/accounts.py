"""Accounts: what stands for log q(z_T), one class per account."""

from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Bool, Float, PRNGKeyArray, PyTree, Scalar

from relbo.core.bases import AbstractBase, zero_like
from relbo.core.checks import check_choice, check_integer

Leave = Callable[[Array], tuple[Array, Any]]
"""Maps a position to the position after a step, and whatever else to keep of the step."""

SMALLEST_STRETCH = 0.1
"""The smallest stretch, in any direction, of a step that is certainly one-to-one."""

FOLD_CHARGE = 5.0
"""The quadratic charge, in nats, for a direction that a step leaves no volume."""


class Left(NamedTuple):
    """A step taken under an account."""

    kept: Any
    log_volume: Scalar
    """log abs det of the step's Jacobian, 0 where the account does not need it."""
    one_to_one: Bool[Array, ""]
    """False where the Jacobian changes orientation: the step folds space. In the monotone form,
    false where a charge applies: the step folds or nearly folds."""


class AbstractAccount(eqx.Module):
    r"""What stands for $\log q(z_T)$.

    An account starts somewhere in the base, adds up to three terms per step, and ends. The
    flags say which terms; each is false unless an account sets it. The rest of the library
    knows nothing else about an account, and `relbo.bound` decides from the flags whether the
    objective is a bound.
    """

    counts_forward: ClassVar[bool] = False
    """Adds the log density of each move."""
    counts_reverse: ClassVar[bool] = False
    """Subtracts the log density of each move back."""
    counts_volume: ClassVar[bool] = False
    """Subtracts the log volume of each move."""
    redraws: ClassVar[bool] = False
    """Draws the position afresh at the end, from a density that is then exact."""

    @abstractmethod
    def start(self, key: PRNGKeyArray, base: AbstractBase) -> tuple[PyTree, Scalar]:
        """Returns where the first step leaves from, and log q there."""

    @abstractmethod
    def leave(self, key: Any, leave_fn: Leave, position: Array) -> Left:
        """Takes a step and measures its volume where the account needs it."""

    @abstractmethod
    def finish(
        self, key: PRNGKeyArray, base: AbstractBase, position: PyTree, log_q: Scalar
    ) -> tuple[PyTree, Scalar]:
        """Returns the refined position and its log q, given where the last step arrived."""


def _leave_plainly(self: Any, key: Any, leave_fn: Leave, position: Array) -> Left:
    _, kept = leave_fn(position)
    return Left(kept, jnp.zeros((), position.dtype), jnp.array(True))


class AbstractPathAccount(AbstractAccount):
    """An account that starts from a draw of the base and follows it to the end."""

    def start(self, key: PRNGKeyArray, base: AbstractBase) -> tuple[PyTree, Scalar]:
        return base.sample(key)

    def finish(
        self, key: PRNGKeyArray, base: AbstractBase, position: PyTree, log_q: Scalar
    ) -> tuple[PyTree, Scalar]:
        return position, log_q


class ParticleAccount(AbstractPathAccount):
    r"""The base's density where the path began (VIS-P; paper, section 3.2).

    $$\log q(z_T) := \log q_0(z_0)$$

    **A surrogate, not a bound**: it ignores that the steps contract volume, so the objective
    may exceed the evidence by any amount. It is still a good optimiser. With
    `FokkerPlanckFlow` it is the paper's Fokker-Planck account (VIS-FP).
    """

    leave = _leave_plainly


class MonteCarloAccount(AbstractPathAccount):
    r"""The density of the whole path (VIS-MC; paper, section 3.2).

    $$\log q(z_T) := \log q_0(z_0) + \sum_t \log N(z_t;\, z_{t-1} + \eta g,\, 2\eta I)$$

    **A surrogate, not a bound**: it is the density of $z_{0:T}$, and the target has no
    counterpart for $z_{0:T-1}$. `ReverseKernelAccount` adds one.
    """

    counts_forward: ClassVar[bool] = True
    leave = _leave_plainly


class ReverseKernelAccount(AbstractPathAccount):
    r"""The density of the path over that of the path back.

    $$\log q(z_T) := \log q_0(z_0) + \sum_t \left[ \log K(z_t \mid z_{t-1})
      - \log r(z_{t-1} \mid z_t) \right]$$

    where $r$ is the same kernel run backwards. **A bound**: $r$ extends the target to the whole
    path, with the same evidence. Not in the paper.

    References:
        Salimans, Kingma and Welling, Markov chain Monte Carlo and variational inference:
        bridging the gap, 2015.
    """

    counts_forward: ClassVar[bool] = True
    counts_reverse: ClassVar[bool] = True
    leave = _leave_plainly


class GaussianAccount(AbstractAccount):
    r"""A fresh draw around the refined point (VIS-G; paper, section 3.2).

    The steps move the base's centre (or a draw from the base) to $m_T$; then
    $z \sim N(m_T, \sigma_\phi)$ is a fresh draw, whose density is used. For a base that is not
    Gaussian, the fresh draw has the base's own shape, moved to $m_T$.

    **A bound** in both forms: given the path, the density of z is exact, and the entropy of a
    conditional density is at most that of the marginal. (Evaluating $N(z_T, \sigma)$ at its own
    centre, as the paper's released code does, does not give a bound.)

    Args:
        start_from: `"mean"`, or `"draw"` as in the paper. From the mean, the path of a
            deterministic kernel is the same for every draw and is computed once.
    """

    start_from: Literal["mean", "draw"] = eqx.field(default="mean", static=True)
    redraws: ClassVar[bool] = True
    leave = _leave_plainly

    def __check_init__(self) -> None:
        check_choice("start_from", self.start_from, ("mean", "draw"))

    def start(self, key: PRNGKeyArray, base: AbstractBase) -> tuple[PyTree, Scalar]:
        position = base.centre if self.start_from == "mean" else base.sample(key)[0]
        return position, zero_like(position)

    def finish(
        self, key: PRNGKeyArray, base: AbstractBase, position: PyTree, log_q: Scalar
    ) -> tuple[PyTree, Scalar]:
        draw, log_prob = base.sample(key)
        moved = jax.tree.map(lambda m, z, c: m + (z - c), position, draw, base.centre)
        return moved, log_prob


class ChangeOfVariablesAccount(AbstractPathAccount):
    r"""The density of the base under a deterministic flow (VIS-D; paper, section 3.2).

    $$\log q(z_T) := \log q_0(z_0) - \sum_t \log \left| \det \frac{dz_t}{dz_{t-1}} \right|$$

    **A bound while the steps are one-to-one**, in the exact form: for `SGD`, while $\eta$ times
    the largest eigenvalue of minus the Hessian stays below 1 wherever the base goes. Beyond
    that it counts preimages. For interacting particles the determinant is the joint one of all
    particles, in $Kd$ dimensions.

    The score must be continuous. Where it jumps, as in a density with a relu inside, points
    from both sides may move to the same point. Neither the determinant nor `Refined.one_to_one`
    shows this.

    Above `max_exact_dimension` the log determinant is *estimated*, and the objective is not a
    bound: with $J = I + A$ and random signs $v$, the estimate is

    $$\sum_{k=1}^{n} \frac{(-1)^{k+1}}{k}\, v^\top A^k v,$$

    whose mean misses $\sum_{k>n} (-1)^{k+1} \operatorname{tr}(A^k)/k$, at most
    $d\, \rho^{n+1} / ((n+1)(1-\rho))$ in size where $\rho < 1$ is the spectral radius of $A$.
    For a contracting flow (a concave log density) the estimate is too high, and so is the
    objective.

    The plain account does not charge for folds, and a learned step size may end where steps
    fold. `monotone` prevents this. It takes the symmetric part of the Jacobian, whose
    determinant is at most as large while its eigenvalues are positive, and equal for `SGD`
    without a cap. An eigenvalue $s$ below 0.1 is charged: with $r = 1 - s / 0.1 > 0$ its
    logarithm becomes $\log 0.1 - r - 5 r^2$. If no point of the base is charged, the steps are
    one-to-one.

    Args:
        max_exact_dimension: the largest dimension for the exact determinant.
        monotone: charges steps that fold or nearly fold; for the exact determinant.
        num_terms: n.
        num_probes: number of vectors v to average over.
    """

    max_exact_dimension: int = eqx.field(default=64, static=True)
    monotone: bool = eqx.field(default=False, static=True, kw_only=True)
    num_terms: int = eqx.field(default=8, static=True, kw_only=True)
    num_probes: int = eqx.field(default=1, static=True, kw_only=True)
    counts_volume: ClassVar[bool] = True

    def __check_init__(self) -> None:
        check_integer("max_exact_dimension", self.max_exact_dimension, 0)
        check_integer("num_terms", self.num_terms, 1)
        check_integer("num_probes", self.num_probes, 1)

    def is_exact(self, dimension: int) -> bool:
        return dimension <= self.max_exact_dimension

    def leave(self, key: Any, leave_fn: Leave, position: Array) -> Left:
        def flat_leave(flat: Float[Array, " n"]) -> tuple[Float[Array, " n"], Any]:
            moved, kept = leave_fn(flat.reshape(position.shape))
            return moved.reshape(-1), kept

        flat = position.reshape(-1)
        _, tangent_fn, kept = jax.linearize(flat_leave, flat, has_aux=True)
        if self.is_exact(flat.shape[0]):
            # One column after another, and separate columns for each draw: otherwise the
            # backward pass sums over columns, or over draws that share one, and XLA takes
            # several times as long for these sums as for the products in a network.
            own = 0 * jax.lax.stop_gradient(flat[None])
            columns = jax.lax.map(tangent_fn, jnp.eye(flat.shape[0], dtype=flat.dtype) + own)
            log_volume, one_to_one = (_charged if self.monotone else _signed)(columns)
            return Left(kept, log_volume, one_to_one)
        log_volume = self._estimate(key, tangent_fn, flat)
        return Left(kept, log_volume, jnp.array(True))

    def _estimate(
        self, key: PRNGKeyArray, tangent_fn: Callable[[Array], Array], like: Array
    ) -> Scalar:
        def one_probe(probe: Array) -> Scalar:
            def add_term(power: Array, k: Array) -> tuple[Array, Scalar]:
                power = tangent_fn(power) - power
                return power, jnp.where(k % 2 == 1, 1, -1) / k * jnp.vdot(probe, power)

            _, terms = jax.lax.scan(add_term, probe, jnp.arange(1, self.num_terms + 1))
            return jnp.sum(terms)

        probes = jr.rademacher(key, (self.num_probes, like.shape[0]), like.dtype)
        return jnp.mean(jax.vmap(one_probe)(probes))


def _signed(jacobian: Float[Array, "n n"]) -> tuple[Scalar, Bool[Array, ""]]:
    sign, log_volume = jnp.linalg.slogdet(jacobian)
    return log_volume, sign > 0


def _charged(jacobian: Float[Array, "n n"]) -> tuple[Scalar, Bool[Array, ""]]:
    values = jnp.linalg.eigvalsh(jacobian, symmetrize_input=True)
    inside = jnp.maximum(values, SMALLEST_STRETCH)
    beyond = (inside - values) / SMALLEST_STRETCH
    charge = beyond + FOLD_CHARGE * beyond**2
    return jnp.sum(jnp.log(inside) - charge), jnp.all(values >= SMALLEST_STRETCH)


ACCOUNTS: dict[str, Callable[[], AbstractAccount]] = {
    "ParticleAccount": ParticleAccount,
    "MonteCarloAccount": MonteCarloAccount,
    'GaussianAccount("mean")': GaussianAccount,
    'GaussianAccount("draw")': partial(GaussianAccount, "draw"),
    "ChangeOfVariablesAccount": ChangeOfVariablesAccount,
    "ReverseKernelAccount": ReverseKernelAccount,
}
"""Constructors by name.

`validity_table` has a column for each entry, and the tests run every law on it.
"""
