"""Available memory, and the memory budgets of the library.

Requests above the available memory are rejected before allocation. Data on disk are kept in memory between uses only
within a fixed budget, and are read again beyond it, so a run over more observations takes longer but not more memory.
Results do not depend on the budget.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch

from ..core.errors import InputError

RESIDENT_BYTES = 64 << 20  # budget for data that are kept in host memory between uses
WORKING_BYTES = 256 << 20  # temporary tensors of one batch on the host, if the batch size is chosen by memory
DEVICE_WORKING_BYTES = 8 << 30  # the same on a GPU
DEVICE_SHARE = 0.5  # share of a GPU's free memory for data that stay on it


def available() -> int:
    """Bytes that this process can still allocate, given free memory and the limits of control group and process."""
    return max(0, min(_machine(), _group(), _limit()))


def require(size: int, what: str) -> None:
    """Raise InputError if `what` needs `size` bytes and less is available."""
    if size > (free := available()):
        raise InputError(f"{what} takes {format_bytes(size)} of memory, {format_bytes(free)} are available")


def may_stay(size: int, device: torch.device | str = "cpu") -> bool:
    """Whether data of `size` bytes are kept in the memory of `device` instead of being read again at every use."""
    device = torch.device(device)
    if device.type == "cuda":
        return size <= DEVICE_SHARE * free_on(device)
    return size <= min(RESIDENT_BYTES, available() // 4)


def working_bytes(device: torch.device) -> int:
    """Budget for the temporary tensors of one batch.

    It is fixed, so that batches, and therefore all sums, are the same on every machine.
    """
    return DEVICE_WORKING_BYTES if device.type == "cuda" else WORKING_BYTES


def free_on(device: torch.device) -> int:
    """Bytes of a GPU that this process can still allocate, including those that PyTorch has cached."""
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether an error is an out-of-memory error of the device or the host."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def format_bytes(size: int) -> str:
    """Format a number of bytes: 1536 as '1.5 KiB'."""
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
    """Memory left under a container's limit. Its file cache counts as available."""
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
