"""cBMM exactly as published, block by block: for whoever wants to reproduce the paper on data that one machine
cannot hold.

One sweep majorizes once with the uniform curvature 1/4 and updates a, b and theta in turn on that majorizer; it
costs one exponential a cell. Unlike the solver of this project the items carry state, (a, b), which travels with theta.
Source: Qu, Heng, Zeng & Liu (arXiv:2605.07046); method.md section 3. Parameters are divided by sigma here, so the
majorizer's step is ``4 (k - n P)`` and a penalty lambda adds 4 lambda to a denominator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from cbmm_spark.kernels.block_products import pieces
from cbmm_spark.kernels.cells import Block, Cells, CountCells, ItemKey, SparseCells, Workspace, columns, weighted_count
from cbmm_spark.kernels.model import F64, Index, Items, Ridge

ITEM_PIECE, MODEL_PIECE = 64, 1024


@dataclass(frozen=True)
class PaperTask:
    """A sweep of one scale.

    Attributes
    ----------
    name, benchmarks
        Scale.
    models, theta
        Positions and abilities of its models, shape (N,).
    items
        (a, b) of every item block, divided by sigma; a block that is not there starts from the accuracy start.
    ridge
        Penalty, zero for the paper.
    """

    name: str
    benchmarks: frozenset[str]
    models: Index
    theta: F64
    items: Mapping[ItemKey, Items]
    ridge: Ridge

    def of_block(self, block: Block) -> Items:
        """Return (a, b) of a block's items."""
        known = self.items.get((block.benchmark, block.item_start))
        return known if known is not None else start_items(block.cells)


@dataclass
class PaperSums:
    """What a sweep sums over items: numerator and denominator of every theta, F where it started, new items."""

    numerator: F64
    denominator: F64
    loss: float = 0.0
    penalty: float = 0.0
    items: dict[ItemKey, Items] = field(default_factory=dict)

    @classmethod
    def zeros(cls, size: int) -> PaperSums:
        """Return empty sums for so many models."""
        return cls(np.zeros(size), np.zeros(size))

    def add(self, other: PaperSums) -> None:
        """Add another partition's sums."""
        self.numerator += other.numerator
        self.denominator += other.denominator
        self.loss += other.loss
        self.penalty += other.penalty
        self.items.update(other.items)


def start_items(cells: Cells) -> Items:
    """Return the accuracy start: a = 1, b = smoothed log-odds of the item (divided by sigma)."""
    odds = np.log(cells.successes + 0.5) - np.log(cells.attempts - cells.successes + 0.5)
    return np.ones(cells.n_items), odds


def add_paper_block(block: Block, task: PaperTask, out: PaperSums) -> None:
    """Sweep one block: new items into `out.items`, the models' sums added."""
    where = columns(np.searchsorted(task.models, block.models))
    theta = task.theta[where]
    a, b = task.of_block(block)
    new_a, new_b = np.empty_like(a), np.empty_like(b)
    numerator, denominator = np.zeros(theta.size), np.zeros(theta.size)
    sweep = _sweep_sparse if isinstance(block.cells, SparseCells) else _sweep_dense
    size = block.cells.n_items if isinstance(block.cells, SparseCells) else ITEM_PIECE
    for items in pieces(block.cells.n_items, size):
        out.loss += sweep(block.cells, items, theta, (a, b), (new_a, new_b), task.ridge, numerator, denominator)
    out.penalty += 0.5 * (task.ridge.discrimination * float(a @ a) + task.ridge.easiness * float(b @ b))
    out.numerator[where] += numerator
    out.denominator[where] += denominator
    out.items[(block.benchmark, block.item_start)] = (new_a, new_b)


def update_theta(task: PaperTask, sums: PaperSums) -> F64:
    """Return the next theta: the closed form; a model without information keeps its ability."""
    denominator = sums.denominator + 4.0 * task.ridge.ability
    return np.where(denominator > 0.0, sums.numerator / np.where(denominator > 0.0, denominator, 1.0), task.theta)


def _new_items(
    items: slice, old: Items, new: Items, ridge: Ridge, sums: tuple[F64, F64, F64, F64, F64]
) -> tuple[F64, F64]:
    """The two closed forms, from sum n, n theta, n theta^2, and the residual 4(k - nP) plain and times theta."""
    n, n_theta, n_theta2, rest, rest_theta = sums
    a, b = old[0][items], old[1][items]
    bottom_a, bottom_b = n_theta2 + 4.0 * ridge.discrimination, n + 4.0 * ridge.easiness
    next_a = np.maximum(0.0, np.where(bottom_a > 0.0, (a * n_theta2 + rest_theta) / np.maximum(bottom_a, 1e-300), a))
    toward = a * n_theta + rest + n * b - n_theta * next_a
    next_b = np.where(bottom_b > 0.0, toward / np.maximum(bottom_b, 1e-300), b)
    new[0][items], new[1][items] = next_a, next_b
    return next_a, next_b


