"""Passes over the blocks of a history, whose scales are as many as its dates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from cbmm_spark.fit.spark_blocks import SparkBlocks
from cbmm_spark.kernels.aggregate import ScaleTask
from cbmm_spark.kernels.alternation import ScalePass
from cbmm_spark.kernels.counts import Counts
from cbmm_spark.kernels.paper import PaperSums, PaperTask

Task = TypeVar("Task")

PASS_NUMBERS = 1 << 24
"""Numbers a partition sums in one job (128 MB); where the scales of a pass need more, the pass takes several jobs."""


class HistoryBlocks(SparkBlocks):
    """Blocks of a history: a pass over more scales than a partition should sum at once takes several jobs."""

    def count(self, scales: Mapping[str, frozenset[str]], n_models: int) -> dict[str, Counts]:
        """See `SparkBlocks.count`."""
        counts: dict[str, Counts] = {}
        for part in portions(list(scales.items()), lambda _: 7 * n_models):
            counts |= super().count(dict(part), n_models)
        return counts

    def run_pass(self, tasks: Sequence[ScaleTask]) -> dict[str, ScalePass]:
        """See `SparkBlocks.run_pass`."""
        done: dict[str, ScalePass] = {}
        for part in portions(tasks, numbers_of):
            done |= super().run_pass(part)
        return done

    def run_sweep(self, tasks: Sequence[PaperTask]) -> dict[str, PaperSums]:
        """See `SparkBlocks.run_sweep`."""
        done: dict[str, PaperSums] = {}
        for part in portions(tasks, lambda task: 2 * task.theta.size):
            done |= super().run_sweep(part)
        return done


def numbers_of(task: ScaleTask) -> int:
    """Return how many numbers a partition sums for a task."""
    return int(task.theta.size) * (3 + (task.nodes.count if task.has_table else 0))


def portions(tasks: Sequence[Task], numbers: Callable[[Task], int]) -> list[list[Task]]:
    """Cut tasks into runs that sum at most `PASS_NUMBERS` numbers each, or are a single task."""
    parts: list[list[Task]] = []
    filled = 0
    for task in tasks:
        size = numbers(task)
        if not parts or filled + size > PASS_NUMBERS:
            parts.append([])
            filled = 0
        parts[-1].append(task)
        filled += size
    return parts
