"""Runs the Python blocks of one page and stores what each of them prints and draws.

    python docs/_extensions/page_runner.py PAGE.md DIRECTORY

Blocks share their names, as the cells of a notebook do. Warnings are errors. `DIRECTORY` gets
the figures and `outputs.json`: for each block its text and its figures, and the seconds of all.
The label of a figure (`plt.subplots(num="...")`) becomes its alternative text.
"""

import ast
import contextlib
import io
import json
import linecache
import os
import re
import sys
import time
import traceback
import warnings
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```\n?", re.MULTILINE | re.DOTALL)
STYLE = Path(__file__).with_name("figures.mplstyle")
DOTS_PER_INCH = 180
"""For screens with two pixels where a page counts one (96 an inch)."""


def run_page(page: Path, directory: Path) -> dict:
    """Runs the blocks of a page; an exception in a block is passed on."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    plt.style.use(STYLE)
    started = time.monotonic(), time.process_time()
    names: dict = {"__name__": "__main__"}
    blocks = []
    for number, code in enumerate(BLOCK.findall(page.read_text()), 1):
        # A traceback then shows the lines of the block.
        source = f"{page.name}, block {number}"
        linecache.cache[source] = (len(code), None, code.splitlines(keepends=True), source)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(ast.parse(code), source, "exec"), names)
        stem = directory / f"block-{number}"
        blocks.append({"text": printed.getvalue().rstrip(), "figures": _save_figures(stem)})
    seconds, cpu_seconds = time.monotonic() - started[0], time.process_time() - started[1]
    return {"blocks": blocks, "seconds": seconds, "cpu_seconds": cpu_seconds}


def _save_figures(stem: Path) -> list[dict]:
    """Saves and closes the open figures."""
    import matplotlib.pyplot as plt

    saved = []
    for number in plt.get_fignums():
        figure = plt.figure(number)
        path = stem.with_name(f"{stem.name}-{len(saved) + 1}.png")
        figure.savefig(path, dpi=DOTS_PER_INCH, bbox_inches="tight", pad_inches=0.08)
        label = figure.get_label() or "Figure drawn by the code above"
        saved.append({"file": path.name, "label": str(label)})
    plt.close("all")
    return saved


def _compile_as_the_tests_do() -> None:
    """Most of the time is compilation: the same flags and the same cache as in the tests."""
    sys.path.insert(0, str(ROOT / "tests"))
    from compilation import compile_fast

    sys.path.pop(0)
    compile_fast()
    os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "true"
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(ROOT / ".jax_cache")
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.2"


def main(page: str, directory: str) -> int:
    _compile_as_the_tests_do()
    warnings.simplefilter("error")
    target = Path(directory)
    target.mkdir(parents=True, exist_ok=True)
    try:
        outputs = run_page(Path(page), target)
    except Exception:
        traceback.print_exc()
        return 1
    (target / "outputs.json").write_text(json.dumps(outputs, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
