"""Changes the engine on purpose, one place at a time, and reports which test fails.

Each mutant is one replacement in a copy of `src/relbo/core`; the tests named beside it, in
`tests/core`, run on the copy. The script fails if a mutant passes its tests.

    python scripts/mutants.py [--check] [WORD ...]

With words, only the mutants whose name contains one of them. With `--check`, no tests run: it
verifies that every text and every test file is found.
"""

import argparse
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
CORE = ROOT / "src" / "relbo" / "core"
TESTS = ROOT / "tests" / "core"


class Mutant(NamedTuple):
    """A mistake, and the tests that should find it."""

    name: str
    file: str
    """Relative to `src/relbo/core`."""
    before: str
    after: str
    tests: str
    """Files of `tests/core`, and the `-k` of pytest."""


MUTANTS = [
    Mutant(
        "deterministic kernel that descends",
        "kernels/contract.py",
        "position + self.step_size.value * self.drift",
        "position - self.step_size.value * self.drift",
        "test_kernels.py",
    ),
    Mutant(
        "Langevin without noise",
        "kernels/langevin.py",
        " + jnp.sqrt(2 * step_size) * noise\n",
        "\n",
        "test_kernels.py",
    ),
    Mutant(
        "Langevin noise with half the variance",
        "kernels/langevin.py",
        "step_size * score + jnp.sqrt(2 * step_size) * noise",
        "step_size * score + jnp.sqrt(step_size) * noise",
        "test_kernels.py",
    ),
    Mutant(
        "reverse kernel drifts the wrong way",
        "kernels/langevin.py",
        "noise = (move - step_size * score)",
        "noise = (move + step_size * score)",
        "test_kernels.py test_closed_forms.py",
    ),
    Mutant(
        "RMSprop metric in the reverse kernel",
        "kernels/langevin.py",
        "return self.decay is None",
        "return True",
        "test_validity.py",
    ),
    Mutant(
        "leapfrog without its second half kick",
        "kernels/underdamped.py",
        "momentum = end_leapfrog(momentum, score, self._scaled_step_size())",
        "momentum = end_leapfrog(momentum, score, 0.0)",
        "test_kernels.py test_closed_forms.py",
    ),
    Mutant(
        "a leapfrog with whole kicks",
        "dynamics.py",
        "momentum + 0.5 * step_size * kick * score",
        "momentum + step_size * kick * score",
        "test_dynamics.py",
    ),
    Mutant(
        "log weight increment with the wrong sign",
        "dynamics.py",
        "kinetic_energy(before) - kinetic_energy(after)",
        "kinetic_energy(after) - kinetic_energy(before)",
        "test_dynamics.py",
    ),
    Mutant(
        "refreshment that loses variance",
        "dynamics.py",
        "((1 - damping) * (1 + damping)) ** 0.5",
        "(1 - damping)",
        "test_dynamics.py test_kernels.py",
    ),
    Mutant(
        "metric without its square root",
        "kernels/underdamped.py",
        "jnp.sqrt(self.metric.value)",
        "self.metric.value",
        "test_closed_forms.py",
    ),
    Mutant(
        "refreshment at every leapfrog",
        "kernels/underdamped.py",
        "fresh = jnp.where(starts, fresh, momentum)",
        "fresh = fresh",
        "test_closed_forms.py",
    ),
    Mutant(
        "attraction instead of repulsion",
        "kernels/stein.py",
        "(gram @ score + gram_grad.sum(axis=0))",
        "(gram @ score - gram_grad.sum(axis=0))",
        "test_kernels.py",
    ),
    Mutant(
        "correlated noise not divided by K",
        "kernels/stein.py",
        "2 * self.step_size.value / num_particles",
        "2 * self.step_size.value",
        "test_kernels.py",
    ),
    Mutant(
        "correlated density without its determinant",
        "kernels/stein.py",
        " - log_root - 0.5 * log_variance",
        " - 0.5 * log_variance",
        "test_kernels.py",
    ),
    Mutant(
        "half of the Fokker-Planck score",
        "kernels/fokker_planck.py",
        "return score - own - others",
        "return score - own",
        "test_kernels.py test_analysis.py",
    ),
    Mutant(
        "bandwidth without its derivative",
        "kernels/rbf.py",
        "width = median_bandwidth(squared)",
        "width = __import__('jax').lax.stop_gradient(median_bandwidth(squared))",
        "test_accounts.py",
    ),
    Mutant(
        "determinant of the diagonal only",
        "accounts.py",
        "sign, log_volume = jnp.linalg.slogdet(jacobian)",
        "sign, log_volume = jnp.linalg.slogdet(jnp.diag(jnp.diagonal(jacobian)))",
        "test_accounts.py",
    ),
    Mutant(
        "log-determinant series that does not alternate",
        "accounts.py",
        "jnp.where(k % 2 == 1, 1, -1)",
        "jnp.where(k % 2 == 1, 1, 1)",
        "test_accounts.py",
    ),
    Mutant(
        "density at its own centre",
        "accounts.py",
        "lambda m, z, c: m + (z - c)",
        "lambda m, z, c: m",
        "test_closed_forms.py",
    ),
    Mutant(
        "reverse kernel added instead of subtracted",
        "loop.py",
        "log_q = log_q - jnp.where(arrives, log_reverse, 0.0)",
        "log_q = log_q + jnp.where(arrives, log_reverse, 0.0)",
        "test_closed_forms.py",
    ),
    Mutant(
        "log volume with the wrong sign",
        "loop.py",
        "log_q = log_q - jnp.where(moves, left.log_volume, 0.0)",
        "log_q = log_q + jnp.where(moves, left.log_volume, 0.0)",
        "test_closed_forms.py",
    ),
    Mutant(
        "last reverse move left out",
        "loop.py",
        "arrives = alive & (step.turn > 0)",
        "arrives = alive & (step.turn > 0) & (step.turn < num_moves)",
        "test_closed_forms.py",
    ),
    Mutant(
        "temperatures reversed",
        "loop.py",
        "inverse_temperature * force + (1 - inverse_temperature) * self.base_score",
        "(1 - inverse_temperature) * force + inverse_temperature * self.base_score",
        "test_closed_forms.py",
    ),
    Mutant(
        "reverse move at the next temperature",
        "loop.py",
        "temperature_behind=schedule(temperatures, 1)",
        "temperature_behind=schedule(temperatures, 0)",
        "test_closed_forms.py",
    ),
    Mutant(
        "reverse move with the next step size",
        "loop.py",
        "behind=jax.tree.map(lambda v: schedule(v, 1), changing)",
        "behind=jax.tree.map(lambda v: schedule(v, 0), changing)",
        "test_closed_forms.py",
    ),
    Mutant(
        "non-finite position kept",
        "loop.py",
        "stays = jnp.where(alive, carry.position, carry.last_good)",
        "stays = carry.position",
        "test_refinement.py test_laws.py -k non_finite or last_good or negative",
    ),
    Mutant(
        "whitening without its Jacobian",
        "coordinates.py",
        "return logdensity_fn(position) + log_det",
        "return logdensity_fn(position)",
        "test_laws.py -k whitened",
    ),
    Mutant(
        "fast mode that differentiates the steps",
        "refinement.py",
        "walked = eqx.combine(jax.lax.stop_gradient(numbers), others)",
        "walked = eqx.combine(numbers, others)",
        "test_laws.py -k fast_mode",
    ),
    Mutant(
        "fast mode without the gradient of the start",
        "refinement.py",
        "flat + (walked.position - still)",
        "walked.position",
        "test_laws.py -k fast_mode",
    ),
    Mutant(
        "no step cap for surrogates",
        "default_kernel.py",
        "if max_step_size is None and (not is_surrogate or step_size.upper is not None):",
        "if max_step_size is None:",
        "test_refinement.py",
    ),
    Mutant(
        "weights summed instead of averaged",
        "weights.py",
        "jnp.log(jnp.mean(jnp.exp(below), axis=-1))",
        "jnp.log(jnp.sum(jnp.exp(below), axis=-1))",
        "test_weights.py test_objective.py",
    ),
    Mutant(
        "objective of a system not divided by K",
        "objective.py",
        "Objective(value / size, ",
        "Objective(value, ",
        "test_objective.py",
    ),
    Mutant(
        "Monte Carlo account called a bound",
        "validity.py",
        "Bound(False, \"the path's auxiliary",
        "Bound(True, \"the path's auxiliary",
        "test_validity.py",
    ),
    Mutant(
        "shared minibatch called a bound",
        "validity.py",
        'if subsampling == "shared":',
        "if False:",
        "test_validity.py",
    ),
    Mutant(
        "diagonal base without its determinant",
        "bases.py",
        "return standard_normal_logdensity(self.whiten(position)) - self._log_det",
        "return standard_normal_logdensity(self.whiten(position))",
        "test_bases.py",
    ),
]


