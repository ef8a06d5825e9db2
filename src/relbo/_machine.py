"""What a program runs on: no host name, no path."""

import os
import platform
import sys
from pathlib import Path
from typing import Any


def describe_machine() -> dict[str, Any]:
    """Platform, processor, cores that this process may use, and memory in gigabytes."""
    return {
        "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processor": _processor(),
        "cpus": num_cpus(),
        "memory_gb": memory_gb(),
        "python": platform.python_version(),
    }


def num_cpus() -> int | None:
    # taskset or a container may leave fewer than the machine has.
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def memory_gb() -> float | None:
    """Of the machine, or of the container where that is less; `None` where nobody says."""
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None
    return round(min(total, _container_limit() or total) / 2**30, 1)


def free_memory_gb() -> float | None:
    """What Linux says could be had now; `None` elsewhere."""
    for line in _lines("/proc/meminfo"):
        if line.startswith("MemAvailable:"):
            return round(int(line.split()[1]) / 2**20, 1)
    return None


def _container_limit() -> int | None:
    limit = next(iter(_lines("/sys/fs/cgroup/memory.max")), "max")
    return int(limit) if limit.isdigit() else None


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
