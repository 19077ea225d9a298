"""Counts of responses per model: attempts, successes, items, what was to be expected, and who hangs together."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cbmm_spark.kernels.block_products import ITEM_PIECE, MODEL_PIECE, pieces, split_exact, sum_of_splits
from cbmm_spark.kernels.cells import Cells, CountCells, DenseCells, SparseCells, Workspace, columns, weighted_count
from cbmm_spark.kernels.components import block_groups, join_labels, merge_labels
from cbmm_spark.kernels.model import F64, Index


@dataclass
class Counts:
    """Per-model counts of one scale, of shape (M,) for all models or (N,) for its own, and totals over items.

    Attributes
    ----------
    attempts, successes
        Sum of n and k.
    items
        Number of items with at least one attempt.
    easiness
        Sum over attempts of the items' smoothed log-odds: what an average model would have earned.
    labels
        For every model the smallest position of a model connected with it through items, int64.
    expected, variance
        Mean and variance of the successes if all models were alike: sums of n p and n^2 p (1 - p), p the items' shares.
    n_items
        Items with at least one response.
    cells
        Observed cells.
    """

    attempts: F64
    successes: F64
    items: F64
    easiness: F64
    labels: Index
    expected: F64
    variance: F64
    n_items: int = 0
    cells: int = 0

    @classmethod
    def zeros(cls, size: int) -> Counts:
        """Return empty counts."""
        attempts, successes, items, easiness, expected, variance = np.zeros((6, size))
        return cls(attempts, successes, items, easiness, np.arange(size), expected, variance)

    @property
    def sums(self) -> list[F64]:
        """The counts that add up over blocks, in a fixed order."""
        return [self.attempts, self.successes, self.items, self.easiness, self.expected, self.variance]

    def of(self, models: Index) -> Counts:
        """Return the counts of some models only."""
        return Counts(
            self.attempts[models], self.successes[models], self.items[models], self.easiness[models],
            self.labels[models], self.expected[models], self.variance[models], self.n_items, self.cells,
        )  # fmt: skip

    def add(self, other: Counts) -> None:
        """Add another partition's counts."""
        for own, more in zip(self.sums, other.sums, strict=True):
            own += more
        self.labels = merge_labels([self.labels, other.labels])
        self.n_items += other.n_items
        self.cells += other.cells


def count_block(cells: Cells, models: Index, out: Counts) -> None:
    """Add one block's counts."""
    where = columns(models)
    share = (cells.successes + 0.5) / (cells.attempts + 1.0)
    odds = np.log(share) - np.log1p(-share)
    p = cells.successes / np.maximum(cells.attempts, 1.0)
    out.n_items += int(np.count_nonzero(cells.observers))
    out.cells += int(cells.observers.sum())
    out.labels = join_labels(out.labels, models, block_groups(cells))
    per_attempt = np.stack([np.ones_like(p), odds, p, p * (1.0 - p)])
    counted = _count_sparse(cells, per_attempt) if isinstance(cells, SparseCells) else _count_dense(cells, per_attempt)
    for total, more in zip(out.sums, counted, strict=True):
        total[where] += more


def _count_sparse(cells: SparseCells, per_attempt: F64) -> list[F64]:
    """Return the terms of `Counts.sums` of one block, from what an attempt at each item counts, shape (4, n_items)."""
    n, item = cells.n, cells.item

    def by_model(value: F64) -> F64:
        return weighted_count(cells.indices, value, cells.n_models)

    items = np.bincount(cells.indices, minlength=cells.n_models).astype(np.float64)
    attempts, easiness, expected = (by_model(n * per_attempt[row][item]) for row in range(3))
    variance = by_model(n * n * per_attempt[3][item])
    return [attempts, by_model(cells.k), items, easiness, expected, variance]


def _count_dense(cells: DenseCells, per_attempt: F64) -> list[F64]:
    """See `_count_sparse`."""
    size, memory = cells.n_models, Workspace(ITEM_PIECE * (MODEL_PIECE + 8))
    split = np.concatenate([split_exact(row, ITEM_PIECE) for row in per_attempt], axis=1)
    successes, squares, sums = np.zeros(size), np.zeros(size), np.zeros((size, split.shape[1]))
    for items in pieces(cells.n_items, ITEM_PIECE):
        for span in pieces(size, MODEL_PIECE):
            if not cells.is_complete:
                n = cells.attempts_of(items, span, memory)
                sums[span] += n.T @ split[items]
                if not cells.is_binary:
                    squares[span] += (n * n).T @ per_attempt[3, items]
            if isinstance(cells, CountCells):
                successes[span] += cells.successes_at(items, span).sum(axis=0)
            else:
                successes[span] += cells.successes_of(items, span, memory).sum(axis=0, dtype=np.float64)
    if cells.is_complete:
        attempts, easiness, expected, variance = np.repeat(per_attempt.sum(axis=1)[:, None], size, axis=1)
    else:
        attempts, easiness, expected, variance = (sum_of_splits(sums, row) for row in range(4))
    if not cells.is_binary:
        return [attempts, successes, _items_answered(cells), easiness, expected, squares]
    return [attempts, successes, attempts, easiness, expected, variance]


def _items_answered(cells: DenseCells) -> F64:
    """Return for every model the number of items with at least one attempt."""
    answered = np.zeros(cells.n_models)
    memory = Workspace(ITEM_PIECE * (MODEL_PIECE + 8))
    for items in pieces(cells.n_items, ITEM_PIECE):
        for span in pieces(cells.n_models, MODEL_PIECE):
            answered[span] += np.count_nonzero(cells.attempts_of(items, span, memory), axis=0)
    return answered