def tests_of(mutant: Mutant) -> list[str]:
    """Returns the arguments of pytest."""
    files, _, words = mutant.tests.partition(" -k ")
    chosen = ["-k", words] if words else []
    return [str(TESTS / file) for file in files.split()] + chosen


def problem_of(mutant: Mutant) -> str:
    """Returns why a mutant cannot be tried, or an empty string."""
    path = CORE / mutant.file
    if not path.exists():
        return f"no file {mutant.file}"
    if (count := path.read_text().count(mutant.before)) != 1:
        return f"its text occurs {count} times in {mutant.file}"
    missing = [
        name for name in tests_of(mutant) if name.endswith(".py") and not Path(name).exists()
    ]
    return f"no tests {missing}" if missing else ""


def catching_test(mutant: Mutant) -> str:
    """Returns the first test that fails on the mutant, or an empty string."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(ROOT / "src" / "relbo", Path(folder) / "relbo")
        file = Path(folder) / "relbo" / "core" / mutant.file
        file.write_text(file.read_text().replace(mutant.before, mutant.after))
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


def main() -> int:
    parser = argparse.ArgumentParser(description="Checks that the tests find mistakes.")
    parser.add_argument("--check", action="store_true", help="only verify that texts are found")
    parser.add_argument("words", nargs="*", metavar="WORD", help="part of a mutant's name")
    arguments = parser.parse_args()
    words = arguments.words
    chosen = [m for m in MUTANTS if not words or any(word in m.name for word in words)]
    problems = {m.name: problem for m in chosen if (problem := problem_of(m))}
    for name, problem in problems.items():
        print(f"mutant '{name}': {problem}", file=sys.stderr)
    if problems or not chosen:
        return 1
    if arguments.check:
        print(f"{len(chosen)} mutants found")
        return 0
    survivors = 0
    with ThreadPoolExecutor(2) as pool:
        for mutant, test in zip(chosen, pool.map(catching_test, chosen), strict=True):
            survivors += not test
            print(f"{mutant.name:45} {test or 'SURVIVED'}", flush=True)
    print(f"{len(chosen) - survivors} of {len(chosen)} mutants caught")
    return 1 if survivors else 0


if __name__ == "__main__":
    raise SystemExit(main())