def _sweep_dense(
    cells: Cells, items: slice, theta: F64, old: Items, new: Items, ridge: Ridge, numerator: F64, denominator: F64
) -> float:
    assert not isinstance(cells, SparseCells)
    a, b = old[0][items], old[1][items]
    size = items.stop - items.start
    sums = tuple(np.zeros(size) for _ in range(5))
    rest = np.empty((size, theta.size))
    attempts, successes = Workspace(size * (MODEL_PIECE + 8)), Workspace(size * (MODEL_PIECE + 8))
    loss = 0.0
    for models in pieces(theta.size, MODEL_PIECE):
        n = cells.attempts_of(items, models, attempts).astype(np.float64)
        if isinstance(cells, CountCells):
            k = cells.successes_at(items, models)
        else:
            k = cells.successes_of(items, models, successes).astype(np.float64)
        th = theta[models]
        part, piece_loss = _rest(a[:, None] * th + b[:, None], n, k)
        rest[:, models] = part
        loss += piece_loss
        for total, value in zip(sums, (n.sum(axis=1), n @ th, n @ (th * th), part.sum(axis=1), part @ th), strict=True):
            total += value
    next_a, next_b = _new_items(items, old, new, ridge, (sums[0], sums[1], sums[2], sums[3], sums[4]))
    for models in pieces(theta.size, MODEL_PIECE):
        n = cells.attempts_of(items, models, attempts).astype(np.float64)
        numerator[models] += next_a @ rest[:, models] + (next_a * a) @ n * theta[models] + (next_a * (b - next_b)) @ n
        denominator[models] += (next_a * next_a) @ n
    return loss


def _sweep_sparse(
    cells: Cells, items: slice, theta: F64, old: Items, new: Items, ridge: Ridge, numerator: F64, denominator: F64
) -> float:
    assert isinstance(cells, SparseCells)
    item, model, n, size = cells.item, cells.indices, cells.n, cells.n_items
    a, b = old
    th = theta[model]
    rest, loss = _rest(a[item] * th + b[item], n, cells.k)
    sums = (
        cells.attempts,
        weighted_count(item, n * th, size),
        weighted_count(item, n * th * th, size),
        weighted_count(item, rest, size),
        weighted_count(item, rest * th, size),
    )
    next_a, next_b = _new_items(items, old, new, ridge, sums)
    share = next_a[item] * (rest + n * (a[item] * th + (b - next_b)[item]))
    numerator += weighted_count(model, share, theta.size)
    denominator += weighted_count(model, n * next_a[item] ** 2, theta.size)
    return loss


def _rest(x: F64, n: F64, k: F64) -> tuple[F64, float]:
    """Return 4 (k - n P) of every cell, and the loss summed without cancellation."""
    small = np.exp(-np.abs(x))
    p = np.where(x >= 0.0, 1.0, small) / (1.0 + small)
    linear = np.where(x >= 0.0, (n - k) * x, -k * x)
    return 4.0 * (k - n * p), float((linear + n * np.log1p(small)).sum())


# ------------------------------------------------------------------------------------------------ outer loop
@dataclass
class PaperFit:
    """State and result of a scale fitted by the paper's recurrence; parameters divided by sigma."""

    task: PaperTask
    history: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    converged: bool = False

    @property
    def objective(self) -> float:
        """F at the point reached."""
        return self.history[-1] if self.history else np.inf


RunSweep = Callable[[Sequence[PaperTask]], dict[str, PaperSums]]


def settled(history: Sequence[float], tolerance: float) -> bool:
    """The paper's rule: the objective changed by less than a share of itself."""
    return len(history) > 1 and abs(history[-2] - history[-1]) <= tolerance * abs(history[-2])


def sweep_blocks(blocks: Sequence[Block], tasks: Sequence[PaperTask]) -> dict[str, PaperSums]:
    """Compute one sweep over blocks in this process."""
    sums = {task.name: PaperSums.zeros(task.theta.size) for task in tasks}
    for block in blocks:
        for task in tasks:
            if block.benchmark in task.benchmarks:
                add_paper_block(block, task, sums[task.name])
    return sums


def run_paper(
    tasks: Sequence[PaperTask],
    run_sweep: RunSweep,
    tolerance: float = 1e-4,
    max_sweeps: int = 10_000,
    listener: Callable[[PaperFit], None] | None = None,
) -> list[PaperFit]:
    """Sweep until every scale has settled or used its sweeps.

    Parameters
    ----------
    tasks
        First point of every scale.
    run_sweep
        Computes one sweep.
    tolerance
        Relative change of F; 1e-4 is the paper's.
    max_sweeps
        Bound; a scale that reaches it has converged = False. One more sweep then only measures F where it ended.
    listener
        Called after each sweep.
    """
    fits = [PaperFit(task) for task in tasks]
    while active := [fit for fit in fits if not fit.converged and len(fit.history) <= max_sweeps]:
        results = run_sweep([fit.task for fit in active])
        for fit in active:
            task, sums = fit.task, results[fit.task.name]
            square = float(task.theta @ task.theta)
            fit.history.append(sums.loss + sums.penalty + 0.5 * task.ridge.ability * square)
            if settled(fit.history, tolerance):
                # F was measured at the point before this sweep: that point, with its items, is the result
                fit.converged = True
            elif len(fit.history) <= max_sweeps:
                theta = update_theta(task, sums)
                fit.task = PaperTask(task.name, task.benchmarks, task.models, theta, sums.items, task.ridge)
            if listener is not None:
                listener(fit)
    return fits
