"""Draws the rooms of the library and the imports between them into docs/architecture.

    python scripts/architecture.py [--check]

The picture and the list of arrows are generated from the import statements in `src/relbo`. With
`--check` nothing is written, and an outdated page is an error.
"""

import argparse
import ast
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "relbo"
PAGE = ROOT / "docs" / "architecture.md"
PICTURE = ROOT / "docs" / "architecture.svg"
BEGIN, END = "<!-- arrows -->", "<!-- end -->"
UTILITIES = {"_compilation_cache", "_compiler", "_devices", "_progress", "data", "distributed"}
"""Rooms that any other may import; their arrows would only clutter the picture."""

Arrows = dict[str, set[str]]


def room_of(path: Path) -> str:
    """Returns the folder of a module, or its name at the top level."""
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return parts[0]


def imported_modules(path: Path) -> set[str]:
    """Returns the modules that a file imports, anywhere in it."""
    modules: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "relbo":
            modules |= {f"relbo.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules.add(node.module)
        elif isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
    return modules


def imported_rooms(path: Path) -> set[str]:
    """Returns the rooms that a file imports."""
    names = (name for name in imported_modules(path) if name.startswith("relbo."))
    return {_home(name.split(".")[1]) for name in names}


def _home(name: str) -> str:
    """Returns the room of a top-level module or of a public name such as `relbo.infer`."""
    if (SOURCE / name).is_dir() or (SOURCE / f"{name}.py").exists():
        return name
    return f"_{name}" if (SOURCE / f"_{name}.py").exists() else name


def arrows() -> Arrows:
    """Returns for each room the other rooms that it imports."""
    found: Arrows = {}
    for path in sorted(SOURCE.rglob("*.py")):
        room = room_of(path)
        if room == "__init__":
            continue
        found.setdefault(room, set()).update(imported_rooms(path) - {room})
    return found


def layers(graph: Arrows) -> list[list[str]]:
    """Sorts rooms so that every arrow points to a later layer; raises on a cycle."""
    left = {room: {t for t in targets if t in graph} for room, targets in graph.items()}
    result: list[list[str]] = []
    while left:
        bottom = sorted(room for room, targets in left.items() if not targets & left.keys())
        if not bottom:
            raise ValueError(f"the imports have a cycle among {sorted(left)}")
        result.insert(0, bottom)
        left = {room: targets for room, targets in left.items() if room not in bottom}
    return result


def shown(graph: Arrows) -> Arrows:
    """Returns the graph without the utilities."""
    return {
        room: targets - UTILITIES for room, targets in graph.items() if room not in UTILITIES
    }


def reduced(graph: Arrows) -> Arrows:
    """Leaves out arrows that a longer way implies, to keep the picture readable."""

    def reachable(start: str) -> set[str]:
        seen: set[str] = set()
        todo = [start]
        while todo:
            for target in graph.get(todo.pop(), ()):
                if target not in seen:
                    seen.add(target)
                    todo.append(target)
        return seen

    return {
        room: {t for t in targets if not any(t in reachable(o) for o in targets - {t})}
        for room, targets in graph.items()
    }


def listing(graph: Arrows) -> str:
    """Returns all arrows as text, top layer first."""
    rows = [
        f"{_label(room):<12} -> {', '.join(map(_label, sorted(graph[room]))) or '(nothing)'}"
        for layer in layers(graph)
        for room in layer
    ]
    return "\n".join(["```text", *rows, "```"])


def picture(graph: Arrows) -> str:
    """Returns the rooms as boxes in layers, with the arrows that no other arrow implies."""
    width, height, gap = 130, 34, 44
    rows = layers(graph)
    widest = max(map(len, rows)) * (width + 30)
    centres = {}
    for y, row in enumerate(rows):
        for x, room in enumerate(row):
            centres[room] = (
                widest * (x + 1) / (len(row) + 1),
                20 + height / 2 + y * (height + gap),
            )
    total = 40 + len(rows) * (height + gap) - gap
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {widest} {total}" '
        'font-family="sans-serif" font-size="15">',
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" fill="#888"/></marker></defs>',
    ]
    for room, targets in reduced(graph).items():
        for target in sorted(targets):
            (x0, y0), (x1, y1) = centres[room], centres[target]
            parts.append(
                f'<line x1="{x0:.0f}" y1="{y0 + height / 2:.0f}" x2="{x1:.0f}" '
                f'y2="{y1 - height / 2:.0f}" stroke="#888" marker-end="url(#head)"/>'
            )
    for room, (x, y) in centres.items():
        parts.append(
            f'<rect x="{x - width / 2:.0f}" y="{y - height / 2:.0f}" width="{width}" '
            f'height="{height}" rx="6" fill="#eef3fb" stroke="#4a6fa5"/>'
            f'<text x="{x:.0f}" y="{y + 5:.0f}" text-anchor="middle" fill="#1d2b40">'
            f"{_label(room)}</text>"
        )
    return "\n".join([*parts, "</svg>", ""])


def _label(room: str) -> str:
    return room.removeprefix("_")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if outdated")
    check = parser.parse_args(argv).check
    graph = shown(arrows())
    before, _, rest = PAGE.read_text().partition(BEGIN)
    page = f"{before}{BEGIN}\n{listing(graph)}\n{END}{rest.partition(END)[2]}"
    outdated = [
        path
        for path, text in ((PAGE, page), (PICTURE, picture(graph)))
        if not path.exists() or path.read_text() != text
    ]
    if check and outdated:
        print(f"outdated: {[p.name for p in outdated]}; run python scripts/architecture.py")
        return 1
    if not check:
        PAGE.write_text(page)
        PICTURE.write_text(picture(graph))
    return 0


if __name__ == "__main__":
    sys.exit(main())
