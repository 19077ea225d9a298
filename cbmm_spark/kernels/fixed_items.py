"""Scoring models against fixed items: one equation a model, no refit.

theta_i solves ``sum_j n_ij a_j P(a_j theta + b_j) + lambda theta = sum_j k_ij a_j``: the model stage of the fit with
the items given. Models are independent of each other, so some models with all they answered are solved at one place: a
first pass tabulates the left side at nodes, from which every root is found at once; further passes evaluate it exactly
at the roots, correct them by Newton steps where that is needed, and are the certificate. Answers to items that are not
known are skipped and counted.

A *fresh* model is one that the items were not fitted to. In a joint fit every model pulls its items towards its own
answers and so moves a little further from the middle: by the share 1/N of the items' information that it brings. Fixed
items lack that pull, which with J items amounts to ``J/N`` in the equation above, and where J is many times N to tenths
of a standard error. It is added in expectation (`pull`), so that a fresh model stands where it would have stood among
the run's own. Source: docs/linking.md; the pull is this project's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from cbmm_spark.kernels.abilities import newton_abilities, solve_from_table
from cbmm_spark.kernels.block_products import ITEM_PIECE, MODEL_PIECE, pieces, scores, table_sums
from cbmm_spark.kernels.cells import Block, Cells, CountCells, SparseCells, Workspace, weighted_count
from cbmm_spark.kernels.exact import EXACT_ITEM_PIECE, EXACT_MODEL_PIECE
from cbmm_spark.kernels.items import LARGEST_THETA
from cbmm_spark.kernels.linking import NODES, item_variance, quantiles
from cbmm_spark.kernels.model import F64, Index, Ridge, sigmoid
from cbmm_spark.kernels.nodes import Nodes, make_nodes

Mask = NDArray[np.bool_]

REACH = 3.0
"""Standard deviations that the first grid reaches beyond the known abilities; it doubles where a root lies outside."""

MOST_DOUBLINGS = 40
"""Doublings after which roots count as infinite; a penalty keeps all of them finite long before."""

COUNTED = 4
"""Counts of every model before those by component: attempts, successes, known and unknown items answered."""


@dataclass(frozen=True)
class FrozenItems:
    """Known items of one benchmark, by item number less one.

    Attributes
    ----------
    a, b
        In the gauge of the fit, divided by sigma; NaN where unknown, shape (largest number,).
    n
        Models that each was fitted to, same shape.
    component
        Component of each item from 1, 0 where unknown, same shape.
    """

    a: F64
    b: F64
    n: F64
    component: Index

    def of(self, start: int, size: int) -> FrozenItems:
        """Return the items numbered from `start`; those beyond the last known are unknown."""
        part = slice(start - 1, start - 1 + size)
        found = self.a[part].size
        padded = FrozenItems(np.full(size, np.nan), np.full(size, np.nan), np.zeros(size), np.zeros(size, np.int64))
        padded.a[:found], padded.b[:found], padded.n[:found] = self.a[part], self.b[part], self.n[part]
        padded.component[:found] = self.component[part]
        return padded

    def take(self, rows: Index | Mask) -> FrozenItems:
        """Return some of the items."""
        return FrozenItems(self.a[rows], self.b[rows], self.n[rows], self.component[rows])


@dataclass(frozen=True)
class FrozenTask:
    """What scoring on one scale must know.

    Attributes
    ----------
    name
        Scale.
    items
        Its items by benchmark.
    models
        Positions of the models to score, increasing, shape (N,).
    fresh
        Which of them the items were not fitted to, shape (N,).
    ridge
        Penalty, for parameters divided by sigma.
    sample
        Abilities of the run whose items are used, in the gauge of its fit; where items are known, there are some.
    n_components
        Components of the scale.
    spacing, least, most
        Of the nodes, see `make_nodes`.
    tolerance
        In standard errors.
    max_passes
        Exact passes at most.
    """

    name: str
    items: Mapping[str, FrozenItems]
    models: Index
    fresh: Mask
    ridge: Ridge
    sample: F64
    n_components: int = 1
    spacing: float = 0.2
    least: int = 32
    most: int = 96
    tolerance: float = 1e-4
    max_passes: int = 500

    @property
    def bound(self) -> float:
        """Largest ability: none where there is a penalty, which keeps all finite."""
        return np.inf if self.ridge.ability > 0.0 else LARGEST_THETA

    @cached_property
    def distribution(self) -> F64:
        """The sample, told by quantiles where it is long."""
        return self.sample if self.sample.size <= NODES else quantiles(self.sample)

    def part(self, places: slice) -> FrozenTask:
        """Return the task for some of the models."""
        return replace(self, models=self.models[places], fresh=self.fresh[places])


@dataclass
class FrozenResult:
    """What was found for every model, arrays of shape (N,).

    Attributes
    ----------
    theta, information
        Ability, and Fisher information at it without the ridge.
    residual
        Distance of the ability from its root, in standard errors.
    counts
        `COUNTED` counts and the known items answered of every component, shape (COUNTED + n_components, N).
    loss
        Sum over all answers to known items.
    passes
        Passes made.
    """

    theta: F64
    information: F64
    residual: F64
    counts: F64
    loss: float
    passes: int


@dataclass(frozen=True)
class _Known:
    """The answers of some models to the known items of one block, those items, and the errors they were fitted with."""

    cells: Cells
    where: Index
    items: FrozenItems
    variance: tuple[F64, F64, F64]


# ------------------------------------------------------------------------------------------------ solving
def solve_models(blocks: Sequence[Block], task: FrozenTask) -> FrozenResult:
    """Score models.

    Parameters
    ----------
    blocks
        Everything that they answered, in blocks or parts of blocks; all models in them must be among the task's.
    task
        The scale, the items, the models.

    Returns
    -------
    FrozenResult
        A model without an answer to a known item has no attempts in its counts, and nothing else of it means anything.
    """
    counts = np.zeros((COUNTED + task.n_components, task.models.size))
    known = [part for block in blocks if (part := _known_part(block, task, counts)) is not None]
    passes, theta = _roots(known, task)
    steepest = max((float(part.items.a.max(initial=0.0)) for part in known), default=0.0)
    while True:
        passes += 1
        gradient, information, loss = _exact(known, task, theta)
        gradient += task.ridge.ability * theta
        gradient = np.where((np.abs(theta) >= task.bound) & (gradient * theta < 0.0), 0.0, gradient)
        residual = np.abs(gradient) / np.sqrt(np.maximum(information + task.ridge.ability, 1e-300))
        if residual.max(initial=0.0) <= task.tolerance or passes >= task.max_passes:
            return FrozenResult(theta, information, residual, counts, loss, passes)
        # The gradient has the ridge already.
        step = newton_abilities(np.zeros_like(theta), gradient, information + task.ridge.ability, 0.0, steepest)
        theta = np.clip(theta + step, -task.bound, task.bound)


def _known_part(block: Block, task: FrozenTask, counts: F64) -> _Known | None:
    """Count what a block's models answered, and return what of it is known."""
    where = np.searchsorted(task.models, block.models)
    items = task.items[block.benchmark].of(block.item_start, block.cells.n_items)
    is_known = np.isfinite(items.a)
    if not is_known.all():
        counts[3, where] += answered(block.cells.take(np.flatnonzero(~is_known)))[2]
    if not is_known.any():
        return None
    cells = block.cells if is_known.all() else block.cells.take(np.flatnonzero(is_known))
    items = items.take(is_known)
    attempts, successes, number = answered(cells)
    counts[:3, where] += [attempts, successes, number]
    for component in range(task.n_components):
        mine = items.component == component + 1
        counts[COUNTED + component, where] += number if mine.all() else answered(cells.take(np.flatnonzero(mine)))[2]
    if not task.fresh.any():
        return _Known(cells, where, items, (np.zeros_like(items.a),) * 3)
    prior = task.ridge.discrimination, task.ridge.easiness
    va, cov, vb = item_variance(items.a, items.b, items.n, task.distribution, prior)
    free = items.a > 0.0  # a discrimination at its bound stays there
    return _Known(cells, where, items, (np.where(free, va, 0.0), np.where(free, cov, 0.0), vb))


