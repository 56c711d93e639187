"""How much memory is left, and how much of it the library uses.

What cannot fit is refused before it is allocated. Data on disk are kept in memory from one use to the next only within a fixed budget, and
are read again beyond it: a run over more observations takes longer, not more memory. No result depends on the budget.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch

from ..core.errors import InputError

RESIDENT_BYTES = 64 << 20  # data that one stage of a run keeps in host memory instead of reading them again
WORKING_BYTES = 256 << 20  # temporary tensors of one batch on the host, where a batch size is chosen for memory
DEVICE_WORKING_BYTES = 8 << 30  # and on a GPU
DEVICE_SHARE = 0.5  # of a GPU's free memory, for data that stay on it


def available() -> int:
    """Bytes this process can still take: what the machine has free, or less where a control group or a limit says so."""
    return max(0, min(_machine(), _group(), _limit()))


def require(size: int, what: str) -> None:
    """Refuse `what` when it takes `size` bytes that are not there."""
    if size > (free := available()):
        raise InputError(f"{what} takes {readable(size)} of memory, {readable(free)} are available")


def may_stay(size: int, device: torch.device | str = "cpu") -> bool:
    """Whether data of `size` bytes are kept in the memory of `device` instead of being read again at every use."""
    device = torch.device(device)
    if device.type == "cuda":
        return size <= DEVICE_SHARE * free_on(device)
    return size <= min(RESIDENT_BYTES, available() // 4)


def working_bytes(device: torch.device) -> int:
    """What the temporary tensors of one batch may take: fixed, so that batches and with them every sum are the same everywhere."""
    return DEVICE_WORKING_BYTES if device.type == "cuda" else WORKING_BYTES


def free_on(device: torch.device) -> int:
    """Bytes of a GPU that this process can still take, those that PyTorch has cached among them."""
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


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
