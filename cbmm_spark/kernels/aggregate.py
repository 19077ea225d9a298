"""What one partition of item blocks contributes to an iteration, and what a partition of models makes of it.

A pass takes theta and returns, for every scale, sums over items (tables, scores, exact gradients) plus a few totals.
It is the same code in one process and in a Spark worker: `fit.spark_blocks` moves the sums, this module computes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np

from cbmm_spark.kernels.abilities import interpolate, newton_abilities, solve_from_table
from cbmm_spark.kernels.block_items import solve_block
from cbmm_spark.kernels.block_products import ScaleView, ability_tables, item_moments
from cbmm_spark.kernels.cells import F32, Block, Cells, ItemKey, columns
from cbmm_spark.kernels.exact import ITEM_TOLERANCE, ExactResult, evaluate_block, exact_block
from cbmm_spark.kernels.items import LARGEST_THETA, Box, ItemSolution
from cbmm_spark.kernels.model import F64, Index, Items, Ridge
from cbmm_spark.kernels.nodes import Nodes, weight_matrix

Mode = Literal["nodes", "exact", "late", "fixed"]
"""``nodes``: items and tables on the nodes. ``exact``: items on their own cells, tables corrected by exact gradients.
``late``: items on their own cells, models by Newton steps from exact sums; no table at all.
``fixed``: as ``late`` with the items given instead of solved."""

EXACT_RESIDUAL = 1e-6
"""Residual, in standard errors, to which items are solved on the nodes before they go on on their own cells."""


@dataclass(frozen=True)
class ScaleTask:
    """What a pass must know of one scale; small enough to travel in a closure.

    Attributes
    ----------
    name
        Scale.
    benchmarks
        Benchmarks whose items belong to it.
    models
        Positions of the scale's models among all models, increasing, shape (N,).
    theta
        Their abilities, shape (N,).
    nodes, ridge
        Grid and penalty (for parameters divided by sigma).
    mode
        What to compute.
    items
        In mode ``fixed``: (a, b) of every item block of the scale.
    item_tolerance
        Residual, in standard errors, to which items are solved on their own cells.
    steepest
        Largest discrimination of the last pass: it bounds how far a Newton step of an ability is safe.
    node_tolerance
        Residual, in standard errors, to which items are solved on the nodes. An item's objective is within half its
        square of the minimum.
    """

    name: str
    benchmarks: frozenset[str]
    models: Index
    theta: F64
    nodes: Nodes
    ridge: Ridge
    mode: Mode
    items: Mapping[ItemKey, Items] | None = None
    item_tolerance: float = ITEM_TOLERANCE
    steepest: float = 0.0
    node_tolerance: float = EXACT_RESIDUAL

    @property
    def has_table(self) -> bool:
        """Whether abilities are solved from tables at the nodes."""
        return self.mode in ("nodes", "exact")

    @cached_property
    def weights(self) -> F32:
        """B of the scale's models, shape (N, Q): computed once a partition, not sent."""
        return weight_matrix(self.nodes, self.theta)

    def places(self, models: Index) -> Index | slice:
        """Return where a block's models stand among the scale's; every model with a response is one of them."""
        return columns(np.searchsorted(self.models, models))

    def view(self, models: Index | slice) -> ScaleView:
        """Return what a block needs of these models, given by their places."""
        return ScaleView(self.theta[models], self.nodes, self.weights[models], self.ridge)

    def __getstate__(self) -> dict[str, object]:
        """Leave B behind when sent to a worker."""
        return {k: v for k, v in self.__dict__.items() if k != "weights"}


@dataclass
class Totals:
    """Sums over the items of one scale, the largest residual, repeats and discrimination; `add` merges two."""

    loss: float = 0.0
    node_error: float = 0.0
    penalty: float = 0.0
    a_square: float = 0.0
    ab_sum: float = 0.0
    residual: float = 0.0
    repeats: float = 0.0
    steepest: float = 0.0
    at_bound: float = 0.0

    def add(self, other: Totals) -> None:
        """Merge: sums add, of the others the larger one stays."""
        self.loss += other.loss
        self.node_error += other.node_error
        self.penalty += other.penalty
        self.a_square += other.a_square
        self.ab_sum += other.ab_sum
        self.residual = max(self.residual, other.residual)
        self.repeats = max(self.repeats, other.repeats)
        self.steepest = max(self.steepest, other.steepest)
        self.at_bound += other.at_bound


@dataclass
class ScaleSums:
    """Per-model sums of one scale over some item blocks.

    Attributes
    ----------
    table
        G at the nodes, shape (N, Q); None in modes that need no table.
    score
        S, shape (N,).
    gradient, information
        Exact sums at theta, shape (N,); zero in mode ``nodes``.
    totals
        Sums over items.
    """

    table: F64 | None
    score: F64
    gradient: F64
    information: F64
    totals: Totals = field(default_factory=Totals)

    @classmethod
    def zeros(cls, task: ScaleTask) -> ScaleSums:
        """Return empty sums for a task."""
        size = task.theta.size
        table = np.zeros((size, task.nodes.count)) if task.has_table else None
        return cls(table, np.zeros(size), np.zeros(size), np.zeros(size))

    def add(self, other: ScaleSums) -> None:
        """Add another partition's sums."""
        if self.table is not None and other.table is not None:
            self.table += other.table
        self.score += other.score
        self.gradient += other.gradient
        self.information += other.information
        self.totals.add(other.totals)


