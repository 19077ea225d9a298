"""The item update: with abilities fixed, every item is a convex problem in two unknowns, solved to its minimum.

Item j minimises, over a >= 0 and b,

    f(a, b) = sum_q C_jq softplus(a t_q + b) - r_j b - s_j a + lambda_a/2 a^2 + lambda_b/2 b^2

where C_jq are the attempts of the item at the points t_q (ability nodes, or the abilities themselves), r_j the
successes and s_j the ability-weighted successes. One repeat = majorize at (a, b), then the two-variable non-negative
least squares in closed form. All items of a block go at once; those that are done drop out.
Source: method.md section 3, "Item stage"; Qu et al. (2026) for the majorization and the closed forms.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from cbmm_spark.kernels.model import F64

Majorizer = Literal["newton", "tight", "uniform"]

TINY = 1e-300
ROUNDING = 8.0 * np.finfo(np.float64).eps


@dataclass(frozen=True)
class ItemProblem:
    """A block of item problems.

    Parameters
    ----------
    points
        t, shape (Q,) shared by all items, or (J, Q) each item's own.
    weights
        C, shape (J, Q), or (1, Q) where all items have the same observers.
    successes, weighted
        r and s, shape (J,).
    ridge_a, ridge_b
        Penalty weights.
    """

    points: F64
    weights: F64
    successes: F64
    weighted: F64
    ridge_a: float
    ridge_b: float

    def attempts_scale(self) -> F64:
        """Return the sum of |C| per item, against which rounding errors of f are judged, shape (J,) or (1,)."""
        return np.abs(self.weights).sum(axis=1)

    def take(self, rows: NDArray[np.int64]) -> ItemProblem:
        """Return the problems of some items only."""
        return ItemProblem(
            self.points if self.points.ndim == 1 else self.points[rows],
            self.weights if self.weights.shape[0] == 1 else self.weights[rows],
            self.successes[rows],
            self.weighted[rows],
            self.ridge_a,
            self.ridge_b,
        )


@dataclass
class ItemSolution:
    """Result of `solve_items`; all arrays of shape (J,).

    Attributes
    ----------
    a, b
        Discrimination (>= 0) and easiness.
    objective
        f at (a, b), the item's ridge included.
    residual
        KKT residual in standard errors: the length of the remaining constrained Newton step in the metric of the
        curvature.
    repeats
        Majorize-and-solve repeats used by the slowest item.
    """

    a: F64
    b: F64
    objective: F64
    residual: F64
    repeats: int


def initial_items(problem: ItemProblem) -> tuple[F64, F64]:
    """Return a start from moments: smoothed log-odds, and the slope of one least-squares step from there."""
    t, c = problem.points, problem.weights
    total = c.sum(axis=1)
    share = (problem.successes + 0.5) / (total + 1.0)
    mean = (c * t).sum(axis=1) / np.maximum(total, TINY)
    second = (c * t**2).sum(axis=1) / np.maximum(total, TINY)
    variance = np.maximum(second - mean**2, 1e-12)
    curvature = share * (1.0 - share) * total * variance + problem.ridge_a
    a = np.clip(
        (problem.weighted - problem.successes * mean) / np.maximum(curvature, TINY), 0.0, 2.5 / np.sqrt(variance)
    )
    return a, np.log(share) - np.log1p(-share) - a * mean


@dataclass
class _State:
    """Value, gradient and curvature of every item at one point."""

    value: F64
    grad_a: F64
    grad_b: F64
    aa: F64
    ab: F64
    bb: F64


def _evaluate(problem: ItemProblem, a: F64, b: F64, majorizer: Majorizer) -> _State:
    t, c = problem.points, problem.weights
    x = a[:, None] * t + b[:, None]
    e = np.exp(-np.abs(x))
    upper = 1.0 / (1.0 + e)
    p = np.where(x >= 0.0, upper, 1.0 - upper)
    loss = np.maximum(x, 0.0) + np.log1p(e)
    if majorizer == "newton":
        curve = c * (upper * (1.0 - upper))
    elif majorizer == "tight":
        half = 0.5 * np.abs(x)
        curve = c * np.where(half > 1e-4, np.tanh(half) / np.maximum(4.0 * half, TINY), 0.25)
    else:
        curve = np.broadcast_to(0.25 * c, x.shape)
    cp = c * p
    curve_t = curve * t
    shared = t.ndim == 1
    first = cp @ t if shared else (cp * t).sum(axis=1)
    return _State(
        value=np.einsum("jq,jq->j", np.broadcast_to(c, x.shape), loss)
        - problem.successes * b
        - problem.weighted * a
        + 0.5 * (problem.ridge_a * a**2 + problem.ridge_b * b**2),
        grad_a=first - problem.weighted + problem.ridge_a * a,
        grad_b=cp.sum(axis=1) - problem.successes + problem.ridge_b * b,
        aa=(curve_t @ t if shared else (curve_t * t).sum(axis=1)) + problem.ridge_a,
        ab=curve_t.sum(axis=1),
        bb=curve.sum(axis=1) + problem.ridge_b,
    )


def newton_step(a: F64, grad_a: F64, grad_b: F64, aa: F64, ab: F64, bb: F64) -> tuple[F64, F64, F64]:
    """Minimise the quadratic model with a + da >= 0: the two-variable NNLS in closed form.

    Returns
    -------
    da, db
        The step.
    length
        Its length in the metric of the curvature: the KKT residual in standard errors.
    """
    bb = np.maximum(bb, TINY)
    aa = np.maximum(aa, TINY)
    schur = np.maximum(aa - ab * ab / bb, 1e-12 * aa)
    da = -(grad_a - ab * grad_b / bb) / schur
    da = np.maximum(da, -a)
    db = -(grad_b + ab * da) / bb
    square = aa * da * da + 2.0 * ab * da * db + bb * db * db
    return da, db, np.sqrt(np.maximum(square, 0.0))


def solve_items(
    problem: ItemProblem,
    start: tuple[F64, F64] | None = None,
    majorizer: Majorizer = "newton",
    tolerance: float = 1e-7,
    max_repeats: int = 200,
) -> ItemSolution:
    """Solve all item problems of a block to their minima.

    Parameters
    ----------
    problem
        The problems.
    start
        (a, b) to begin with; from moments where not given.
    majorizer
        ``newton`` (curvature P(1-P), a step accepted only where the objective falls, else halved), ``tight``
        (Jaakkola & Jordan 2000) or ``uniform`` (1/4, the paper's). Each is monotone for non-negative weights.
    tolerance
        An item is done when its residual is at most this (in standard errors).
    max_repeats
        Bound of repeats; an item that reaches it keeps its residual, which the certificate reports.

    Returns
    -------
    ItemSolution
    """
    a, b = (v.astype(np.float64) for v in (initial_items(problem) if start is None else start))
    n_items = a.size
    objective, residual = np.empty(n_items), np.empty(n_items)
    rows = np.arange(n_items)
    part, at, bt = problem, a.copy(), b.copy()
    state = _evaluate(part, at, bt, majorizer)
    repeats = 0
    while rows.size:
        da, db, length = newton_step(at, state.grad_a, state.grad_b, state.aa, state.ab, state.bb)
        a[rows], b[rows], objective[rows], residual[rows] = at, bt, state.value, length
        busy = length > tolerance
        if not busy.any() or repeats >= max_repeats:
            break
        if not busy.all():
            keep = np.flatnonzero(busy)
            rows, part, at, bt, da, db = rows[keep], part.take(keep), at[keep], bt[keep], da[keep], db[keep]
            state = _State(*(getattr(state, f)[keep] for f in _State.__dataclass_fields__))
        at, bt, state, moved = _descend(part, at, bt, da, db, state, majorizer)
        repeats += 1
        if not moved.all():  # rounding leaves nothing to gain: these items are as done as they can be
            keep = np.flatnonzero(moved)
            rows, part, at, bt = rows[keep], part.take(keep), at[keep], bt[keep]
            state = _State(*(getattr(state, f)[keep] for f in _State.__dataclass_fields__))
    return ItemSolution(a, b, objective, residual, repeats)


def _descend(
    problem: ItemProblem, a: F64, b: F64, da: F64, db: F64, state: _State, majorizer: Majorizer
) -> tuple[F64, F64, _State, NDArray[np.bool_]]:
    """Take each item's step, halved until its objective does not rise; an item that cannot move stays and is told."""
    scale = np.ones_like(a)
    new_a, new_b = np.maximum(a + da, 0.0), b + db
    new = _evaluate(problem, new_a, new_b, majorizer)
    allowance = ROUNDING * (np.abs(state.value) + problem.attempts_scale())
    for _ in range(60):
        worse = np.flatnonzero(~(new.value <= state.value + allowance))
        if worse.size == 0:
            break
        scale[worse] *= 0.5
        new_a[worse] = np.maximum(a[worse] + scale[worse] * da[worse], 0.0)
        new_b[worse] = b[worse] + scale[worse] * db[worse]
        retry = _evaluate(problem.take(worse), new_a[worse], new_b[worse], majorizer)
        for field in _State.__dataclass_fields__:
            getattr(new, field)[worse] = getattr(retry, field)
    stuck = ~(new.value <= state.value + allowance)
    if stuck.any():
        new_a[stuck], new_b[stuck] = a[stuck], b[stuck]
        for field in _State.__dataclass_fields__:
            getattr(new, field)[stuck] = getattr(state, field)[stuck]
    return new_a, new_b, new, ~stuck
