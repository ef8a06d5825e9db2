"""Runs the chains of all modes in rounds, until the draws pass all examinations."""

import time
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from relbo.gaussian import WhiteningNormal, is_apart
from relbo.sampling.chain_draws import ChainDraws, joined
from relbo.sampling.diagnostics import (
    chain_spread,
    convergence,
    effective_sample_size,
    rejected_in_tails,
)
from relbo.sampling.ensemble import Ensemble
from relbo.sampling.evidence import LogWeights, weigh
from relbo.sampling.findings import (
    Finding,
    UnconstrainedChains,
    finding_of_necks,
    findings_of_chains,
    findings_of_rounds,
)
from relbo.sampling.modes import (
    MAX_ELSEWHERE,
    Mode,
    are_separate,
    combine,
    total_weights,
    with_own_weights,
)
from relbo.sampling.symmetries import findings_of_symmetry

MAX_EXAMINED = 500
"""The largest number of coordinates whose convergence decides how long to run."""
MAX_RANKED_LENGTH = 128
"""The largest number of draws of each chain whose ranks are compared."""
NUM_SLOWEST = 12
"""Coordinates whose effective draws are counted, of those whose chains differ most."""
MIN_LENGTH = 16
"""Iterations of each chain, whatever number of draws is asked for."""
MIN_EVIDENCE_DRAWS = 640
"""Annealed draws that weigh a mode."""
MIN_SHARE = 0.5
"""Effective draws of the slowest coordinate and of its square, as a share of the draws."""
MAX_ROUNDS = 8
"""Attempts to get good draws."""
NARROW_ROUND = 8
"""The length of a run where scales depend on the place, in units of the first: visits to narrow
places are rare and long."""
MAX_REJECTED = 0.15
"""The largest share of rejected steps in a narrow place for which steps are short enough;
beyond, runs with different steps are compared."""
MAX_TRUSTED_REJECTED = 0.3
"""The largest share of rejected steps in a narrow place that is trusted."""


class PhaseClock:
    """Measures the seconds of each phase."""

    def __init__(self, start: float):
        self._last = start
        self.laps: dict[str, float] = {}

    def lap(self, name: str) -> None:
        now = time.monotonic()
        self.laps[name] = self.laps.get(name, 0.0) + now - self._last
        self._last = now


class ChainRun(NamedTuple):
    """The draws of all modes, what they showed, and the weights behind the evidence."""

    chains: ChainDraws
    findings: list[Finding]
    log_weights: LogWeights | None


def run_chains(
    ensemble: Ensemble, num_draws: int, num_evidence_draws: int, clock: PhaseClock
) -> ChainRun:
    """Samples all modes together if chains move between them, and otherwise one by one."""
    modes = ensemble.modes
    findings: list[Finding] = [] if ensemble.has_all_modes else [_OTHER_MODES]
    if len(modes) > 1:
        ensemble.warm_up()
        if are_separate(ensemble.sample(MIN_LENGTH), modes):
            modes = _warmed_up(ensemble, modes)
            run = _run_modes(ensemble, modes, num_draws, num_evidence_draws, clock)
            return run._replace(findings=[*run.findings, *findings])
        findings = []
    findings += _warm_up(ensemble)
    clock.lap("warm up")
    chains, seen = sample_until_good(ensemble, num_draws)
    clock.lap("sample")
    weights = weigh(ensemble, chains, num_evidence_draws)[1] if num_evidence_draws else None
    clock.lap("weigh")
    return ChainRun(chains, [*findings, *seen], weights)


_OTHER_MODES = Finding(
    "There are more local summits than were followed, and more than were seen: other modes may "
    "weigh more. Order or fix what can be exchanged, sum it out, or give narrower priors."
)


def _warmed_up(ensemble: Ensemble, modes: list[WhiteningNormal]) -> list[WhiteningNormal]:
    """Lets chains start in each mode, and drops those from which they went to another one.

    A fit in a neck may look like a mode.
    """
    kept: list[WhiteningNormal] = []
    for mode in modes:
        ensemble.start_in(mode, [other for other in modes if other is not mode])
        ensemble.warm_up()
        if is_apart(ensemble.normal, kept):
            kept.append(ensemble.normal)
    return kept


def _run_modes(
    ensemble: Ensemble,
    normals: list[WhiteningNormal],
    num_draws: int,
    num_evidence_draws: int,
    clock: PhaseClock,
) -> ChainRun:
    modes = []
    number = max(num_evidence_draws, MIN_EVIDENCE_DRAWS)
    for normal in normals:
        ensemble.start_in(normal, [other for other in normals if other is not normal])
        findings = _warm_up(ensemble)
        clock.lap("warm up")
        chains, seen = sample_until_good(ensemble, num_draws)
        clock.lap("sample")
        has_left = ensemble.elsewhere > MAX_ELSEWHERE
        if has_left or not is_apart(ensemble.normal, [mode.normal for mode in modes]):
            rest = [other for other in normals if other is not normal]
            return _run_modes(ensemble, rest, num_draws, num_evidence_draws, clock)
        ends, weights = weigh(ensemble, chains, number)
        clock.lap("weigh")
        modes.append(Mode(ensemble.normal, chains, ends, weights, [*findings, *seen]))
    modes = with_own_weights(modes)
    chains, found = combine(ensemble.rng, modes)
    if len(modes) > 1:
        draws = [mode.chains for mode in modes]
        found += findings_of_symmetry(draws, ensemble.problem.sites, ensemble.logdensity)
    return ChainRun(chains, found, total_weights(modes) if num_evidence_draws else None)