def add_block(cells: Cells, models: Index, tasks: Sequence[ScaleTask], sums: Mapping[str, ScaleSums]) -> None:
    """Add one item block to the sums of every scale it belongs to.

    Parameters
    ----------
    cells
        The block.
    models
        Which model (position among all models) each column is, increasing, shape (n_models,).
    tasks
        The scales this block's benchmark belongs to.
    sums
        By scale name; added to.
    """
    places = [task.places(models) for task in tasks]
    views = [task.view(where) for task, where in zip(tasks, places, strict=True)]
    moments = item_moments(cells, views)
    solutions: list[ItemSolution] = []
    tabled: list[int] = []
    for number, (task, view, (counts, weighted)) in enumerate(zip(tasks, views, moments, strict=True)):
        solution = solve_block(cells, view, counts, weighted, task.node_tolerance)
        out = sums[task.name]
        if task.mode == "nodes":
            ridge = 0.5 * (task.ridge.discrimination * solution.a**2 + task.ridge.easiness * solution.b**2)
            out.totals.loss += float((solution.objective - ridge).sum())
            residual = solution.residual
        else:
            exact = exact_block(cells, view, solution, counts, weighted, task.item_tolerance)
            solution = ItemSolution(exact.a, exact.b, solution.objective, exact.residual, solution.repeats)
            _add_exact(out, places[number], exact)
            residual = exact.residual
        _add_items(out.totals, task.ridge, solution, residual)
        solutions.append(solution)
        if task.has_table:
            tabled.append(number)
    if tabled:
        results = ability_tables(cells, [views[i] for i in tabled], [solutions[i] for i in tabled])
        for number, (gradient, score) in zip(tabled, results, strict=True):
            out = sums[tasks[number].name]
            assert out.table is not None
            out.table[places[number]] += gradient
            out.score[places[number]] += score


def add_fixed_block(block: Block, task: ScaleTask, out: ScaleSums) -> None:
    """Evaluate one item block exactly at given item parameters (mode ``fixed``)."""
    assert task.items is not None
    a, b = task.items[(block.benchmark, block.item_start)]
    where = task.places(block.models)
    exact = evaluate_block(block.cells, task.view(where), a, b)
    _add_exact(out, where, exact)
    _add_items(out.totals, task.ridge, ItemSolution(a, b, np.zeros_like(a), exact.residual, 0), exact.residual)


def _add_items(totals: Totals, ridge: Ridge, items: ItemSolution, residual: F64) -> None:
    a_square = float(items.a @ items.a)
    totals.a_square += a_square
    totals.ab_sum += float(items.a @ items.b)
    totals.penalty += 0.5 * (ridge.discrimination * a_square + ridge.easiness * float(items.b @ items.b))
    totals.residual = max(totals.residual, float(residual.max(initial=0.0)))
    totals.repeats = max(totals.repeats, items.repeats)
    totals.steepest = max(totals.steepest, float(items.a.max(initial=0.0)))
    box = Box.of(ridge.discrimination, ridge.easiness)
    totals.at_bound += float(np.count_nonzero((items.a >= box.a) | (np.abs(items.b) >= box.b)))


def _add_exact(out: ScaleSums, where: Index | slice, exact: ExactResult) -> None:
    out.totals.loss += exact.loss
    out.totals.node_error += exact.node_loss - exact.loss
    out.gradient[where] += exact.gradient
    out.information[where] += exact.information


# ------------------------------------------------------------------------------------------------ models
@dataclass
class ModelResult:
    """What the model stage returns for some models; arrays of shape (N,).

    Attributes
    ----------
    theta
        Image of the alternation, before the gauge.
    information
        Fisher information at the old theta (exact) or the new (tables).
    residual
        Exact gradient, ridge included, in standard errors; NaN-free zeros in mode ``nodes``.
    """

    theta: F64
    information: F64
    residual: F64


def model_stage(task: ScaleTask, theta: F64, sums: ScaleSums) -> ModelResult:
    """Update the abilities of some models from their summed tables and exact sums.

    Parameters
    ----------
    task
        The scale (its own theta is not used, so that a part of the models can be given).
    theta
        Current abilities of these models.
    sums
        Their sums.
    """
    ridge = task.ridge.ability
    bound = np.inf if ridge > 0.0 else LARGEST_THETA
    if task.mode == "nodes":
        assert sums.table is not None
        update = solve_from_table(task.nodes, sums.table, sums.score, ridge)
        return ModelResult(np.clip(update.theta, -bound, bound), update.information, np.zeros_like(theta))
    gradient = sums.gradient + ridge * theta
    gradient = np.where((np.abs(theta) >= bound) & (gradient * theta < 0.0), 0.0, gradient)  # it pushes outwards
    residual = np.abs(gradient) / np.sqrt(np.maximum(sums.information + ridge, 1e-300))
    if not task.has_table:
        new = newton_abilities(theta, sums.gradient, sums.information, ridge, task.steepest)
        return ModelResult(np.clip(new, -bound, bound), sums.information, residual)
    assert sums.table is not None
    tabulated, _ = interpolate(task.nodes, sums.table, theta)
    update = solve_from_table(task.nodes, sums.table, sums.score, ridge, sums.gradient + sums.score - tabulated)
    return ModelResult(np.clip(update.theta, -bound, bound), sums.information, residual)
