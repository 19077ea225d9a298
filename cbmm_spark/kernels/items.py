"""The item update: with abilities fixed, every item is a convex problem in two unknowns, solved to its minimum.

Item j minimises, over a >= 0 and b,

    f(a, b) = sum_q C_jq softplus(a t_q + b) - r_j b - s_j a + lambda_a/2 a^2 + lambda_b/2 b^2

where C_jq are the attempts of the item at the points t_q (ability nodes, or the abilities themselves), r_j the
successes and s_j the ability-weighted successes. One repeat = the quadratic with Newton's curvature P(1-P) at (a, b),
then its two-variable non-negative least squares in closed form, shortened where the objective would rise. All items of
a block go at once; those that are done drop out. Source: method.md section 4, "Item stage"; Qu et al. (2026) for the
closed forms.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cbmm_spark.kernels.model import F64

TINY = 1e-100

EXPONENT = 500.0
"""Largest |x| given to the exponential: P is 0 or 1 to the last bit long before, and nothing overflows."""

LARGEST_A, LARGEST_B, LARGEST_THETA = 30.0, 40.0, 10.0
"""Bounds of discrimination, easiness and ability where they have no penalty, in the gauge of the start (abilities of
mean 0 and sd 1): beyond them no probability changes that data could tell, and without them some optima are infinite."""

LONGEST_STEP = 1e4
"""Longest step of a or b in one repeat."""

SURE_CHANGE = 1.7
"""Largest change of x for which a whole Newton step is certain to lower the objective; see `safe_share`."""


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
        Newton steps used by the slowest item.
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
class State:
    """Gradient and curvature of every item at one point."""

    grad_a: F64
    grad_b: F64
    aa: F64
    ab: F64
    bb: F64


class Scratch:
    """Two arrays for what a repeat computes at every point of every item.

    Fresh memory for each step of the arithmetic costs more than the arithmetic: the system hands it out page by page.
    """

    def __init__(self, problem: ItemProblem) -> None:
        n_items = problem.successes.size
        self._arrays = np.empty((2, n_items, problem.points.shape[-1]))

    def take(self, n_items: int) -> tuple[F64, F64]:
        """Return both for that many items; what they held is lost."""
        return self._arrays[0, :n_items], self._arrays[1, :n_items]


def _exponents(problem: ItemProblem, a: F64, b: F64, out: F64) -> F64:
    """Return x = a t + b of every item and point, in `out`."""
    x = np.multiply(a[:, None], problem.points, out=out)
    x += b[:, None]
    return x


def _may_overflow(problem: ItemProblem, a: F64, b: F64) -> bool:
    largest = float(np.abs(problem.points).max(initial=0.0))
    return float((np.abs(a) * largest + np.abs(b)).max(initial=0.0)) > EXPONENT


def _evaluate(problem: ItemProblem, a: F64, b: F64, scratch: Scratch) -> State:
    t, c = problem.points, problem.weights
    shared = t.ndim == 1
    x, other = scratch.take(a.size)
    _exponents(problem, a, b, x)
    np.negative(x, out=x)
    if _may_overflow(problem, a, b):
        np.minimum(x, EXPONENT, out=x)
    e = np.exp(x, out=x)
    e += 1.0
    p = np.reciprocal(e, out=e)
    cp = np.multiply(c, p, out=other)
    np.multiply(cp, p, out=p)
    curve = np.subtract(cp, p, out=p)
    if shared:
        basis = np.stack([np.ones_like(t), t, t * t], axis=1)
        first, second = cp @ basis[:, :2], curve @ basis
        sums = first[:, 0], first[:, 1], second[:, 0], second[:, 1], second[:, 2]
    else:
        curve_t = curve * t
        sums = cp.sum(axis=1), (cp * t).sum(axis=1), curve.sum(axis=1), curve_t.sum(axis=1), (curve_t * t).sum(axis=1)
    return State(
        grad_a=sums[1] - problem.weighted + problem.ridge_a * a,
        grad_b=sums[0] - problem.successes + problem.ridge_b * b,
        aa=np.maximum(sums[4], 0.0) + problem.ridge_a,  # interpolation weights may be negative, curvature is not
        ab=sums[3],
        bb=np.maximum(sums[2], 0.0) + problem.ridge_b,
    )


def item_objective(problem: ItemProblem, a: F64, b: F64, scratch: Scratch | None = None) -> F64:
    """Return f(a, b) of every item, the item's ridge included, shape (J,)."""
    x, e = (Scratch(problem) if scratch is None else scratch).take(a.size)
    _exponents(problem, a, b, x)
    softplus = softplus_of(x, e)
    shared = problem.weights.shape[0] == 1
    loss = softplus @ problem.weights[0] if shared else np.einsum("jq,jq->j", problem.weights, softplus)
    linear = problem.successes * b + problem.weighted * a
    return loss - linear + 0.5 * (problem.ridge_a * a**2 + problem.ridge_b * b**2)


