"""Distribute tasks over processes on a CPU, each with its part of the threads."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any, TypeVar

import torch

Made = TypeVar("Made")


def shared_out(function: Callable[..., Made], tasks: list[tuple[Any, ...]], workers: int) -> list[Made]:
    """Apply `function` to every task; returns the results in order. A single worker is this process."""
    if workers < 2:
        return [function(*task) for task in tasks]
    threads = max(1, torch.get_num_threads() // workers)
    with multiprocessing.get_context("spawn").Pool(workers, torch.set_num_threads, (threads,)) as pool:
        return pool.starmap(function, tasks, chunksize=1)
