"""Scoring models against fixed items: one equation a model, no refit.

theta_i solves ``sum_j n_ij a_j P(a_j theta + b_j) + lambda theta = sum_j k_ij a_j``: the model stage of the fit with
the items given. A first pass tabulates the left side at nodes, from which every model's root is found at once; further
passes evaluate it exactly at the roots, correct them by Newton steps where that is needed, and are the certificate.
Answers to items whose parameters are not known are skipped and counted. Source: method.md section 6.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cbmm_spark.kernels.abilities import newton_abilities, solve_from_table
from cbmm_spark.kernels.cells import Block, Cells, CountCells, SparseCells, Workspace, weighted_count
from cbmm_spark.kernels.items import LARGEST_THETA, ItemSolution
from cbmm_spark.kernels.model import F64, Ridge
from cbmm_spark.kernels.nodes import Nodes, make_nodes
from cbmm_spark.kernels.passes import (
    EXACT_ITEM_PIECE,
    ITEM_PIECE,
    MODEL_PIECE,
    ScaleView,
    ability_tables,
    exact_sums,
    pieces,
    scores,
)

Index = NDArray[np.int64]

REACH = 3.0
"""Standard deviations that the first grid reaches beyond the known abilities; it doubles where a root lies outside."""

COUNTED = 4
"""Counts of every model before those by component: attempts, successes, known and unknown items answered."""


@dataclass(frozen=True)
class FrozenItems:
    """Known items of one benchmark, by item number less one.

    Attributes
    ----------
    a, b
        In the gauge of the fit, divided by sigma; NaN where unknown, shape (largest number,).
    component
        Component of each item from 1, 0 where unknown, same shape.
    """

    a: F64
    b: F64
    component: Index

    def of(self, start: int, size: int) -> tuple[F64, F64, Index]:
        """Return (a, b, component) of the items numbered from `start`; those beyond the last known are unknown."""
        part = slice(start - 1, start - 1 + size)
        a, b = (np.full(size, np.nan) for _ in range(2))
        component = np.zeros(size, dtype=np.int64)
        found = self.a[part].size
        a[:found], b[:found], component[:found] = self.a[part], self.b[part], self.component[part]
        return a, b, component


@dataclass(frozen=True)
class FrozenTask:
    """What a pass must know of one scale.

    Attributes
    ----------
    name
        Scale.
    items
        Its items by benchmark.
    models
        Positions of the models to score, increasing, shape (N,).
    ridge
        lambda of the abilities.
    nodes
        Grid of the first pass.
    theta
        Abilities at which sums are exact, shape (N,); None in the first pass.
    n_components
        Components of the scale.
    """

    name: str
    items: Mapping[str, FrozenItems]
    models: Index
    ridge: float
    nodes: Nodes
    theta: F64 | None = None
    n_components: int = 1

    @property
    def bound(self) -> float:
        """Largest ability: none where there is a penalty, which keeps all finite."""
        return np.inf if self.ridge > 0.0 else LARGEST_THETA


@dataclass
class FrozenSums:
    """Sums over items of one scale.

    Attributes
    ----------
    counts
        `COUNTED` counts and the known items answered of every component, shape (COUNTED + n_components, N).
    values
        First pass: score, then the table at the nodes, shape (1 + Q, N). Later: gradient and information, (2, N).
    loss
        Of all answers, exact; 0 in the first pass.
    steepest
        Largest discrimination met.
    """

    counts: F64
    values: F64
    loss: float = 0.0
    steepest: float = 0.0

    @classmethod
    def zeros(cls, task: FrozenTask) -> FrozenSums:
        """Return empty sums."""
        rows = 1 + task.nodes.count if task.theta is None else 2
        size = task.models.size
        return cls(np.zeros((COUNTED + task.n_components, size)), np.zeros((rows, size)))


def add_frozen_block(block: Block, task: FrozenTask, sums: FrozenSums) -> None:
    """Add what some models answered in one block, or a part of one; all of its models must be among the task's."""
    where = np.searchsorted(task.models, block.models)
    a, b, component = task.items[block.benchmark].of(block.item_start, block.cells.n_items)
    known = np.isfinite(a)
    if not known.all():
        _, _, skipped = answered(block.cells.take(np.flatnonzero(~known)))
        sums.counts[3, where] += skipped
    if not known.any():
        return
    cells = block.cells if known.all() else block.cells.take(np.flatnonzero(known))
    a, b, component = a[known], b[known], component[known]
    attempts, successes, items = answered(cells)
    sums.counts[:3, where] += [attempts, successes, items]
    for number in range(task.n_components):
        mine = component == number + 1
        part = items if mine.all() else answered(cells.take(np.flatnonzero(mine)))[2]
        sums.counts[COUNTED + number, where] += part
    sums.steepest = max(sums.steepest, float(a.max(initial=0.0)))
    if task.theta is None:
        nothing = np.zeros(0)
        view = ScaleView(nothing, task.nodes, nothing.astype(np.float32), Ridge(task.ridge, 0.0, 0.0))
        ((gradient, score),) = ability_tables(cells, [view], [ItemSolution(a, b, nothing, nothing, 0)])
        sums.values[0, where] += score
        sums.values[1:, where] += gradient.T
        return
    theta = task.theta[where]
    earned = scores(cells, a)
    sums.values[0, where] -= earned
    sums.loss -= float(cells.successes @ b + earned @ theta)
    for span in pieces(cells.n_items, cells.n_items if isinstance(cells, SparseCells) else EXACT_ITEM_PIECE):
        part_sums, (gradient, information) = exact_sums(cells, span, theta, a[span], b[span])
        sums.values[0, where] += gradient
        sums.values[1, where] += information
        sums.loss += part_sums.loss