def _roots(known: Sequence[_Known], task: FrozenTask) -> tuple[int, F64]:
    """Find all roots from tables at nodes, wider ones until none lies outside; return the passes and the roots."""
    for doublings in range(MOST_DOUBLINGS + 1):
        nodes = frozen_nodes(task.sample, doublings, task.spacing, task.least, task.most)
        table, score = np.zeros((task.models.size, nodes.count)), np.zeros(task.models.size)
        for part in known:
            gradient, earned = _table(part, nodes, task.fresh[part.where])
            table[part.where] += gradient
            score[part.where] += earned
        theta = solve_from_table(nodes, table, score, task.ridge.ability).theta
        ends = nodes.abilities[[0, -1]]
        outside = ((theta <= ends[0]) | (theta >= ends[1])) & (np.abs(theta) < task.bound)
        if not outside.any():
            break
    return doublings + 1, np.clip(theta, -task.bound, task.bound)


def _table(part: _Known, nodes: Nodes, fresh: Mask) -> tuple[F64, F64]:
    """Return the left side of the equations without the ridge at every node, and the right side."""
    t, a, b = nodes.abilities, part.items.a[:, None], part.items.b[:, None]
    p = sigmoid(a * t + b)
    plain = a * p
    pulled = pull(p * (1.0 - p), t, part.variance)
    if fresh.all():
        ((gradient, score),) = table_sums(part.cells, [plain - pulled], [part.items.a])
        return gradient, score
    ((gradient, score),) = table_sums(part.cells, [plain], [part.items.a])
    if fresh.any():
        ((more, _),) = table_sums(part.cells, [pulled], [np.zeros_like(part.items.a)])
        gradient = gradient - fresh[:, None] * more
    return gradient, score


