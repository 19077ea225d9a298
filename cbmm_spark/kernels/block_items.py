"""The items of one block solved at given abilities: on the nodes, and where few models answered on their own cells.

Source: method.md section 4, "Item stage".
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cbmm_spark.kernels.block_products import MODEL_PIECE, ScaleView, pieces
from cbmm_spark.kernels.cells import F32, Cells, DenseCells, SparseCells, Workspace
from cbmm_spark.kernels.items import ItemProblem, ItemSolution, solve_items
from cbmm_spark.kernels.model import F64


def own_cells(cells: Cells, rows: NDArray[np.int64], theta: F64) -> tuple[F64, F64]:
    """Return the observers' abilities and attempts of a few items, padded with zero attempts.

    Returns
    -------
    points, weights
        Shape (len(rows), most observers among them).
    """
    longest = max(int(cells.observers[rows].max(initial=0)), 1)
    points, weights = np.zeros((rows.size, longest)), np.zeros((rows.size, longest))
    if isinstance(cells, SparseCells):
        for out, row in enumerate(rows):  # a handful of items, each a slice copy
            span = slice(int(cells.indptr[row]), int(cells.indptr[row + 1]))
            size = span.stop - span.start
            points[out, :size], weights[out, :size] = theta[cells.indices[span]], cells.n[span]
        return points, weights
    filled = np.zeros(rows.size, dtype=np.int64)
    for models in pieces(cells.n_models, MODEL_PIECE):
        attempts = _attempts_of(cells, rows, models)
        item, model = np.nonzero(attempts)
        order = np.arange(item.size) - np.searchsorted(item, item)  # place among this item's cells of the piece
        place = filled[item] + order
        points[item, place] = theta[models][model]
        weights[item, place] = attempts[item, model]
        filled += np.bincount(item, minlength=rows.size)
    return points, weights


def _attempts_of(cells: DenseCells, rows: NDArray[np.int64], models: slice) -> F32:
    memory = Workspace(models.stop - models.start + 8)
    parts = [cells.attempts_of(slice(int(row), int(row) + 1), models, memory).copy() for row in rows]
    return np.concatenate(parts, axis=0) if parts else np.zeros((0, models.stop - models.start), dtype=np.float32)


def solve_own(cells: Cells, rows: NDArray[np.int64], weighted: F64, view: ScaleView, tolerance: float) -> ItemSolution:
    """Solve a few items on their own cells, exactly."""
    points, weights = own_cells(cells, rows, view.theta)
    problem = ItemProblem(
        points, weights, cells.successes[rows], weighted, view.ridge.discrimination, view.ridge.easiness
    )
    return solve_items(problem, tolerance=tolerance)


def solve_block(cells: Cells, view: ScaleView, counts: F64, weighted: F64, tolerance: float = 1e-6) -> ItemSolution:
    """Solve the items of a block on the nodes; items with fewer observers than nodes on their own cells.

    Parameters
    ----------
    cells, view
        The block and the scale.
    counts, weighted
        From `item_moments`.
    tolerance
        In standard errors.
    """
    problem = ItemProblem(
        view.nodes.abilities, counts, cells.successes, weighted, view.ridge.discrimination, view.ridge.easiness
    )
    few = np.flatnonzero(cells.observers < view.nodes.count)
    if few.size == 0:
        return solve_items(problem, tolerance=tolerance)
    if few.size == cells.n_items:
        if cells.is_complete:
            shared = ItemProblem(
                view.theta, np.ones((1, view.theta.size)), cells.successes, weighted, problem.ridge_a, problem.ridge_b
            )
            return solve_items(shared, tolerance=tolerance)
        return solve_own(cells, few, weighted, view, tolerance)
    many = np.flatnonzero(cells.observers >= view.nodes.count)
    on_nodes = solve_items(problem.take(many), tolerance=tolerance)
    own = solve_own(cells, few, weighted[few], view, tolerance)
    merged = [np.empty(cells.n_items) for _ in range(4)]
    for target, name in zip(merged, ("a", "b", "objective", "residual"), strict=True):
        target[many], target[few] = getattr(on_nodes, name), getattr(own, name)
    return ItemSolution(merged[0], merged[1], merged[2], merged[3], max(on_nodes.repeats, own.repeats))
