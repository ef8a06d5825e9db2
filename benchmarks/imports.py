"""Compares the import time of relbo with that of numpyro, in new processes, in turns.

`import relbo` imports a name on first use, so its own time says little. The last row imports
every public name, which takes the longest.

    python benchmarks/imports.py [--rounds 15]
"""

import argparse
import statistics
import subprocess
import sys

BAR = 1.3
EVERYTHING = "import relbo; [getattr(relbo, name) for name in dir(relbo)]"
CODES = {
    "import numpyro": "import numpyro",
    "import relbo": "import relbo",
    "from relbo import AutoRefined": "from relbo import AutoRefined",
    "every name of relbo": EVERYTHING,
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    times: dict[str, list[float]] = {name: [] for name in CODES}
    # In turns, so that other load on the machine affects all of them.
    for _ in range(rounds):
        for name, code in CODES.items():
            times[name].append(import_seconds(code))
    alone = statistics.median(times["import numpyro"])
    for name, each in times.items():
        middle = statistics.median(each)
        print(f"{name:<32}{middle:6.3f} s  {middle / alone:5.2f} times numpyro's")
    ratio = statistics.median(times["import relbo"]) / alone
    print(f"ratio {ratio:.2f} (expected at most {BAR})")
    return 0 if ratio <= BAR else 1


def import_seconds(code: str) -> float:
    """Returns the time of the code alone, without the start of the interpreter."""
    timed = (
        f"import time; begin = time.perf_counter(); {code}; print(time.perf_counter() - begin)"
    )
    done = subprocess.run(
        [sys.executable, "-c", timed], check=True, capture_output=True, text=True
    )
    return float(done.stdout)


if __name__ == "__main__":
    sys.exit(main())