def answered(cells: Cells) -> tuple[F64, F64, F64]:
    """Return attempts, successes and number of items answered of every model, each of shape (n_models,)."""
    if isinstance(cells, SparseCells):
        by_model = (weighted_count(cells.indices, x, cells.n_models) for x in (cells.n, cells.k))
        items = np.bincount(cells.indices, minlength=cells.n_models).astype(np.float64)
        return *by_model, items  # type: ignore[return-value]
    attempts, successes, items = np.zeros((3, cells.n_models))
    memory = Workspace(ITEM_PIECE * (MODEL_PIECE + 8))
    for rows in pieces(cells.n_items, ITEM_PIECE):
        for span in pieces(cells.n_models, MODEL_PIECE):
            n = cells.attempts_of(rows, span, memory)
            attempts[span] += n.sum(axis=0, dtype=np.float64)
            items[span] += np.count_nonzero(n, axis=0)
            if isinstance(cells, CountCells):
                successes[span] += cells.successes_at(rows, span).sum(axis=0)
            else:
                successes[span] += cells.successes_of(rows, span, memory).sum(axis=0, dtype=np.float64)
    return attempts, successes, items


@dataclass
class FrozenResult:
    """What the model stage makes of the sums; arrays of shape (N,).

    Attributes
    ----------
    theta
        First pass: the roots. Later: where a Newton step from the task's abilities leads.
    information
        Fisher information, without the ridge: at the roots, or exact at the task's abilities.
    residual
        Distance from the root, in standard errors; of the first pass 0, or infinite where the root lies beyond the
        nodes.
    """

    theta: F64
    information: F64
    residual: F64


def score_models(task: FrozenTask, theta: F64 | None, values: F64, steepest: float) -> FrozenResult:
    """Find the abilities of some models from their sums.

    Parameters
    ----------
    task
        The scale.
    theta
        The current abilities of these models; None in the first pass.
    values
        Their part of `FrozenSums.values`.
    steepest
        Largest discrimination.
    """
    if theta is None:
        update = solve_from_table(task.nodes, np.ascontiguousarray(values[1:].T), values[0], task.ridge)
        ends = task.nodes.abilities[[0, -1]]
        outside = (update.theta <= ends[0]) | (update.theta >= ends[1])
        outside &= np.abs(update.theta) < task.bound
        return FrozenResult(
            np.clip(update.theta, -task.bound, task.bound), update.information, np.where(outside, np.inf, 0.0)
        )
    gradient = values[0] + task.ridge * theta
    gradient = np.where((np.abs(theta) >= task.bound) & (gradient * theta < 0.0), 0.0, gradient)
    residual = np.abs(gradient) / np.sqrt(np.maximum(values[1] + task.ridge, 1e-300))
    new = newton_abilities(theta, values[0], values[1], task.ridge, steepest)
    return FrozenResult(np.clip(new, -task.bound, task.bound), values[1], residual)


def frozen_nodes(theta: F64, doublings: int, spacing: float, least: int, most: int) -> Nodes:
    """Lay the grid of the first pass over known abilities and `REACH` beyond, twice as far with every doubling.

    Parameters
    ----------
    theta
        Abilities of the run whose items are used, in the gauge of the fit.
    doublings
        How often roots were found outside.
    spacing, least, most
        As in `make_nodes`.
    """
    spread = float(theta.std()) if theta.size and float(theta.std()) > 0.0 else 1.0
    middle = float(np.median(theta)) if theta.size else 0.0
    low, high = (float(theta.min()), float(theta.max())) if theta.size else (middle, middle)
    reach = REACH * spread * 2.0**doublings
    body = theta if theta.size else np.array([middle - spread, middle + spread])
    return make_nodes(np.concatenate([body, [low - reach, high + reach]]), spacing, least, most)
