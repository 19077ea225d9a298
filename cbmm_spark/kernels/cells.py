"""The observed cells of one block of items: who answered what, in three layouts behind one face.

Rows are items, columns are models. A cell has n attempts and k successes (method.md section 1); n = 0 is missing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
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

    @abstractmethod
    def piece(self, items: slice, models: slice) -> tuple[F32 | None, F32]:
        """Return (attempts, successes) of a rectangle as float32; attempts is None where the block is complete.

        ``models.start`` must be a multiple of 8.
        """


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

    def piece(self, items: slice, models: slice) -> tuple[F32 | None, F32]:
        """See `DenseCells.piece`."""
        successes = unpack(self.solved, items, models)
        if self.is_complete or self.attempted is None:
            return None, successes
        return unpack(self.attempted, items, models), successes


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

    def piece(self, items: slice, models: slice) -> tuple[F32 | None, F32]:
        """See `DenseCells.piece`."""
        successes = self.k_matrix[items, models].astype(np.float32)
        return (None if self.is_complete else self.n_matrix[items, models].astype(np.float32)), successes


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


def weighted_count(index: NDArray[Any], weights: F64, size: int) -> F64:
    """Return the sum of weights at each index, shape (size,), float64."""
    return np.bincount(index, weights=weights, minlength=size).astype(np.float64, copy=False)


def count_bits(plane: U8) -> F64:
    """Return the number of set bits in each row."""
    return np.bitwise_count(plane).sum(axis=1, dtype=np.int64).astype(np.float64)


def unpack(plane: U8, items: slice, models: slice) -> F32:
    """Unpack a rectangle of a bit plane to 0.0 and 1.0."""
    part = plane[items, models.start // 8 : (models.stop + 7) // 8]
    bits = np.unpackbits(part, axis=1, bitorder="little", count=models.stop - models.start)
    return bits.astype(np.float32)
