"""Products of one block's cells with vectors and matrices, over items and over models.

This is where the cells are unpacked; everything here is a matrix product over pieces of a block that fit the cache.
Source: method.md section 4.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from cbmm_spark.kernels.cells import F32, Cells, CountCells, DenseCells, SparseCells, Workspace, weighted_count
from cbmm_spark.kernels.items import ItemSolution
from cbmm_spark.kernels.model import F64, Ridge
from cbmm_spark.kernels.nodes import ORDER, Nodes, local_weights, weight_matrix, weight_sums

ITEM_PIECE, MODEL_PIECE = 128, 2048
"""Rectangle of cells unpacked at once: two float32 planes of it are 2 MB."""


@dataclass(frozen=True)
class ScaleView:
    """What a block needs to know of a scale: the abilities of its models and the nodes.

    Attributes
    ----------
    theta
        Abilities of the block's models, shape (n_models,).
    nodes
        The grid.
    weights
        Interpolation weights B of those abilities, shape (n_models, Q), float32.
    ridge
        Penalty, for parameters divided by sigma.
    """

    theta: F64
    nodes: Nodes
    weights: F32
    ridge: Ridge

    @classmethod
    def of(cls, theta: F64, nodes: Nodes, ridge: Ridge) -> ScaleView:
        """Build a view, computing B."""
        return cls(theta, nodes, weight_matrix(nodes, theta), ridge)


def pieces(n: int, size: int) -> Iterator[slice]:
    """Cut range(n) into slices of at most `size`."""
    for start in range(0, n, size):
        yield slice(start, min(n, start + size))


SPLITS = 3


def split_exact(x: F64, terms: int) -> F32:
    """Return x as three float32 columns that float32 arithmetic can add up without any rounding.

    Column c is a multiple of a power of two chosen so that a sum of `terms` of its entries stays within 24 bits; the
    columns together hold x to about 1e-11 of its largest entry. So a float32 product of a 0/1 matrix with them is
    exact.

    Parameters
    ----------
    x
        Shape (N,).
    terms
        Longest sum that will be taken in float32.
    """
    columns, rest = [], x
    for _ in range(SPLITS):
        largest = float(np.abs(rest).max(initial=0.0))
        if largest == 0.0:
            columns.append(np.zeros(x.size, dtype=np.float32))
            continue
        unit = 2.0 ** (np.ceil(np.log2(largest)) + np.ceil(np.log2(terms)) - 24)
        part = np.round(rest / unit) * unit
        columns.append(part.astype(np.float32))
        rest = rest - part
    return np.stack(columns, axis=1)


def sum_of_splits(sums: F64, scale: int) -> F64:
    """Add up the three columns of one scale."""
    return sums[:, SPLITS * scale : SPLITS * (scale + 1)].sum(axis=1)


# ------------------------------------------------------------------------------------------------ item side
def item_moments(cells: Cells, views: list[ScaleView]) -> list[tuple[F64, F64]]:
    """Return, per scale, (C, s): attempts at the nodes and ability-weighted successes of every item.

    Returns
    -------
    list of (C, s)
        C of shape (n_items, Q), or (1, Q) where the block is complete; s of shape (n_items,); both float64.
    """
    if isinstance(cells, SparseCells):
        shape = (cells.n_items, cells.n_models)
        attempts = csr_array((cells.n, cells.indices, cells.indptr), shape=shape)
        successes = csr_array((cells.k, cells.indices, cells.indptr), shape=shape)
        return [(_sparse_counts(attempts, v), np.asarray(successes @ v.theta)) for v in views]
    counts = [np.zeros((cells.n_items, v.nodes.count)) for v in views]
    abilities = np.concatenate([split_exact(v.theta, MODEL_PIECE) for v in views], axis=1)
    sums = np.zeros((cells.n_items, abilities.shape[1]))
    listed = cells.missing_list
    if listed is not None:
        counts = [(listed @ v.weights).astype(np.float64) for v in views]
    memory = Workspace(ITEM_PIECE * (MODEL_PIECE + 8))
    for items in pieces(cells.n_items, ITEM_PIECE):
        for models in pieces(cells.n_models, MODEL_PIECE):
            sums[items] += _by_models(cells, items, models, memory, abilities)
            if not cells.is_complete and listed is None:
                mask = _mask_of(cells, items, models, memory)
                for view, count in zip(views, counts, strict=True):
                    count[items] += mask @ view.weights[models]
    results = []
    for number, (view, count) in enumerate(zip(views, counts, strict=True)):
        whole = weight_sums(view.nodes, view.theta)[None, :]
        if cells.is_complete:
            observed = whole
        else:
            observed = whole - count if cells.is_mostly_observed else count  # a list of missing cells is a short one
            # float32 sums of B drift together; the row sums are known exactly
            observed *= (cells.attempts / np.maximum(observed.sum(axis=1), 1e-300))[:, None]
        results.append((observed, sum_of_splits(sums, number)))
    return results


def _sparse_counts(attempts: csr_array, view: ScaleView) -> F64:
    """Return C with B as it is, a few float64 weights a model: eight products a cell instead of one for every node."""
    start, weights = local_weights(view.nodes, view.theta)
    places = (start[:, None] + np.arange(ORDER)).ravel()
    indptr = np.arange(0, places.size + 1, ORDER)
    b = csr_array((weights.ravel(), places, indptr), shape=(view.theta.size, view.nodes.count))
    return np.asarray((attempts @ b).toarray())


def _mask_of(cells: DenseCells, items: slice, models: slice, memory: Workspace) -> F32:
    """Return whichever of missing and attempted cells are fewer: float32 sums over fewer cells lose less."""
    if cells.is_mostly_observed:
        return cells.missing_of(items, models, memory)
    return cells.attempts_of(items, models, memory)


def _by_models(cells: DenseCells, items: slice, models: slice, memory: Workspace, split: F32) -> NDArray[np.floating]:
    """Return K times the columns of `split_exact`: in float32 for bits, in float64 for counts and fractions."""
    if isinstance(cells, CountCells):
        return cells.successes_at(items, models) @ split[models].astype(np.float64)
    return cells.successes_of(items, models, memory) @ split[models]


def _by_items(cells: DenseCells, items: slice, models: slice, memory: Workspace, split: F32) -> NDArray[np.floating]:
    """Return K transposed times the columns of `split_exact`; see `_by_models`."""
    if isinstance(cells, CountCells):
        return cells.successes_at(items, models).T @ split[items].astype(np.float64)
    return cells.successes_of(items, models, memory).T @ split[items]


# ------------------------------------------------------------------------------------------------ model side
def ability_tables(cells: Cells, views: list[ScaleView], solutions: list[ItemSolution]) -> list[tuple[F64, F64]]:
    """Return, per scale, (G, S): the gradient of every model at every node, and its weighted score.

    Returns
    -------
    list of (G, S)
        G of shape (n_models, Q), or (1, Q) where the block is complete; S of shape (n_models,).
    """
    tables, scores = [], []
    for view, items in zip(views, solutions, strict=True):
        tables.append(_gradients_at_nodes(view.nodes, items))
        scores.append(items.a)
    return table_sums(cells, tables, scores)


def table_sums(cells: Cells, tables: list[F64], scores: list[F64]) -> list[tuple[F64, F64]]:
    """Return, per table, the sum of its rows over the attempts of every model, and of the scores over its successes.

    Parameters
    ----------
    cells
        The block.
    tables
        What an attempt at each item counts at every node, each of shape (n_items, Q).
    scores
        What a success at each item counts, each of shape (n_items,).

    Returns
    -------
    list of (G, S)
        As `ability_tables`.
    """
    if isinstance(cells, SparseCells):
        shape = (cells.n_items, cells.n_models)
        attempts = csr_array((cells.n, cells.indices, cells.indptr), shape=shape).T
        successes = csr_array((cells.k, cells.indices, cells.indptr), shape=shape).T
        return [(np.asarray(attempts @ t), np.asarray(successes @ a)) for t, a in zip(tables, scores, strict=True)]
    earned = np.concatenate([split_exact(a, ITEM_PIECE) for a in scores], axis=1)
    sums = np.zeros((cells.n_models, earned.shape[1]))
    gradients = [np.zeros((cells.n_models, t.shape[1])) for t in tables]
    tables32 = [t.astype(np.float32) for t in tables]
    listed = cells.missing_list
    if listed is not None:
        gradients = [(listed.T @ t).astype(np.float64) for t in tables32]
    memory = Workspace(ITEM_PIECE * (MODEL_PIECE + 8))
    for items_piece in pieces(cells.n_items, ITEM_PIECE):
        for models in pieces(cells.n_models, MODEL_PIECE):
            sums[models] += _by_items(cells, items_piece, models, memory, earned)
            if not cells.is_complete and listed is None:
                mask = _mask_of(cells, items_piece, models, memory).T
                for gradient, rounded in zip(gradients, tables32, strict=True):
                    gradient[models] += mask @ rounded[items_piece]
    results = []
    for number, (table, gradient) in enumerate(zip(tables, gradients, strict=True)):
        whole = table.sum(axis=0)[None, :]
        if cells.is_complete:
            results.append((whole, sum_of_splits(sums, number)))
        else:
            results.append((whole - gradient if cells.is_mostly_observed else gradient, sum_of_splits(sums, number)))
    return results


def _gradients_at_nodes(nodes: Nodes, items: ItemSolution) -> F64:
    """Return a P(a t + b) at every node t, shape (n_items, Q)."""
    x = np.multiply(0.5 * items.a[:, None], nodes.abilities)
    x += 0.5 * items.b[:, None]
    np.tanh(x, out=x)
    x += 1.0
    x *= 0.5 * items.a[:, None]
    return x


def scores(cells: Cells, a: F64) -> F64:
    """Return S: every model's successes weighted by discrimination, shape (n_models,), float64."""
    if isinstance(cells, SparseCells):
        return weighted_count(cells.indices, cells.k * a[cells.item], cells.n_models)
    total = np.zeros((cells.n_models, SPLITS))
    earned = split_exact(a, ITEM_PIECE)
    memory = Workspace(ITEM_PIECE * (MODEL_PIECE + 8))
    for items in pieces(cells.n_items, ITEM_PIECE):
        for models in pieces(cells.n_models, MODEL_PIECE):
            total[models] += _by_items(cells, items, models, memory, earned)
    return total.sum(axis=1)
