"""Reads data files as keyword arguments of a model."""

import csv
import difflib
import importlib
import inspect
import json
import math
import os
import zipfile
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from relbo.commands import InputError
from relbo.problem.arrays import as_array

Values = dict[str, Any]
"""Arrays and scalars by name."""


def read_data(path: Path) -> Values:
    """Reads a JSON object, the arrays of an npz file or the columns of a table by name."""
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise InputError(f"{path}: expected a .json, .npz, .csv or .parquet file")
    if not os.path.isfile(path):
        raise InputError(f"{path}: no such file")
    try:
        values = reader(path)
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not a text file in UTF-8") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from error
    for name, value in values.items():
        _refuse_nan(path, name, value)
    return values


def match_arguments(model: Callable[..., Any], values: Mapping[str, Any], source: str) -> None:
    """Checks that the data, which come from `source`, are the arguments of a model.

    Raises:
        InputError: if an argument is missing or unknown.
    """
    parameters = inspect.signature(model).parameters.values()
    takes = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    nameless = [p.name for p in parameters if p.kind is p.POSITIONAL_ONLY]
    if nameless:
        raise InputError(f"the model takes {_listed(nameless)} by position only: name it")
    missing = [
        p.name
        for p in parameters
        if p.name in takes and p.default is p.empty and p.name not in values
    ]
    if missing:
        raise InputError(
            f"{source}: no {_listed(missing)}, which the model requires; it has "
            f"{_listed(values)}"
        )
    unknown = [name for name in values if name not in takes]
    if unknown and not any(p.kind is p.VAR_KEYWORD for p in parameters):
        close = difflib.get_close_matches(unknown[0], takes, n=1)
        raise InputError(
            f"{source}: the model does not take {_listed(unknown)}; it takes {_listed(takes)}"
            + (f" (did you mean '{close[0]}'?)" if close else "")
        )


def _listed(names: Collection[str]) -> str:
    return ", ".join(f"'{name}'" for name in names) or "nothing"


def _read_json(path: Path) -> Values:
    text = path.read_text(encoding="utf-8-sig")
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"{path}, line {error.lineno}: not JSON ({error.msg})") from error
    except (RecursionError, ValueError) as error:
        raise InputError(f"{path}: nested too deeply or a number too long ({error})") from error
    if not isinstance(content, dict):
        raise InputError(
            f'{path}: expected a JSON object such as {{"y": [1.5, 2.0]}}, '
            f"got {'a list' if isinstance(content, list) else 'a single value'}"
        )
    return {name: _from_json(path, name, value) for name, value in content.items()}


def _from_json(path: Path, name: str, value: Any) -> Any:
    if isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, dict):
        raise InputError(f"{path}: '{name}' is an object; expected a number or a list")
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise InputError(
            f"{path}: the lists in '{name}' have different lengths or are nested too deeply"
        ) from error
    if array.dtype == object and None in array.ravel().tolist():
        raise InputError(f"{path}: '{name}' has a null in it; leave missing values out")
    return _numbers(path, name, array)


def _read_npz(path: Path) -> Values:
    try:
        content = np.load(path, allow_pickle=False)
        if isinstance(content, np.ndarray):
            raise InputError(f"{path}: holds one array without a name; save it with np.savez")
        with content as file:
            arrays = dict(file)
    except (ValueError, zipfile.BadZipFile, EOFError) as error:
        raise InputError(f"{path}: not an npz file of plain arrays") from error
    return {name: _numbers(path, name, array) for name, array in arrays.items()}


def _numbers(path: Path, name: str, array: np.ndarray) -> Any:
    if array.dtype.kind not in "biuf":
        raise InputError(f"{path}: '{name}' has values that are not numbers of 64 bits")
    return array.item() if array.ndim == 0 else array


def _read_csv(path: Path) -> Values:
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file, strict=True)
        try:
            # Keeps line numbers for messages; a cell may span several lines.
            rows = [
                (reader.line_num, [cell.strip() for cell in row])
                for row in reader
                if any(map(str.strip, row))
            ]
        except csv.Error as error:
            raise InputError(f"{path}, line {reader.line_num}: not csv ({error})") from error
    if not rows:
        raise InputError(f"{path}: is empty")
    (_, names), *rows = rows
    _check_header(path, names)
    if not rows:
        raise InputError(f"{path}: has a header and no rows")
    for line, cells in rows:
        _check_row(f"{path}, line {line}", names, cells)
    columns = zip(*(cells for _, cells in rows), strict=True)
    return {name: _column(cells) for name, cells in zip(names, columns, strict=True)}


def _read_parquet(path: Path) -> Values:
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise InputError(
            f"{path}: reading Parquet needs pyarrow (pip install pyarrow)"
        ) from error
    try:
        table = parquet.read_table(path)
    except ValueError as error:
        raise InputError(f"{path}: not a Parquet file ({error})") from error
    for name in table.column_names:
        if table[name].null_count:
            raise InputError(f"{path}: '{name}' is missing in some rows; leave these out")
    try:
        return {name: as_array(f"{path}: '{name}'", table[name]) for name in table.column_names}
    except ValueError as error:
        raise InputError(str(error)) from error


def _check_header(path: Path, names: list[str]) -> None:
    if all(map(_is_number, names)):
        raise InputError(f"{path}: the first line must name the columns")
    if len(names) == 1 and (";" in names[0] or "\t" in names[0]):
        raise InputError(f"{path}: the columns must be separated by commas")
    repeated = {name for name in names if names.count(name) > 1}
    if "" in names or repeated:
        problem = f"'{repeated.pop()}' occurs twice" if repeated - {""} else "one has no name"
        raise InputError(f"{path}: every column needs a unique name ({problem})")


def _check_row(place: str, names: list[str], cells: list[str]) -> None:
    if len(cells) != len(names):
        raise InputError(f"{place}: {len(cells)} values under {len(names)} column names")
    for name, cell in zip(names, cells, strict=True):
        if cell.upper() in ("", "NA"):
            raise InputError(f"{place}: '{name}' is missing; leave out incomplete rows")
        if not _is_number(cell):
            raise InputError(
                f"{place}: '{name}' is {cell[:40]!r}, which is not a number or too large"
            )


def _is_number(cell: str) -> bool:
    try:
        # A word such as inf means infinity; digits that overflow do not.
        return math.isfinite(float(cell)) or cell[-1].isalpha()
    except ValueError:
        return False


def _column(cells: Collection[str]) -> np.ndarray:
    """Returns integers if all cells are integers, so that they can be indices."""
    try:
        return np.array([int(cell) for cell in cells], np.int64)
    except (ValueError, OverflowError):
        return np.array([float(cell) for cell in cells])


def _refuse_nan(path: Path, name: str, value: Any) -> None:
    if isinstance(value, float) and math.isnan(value):
        raise InputError(f"{path}: '{name}' is NaN")
    if isinstance(value, np.ndarray) and value.dtype.kind == "f" and np.isnan(value).any():
        first = tuple(int(k) for k in np.argwhere(np.isnan(value))[0])
        at = first[0] if len(first) == 1 else first
        raise InputError(
            f"{path}: '{name}' has {int(np.isnan(value).sum())} NaN in it, the first at "
            f"index {at}; leave missing values out"
        )


_READERS: dict[str, Callable[[Path], Values]] = {
    ".json": _read_json,
    ".npz": _read_npz,
    ".csv": _read_csv,
    ".parquet": _read_parquet,
}