def softplus_of(x: F64, scratch: F64) -> F64:
    """Return log(1 + exp(x)) in `scratch`; x is overwritten."""
    e = np.abs(x, out=scratch)
    np.negative(e, out=e)
    np.exp(e, out=e)
    np.log1p(e, out=e)
    e += np.maximum(x, 0.0, out=x)
    return e


@dataclass(frozen=True)
class Box:
    """Bounds of item parameters: infinite where a penalty keeps them finite, fixed where there is none.

    Attributes
    ----------
    a, b
        0 <= discrimination <= a, |easiness| <= b.
    """

    a: float
    b: float

    @classmethod
    def of(cls, ridge_a: float, ridge_b: float) -> Box:
        """Return the bounds that go with a penalty."""
        return cls(np.inf if ridge_a > 0.0 else LARGEST_A, np.inf if ridge_b > 0.0 else LARGEST_B)

    @property
    def is_open(self) -> bool:
        """Whether only a >= 0 is left."""
        return not (np.isfinite(self.a) or np.isfinite(self.b))


def newton_step(point: tuple[F64, F64], state: State, box: Box) -> tuple[F64, F64, F64]:
    """Minimise the quadratic model inside the bounds: the two-variable NNLS in closed form.

    Parameters
    ----------
    point
        (a, b), inside the bounds.
    state
        Gradient and curvature there, the ridge included.
    box
        Bounds.

    Returns
    -------
    da, db
        The step.
    length
        Its length in the metric of the curvature: the KKT residual in standard errors.
    """
    a, ab = point[0], state.ab
    bb, aa = np.maximum(state.bb, TINY), np.maximum(state.aa, TINY)
    schur = np.maximum(aa - ab * ab / bb, 1e-9 * aa)
    da = np.maximum(-(state.grad_a - ab * state.grad_b / bb) / schur, -a)
    db = -(state.grad_b + ab * da) / bb
    shorter = LONGEST_STEP / np.maximum(np.maximum(np.abs(da), np.abs(db)), LONGEST_STEP)
    da, db = shorter * da, shorter * db
    if not box.is_open:
        da, db = _inside(point, state, box, da, db)
    square = aa * da * da + 2.0 * ab * da * db + bb * db * db
    return da, db, np.sqrt(np.maximum(square, 0.0))


def _inside(point: tuple[F64, F64], state: State, box: Box, da: F64, db: F64) -> tuple[F64, F64]:
    """Return the step given where it stays inside, else the best of the minima along the four edges."""
    a, b = point
    bb, aa = np.maximum(state.bb, TINY), np.maximum(state.aa, TINY)
    best_a, best_b = da, db
    outside = (a + da > box.a) | (np.abs(b + db) > box.b)
    best = np.where(outside, np.inf, -np.inf)
    edges: list[tuple[F64 | None, F64 | None]] = [(edge - a, None) for edge in (0.0, box.a) if np.isfinite(edge)]
    edges += [(None, edge - b) for edge in (-box.b, box.b) if np.isfinite(edge)]
    for fixed_a, fixed_b in edges:
        if fixed_a is not None:
            step_a = fixed_a
            step_b = np.clip(-(state.grad_b + state.ab * step_a) / bb, -box.b - b, box.b - b)
        else:
            assert fixed_b is not None
            step_b = fixed_b
            step_a = np.clip(-(state.grad_a + state.ab * step_b) / aa, -a, box.a - a)
        value = state.grad_a * step_a + state.grad_b * step_b
        value += 0.5 * (aa * step_a**2 + bb * step_b**2) + state.ab * step_a * step_b
        better = value < best
        best = np.where(better, value, best)
        best_a, best_b = np.where(better, step_a, best_a), np.where(better, step_b, best_b)
    return best_a, best_b


