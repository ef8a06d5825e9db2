"""Prints the requirements of a dependency group of pyproject.toml, one per line."""

import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path


def requirements(groups: dict[str, list], name: str) -> Iterator[str]:
    """Yields the requirements of group `name` and of the groups that it includes."""
    for item in groups[name]:
        if isinstance(item, str):
            yield item
        else:
            yield from requirements(groups, item["include-group"])


def main(names: list[str]) -> int:
    pyproject = Path(__file__).resolve().parent.parent / "pyproject.toml"
    groups = tomllib.loads(pyproject.read_text())["dependency-groups"]
    unknown = [name for name in names if name not in groups]
    if unknown or not names:
        print(f"expected names among {sorted(groups)}, got {names}", file=sys.stderr)
        return 2
    for name in names:
        print("\n".join(requirements(groups, name)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
