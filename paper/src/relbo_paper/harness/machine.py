"""Describes the machine that an experiment runs on, without a host name or a path."""

import os
import platform
import sys
from pathlib import Path
from typing import Any


def describe_machine() -> dict[str, Any]:
    """Returns platform, processor, usable cores, memory in gigabytes and Python version."""
    return {
        "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processor": _processor(),
        "cpus": _num_cpus(),
        "memory_gb": _memory_gb(),
        "python": platform.python_version(),
    }


def _num_cpus() -> int | None:
    # taskset or a container may allow fewer cores than the machine has.
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def _memory_gb() -> float | None:
    """Returns the memory of the machine, or of the container if that is smaller."""
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None
    limit = next(iter(_lines("/sys/fs/cgroup/memory.max")), "max")
    return round(min(total, int(limit) if limit.isdigit() else total) / 2**30, 1)


def _processor() -> str:
    for line in _lines("/proc/cpuinfo"):
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []
