"""CPU seconds of new processes with an empty and with a filled compilation cache.

Each case runs in new processes, from the start of Python to the printed result: without a
cache, with an empty one (which it fills), and twice with the filled one. CPU seconds include
those of the compiler's threads; the bytecode of Python is kept, as it is for an installed
package. `--case` runs one case in this process.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from _common import argument_parser, write_results

BYTECODE = os.path.join(tempfile.gettempdir(), "relbo-bytecode")
SCHOOLS = (
    [28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0],
    [15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0],
)


def schools(y: Any, sigma: Any) -> None:
    import numpyro
    import numpyro.distributions as dist

    mean = numpyro.sample("mean", dist.Normal(0.0, 5.0))
    spread = numpyro.sample("spread", dist.HalfCauchy(5.0))
    with numpyro.plate("schools", len(y)):
        effect = numpyro.sample("effect", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(mean + spread * effect, sigma), obs=y)


def infer_schools() -> None:
    import relbo

    posterior = relbo.infer(0, schools, SCHOOLS, progress=False)
    print(posterior.summary(), posterior.check(), sep="\n")


def fit_schools() -> None:
    import relbo

    trained = relbo.fit(0, schools, SCHOOLS, num_iterations=500, progress=False)
    print(trained.guide.sample_posterior(1, trained.params, sample_shape=(1000,))["mean"][:3])


def infer_series() -> None:
    import numpy as np

    import relbo

    rng = np.random.default_rng(0)
    months = np.arange(96)
    series = 0.01 * months + np.sin(2 * np.pi * months / 12) + 0.3 * rng.normal(size=96)
    model = relbo.statespace.StructuralModel(12)
    print(relbo.infer(0, model, (series,), progress=False).summary())


def import_libraries() -> None:
    import jax
    import numpyro

    print(jax.__version__, numpyro.__version__)


CASES: dict[str, Callable[[], None]] = {
    "import of JAX and NumPyro alone": import_libraries,
    "infer, eight schools": infer_schools,
    "fit of the default guide, eight schools": fit_schools,
    "infer, a structural series of 96 months": infer_series,
}


def cpu_seconds(case: str, directory: str | None) -> float:
    """Returns the CPU seconds of a new process that runs a case."""
    command = [sys.executable, __file__, "--case", case]
    command += [] if directory is None else ["--cache", directory]
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": BYTECODE}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    before = os.times()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
    after = os.times()
    return (after.children_user - before.children_user) + (
        after.children_system - before.children_system
    )


def measure(case: str) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as directory:
        without = min(cpu_seconds(case, None) for _ in range(2))
        first = cpu_seconds(case, directory)
        later = min(cpu_seconds(case, directory) for _ in range(2))
    return {"without": without, "first": first, "later": later, "share": later / without}


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--case", choices=CASES, help="run this case and nothing else")
    parser.add_argument("--cache", help="folder of the cache for --case")
    args = parser.parse_args()
    if args.case is not None:
        if args.cache is not None:
            import relbo

            relbo.use_compilation_cache(args.cache)
        CASES[args.case]()
        return
    began, results = time.perf_counter(), {}
    print(f"{'CPU seconds':42s}{'without':>9s}{'first':>9s}{'later':>9s}{'share':>9s}")
    for case in list(CASES)[: 2 if args.quick else None]:
        row = results[case] = measure(case)
        print(f"{case:42s}" + "".join(f"{value:9.2f}" for value in row.values()), flush=True)
    write_results(
        "compile_once", results, quick=args.quick, seconds=time.perf_counter() - began
    )


if __name__ == "__main__":
    main()
