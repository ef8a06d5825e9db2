"""Files of a calibration: one per simulation, so that an interrupted run continues."""

import json
from pathlib import Path
from typing import Any, NamedTuple

from relbo.core.fingerprint import Fingerprint, differences

_FORMAT = "relbo calibration 1"


class SimulationRecord(NamedTuple):
    """What is kept of one simulation."""

    pits: dict[str, float]
    """By quantity."""
    num_draws: int
    is_trusted: bool | None
    error: str | None

    @property
    def is_doubted(self) -> bool:
        """Whether the run failed or its check did not trust it."""
        return self.error is not None or self.is_trusted is False


class CalibrationFiles:
    """The files of one calibration in one directory.

    The files of a calibration with another fingerprint are refused.
    """

    def __init__(self, directory: str | Path, fingerprint: Fingerprint):
        self._directory = Path(directory).expanduser()
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
        except FileExistsError:
            raise ValueError(f"directory: {directory} is not a directory") from None
        settings = self._directory / "calibration.json"
        ours = {"format": _FORMAT, **fingerprint}
        if not settings.exists():
            if any(self._directory.glob("simulation-*.json")):
                raise ValueError(
                    f"directory: {directory} has simulations, but calibration.json is missing"
                )
            _write(settings, ours)
        found = differences(ours, _read(settings))
        if found:
            raise ValueError(
                f"directory: {directory} is of another calibration. It differs in "
                f"{'; '.join(found)}. Choose another directory, or remove this one"
            )

    def read(self, index: int) -> SimulationRecord | None:
        """Returns a finished simulation, or `None`."""
        path = self._path(index)
        if not path.exists():
            return None
        try:
            return SimulationRecord(**_read(path))
        except TypeError as error:
            raise _damaged(path) from error

    def write(self, index: int, record: SimulationRecord) -> None:
        _write(self._path(index), record._asdict())

    def _path(self, index: int) -> Path:
        return self._directory / f"simulation-{index:05d}.json"


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise _damaged(path) from error
    if not isinstance(content, dict):
        raise _damaged(path)
    return content


def _damaged(path: Path) -> ValueError:
    return ValueError(f"directory: {path} is damaged; remove it to run its simulation again")


def _write(path: Path, content: dict[str, Any]) -> None:
    # Written to a temporary file and moved, so that a file is never half written.
    temporary = path.with_name(f"{path.name}.partial")
    temporary.write_text(json.dumps(content, indent=1) + "\n")
    temporary.replace(path)
