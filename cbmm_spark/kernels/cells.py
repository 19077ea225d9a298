"""The observed cells of one block of items: who answered what, in three layouts behind one face.

Rows are items, columns are models. A cell has n attempts and k successes (method.md section 1); n = 0 is missing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cbmm_spark.kernels.model import F64

F32 = NDArray[np.float32]
U8 = NDArray[np.uint8]


class DenseCells(ABC):
    """Cells that are handed out as dense float32 pieces.

    Attributes
    ----------
    n_items, n_models
        Shape of the block.
    attempts, successes
        Per item: sum of n and of k over the models, shape (n_items,), float64.
    observers
        Per item: number of models with at least one attempt, shape (n_items,), int64.
    is_complete
        Every model attempted every item exactly once: then no mask is needed anywhere.
    is_binary
        No cell has more than one attempt (k may be a fraction).
    """

    n_items: int
    n_models: int
    attempts: F64
    successes: F64
    observers: NDArray[np.int64]
    is_complete: bool
    is_binary: bool

    @property
    def is_mostly_observed(self) -> bool:
        """Whether sums over the missing cells are the smaller ones; only where a cell has at most one attempt."""
        return self.is_binary and 2.0 * float(self.observers.sum()) > self.n_items * self.n_models

    @abstractmethod
    def successes_of(self, items: slice, models: slice, workspace: Workspace) -> F32:
        """Return the successes of a rectangle as float32, valid until the next call with this workspace.

        ``models.start`` must be a multiple of 8.
        """

    @abstractmethod
    def attempts_of(self, items: slice, models: slice, workspace: Workspace) -> F32:
        """Return the attempts of a rectangle; see `successes_of`."""

    @abstractmethod
    def missing_of(self, items: slice, models: slice, workspace: Workspace) -> F32:
        """Return 1 where a cell has no attempt and 0 elsewhere, for a rectangle; see `successes_of`."""


class BitCells(DenseCells):
    """Zero or one attempt a cell, packed eight models a byte (bit 0 first).

    Parameters
    ----------
    attempted
        Bit plane, shape (n_items, ceil(n_models / 8)); None where every cell was attempted. Bits beyond the last
        model are 0.
    solved
        Bit plane of the same shape. Solved implies attempted.
    n_models
        Number of models.
    """

    def __init__(self, attempted: U8 | None, solved: U8, n_models: int) -> None:
        self.attempted = attempted
        self.solved = solved
        self.n_items, self.n_models = solved.shape[0], n_models
        self.successes = count_bits(solved)
        self.attempts = np.full(self.n_items, float(n_models)) if attempted is None else count_bits(attempted)
        self.observers = self.attempts.astype(np.int64)
        self.is_complete = bool((self.observers == n_models).all())
        self.is_binary = True

    def successes_of(self, items: slice, models: slice, workspace: Workspace) -> F32:
        """See `DenseCells.successes_of`."""
        return workspace.unpack(self.solved[items, span_of(models)], models.stop - models.start)

    def attempts_of(self, items: slice, models: slice, workspace: Workspace) -> F32:
        """See `DenseCells.attempts_of`."""
        if self.attempted is None:
            return workspace.filled(items, models, 1.0)
        return workspace.unpack(self.attempted[items, span_of(models)], models.stop - models.start)

    def missing_of(self, items: slice, models: slice, workspace: Workspace) -> F32:
        """See `DenseCells.missing_of`."""
        if self.attempted is None:
            return workspace.filled(items, models, 0.0)
        return workspace.unpack(~self.attempted[items, span_of(models)], models.stop - models.start)


class CountCells(DenseCells):
    """Attempt counts and (possibly fractional) successes as arrays of shape (n_items, n_models)."""

    def __init__(self, attempts: NDArray[Any], successes: NDArray[Any]) -> None:
        self.n_matrix, self.k_matrix = attempts, successes
        self.n_items, self.n_models = attempts.shape
        self.attempts = attempts.sum(axis=1, dtype=np.float64)
        self.successes = successes.sum(axis=1, dtype=np.float64)
        self.observers = np.count_nonzero(attempts, axis=1).astype(np.int64)
        self.is_complete = bool((attempts == 1).all())
        self.is_binary = bool((attempts <= 1).all())

    def successes_of(self, items: slice, models: slice, workspace: Workspace) -> F32:
        """See `DenseCells.successes_of`."""
        return self.k_matrix[items, models].astype(np.float32)

    def successes_at(self, items: slice, models: slice) -> F64:
        """Return the successes of a rectangle in float64, as they are."""
        return self.k_matrix[items, models].astype(np.float64)

    def attempts_of(self, items: slice, models: slice, workspace: Workspace) -> F32:
        """See `DenseCells.attempts_of`."""
        return self.n_matrix[items, models].astype(np.float32)

    def missing_of(self, items: slice, models: slice, workspace: Workspace) -> F32:
        """See `DenseCells.missing_of`."""
        return (self.n_matrix[items, models] == 0).astype(np.float32)


class SparseCells:
    """Observed cells only, item by item (CSR).

    Parameters
    ----------
    indptr
        Start of each item's cells, shape (n_items + 1,).
    indices
        Column (model) of each cell, shape (n_cells,), increasing within an item.
    n, k
        Attempts and successes of each cell, float64, shape (n_cells,).
    n_models
        Number of columns.
    """

    def __init__(self, indptr: NDArray[np.int64], indices: NDArray[np.int32], n: F64, k: F64, n_models: int) -> None:
        self.indptr, self.indices, self.n, self.k = indptr, indices, n, k
        self.n_items, self.n_models = indptr.size - 1, n_models
        self.item = np.repeat(np.arange(self.n_items), np.diff(indptr))
        self.attempts = weighted_count(self.item, n, self.n_items)
        self.successes = weighted_count(self.item, k, self.n_items)
        self.observers = np.diff(indptr).astype(np.int64)
        self.is_complete = False
        self.is_binary = bool((n <= 1).all())


Cells = DenseCells | SparseCells


@dataclass(frozen=True)
class Block:
    """One item block in memory.

    Attributes
    ----------
    benchmark
        Whose items.
    cells
        Who answered what.
    models
        Which model (position among all models) each column is, increasing, shape (n_models,).
    item_start
        Number of the first item within the benchmark.
    """

    benchmark: str
    cells: Cells
    models: NDArray[np.int64]
    item_start: int = 1


def weighted_count(index: NDArray[Any], weights: F64, size: int) -> F64:
    """Return the sum of weights at each index, shape (size,), float64."""
    return np.bincount(index, weights=weights, minlength=size).astype(np.float64, copy=False)


def count_bits(plane: U8) -> F64:
    """Return the number of set bits in each row."""
    return np.bitwise_count(plane).sum(axis=1, dtype=np.int64).astype(np.float64)


def span_of(models: slice) -> slice:
    """Return the bytes of a bit plane that hold these models; the first must begin a byte."""
    return slice(models.start // 8, (models.stop + 7) // 8)


_BYTES = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little").astype(np.float32)
"""The eight bits of every byte as float32, shape (256, 8)."""


class Workspace:
    """Memory to unpack into: touching fresh memory for every piece costs more than unpacking it.

    Parameters
    ----------
    size
        Largest number of cells of a piece.
    """

    def __init__(self, size: int) -> None:
        self._buffer = np.empty(size, dtype=np.float32)

    def unpack(self, part: U8, n_models: int) -> F32:
        """Return the bits of a rectangle of bytes as 0.0 and 1.0, shape (n_items, n_models)."""
        n_items, width = part.shape
        out = self._take(n_items * width * 8).reshape(n_items, width, 8)
        np.take(_BYTES, part, axis=0, out=out, mode="clip")
        return out.reshape(n_items, width * 8)[:, :n_models]

    def filled(self, items: slice, models: slice, value: float) -> F32:
        """Return a rectangle of one value."""
        shape = (items.stop - items.start, models.stop - models.start)
        out = self._take(shape[0] * shape[1]).reshape(shape)
        out.fill(value)
        return out

    def _take(self, size: int) -> F32:
        if size > self._buffer.size:
            self._buffer = np.empty(size, dtype=np.float32)
        return self._buffer[:size]
