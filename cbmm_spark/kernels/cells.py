"""The observed cells of one block of items: who answered what, in three layouts behind one face.

Rows are items, columns are models. A cell has n attempts and k successes (method.md section 1); n = 0 is missing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from cbmm_spark.kernels.model import F64, Index

F32 = NDArray[np.float32]
U8 = NDArray[np.uint8]
Kind = type[np.float32] | type[np.float64]

ItemKey = tuple[str, int]
"""Benchmark, and number of a block's first item."""


FEW_MISSING = 1.0 / 12.0
"""Share of missing cells up to which they are listed."""

LISTED_ITEMS = 128
"""Items whose bits are looked through at once for that list."""


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

    @cached_property
    def missing_list(self) -> csr_array | None:
        """The cells without an attempt as a matrix of ones, float32, shape (n_items, n_models).

        Only where they are so few that adding up rows one by one is cheaper than a dense product; else None.
        """
        return None

    @property
    def is_mostly_observed(self) -> bool:
        """Whether sums over the missing cells are the smaller ones; only where a cell has at most one attempt."""
        return self.is_binary and 2.0 * float(self.observers.sum()) > self.n_items * self.n_models

    @abstractmethod
    def successes_of(self, items: slice, models: slice, workspace: Workspace) -> F32:
        """Return the successes of a rectangle in the workspace's type, valid until the next call with this workspace.

        ``models.start`` must be a multiple of 8.
        """

    @abstractmethod
    def attempts_of(self, items: slice, models: slice, workspace: Workspace) -> F32:
        """Return the attempts of a rectangle; see `successes_of`."""

    @abstractmethod
    def missing_of(self, items: slice, models: slice, workspace: Workspace) -> F32:
        """Return 1 where a cell has no attempt and 0 elsewhere, for a rectangle; see `successes_of`."""

    @abstractmethod
    def take(self, rows: NDArray[np.int64]) -> DenseCells:
        """Return the cells of some items only, in the order given."""

    @abstractmethod
    def select(self, columns: NDArray[np.int64]) -> DenseCells:
        """Return the cells of some models only, given by increasing column numbers."""


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

    @cached_property
    def missing_list(self) -> csr_array | None:
        """See `DenseCells.missing_list`."""
        missing = self.n_items * self.n_models - int(self.observers.sum())
        if self.attempted is None or not 0 < missing <= FEW_MISSING * self.n_items * self.n_models:
            return None
        start = np.zeros(self.n_items + 1, dtype=np.int64)
        np.cumsum(self.n_models - self.observers, out=start[1:])
        column = np.empty(missing, dtype=np.int32)
        for first in range(0, self.n_items, LISTED_ITEMS):
            items = slice(first, min(first + LISTED_ITEMS, self.n_items))
            gaps = np.unpackbits(~self.attempted[items], axis=1, count=self.n_models, bitorder="little").view(bool)
            row = np.repeat(np.arange(gaps.shape[0]), np.diff(start[first : items.stop + 1]))
            column[start[first] : start[items.stop]] = np.flatnonzero(gaps) - row * self.n_models
        ones = np.ones(missing, dtype=np.float32)
        return csr_array((ones, column, start.astype(np.int32)), shape=(self.n_items, self.n_models))

    def take(self, rows: NDArray[np.int64]) -> BitCells:
        """See `DenseCells.take`."""
        attempted = None if self.attempted is None else self.attempted[rows]
        return BitCells(attempted, self.solved[rows], self.n_models)

    def select(self, columns: NDArray[np.int64]) -> BitCells:
        """See `DenseCells.select`; the first columns of all are cut off without unpacking a bit."""
        attempted = None if self.attempted is None else _select_bits(self.attempted, columns, self.n_models)
        return BitCells(attempted, _select_bits(self.solved, columns, self.n_models), columns.size)


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

    def take(self, rows: NDArray[np.int64]) -> CountCells:
        """See `DenseCells.take`."""
        return CountCells(self.n_matrix[rows], self.k_matrix[rows])

    def select(self, columns: NDArray[np.int64]) -> CountCells:
        """See `DenseCells.select`."""
        return CountCells(self.n_matrix[:, columns], self.k_matrix[:, columns])


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

    def take(self, rows: NDArray[np.int64]) -> SparseCells:
        """Return the cells of some items only, in the order given."""
        sizes = np.diff(self.indptr)[rows]
        indptr = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        where = np.repeat(self.indptr[rows] - indptr[:-1], sizes) + np.arange(indptr[-1])
        return SparseCells(indptr, self.indices[where], self.n[where], self.k[where], self.n_models)

    def select(self, columns: NDArray[np.int64]) -> SparseCells:
        """Return the cells of some models only, given by increasing column numbers."""
        place = np.full(self.n_models, -1, dtype=np.int32)
        place[columns] = np.arange(columns.size, dtype=np.int32)
        indices = place[self.indices]
        keep = indices >= 0
        indptr = np.concatenate([[0], np.cumsum(keep)])[self.indptr].astype(np.int64)
        return SparseCells(indptr, indices[keep], self.n[keep], self.k[keep], columns.size)


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
        Which model (position among all models) each column is, each at most once, shape (n_models,).
    item_start
        Number of the first item within the benchmark.
    """

    benchmark: str
    cells: Cells
    models: NDArray[np.int64]
    item_start: int = 1


def columns(models: Index) -> Index | slice:
    """Return a slice where the models are consecutive numbers: slices copy nothing."""
    if models.size and models[-1] - models[0] + 1 == models.size and (np.diff(models) == 1).all():
        return slice(int(models[0]), int(models[-1]) + 1)
    return models


def weighted_count(index: NDArray[Any], weights: F64, size: int) -> F64:
    """Return the sum of weights at each index, shape (size,), float64."""
    return np.bincount(index, weights=weights, minlength=size).astype(np.float64, copy=False)


def count_bits(plane: U8) -> F64:
    """Return the number of set bits in each row."""
    return np.bitwise_count(plane).sum(axis=1, dtype=np.int64).astype(np.float64)


def _select_bits(plane: U8, columns: NDArray[np.int64], n_models: int) -> U8:
    """Return the bit plane of some columns; numbers increase."""
    size = columns.size
    if size and columns[-1] == size - 1:
        part = plane[:, : (size + 7) // 8]
        if size % 8 == 0:
            return part
        part = part.copy()
        part[:, -1] &= (1 << (size % 8)) - 1
        return part
    bits = np.unpackbits(plane, axis=1, count=n_models, bitorder="little")
    return np.packbits(bits[:, columns], axis=1, bitorder="little")


def span_of(models: slice) -> slice:
    """Return the bytes of a bit plane that hold these models; the first must begin a byte."""
    return slice(models.start // 8, (models.stop + 7) // 8)


_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
_BYTES = {kind: _BITS.astype(kind) for kind in (np.float32, np.float64)}
"""The eight bits of every byte as numbers, shape (256, 8)."""


class Workspace:
    """Memory to unpack into: touching fresh memory for every piece costs more than unpacking it.

    Parameters
    ----------
    size
        Largest number of cells of a piece.
    kind
        float32 for products, float64 for what meets float64 cell by cell: mixing the two costs more than unpacking.
    """

    def __init__(self, size: int, kind: Kind = np.float32) -> None:
        self._bytes = _BYTES[kind]
        self._buffer = np.empty(size, dtype=kind)

    def unpack(self, part: U8, n_models: int) -> Any:
        """Return the bits of a rectangle of bytes as 0.0 and 1.0, shape (n_items, n_models)."""
        n_items, width = part.shape
        out = self._take(n_items * width * 8).reshape(n_items, width, 8)
        np.take(self._bytes, part, axis=0, out=out, mode="clip")
        return out.reshape(n_items, width * 8)[:, :n_models]

    def filled(self, items: slice, models: slice, value: float) -> Any:
        """Return a rectangle of one value."""
        shape = (items.stop - items.start, models.stop - models.start)
        out = self._take(shape[0] * shape[1]).reshape(shape)
        out.fill(value)
        return out

    def _take(self, size: int) -> Any:
        if size > self._buffer.size:
            self._buffer = np.empty(size, dtype=self._buffer.dtype)
        return self._buffer[:size]