def pull(w: F64, theta: F64, variance: tuple[F64, F64, F64]) -> F64:
    """Return by how much a model's own answer to an item moves its equation in a joint fit, in expectation.

    With u = (theta, 1) and V the covariance of the item's (a, b) without this model, its residual r moves the item by
    ``-V u r / (1 + w u'Vu)``, and so its own score ``a r`` by ``-(V u)_a r^2 / (1 + w u'Vu)``; r^2 is w on average.

    Parameters
    ----------
    w
        Information of the answer, n P (1 - P), shape (J, N).
    theta
        Abilities, shape (N,).
    variance
        Variance of a, covariance, and variance of b of the items, each of shape (J,).
    """
    va, cov, vb = (value[:, None] for value in variance)
    return w * (va * theta + cov) / (1.0 + w * (va * theta**2 + 2.0 * cov * theta + vb))


def _exact(known: Sequence[_Known], task: FrozenTask, theta: F64) -> tuple[F64, F64, float]:
    """Return gradient (without the ridge) and information of every model, and the loss, from the cells."""
    gradient, information, loss = np.zeros_like(theta), np.zeros_like(theta), 0.0
    for part in known:
        own, fresh = theta[part.where], task.fresh[part.where]
        earned = scores(part.cells, part.items.a)
        gradient[part.where] -= earned
        loss -= float(part.cells.successes @ part.items.b + earned @ own)
        for rows, models, n in _rectangles(part.cells):
            t, a, b = own[models], part.items.a[rows], part.items.b[rows]
            x = a[:, None] * t + b[:, None]
            p = sigmoid(x)
            w = n * p * (1.0 - p)
            more = a @ (n * p)
            if fresh[models].any():
                va, cov, vb = part.variance
                more -= fresh[models] * pull(w, t, (va[rows], cov[rows], vb[rows])).sum(axis=0)
            target = part.where[models]
            gradient[target] += more
            information[target] += (a * a) @ w
            loss += float((n * np.logaddexp(0.0, x)).sum())
    return gradient, information, loss


def _rectangles(cells: Cells) -> Iterator[tuple[slice, slice, F64]]:
    """Return the attempts of a block in float64, rectangle by rectangle."""
    if isinstance(cells, SparseCells):
        for rows in pieces(cells.n_items, EXACT_ITEM_PIECE):
            span = slice(int(cells.indptr[rows.start]), int(cells.indptr[rows.stop]))
            n = np.zeros((rows.stop - rows.start, cells.n_models))
            n[cells.item[span] - rows.start, cells.indices[span]] = cells.n[span]
            yield rows, slice(0, cells.n_models), n
        return
    memory = Workspace(EXACT_ITEM_PIECE * (EXACT_MODEL_PIECE + 8), np.float64)
    for rows in pieces(cells.n_items, EXACT_ITEM_PIECE):
        for models in pieces(cells.n_models, EXACT_MODEL_PIECE):
            yield rows, models, np.asarray(cells.attempts_of(rows, models, memory), dtype=np.float64)


def answered(cells: Cells) -> tuple[F64, F64, F64]:
    """Return attempts, successes and number of items answered of every model, each of shape (n_models,)."""
    if isinstance(cells, SparseCells):
        attempts, successes = (weighted_count(cells.indices, x, cells.n_models) for x in (cells.n, cells.k))
        return attempts, successes, np.bincount(cells.indices, minlength=cells.n_models).astype(np.float64)
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


def frozen_nodes(theta: F64, doublings: int, spacing: float, least: int, most: int) -> Nodes:
    """Lay the grid of the first pass over known abilities and `REACH` beyond, twice as far with every doubling.

    Parameters
    ----------
    theta
        Abilities of the run whose items are used, in the gauge of its fit.
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
