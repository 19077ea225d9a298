"""Exact sums over one block's cells in float64: loss, gradients, information, and items finished on their own cells.

No node is involved. Source: method.md sections 4 and 6.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from cbmm_spark.kernels.block_items import solve_own
from cbmm_spark.kernels.block_products import ScaleView, item_moments, pieces, scores
from cbmm_spark.kernels.cells import F32, Cells, SparseCells, Workspace, weighted_count
from cbmm_spark.kernels.items import Box, ItemSolution, State, newton_step, softplus_of
from cbmm_spark.kernels.model import F64, Ridge

EXACT_ITEM_PIECE, EXACT_MODEL_PIECE = 64, 512
"""Rectangle evaluated in float64 at once."""

ITEM_TOLERANCE = 1e-5
"""Residual, in standard errors, at which an item counts as solved on its own cells."""

SAFE_EXPONENT = 40.0
"""Largest |x| for which sixteen factors 1 + exp(x) multiply without overflow."""


@dataclass
class ItemSums:
    """Exact sums over models, per item: loss, n P theta, n P, and n P(1-P) times theta^2, theta and 1."""

    loss: float
    theta_p: F64
    p: F64
    aa: F64
    ab: F64
    bb: F64


@dataclass
class ExactResult:
    """Everything the exact evaluation of a block yields for one scale.

    Attributes
    ----------
    a, b
        Item parameters.
    loss
        ``sum n softplus(x) - k x`` over the block's cells, float64, no node involved.
    residual
        KKT residual of each item, in standard errors, shape (n_items,).
    gradient
        Per model: ``sum_j a_j (n P - k)``, shape (n_models,).
    information
        Per model: ``sum_j n a_j^2 P (1-P)``.
    moments
        Per item the sums of n P theta, n P, and n P (1-P) times theta^2, theta and 1: shape (5, n_items).
    node_loss
        The loss as the nodes see it at the same parameters; the difference is the node error.
    """

    a: F64
    b: F64
    loss: float
    residual: F64
    gradient: F64
    information: F64
    moments: F64
    node_loss: float = field(default=0.0)

    @property
    def item_information(self) -> tuple[F64, F64, F64]:
        """Curvature (aa, ab, bb) of each item without the ridge, each of shape (n_items,)."""
        return self.moments[2], self.moments[3], self.moments[4]

    def state(self, cells: Cells, ridge: Ridge, weighted: F64) -> State:
        """Return gradient and curvature of the items, the ridge included."""
        theta_p, p, aa, ab, bb = self.moments
        grad_a = theta_p - weighted + ridge.discrimination * self.a
        grad_b = p - cells.successes + ridge.easiness * self.b
        return State(grad_a, grad_b, aa + ridge.discrimination, ab, bb + ridge.easiness)

    def replace(self, rows: NDArray[np.int64], old: ExactResult, new: ExactResult) -> None:
        """Put other parameters of some items in the place of those evaluated before."""
        self.a[rows], self.b[rows], self.residual[rows] = new.a, new.b, new.residual
        self.moments[:, rows] = new.moments
        self.loss += new.loss - old.loss
        self.gradient += new.gradient - old.gradient
        self.information += new.information - old.information


def exact_block(
    cells: Cells,
    view: ScaleView,
    solution: ItemSolution,
    counts: F64,
    weighted: F64,
    tolerance: float = ITEM_TOLERANCE,
) -> ExactResult:
    """Evaluate everything exactly, and finish those items on their own cells whose residual is above tolerance.

    The node solution is near the exact one, so that nearly all items need a single evaluation; only the others are
    evaluated again.
    """
    found = evaluate_block(cells, view, solution.a, solution.b, weighted)
    rows = np.flatnonzero(found.residual > tolerance)
    if rows.size:
        part = cells.take(rows)
        old = evaluate_block(part, view, solution.a[rows], solution.b[rows], weighted[rows])
        new = _finish_items(part, view, old, weighted[rows], tolerance)
        found.replace(rows, old, new)
    found.node_loss = _node_loss(view, counts, cells, weighted, found.a, found.b)
    return found


FINISHING_STEPS = 5
"""Newton steps on own cells, after which an item keeps its residual, for the certificate to report."""


def _finish_items(cells: Cells, view: ScaleView, start: ExactResult, weighted: F64, tolerance: float) -> ExactResult:
    """Take Newton steps on own cells; an item for which that does not help is solved on them from scratch.

    Solving from scratch checks every step against the objective.
    """
    box = Box.of(view.ridge.discrimination, view.ridge.easiness)
    now, previous = start, np.full(weighted.size, np.inf)
    for _ in range(FINISHING_STEPS):
        left = now.residual > tolerance
        if not left.any():
            break
        a, b = now.a.copy(), now.b.copy()
        growing = np.flatnonzero(left & (now.residual > 0.5 * previous))
        da, db, _length = newton_step((a, b), now.state(cells, view.ridge, weighted), box)
        a[left], b[left] = np.maximum(a[left] + da[left], 0.0), b[left] + db[left]
        if growing.size:
            own = solve_own(cells, growing, weighted[growing], view, 0.1 * tolerance)
            a[growing], b[growing] = own.a, own.b
        previous, now = now.residual, evaluate_block(cells, view, a, b, weighted)
    return now


def evaluate_block(cells: Cells, view: ScaleView, a: F64, b: F64, weighted: F64 | None = None) -> ExactResult:
    """Evaluate a block exactly at given item parameters; the residual is their distance from the items' optimum.

    Parameters
    ----------
    cells, view
        The block and the scale.
    a, b
        Item parameters, shape (n_items,).
    weighted
        Ability-weighted successes of the items from `item_moments`; computed where not given.
    """
    if weighted is None:
        weighted = item_moments(cells, [view])[0][1]
    box = Box.of(view.ridge.discrimination, view.ridge.easiness)
    gradient, information = np.zeros(cells.n_models), np.zeros(cells.n_models)
    moments = np.empty((5, cells.n_items))
    loss = 0.0
    for items in pieces(cells.n_items, cells.n_items if isinstance(cells, SparseCells) else EXACT_ITEM_PIECE):
        sums, (part, more) = exact_sums(cells, items, view.theta, a[items], b[items])
        moments[:, items] = sums.theta_p, sums.p, sums.aa, sums.ab, sums.bb
        loss += sums.loss
        gradient += part
        information += more
    loss -= float(cells.successes @ b + weighted @ a)
    gradient -= scores(cells, a)
    residual = np.empty(0)
    found = ExactResult(a.copy(), b.copy(), loss, residual, gradient, information, moments, node_loss=loss)
    found.residual = newton_step((a, b), found.state(cells, view.ridge, weighted), box)[2]
    return found


def _node_loss(view: ScaleView, counts: F64, cells: Cells, weighted: F64, a: F64, b: F64) -> float:
    x = np.multiply(a[:, None], view.nodes.abilities)
    x += b[:, None]
    softplus = softplus_of(x, np.empty_like(x))
    total = float(
        (softplus.sum(axis=0) @ counts[0]) if counts.shape[0] == 1 else np.einsum("jq,jq->", counts, softplus)
    )
    return total - float(cells.successes @ b + weighted @ a)


def exact_sums(cells: Cells, items: slice, theta: F64, a: F64, b: F64) -> tuple[ItemSums, tuple[F64, F64]]:
    """Evaluate every observed cell of some items once, in float64.

    Returns
    -------
    ItemSums
        Per item sums and the loss ``sum n softplus(x)`` (the part in k is linear and added by the caller).
    (gradient, information)
        Per model ``sum_j n a_j P`` and ``sum_j n a_j^2 P (1-P)``, shape (n_models,).
    """
    if isinstance(cells, SparseCells):
        return _exact_sparse(cells, items, theta, a, b)
    n_items = items.stop - items.start
    per_item = np.zeros((n_items, 5))
    gradient, information = np.zeros(cells.n_models), np.zeros(cells.n_models)
    loss = 0.0
    left = np.stack([a, b], axis=1)
    right = np.stack([theta, np.ones_like(theta)])
    basis = np.stack([np.ones_like(theta), theta, theta * theta], axis=1)
    squares = a * a
    largest = np.abs(a).max(initial=0.0) * np.abs(theta).max(initial=0.0) + np.abs(b).max(initial=0.0)
    safe = float(largest) > SAFE_EXPONENT or not cells.is_binary
    memory = Workspace(n_items * (EXACT_MODEL_PIECE + 8), np.float64)
    buffers = np.empty((2, n_items, min(EXACT_MODEL_PIECE, cells.n_models)))
    for models in pieces(cells.n_models, EXACT_MODEL_PIECE):
        attempts = None if cells.is_complete else cells.attempts_of(items, models, memory)
        x, other = buffers[:, :, : models.stop - models.start]
        np.matmul(left, right[:, models], out=x)
        piece_loss, p, w = _cells_safe(x, attempts) if safe else _cells_fast(x, other, attempts)
        loss += piece_loss
        per_item[:, :2] += p @ basis[models, :2]
        per_item[:, 2:] += w @ basis[models]
        gradient[models] += a @ p
        information[models] += squares @ w
    sums = ItemSums(loss, per_item[:, 1], per_item[:, 0], per_item[:, 4], per_item[:, 3], per_item[:, 2])
    return sums, (gradient, information)


def _cells_fast(x: F64, base: F64, attempts: F32 | F64 | None) -> tuple[float, F64, F64]:
    """Loss, n P and n P(1-P) where no cell has more than one attempt and |x| is bounded; overwrites x and base.

    The logarithms of sixteen cells are taken of their product: one logarithm instead of sixteen.
    """
    odds = np.exp(x, out=x)
    if attempts is not None:
        odds *= attempts
    np.add(odds, 1.0, out=base)
    whole = base.shape[0] // 16 * 16
    loss = 0.0
    if whole:
        product = np.multiply.reduce(base[:whole].reshape(whole // 16, 16, -1), axis=1)
        loss += float(np.log(product).sum())
    if whole < base.shape[0]:
        loss += float(np.log(np.multiply.reduce(base[whole:], axis=0)).sum())
    p = np.divide(odds, base, out=odds)
    w = np.multiply(p, p, out=base)
    np.subtract(p, w, out=w)
    return loss, p, w


def _cells_safe(x: F64, attempts: F32 | F64 | None) -> tuple[float, F64, F64]:
    e = np.exp(-np.abs(x))
    upper = 1.0 / (1.0 + e)
    p = np.where(x >= 0.0, upper, e * upper)
    w = e * upper * upper
    softplus = np.maximum(x, 0.0) + np.log1p(e)
    if attempts is None:
        return float(softplus.sum()), p, w
    n = attempts.astype(np.float64)
    return float(np.einsum("jm,jm->", n, softplus)), p * n, w * n


def _exact_sparse(cells: SparseCells, items: slice, theta: F64, a: F64, b: F64) -> tuple[ItemSums, tuple[F64, F64]]:
    span = slice(int(cells.indptr[items.start]), int(cells.indptr[items.stop]))
    item, model, n = cells.item[span] - items.start, cells.indices[span], cells.n[span]
    th = theta[model]
    loss, p, w = _cells_safe((a[item] * th + b[item])[None, :], n[None, :].astype(np.float64))
    p, w = p[0], w[0]
    size = items.stop - items.start

    def by_item(value: F64) -> F64:
        return weighted_count(item, value, size)

    sums = ItemSums(loss, by_item(p * th), by_item(p), by_item(w * th * th), by_item(w * th), by_item(w))
    gradient = weighted_count(model, p * a[item], cells.n_models)
    information = weighted_count(model, w * a[item] ** 2, cells.n_models)
    return sums, (gradient, information)
