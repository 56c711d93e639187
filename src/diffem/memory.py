"""How much memory is left, so that what cannot fit is refused before it is asked for; and whether an error says that it ran out."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from .errors import InputError


def available() -> int:
    """Bytes this process can still take: what the machine has free, or less where a control group or a limit says so."""
    return max(0, min(_machine(), _group(), _limit()))


def require(size: int, what: str) -> None:
    """Refuse `what` when it takes `size` bytes that are not there."""
    if size > (free := available()):
        raise InputError(f"{what} takes {readable(size)} of memory, {readable(free)} are available")


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether the device, or the host, ran out of memory."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def readable(size: int) -> str:
    """1536 → '1.5 KiB'."""
    value, units = float(size), ["bytes", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1024 and len(units) > 1:
        value, units = value / 1024, units[1:]
    return f"{size} bytes" if units[0] == "bytes" else f"{value:.3g} {units[0]}" if value < 1e6 else "too much"


def _machine() -> int:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    except OSError:
        pass
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _group() -> int:
    """What a container's limit leaves; cached files in its account are given up when memory is needed."""
    folder = Path("/sys/fs/cgroup")
    try:
        most = (folder / "memory.max").read_text().strip()
        if most == "max":
            return 1 << 62
        used = int((folder / "memory.current").read_text())
        cached = next(
            int(line.split()[1])
            for line in (folder / "memory.stat").read_text().splitlines()
            if line.startswith("file ")
        )
        return int(most) - used + cached
    except (OSError, ValueError, StopIteration):
        return 1 << 62


def _limit() -> int:
    try:
        import resource

        most = resource.getrlimit(resource.RLIMIT_AS)[0]
        if most == resource.RLIM_INFINITY:
            return 1 << 62
        return most - int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except (ImportError, OSError, ValueError):
        return 1 << 62
