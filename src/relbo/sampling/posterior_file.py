"""The file of a saved posterior: arrays and a header in one `.npz` archive."""

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import ZipFile

import numpy as np

from relbo.core.checks import check_bool, check_integer, check_positive
from relbo.sampling.evidence import EvidenceIncrement, LogWeights
from relbo.sampling.findings import Finding
from relbo.sampling.tuning import ChainTuning

FORMAT = "relbo posterior 2"


class SavedPosterior(NamedTuple):
    """What a file holds; the fields are arguments of `Posterior`."""

    chains: dict[str, np.ndarray]
    sample_stats: dict[str, np.ndarray]
    log_weights: LogWeights | None
    num_draws: int
    num_superchains: int
    step_size: float | None
    findings: tuple[Finding, ...]
    seconds: dict[str, float]
    procedure: str = ""
    tuning: ChainTuning | None = None
    increment: EvidenceIncrement | None = None


def write_posterior(path: str | Path, saved: SavedPosterior) -> Path:
    """Writes a file, whose name ends in `.npz`, and returns its path."""
    path = Path(path)
    if path.suffix != ".npz":
        path = path.with_name(f"{path.name}.npz")
    header = {
        "format": FORMAT,
        "num_draws": int(saved.num_draws),
        "num_superchains": int(saved.num_superchains),
        "step_size": None if saved.step_size is None else float(saved.step_size),
        "findings": [[text, bool(fatal), kind] for text, fatal, kind in saved.findings],
        "seconds": {name: float(value) for name, value in saved.seconds.items()},
        "procedure": saved.procedure,
        "increment": None if saved.increment is None else list(map(float, saved.increment)),
    }
    groups = {
        "chains": saved.chains,
        "stats": saved.sample_stats,
        "weights": {} if saved.log_weights is None else saved.log_weights._asdict(),
        "tuning": {} if saved.tuning is None else saved.tuning.to_arrays(),
    }
    arrays: dict[str, Any] = {
        f"{group}/{name}": values
        for group, members in groups.items()
        for name, values in members.items()
    }
    # A damaged archive may hide some of them.
    header["arrays"] = sorted(arrays)
    # Written to a temporary file and moved, so that a file is never half written.
    temporary = path.with_name(f"{path.name}.partial")
    with temporary.open("wb") as stream:
        np.savez_compressed(stream, header=np.array(json.dumps(header)), **arrays)
    temporary.replace(path)
    return path


def read_posterior(path: str | Path) -> SavedPosterior:
    """Reads a file; raises `ValueError` unless it is whole and consistent."""
    try:
        arrays = _read_arrays(Path(path))
        header = json.loads(str(arrays.pop("header")))
        is_ours = header.pop("format") == FORMAT
        saved = _checked(header, arrays) if is_ours else None
    except Exception as error:
        # The parsers of archives, arrays and JSON fail in a dozen ways on damaged bytes.
        raise ValueError(f"{path} is not a posterior that relbo saved") from error
    if saved is None:
        raise ValueError(f"{path} is not a posterior that this version of relbo can read")
    return saved


def _read_arrays(path: Path) -> dict[str, np.ndarray]:
    arrays = {}
    with ZipFile(path) as archive:
        for name in archive.namelist():
            # Whole members, because the checksum is compared at their end.
            stream = io.BytesIO(archive.read(name))
            arrays[name.removesuffix(".npy")] = np.lib.format.read_array(
                stream, allow_pickle=False
            )
            _require(not stream.read(1), f"{name} has more bytes than its shape says")
    return arrays


def _checked(header: dict[str, Any], arrays: Mapping[str, np.ndarray]) -> SavedPosterior:
    _require(header.pop("arrays", sorted(arrays)) == sorted(arrays), "all arrays are there")
    group = lambda prefix: {
        name.removeprefix(prefix): values
        for name, values in arrays.items()
        if name.startswith(prefix)
    }
    chains, stats = group("chains/"), group("stats/")
    weights, tuning = group("weights/"), group("tuning/")
    known = (chains, stats, weights, tuning)
    _require(sum(map(len, known)) == len(arrays), "unknown arrays")
    _require(bool(chains), "no chains")
    _require("lp" in stats, "no log densities")
    shape = stats["lp"].shape
    _require(len(shape) == 2 and stats["lp"].size > 0, "lp has no draws")
    for name, values in (chains | stats).items():
        _require(values.dtype.kind in "biuf", f"{name} has no numbers")
        _require(values.shape[:2] == shape, f"{name} has another number of draws than lp")
    _require(all(values.ndim == 2 for values in stats.values()), "statistics have two axes")
    for values in weights.values():
        _require(values.dtype.kind == "f" and values.ndim == 1, "weights are vectors")
        _require(values.size > 0, "weights are empty")
    increment = header.pop("increment", None)
    saved = SavedPosterior(
        chains,
        stats,
        LogWeights(**weights) if weights else None,
        tuning=ChainTuning.from_arrays(tuning) if tuning else None,
        increment=EvidenceIncrement(*increment) if increment else None,
        findings=tuple(Finding(*finding) for finding in header.pop("findings")),
        **header,
    )
    check_integer("num_draws", saved.num_draws, 1)
    _require(saved.num_draws <= stats["lp"].size, "fewer draws than num_draws")
    check_integer("num_superchains", saved.num_superchains, 1)
    _require(shape[0] % saved.num_superchains == 0, "num_superchains divides the chains")
    if saved.step_size is not None:
        check_positive("step_size", saved.step_size)
    for text, is_fatal, kind in saved.findings:
        _require(isinstance(text, str) and isinstance(kind, str), "findings are texts")
        check_bool("is_fatal", is_fatal)
    for value in saved.seconds.values():
        _require(isinstance(value, float) and value >= 0, "seconds are not negative")
    _require(isinstance(saved.procedure, str), "the procedure is a text")
    return saved


def _require(condition: bool, expectation: str) -> None:
    if not condition:
        raise ValueError(expectation)
