"""Reads from a compiled program the traffic of its collectives and its matrix products."""

import math
import re
from typing import NamedTuple

COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
_BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s32": 4, "u32": 4, "f32": 4}
_BYTES |= {"s64": 8, "u64": 8, "f64": 8}
_SHAPE = re.compile(r"\b([a-z]+\d*)\[([\d,]*)\]")
_LINE = re.compile(r"^\s*(?:ROOT )?%?([\w.\-]+) = (.*?) ([a-z][\w\-]*)\((.*)$")
_TRIPS = re.compile(r'known_trip_count":\{"n":"(\d+)"')
_CALLED = re.compile(r"(?:calls|to_apply|body)=%([\w.\-]+)")
_BRANCHES = re.compile(
    r"branch_computations=\{([^}]*)\}|(?:true|false)_computation=%([\w.\-]+)"
)


class Cost(NamedTuple):
    """The cost for one device; a loop of unknown length counts as one turn."""

    flops: float = 0.0
    """Operations in matrix products."""
    bytes: float = 0.0
    """Bytes that enter collectives."""
    collectives: float = 0.0

    def __add__(self, other: "Cost") -> "Cost":  # type: ignore[override]
        return Cost(*(a + b for a, b in zip(self, other, strict=True)))

    def times(self, number: float) -> "Cost":
        return Cost(*(number * part for part in self))


class Program:
    """The text of a compiled program, by computation."""

    def __init__(self, text: str):
        self._bodies: dict[str, list[re.Match[str]]] = {}
        self._known: dict[str, Cost] = {}
        body: list[re.Match[str]] = []
        for line in text.splitlines():
            if line.endswith("{") and not line.startswith(" "):
                name = line.removeprefix("ENTRY ").split(" ")[0].lstrip("%")
                body = self._bodies[name] = []
                if line.startswith("ENTRY"):
                    self.entry = name
            elif found := _LINE.match(line):
                body.append(found)

    def turn(self) -> tuple[Cost, Cost]:
        """Returns the cost of one turn of the most expensive loop, and of the code outside."""
        loops = [found for found in self._bodies[self.entry] if found[3] == "while"]
        costs = [self._computation(_CALLED.findall(found[4])[0]) for found in loops]
        shapes = self._shapes(self.entry)
        rest = [found for found in self._bodies[self.entry] if found[3] != "while"]
        return max(costs, default=Cost()), sum((self._one(f, shapes) for f in rest), Cost())

    def _computation(self, name: str) -> Cost:
        if name not in self._known:
            shapes = self._shapes(name)
            costs = (self._one(found, shapes) for found in self._bodies.get(name, []))
            self._known[name] = sum(costs, Cost())
        return self._known[name]

    def _shapes(self, name: str) -> dict[str, str]:
        return {found[1]: found[2] for found in self._bodies.get(name, [])}

    def _one(self, found: re.Match[str], shapes: dict[str, str]) -> Cost:
        kind, rest = found[3], found[4]
        if kind.removesuffix("-start") in COLLECTIVES:
            return Cost(0.0, _size(found[2]), 1.0)
        if kind == "dot":
            return Cost(_dot_flops(found[2], rest, shapes))
        if kind == "while":
            trips = _TRIPS.search(rest)
            return self._computation(_CALLED.findall(rest)[0]).times(
                int(trips[1]) if trips else 1
            )
        if kind == "conditional":
            names = [a or b for a, b in _BRANCHES.findall(rest)]
            names = [name.strip().lstrip("%") for part in names for name in part.split(",")]
            return max(map(self._computation, names))
        return sum(map(self._computation, _CALLED.findall(rest)), Cost())


def _size(shapes: str) -> float:
    return sum(_BYTES[kind] * _count(dims) for kind, dims in _SHAPE.findall(shapes))


def _count(dims: str) -> int:
    return math.prod(int(size) for size in dims.split(",") if size)


def _dot_flops(output: str, rest: str, shapes: dict[str, str]) -> float:
    left = re.findall(r"%([\w.\-]+)", rest)[0]
    contracted = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", rest)
    sizes = [int(size) for size in _SHAPE.findall(shapes[left])[0][1].split(",")]
    inner = math.prod(
        sizes[int(axis)] for axis in (contracted[1] if contracted else "").split(",")
    )
    return 2.0 * inner * _count(_SHAPE.findall(output)[0][1])
