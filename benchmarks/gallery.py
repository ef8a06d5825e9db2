"""Runs `relbo.infer` on a gallery of posteriors with known truth.

Each case is run with a few seeds, in float32 and with the defaults, as a new user would. A run
is right or wrong against the truth (gallery_judge.py says what right means) and trusted or not
by `check()`. The table of the two is printed at the end, for tuned and held-out cases apart:
nothing wrong should be trusted, and what is right should be. An improper posterior is wrong
whatever is returned. An error, or more than 120 s, counts as not trusted.

Every run is kept as a small JSON file, so that `--resume` continues an interrupted benchmark.
`--verify` checks the truths themselves against the models.
"""

import argparse
import json
import multiprocessing
import queue
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from _common import COMMIT, argument_parser, write_results

TIMEOUT = 120.0
START_TIMEOUT = 300.0
CELLS_DIR = Path("relbo-out/gallery")
MAX_LATENTS, MAX_GAP = 50, 0.1
"""The two ends of the evidence should meet up to this number of latents, within this gap."""


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--only", nargs="+", help="names of cases")
    half = parser.add_mutually_exclusive_group()
    half.add_argument("--tuned", action="store_true", help="only cases for tuning")
    half.add_argument("--held-out", action="store_true", help="only cases held out")
    parser.add_argument("--seeds", type=int, default=3, help="runs per case")
    parser.add_argument("--jobs", type=int, default=2, help="number of worker processes")
    parser.add_argument("--resume", action="store_true", help="keep runs that are done")
    parser.add_argument("--cells", type=Path, default=CELLS_DIR, help="folder of the runs")
    parser.add_argument("--verify", action="store_true", help="check the truths instead")
    parser.add_argument("--list", action="store_true", help="print the cases and stop")
    args = parser.parse_args()
    from gallery_cases import CASES

    unknown = sorted(set(args.only or ()) - set(CASES))
    if unknown:
        parser.error(f"--only: there are no cases {', '.join(unknown)}; see --list")
    names = [name for name in args.only or CASES if _selected(CASES[name], args)]
    if args.list:
        for name in names:
            print(_described(CASES[name]))
    elif args.verify:
        from gallery_verify import verify

        verify([CASES[name] for name in names])
    else:
        run(names, args)


def _selected(case: Any, args: argparse.Namespace) -> bool:
    if args.tuned or args.held_out:
        return case.held_out == args.held_out
    return True


def _described(case: Any) -> str:
    half = "held out" if case.held_out else "tuned"
    return f"{case.name:28}{case.kind:10}{half:10}{', '.join(case.quantities) or 'improper'}"


class Task(NamedTuple):
    """One run of a case."""

    name: str
    seed: int
    file: Path


def run(names: list[str], args: argparse.Namespace) -> None:
    start = time.perf_counter()
    args.cells.mkdir(parents=True, exist_ok=True)
    tasks = [
        Task(name, seed, args.cells / f"{name}-{seed}.json")
        for name in names
        for seed in range(args.seeds)
    ]
    todo: queue.SimpleQueue[Task] = queue.SimpleQueue()
    for task in tasks:
        if args.resume and task.file.exists():
            continue
        task.file.unlink(missing_ok=True)
        todo.put(task)
    print(f"{len(tasks)} runs, {todo.qsize()} of them to do", flush=True)
    threads = [threading.Thread(target=_work, args=(todo,)) for _ in range(args.jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    cells = [json.loads(task.file.read_text()) for task in tasks if task.file.exists()]
    others = sum(cell["commit"] != COMMIT for cell in cells)
    if others:
        print(f"{others} runs are of another commit; leave out --resume to run them again")
    summary = {}
    for half, held_out in (("tuned", False), ("held out", True)):
        chosen = [cell for cell in cells if cell["held_out"] == held_out]
        if chosen:
            summary[half] = summarise(half, chosen)
    seconds = time.perf_counter() - start
    quick = args.quick or bool(args.only)
    write_results("gallery", {"runs": cells, "summary": summary}, quick=quick, seconds=seconds)


def _work(todo: "queue.SimpleQueue[Task]") -> None:
    """Runs tasks in a worker process, which is replaced when it dies or is out of time."""
    process = connection = None
    while True:
        try:
            task = todo.get_nowait()
        except queue.Empty:
            break
        if process is None:
            context = multiprocessing.get_context("spawn")
            connection, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs,), daemon=True)
            process.start()
            theirs.close()
        assert connection is not None
        cell = _attempt(connection, task)
        if cell.pop("lost", False):
            process.kill()
            process.join()
            process = None
        cell["commit"] = COMMIT
        # Written to a temporary file and moved, so that no file is half written.
        temporary = task.file.with_suffix(".partial")
        temporary.write_text(json.dumps(cell, indent=1) + "\n")
        temporary.replace(task.file)
        print(line_of(cell), flush=True)
    if process is not None:
        process.kill()


