"""Breaks the code on purpose, one place at a time, and names the test that notices.

Each mutant is one replacement in a copy of the sources; the tests named beside it are run on
that copy. A mutant that no test notices, or whose text is no longer found, fails the run.

    python scripts/mutants.py [WORD ...]      only the mutants whose name contains a word
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent


class Mutant(NamedTuple):
    name: str
    file: str
    before: str
    after: str
    tests: str


MUTANTS = [
    Mutant(
        "a deterministic kernel descends",
        "kernels/_kernel.py",
        "position + self.step_size.value * self.drift",
        "position - self.step_size.value * self.drift",
        "tests/kernels",
    ),
    Mutant(
        "Langevin without noise",
        "kernels/_langevin.py",
        " + jnp.sqrt(2 * step_size) * noise\n",
        "\n",
        "tests/kernels",
    ),
    Mutant(
        "Langevin noise of half the variance",
        "kernels/_langevin.py",
        "step_size * score + jnp.sqrt(2 * step_size) * noise",
        "step_size * score + jnp.sqrt(step_size) * noise",
        "tests/kernels",
    ),
    Mutant(
        "the move back drifts the wrong way",
        "kernels/_langevin.py",
        "noise = (to - at - step_size * score)",
        "noise = (to - at + step_size * score)",
        "tests/kernels tests/test_closed_forms.py",
    ),
    Mutant(
        "RMSprop metric in the move back",
        "kernels/_langevin.py",
        "return self.decay is None",
        "return True",
        "tests/test_validity.py",
    ),
    Mutant(
        "no second half kick",
        "kernels/_underdamped.py",
        "momentum = momentum + 0.5 * self._scaled_step_size() * score",
        "momentum = momentum + 0.0 * self._scaled_step_size() * score",
        "tests/kernels tests/test_closed_forms.py",
    ),
    Mutant(
        "refreshment that cools",
        "kernels/_underdamped.py",
        "jnp.sqrt((1 - damping) * (1 + damping))",
        "(1 - damping)",
        "tests/kernels",
    ),
    Mutant(
        "a metric that is not rooted",
        "kernels/_underdamped.py",
        "jnp.sqrt(self.metric.value)",
        "self.metric.value",
        "tests/test_closed_forms.py",
    ),
    Mutant(
        "refreshment at every leapfrog",
        "kernels/_underdamped.py",
        "fresh = jnp.where(starts, fresh, momentum)",
        "fresh = fresh",
        "tests/test_closed_forms.py",
    ),
    Mutant(
        "attraction for repulsion",
        "kernels/_stein.py",
        "(gram @ score + gram_grad.sum(axis=0))",
        "(gram @ score - gram_grad.sum(axis=0))",
        "tests/kernels",
    ),
    Mutant(
        "correlated noise without its K",
        "kernels/_stein.py",
        "2 * self.step_size.value / num_particles",
        "2 * self.step_size.value",
        "tests/kernels",
    ),
    Mutant(
        "correlated density without its determinant",
        "kernels/_stein.py",
        " - log_root - 0.5 * log_variance",
        " - 0.5 * log_variance",
        "tests/kernels",
    ),
    Mutant(
        "half of the Fokker-Planck score",
        "kernels/_fokker_planck.py",
        "return score - own - others",
        "return score - own",
        "tests/kernels tests/test_analysis.py",
    ),
    Mutant(
        "a bandwidth that is not differentiated",
        "kernels/_rbf.py",
        "width = median_bandwidth(squared)",
        "width = __import__('jax').lax.stop_gradient(median_bandwidth(squared))",
        "tests/test_entropy.py",
    ),
    Mutant(
        "the determinant of the diagonal",
        "entropy.py",
        "sign, log_volume = jnp.linalg.slogdet(jacobian)",
        "sign, log_volume = jnp.linalg.slogdet(jnp.diag(jnp.diagonal(jacobian)))",
        "tests/test_entropy.py",
    ),
    Mutant(
        "a series that does not alternate",
        "entropy.py",
        "jnp.where(k % 2 == 1, 1, -1)",
        "jnp.where(k % 2 == 1, 1, 1)",
        "tests/test_entropy.py",
    ),
    Mutant(
        "the density at its own centre",
        "entropy.py",
        "lambda m, z, c: m + (z - c)",
        "lambda m, z, c: m",
        "tests/test_closed_forms.py",
    ),
    Mutant(
        "a reverse kernel that is added",
        "_walk.py",
        "log_q = log_q - jnp.where(arrives, log_reverse, 0.0)",
        "log_q = log_q + jnp.where(arrives, log_reverse, 0.0)",
        "tests/test_closed_forms.py",
    ),
    Mutant(
        "a volume with the wrong sign",
        "_walk.py",
        "log_q = log_q - jnp.where(moves, left.log_volume, 0.0)",
        "log_q = log_q + jnp.where(moves, left.log_volume, 0.0)",
        "tests/test_closed_forms.py",
    ),
    Mutant(
        "the last move back forgotten",
        "_walk.py",
        "arrives = alive & (step.turn > 0)",
        "arrives = alive & (step.turn > 0) & (step.turn < num_moves)",
        "tests/test_closed_forms.py",
    ),
    Mutant(
        "temperatures reversed",
        "_walk.py",
        "inverse_temperature * self.score + (1 - inverse_temperature) * self.base_score",
        "(1 - inverse_temperature) * self.score + inverse_temperature * self.base_score",
        "tests/test_closed_forms.py",
    ),
    Mutant(
        "the move back at the next temperature",
        "_walk.py",
        "temperature_behind=schedule(temperatures, behind)",
        "temperature_behind=schedule(temperatures, ahead)",
        "tests/test_closed_forms.py",
    ),
    Mutant(
        "the move back with the next step size",
        "_walk.py",
        "behind=jax.tree.map(lambda v: schedule(v, behind), changing)",
        "behind=jax.tree.map(lambda v: schedule(v, ahead), changing)",
        "tests/test_closed_forms.py",
    ),
    Mutant(
        "the bad position kept",
        "_walk.py",
        "stays = jnp.where(alive, carry.position, carry.last_good)",
        "stays = carry.position",
        "tests/test_refinement.py tests/test_laws.py -k non_finite_or_last_good_or_negative",
    ),
    Mutant(
        "whitening without its Jacobian",
        "refinement.py",
        "return logdensity_fn(position) + log_det",
        "return logdensity_fn(position)",
        "tests/test_laws.py -k whitened",
    ),
    Mutant(
        "fast mode that differentiates",
        "refinement.py",
        "walked = jax.tree.map(_stop_gradient, run(still))",
        "walked = run(still)",
        "tests/test_laws.py -k fast_mode",
    ),
    Mutant(
        "fast mode through the start",
        "refinement.py",
        "flat + (walked.position - still)",
        "walked.position",
        "tests/test_laws.py -k fast_mode",
    ),
    Mutant(
        "no cap for surrogates",
        "refinement.py",
        "if not is_surrogate or step_size.upper is not None:",
        "if True:",
        "tests/test_refinement.py",
    ),
    Mutant(
        "weights summed, not averaged",
        "objective.py",
        "jax.nn.logsumexp(log_weights) - jnp.log(num_weights)",
        "jax.nn.logsumexp(log_weights)",
        "tests/test_objective.py",
    ),
    Mutant(
        "a system's weight for each particle",
        "objective.py",
        "value / num_particles if interacting else value",
        "value",
        "tests/test_objective.py",
    ),
    Mutant(
        "the Monte Carlo account called a bound",
        "validity.py",
        "Bound(False, \"the path's auxiliary",
        "Bound(True, \"the path's auxiliary",
        "tests/test_validity.py",
    ),
    Mutant(
        "a shared minibatch called a bound",
        "validity.py",
        'if subsampling == "shared":',
        "if False:",
        "tests/test_validity.py",
    ),
    Mutant(
        "a diagonal base without its determinant",
        "bases.py",
        "return standard_normal_logdensity(noise) - self._log_det",
        "return standard_normal_logdensity(noise)",
        "tests/test_bases.py",
    ),
]


def tests_of(mutant: Mutant) -> list[str]:
    files, _, words = mutant.tests.partition(" -k ")
    chosen = ["-k", words.replace("_or_", " or ")] if words else []
    return files.split() + chosen


def catching_test(mutant: Mutant) -> str:
    """The first test that fails on the mutant, or an empty string."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "relbo"
        shutil.copytree(ROOT / "src" / "relbo", source)
        file = source / mutant.file
        text = file.read_text()
        if text.count(mutant.before) != 1:
            raise SystemExit(f"mutant '{mutant.name}': its text is not found exactly once")
        file.write_text(text.replace(mutant.before, mutant.after))
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
        run = subprocess.run(
            [*command, "-n", "0", *tests_of(mutant)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": folder},
            capture_output=True,
            text=True,
        )
    if run.returncode == 0:
        return ""
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", run.stdout, re.MULTILINE)
    if run.returncode != 1 or failed is None:
        raise SystemExit(f"mutant '{mutant.name}': the tests did not run\n{run.stdout[-2000:]}")
    return failed.group(1)


def main(words: list[str]) -> int:
    chosen = [m for m in MUTANTS if not words or any(word in m.name for word in words)]
    survivors = 0
    with ThreadPoolExecutor(2) as pool:
        for mutant, test in zip(chosen, pool.map(catching_test, chosen), strict=True):
            survivors += not test
            print(f"{mutant.name:45} {test or 'SURVIVED'}", flush=True)
    print(f"{len(chosen) - survivors} of {len(chosen)} mutants caught")
    return 1 if survivors or not chosen else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