def solve_items(
    problem: ItemProblem,
    start: tuple[F64, F64] | None = None,
    tolerance: float = 1e-7,
    max_repeats: int = 200,
) -> ItemSolution:
    """Solve all item problems of a block to their minima; for non-negative weights no repeat raises an objective.

    Parameters
    ----------
    problem
        The problems.
    start
        (a, b) to begin with; from moments where not given.
    tolerance
        An item is done when its residual is at most this (in standard errors).
    max_repeats
        Bound of repeats; an item that reaches it keeps its residual, which the certificate reports.

    Returns
    -------
    ItemSolution
    """
    a, b = (v.astype(np.float64) for v in (initial_items(problem) if start is None else start))
    residual = np.empty(a.size)
    rows = np.arange(a.size)
    box = Box.of(problem.ridge_a, problem.ridge_b)
    a, b = np.clip(a, 0.0, box.a), np.clip(b, -box.b, box.b)
    part, at, bt = problem, a.copy(), b.copy()
    scratch, repeats = Scratch(problem), 0
    while True:
        state = _evaluate(part, at, bt, scratch)
        da, db, length = newton_step((at, bt), state, box)
        a[rows], b[rows], residual[rows] = at, bt, length
        busy = np.flatnonzero(length > tolerance)
        if not busy.size or repeats >= max_repeats:
            break
        if busy.size < 0.7 * rows.size:
            rows, part, at, bt, da, db = rows[busy], part.take(busy), at[busy], bt[busy], da[busy], db[busy]
        share = falling_share(part, at, bt, da, db, scratch)
        da *= share
        db *= share
        at, bt = np.maximum(at + da, 0.0), bt + db
        repeats += 1
    return ItemSolution(a, b, item_objective(problem, a, b, scratch), residual, repeats)


def falling_share(problem: ItemProblem, a: F64, b: F64, da: F64, db: F64, scratch: Scratch | None = None) -> F64:
    """Return how much of each Newton step to take: all of it where that is certain to descend or seen to.

    Where it is not certain (see `safe_share`) the objective is evaluated, and the step halved until the objective
    falls or the share that is certain is reached: a few models far out make that share needlessly small for a steep
    item.
    """
    certain = safe_share(problem.points, da, db)
    share = np.ones_like(certain)
    unsure = np.flatnonzero(certain < 1.0)
    if not unsure.size:
        return share
    part = problem.take(unsure)
    here = item_objective(part, a[unsure], b[unsure], scratch)
    left = np.arange(unsure.size)
    while left.size:
        rows = unsure[left]
        moved_a = np.maximum(a[rows] + share[rows] * da[rows], 0.0)
        there = item_objective(part.take(left), moved_a, b[rows] + share[rows] * db[rows], scratch)
        left = left[~(there <= here[left])]
        rows = unsure[left]
        share[rows] = np.maximum(0.5 * share[rows], certain[rows])
        left = left[share[rows] > certain[rows]]
    return share


def safe_share(points: F64, da: F64, db: F64) -> F64:
    """Return how much of each Newton step is certain not to raise the objective.

    Along a step that changes no x by more than c, the curvature of softplus changes at most by the factor exp(c). So
    the objective after a whole Newton step is below the one before by at least ``D (1 - (exp(c) - 1)/c^2 + 1/c)``, D
    the step's squared length, which is positive up to c = 1.7; longer steps are shortened to ``log(1 + c) / c``, as
    in the damped Newton method for self-concordant functions (Nesterov & Nemirovskii 1994; Bach 2010 for the
    logistic loss). No objective has to be evaluated.
    """
    axis = None if points.ndim == 1 else 1
    low, high = points.min(axis=axis), points.max(axis=axis)
    return damped(np.maximum(np.abs(da * low + db), np.abs(da * high + db)))


def damped(change: F64) -> F64:
    """Return the share of a Newton step that is certain to descend, from the largest change of x along it."""
    return np.where(change <= SURE_CHANGE, 1.0, np.log1p(change) / np.maximum(change, 1.0))
