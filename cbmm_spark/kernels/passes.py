"""One pass over one block of items: item moments, item solutions, ability tables, exact sums.

This is where the cells are touched; everything here is a matrix product or an elementwise function over pieces of a
block that fit the cache. Source: method.md section 3.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from cbmm_spark.kernels.cells import F32, Cells, CountCells, DenseCells, SparseCells, Workspace, weighted_count
from cbmm_spark.kernels.items import Box, ItemProblem, ItemSolution, State, newton_step, softplus_of, solve_items
from cbmm_spark.kernels.model import F64, Ridge
from cbmm_spark.kernels.nodes import ORDER, Nodes, local_weights, weight_matrix, weight_sums

ITEM_PIECE, MODEL_PIECE = 128, 2048
"""Rectangle of cells unpacked at once: two float32 planes of it are 2 MB."""

EXACT_ITEM_PIECE, EXACT_MODEL_PIECE = 64, 512
"""Rectangle evaluated in float64 at once."""

ITEM_TOLERANCE = 1e-5
"""Residual, in standard errors, at which an item counts as solved on its own cells."""

SAFE_EXPONENT = 40.0
"""Largest |x| for which sixteen factors 1 + exp(x) multiply without overflow."""


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


def joined(sums: F64, scale: int) -> F64:
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
        results.append((observed, joined(sums, number)))
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
            results.append((whole, joined(sums, number)))
        else:
            results.append((whole - gradient if cells.is_mostly_observed else gradient, joined(sums, number)))
    return results


def _gradients_at_nodes(nodes: Nodes, items: ItemSolution) -> F64:
    """Return a P(a t + b) at every node t, shape (n_items, Q)."""
    x = np.multiply(0.5 * items.a[:, None], nodes.abilities)
    x += 0.5 * items.b[:, None]
    np.tanh(x, out=x)
    x += 1.0
    x *= 0.5 * items.a[:, None]
    return x


# ------------------------------------------------------------------------------------------------ exact sums
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