def _warm_up(ensemble: Ensemble) -> list[Finding]:
    if ensemble.warm_up():
        return []
    text = "The warm-up did not converge: the step size or the scales still changed."
    return [Finding(text, is_fatal=False)]


def sample_until_good(ensemble: Ensemble, num_draws: int) -> tuple[ChainDraws, list[Finding]]:
    """Samples until the draws pass all examinations, or the time is up.

    Draws that do not pass are discarded, but they show the scales better than the fit did: the
    next round walks in coordinates that are fitted to them. Where scales depend on the place,
    two rounds in different coordinates have to agree.

    Returns:
        `num_draws` draws, and what all draws showed.
    """
    length = -(-num_draws // ensemble.num_chains)
    wanted = MIN_SHARE * length * ensemble.num_chains
    chains, before = ensemble.sample(max(length, MIN_LENGTH)), None
    found: list[Finding] = []
    rejected = 0.0
    for turn in range(MAX_ROUNDS):
        found = _examine(ensemble, chains)
        is_fine = not found and _agree(ensemble, chains)
        rejected = float(np.max(rejected_in_tails(_some(chains), chains.acceptance.T)))
        is_stuck = rejected > MAX_REJECTED
        if ensemble.has_narrow_places or is_stuck:
            found += _compare(ensemble, before, chains)
        effective = _effective(chains)
        is_good = is_fine and not found and rejected < MAX_TRUSTED_REJECTED
        # Draws that ran off do so again: there is no finite mass.
        is_hopeless = not np.all(np.isfinite(chains.draws))
        is_last = turn == MAX_ROUNDS - 1 or ensemble.is_late() or is_hopeless
        least = NARROW_ROUND * length if ensemble.has_narrow_places else 0
        if (is_good and effective >= wanted and len(chains.draws) >= least) or is_last:
            break
        missing = 1.2 * wanted / effective - 1.0
        if is_good and 4 * effective > wanted:
            more = int(np.ceil(len(chains.draws) * np.clip(missing, 0.25, 16)))
            chains = joined(chains, ensemble.sample(max(more, least - len(chains.draws))))
        else:
            before = chains
            ensemble.rewhiten(chains)
            # A neck may be cut off at a depth that depends on the step: compare with smaller.
            is_first_comparison = turn == 0 and ensemble.has_narrow_places
            if not is_fine or effective < 0.1 * wanted or is_first_comparison or is_stuck:
                ensemble.method = ensemble.method.with_smaller_steps()
            ensemble.tune_step()
            longest = 2 * NARROW_ROUND if ensemble.has_narrow_places and is_fine else 4
            shortest = longest // 2 if ensemble.has_narrow_places or not is_stuck else longest
            chains = ensemble.sample(int(np.ceil(length * np.clip(missing, shortest, longest))))
    if rejected > MAX_TRUSTED_REJECTED:
        found.append(finding_of_necks(rejected))
    return chains.thinned(length), found


def _agree(ensemble: Ensemble, chains: ChainDraws) -> bool:
    """Whether the chains have forgotten where they started."""
    # Between neighbouring draws chains forget little, and ranks take long.
    some = _some(chains.thinned(MAX_RANKED_LENGTH))
    return bool(np.max(convergence(some, ensemble.num_superchains)) < 1.01)


def _effective(chains: ChainDraws) -> float:
    """Returns the effective number of draws of the slowest coordinate."""
    draws = _some(chains)
    slow = np.zeros(draws.shape[2], bool)
    for values in (draws, (draws - draws.mean((0, 1))) ** 2):
        slow[np.argsort(-chain_spread(values))[:NUM_SLOWEST]] = True
    return float(np.nanmin(effective_sample_size(draws[..., slow]), initial=np.inf))


def _some(chains: ChainDraws) -> Float[np.ndarray, "chains draws d"]:
    """Returns the draws by chain; with very many coordinates some of them stand for all."""
    step = -(-chains.draws.shape[2] // MAX_EXAMINED)
    return np.swapaxes(chains.draws, 0, 1)[..., ::step]


def _compare(ensemble: Ensemble, before: ChainDraws | None, after: ChainDraws) -> list[Finding]:
    if before is None:
        text = "Scales depend on the place, and there was no time to compare two runs."
        return [Finding(text)]
    one, other = (np.swapaxes(part.draws, 0, 1) for part in (before, after))
    return findings_of_rounds(one, other, ensemble.problem.coordinate_names())


def _examine(ensemble: Ensemble, chains: ChainDraws) -> list[Finding]:
    return findings_of_chains(
        UnconstrainedChains(*chains[:4]),
        ensemble.problem.coordinate_names(),
        float(jnp.finfo(jnp.result_type(float)).eps),
    )
