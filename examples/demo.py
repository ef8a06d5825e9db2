"""Shows in about two minutes what relbo does: four pictures on one page.

    python examples/demo.py [--out DIR]

A posterior beside NUTS; a guide before and after training; a forecast with its uncertainty; and
a posterior that relbo says not to trust. The last line that it prints is the path of the page.
"""

import argparse
import time
from pathlib import Path

from relbo.cli import interruptible

INTERRUPTED = "relbo demo: interrupted; to start again: make demo"


def main(argv=None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--out", type=Path, default=Path("relbo-out"), help="directory of the page"
    )
    out = parser.parse_args(argv).out
    print("relbo demo: four parts, one to two minutes on two cores.", flush=True)
    with interruptible(INTERRUPTED):
        # Imported here, because the imports take seconds.
        from demo_parts import PARTS

        run(PARTS, out)


def run(parts: list, out: Path) -> None:
    """Runs the parts in turn, and writes the page of those that worked."""
    from demo_page import Shown, write_page

    started, shown = time.monotonic(), []
    for number, part in enumerate(parts, 1):
        print(f"\n[{number}/{len(parts)}] {part.title}", flush=True)
        begin = time.monotonic()
        try:
            result = part.make()
        except ModuleNotFoundError as error:
            print(f"    left out: {error.name} is not installed (pip install {error.name})")
            continue
        for line in [result.sentence, *result.lines]:
            print(f"    {line}")
        print(f"    ({time.monotonic() - begin:.0f} s)", flush=True)
        shown.append(Shown(part.title, result))
    page = write_page(out / "demo.html", shown)
    print(f"\nDone in {time.monotonic() - started:.0f} s. Open this page in a browser:")
    print(page.resolve())


if __name__ == "__main__":
    main()