def _attempt(connection: Any, task: Task) -> dict[str, Any]:
    """Has a task run by a worker; a lost worker must be replaced."""
    from gallery_cases import CASES

    case = CASES[task.name]
    cell = {
        "case": task.name,
        "seed": task.seed,
        "kind": case.kind,
        "held_out": case.held_out,
        "proper": case.proper,
    }
    failed = {"right": None, "wrong_by": [], "trusted": False, "seconds": None}
    started = time.perf_counter()
    try:
        connection.send((task.name, task.seed))
        # The worker says when the truth is computed and `infer` begins.
        if not connection.poll(START_TIMEOUT):
            return {**cell, **failed, "advice": "the truth took too long", "lost": True}
        connection.recv()
        started = time.perf_counter()
        if not connection.poll(TIMEOUT):
            return {
                **cell,
                **failed,
                "seconds": TIMEOUT,
                "advice": f"timed out after {TIMEOUT:.0f} s",
                "lost": True,
            }
        return {**cell, **connection.recv()}
    except (EOFError, OSError):
        seconds = time.perf_counter() - started
        return {**cell, **failed, "seconds": seconds, "advice": "process died", "lost": True}


def _serve(connection: Any) -> None:
    """Runs tasks in a worker process."""
    from gallery_worker import run_case

    while True:
        try:
            name, seed = connection.recv()
        except EOFError:
            return
        connection.send(run_case(name, seed, lambda: connection.send("infer begins")))


def line_of(cell: dict[str, Any]) -> str:
    """Returns one line about a run."""
    seconds = "" if cell["seconds"] is None else f"{cell['seconds']:.1f} s"
    if cell["right"] is None:
        judged = "no draws"
    elif cell["right"]:
        judged = "right"
    else:
        judged = "WRONG: " + (cell["wrong_by"][0] if cell["wrong_by"] else "improper")
    verdict = "trusted" if cell["trusted"] else f"not trusted: {cell['advice']}"
    return f"{cell['case']:26}{cell['seed']:>2} {seconds:>8}  {judged} | {verdict[:120]}"


def summarise(half: str, cells: list[dict[str, Any]]) -> dict[str, Any]:
    """Prints and returns the table of trusted or not against right or wrong."""
    outcome = lambda cell: {True: "right", False: "wrong", None: "no draws"}[cell["right"]]
    counts = Counter((cell["kind"], cell["trusted"], outcome(cell)) for cell in cells)
    columns = ("right", "wrong", "no draws")
    print(f"\n{half}: {len(cells)} runs")
    table = {}
    for kind in ("ordinary", "nasty"):
        print(f"{kind:12}" + "".join(f"{column:>10}" for column in columns))
        for trusted, row in ((True, "trusted"), (False, "not trusted")):
            numbers = [counts[kind, trusted, column] for column in columns]
            table[f"{kind}, {row}"] = dict(zip(columns, numbers, strict=True))
            print(f"{row:12}" + "".join(f"{number:>10}" for number in numbers))
    names = lambda chosen: [f"{cell['case']}-{cell['seed']}" for cell in chosen]
    bad = [cell for cell in cells if cell["trusted"] and cell["right"] is False]
    shy = [cell for cell in cells if not cell["trusted"] and cell["right"]]
    right = [cell for cell in cells if cell["right"]]
    print(f"trusted and wrong ({len(bad)}): {', '.join(names(bad)) or 'none'}")
    print(f"right and not trusted ({len(shy)}): {', '.join(names(shy)) or 'none'}")
    if right:
        share = 1 - len(shy) / len(right)
        print(f"share of the right ones that is trusted: {share:.1%}")
    numbers = [cell["numbers"] for cell in right if "latents" in cell["numbers"]]
    gaps = [row["evidence gap"] for row in numbers if row["latents"] <= MAX_LATENTS]
    meet = sum(gap is not None and abs(gap) <= MAX_GAP for gap in gaps)
    print(
        f"ends of the evidence within {MAX_GAP} nats, of the right ones with at most "
        f"{MAX_LATENTS} latents: {meet} of {len(gaps)}"
    )
    return {
        "evidence ends meet": [meet, len(gaps)],
        "table": table,
        "trusted and wrong": names(bad),
        "right and not trusted": names(shy),
    }


if __name__ == "__main__":
    main()
