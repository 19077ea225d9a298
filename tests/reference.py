"""The paper's dense cBMM recurrence, verbatim: the oracle for the distributed solver.

Source: X. Qu, Q. Heng, H. Zeng, X. Liu, "An Interpretable and Scalable Framework for Evaluating Large Language
Models", arXiv:2605.07046 (2026).

Every function works on dense arrays of ``n_models`` rows and ``n_items`` columns: ``attempts`` (how often the cell was
tried; 0 is a missing response) and ``successes`` (0 ≤ successes ≤ attempts, fractions allowed). A plain right or wrong
answer is one attempt with one or no success. With X = θ aᵀ + 1 bᵀ and a ≥ 0 the objective is

    F = Σ [ n softplus(x/σ) − k x/σ ] + λ_θ/2 Σθ² + λ_a/2 Σa² + λ_b/2 Σb²

and all ridges λ = 0 is the estimator of the paper.

The module repeats the link and the loss instead of importing them: what it checks must not share code with it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
CountArray = NDArray[Any]  # bool, integer or floating counts; converted to float64 a row block at a time

_BLOCK_CELLS = 1 << 17  # cells worked on at once: a handful of float64 temporaries that stay in the cache


class Ridge(NamedTuple):
    """Weights λ of the quadratic penalties; all zero is the paper's estimator."""

    ability: float = 0.0
    discrimination: float = 0.0
    easiness: float = 0.0


NO_RIDGE = Ridge()


class Parameters(NamedTuple):
    """A point: ability (n_models,), discrimination ≥ 0 and easiness (n_items,)."""

    theta: FloatArray
    a: FloatArray
    b: FloatArray


class ReferenceFit(NamedTuple):
    """What :func:`fit` returns.

    Attributes
    ----------
    parameters
        The last point, in the gauge the recurrence ended in (not standardised).
    history
        Objective at the start and after each sweep, so ``history[0]`` belongs to the initial point.
    converged
        Whether the last relative change was within the tolerance before the sweeps ran out.
    """

    parameters: Parameters
    history: FloatArray
    converged: bool

    @property
    def objective(self) -> float:
        """Objective at ``parameters``."""
        return float(self.history[-1])

    @property
    def sweeps(self) -> int:
        """Number of sweeps that led to ``parameters``."""
        return len(self.history) - 1


def default_ridge(n_models: int, n_items: int, discrimination: float = 0.25, easiness: float = 0.1) -> Ridge:
    """Return the project's default penalties for a scale: λ_θ = λ_a · n_items / n_models."""
    return Ridge(discrimination * n_items / n_models, discrimination, easiness)


def check_responses(attempts: CountArray, successes: CountArray) -> None:
    """Raise ValueError unless the two arrays are finite, equal in shape (2-D) and 0 ≤ successes ≤ attempts."""
    if attempts.ndim != 2 or attempts.shape != successes.shape:
        raise ValueError(f"attempts {attempts.shape} and successes {successes.shape} must be equal 2-D shapes")
    for rows in _row_blocks(*attempts.shape):
        n, k = attempts[rows].astype(np.float64), successes[rows].astype(np.float64)
        if not (np.isfinite(n).all() and (k >= 0).all() and (k <= n).all()):  # NaN fails the comparisons too
            raise ValueError("every cell needs finite counts with 0 <= successes <= attempts")


def initial(attempts: CountArray, successes: CountArray, sigma: float = 1.0) -> Parameters:
    """Return the accuracy start: standardised smoothed score logit, a = σ, b = σ · smoothed item logit.

    The score logit is taken relative to the mean easiness of the items a model attempted, so that models which
    answered different items are comparable. A model without attempts starts at the mean, 0.

    Returns
    -------
    Parameters
        In the units of ``sigma``: fits at σ and at 1 started here are rescaled copies of each other.
    """
    n_models, n_items = attempts.shape
    model_n, model_k = np.empty(n_models), np.empty(n_models)
    item_n, item_k = np.zeros(n_items), np.zeros(n_items)
    for rows in _row_blocks(n_models, n_items):
        n, k = attempts[rows].astype(np.float64), successes[rows].astype(np.float64)
        model_n[rows], model_k[rows] = n.sum(axis=1), k.sum(axis=1)
        item_n += n.sum(axis=0)
        item_k += k.sum(axis=0)
    easiness = np.log((item_k + 0.5) / (item_n - item_k + 0.5))
    answered = np.empty(n_models)
    for rows in _row_blocks(n_models, n_items):
        answered[rows] = attempts[rows].astype(np.float64) @ easiness
    logit = np.log((model_k + 0.5) / (model_n - model_k + 0.5)) - answered / np.maximum(model_n, 1.0)
    seen = model_n > 0
    theta = np.zeros(n_models)
    if seen.any():
        centred = logit[seen] - logit[seen].mean()
        spread = centred.std()
        theta[seen] = centred / spread if spread > 0 else centred
    return Parameters(theta, np.full(n_items, float(sigma)), sigma * easiness)


def objective(
    theta: FloatArray,
    a: FloatArray,
    b: FloatArray,
    attempts: CountArray,
    successes: CountArray,
    sigma: float = 1.0,
    ridge: Ridge = NO_RIDGE,
) -> float:
    """Return F at (θ, a, b) in float64, as a sum over the cells (not a mean).

    The loss is summed as (n − k) softplus(x/σ) + k softplus(−x/σ): no term is negative, none overflows, and nothing
    cancels where |x| is large.
    """
    parts = []
    for rows in _row_blocks(*attempts.shape):
        x = (theta[rows, None] * a + b) / sigma
        parts.append(_loss(x, attempts[rows].astype(np.float64), successes[rows].astype(np.float64)))
    return math.fsum(parts) + _penalty(theta, a, b, ridge)


def gradient(
    theta: FloatArray,
    a: FloatArray,
    b: FloatArray,
    attempts: CountArray,
    successes: CountArray,
    sigma: float = 1.0,
    ridge: Ridge = NO_RIDGE,
) -> Parameters:
    """Return ∂F/∂θ (n_models,), ∂F/∂a and ∂F/∂b (n_items,); the bound a ≥ 0 plays no part in it."""
    g_theta, g_a, g_b = np.empty_like(theta), ridge.discrimination * a, ridge.easiness * b
    for rows in _row_blocks(*attempts.shape):
        x = (theta[rows, None] * a + b) / sigma
        slope = (attempts[rows] * _logistic(x) - successes[rows]) / sigma
        g_theta[rows] = slope @ a + ridge.ability * theta[rows]
        g_a += theta[rows] @ slope
        g_b += slope.sum(axis=0)
    return Parameters(g_theta, g_a, g_b)


def sweep(
    point: Parameters,
    attempts: CountArray,
    successes: CountArray,
    sigma: float = 1.0,
    ridge: Ridge = NO_RIDGE,
) -> tuple[Parameters, float]:
    """One sweep of the paper: majorize at ``point``, then update a, b and θ in turn on that one majorizer.

    Parameters
    ----------
    point
        Where to majorize, with a ≥ 0.
    attempts, successes
        Counts (n_models, n_items).
    sigma
        Temperature, > 0.
    ridge
        Penalties. The majorizer's curvature is n/(4σ²) a cell, so a penalty λ adds 4σ²λ to a denominator.

    Returns
    -------
    tuple of Parameters and float
        The next point, and F at ``point`` (the one the sweep started from: it costs nothing there).

    Notes
    -----
    A parameter without any information (an item nobody attempted, a model whose items all have a = 0, and no ridge)
    keeps its value. Memory: one float64 array of n_models × n_items for the majorizer's targets.
    """
    theta, a, b = point
    n_models, n_items = attempts.shape
    target = np.empty((n_models, n_items))  # n · (Ỹ − b), first with the old b; Ỹ is where the cell's parabola bottoms
    weight, weight_theta, weight_theta2 = np.zeros(n_items), np.zeros(n_items), np.zeros(n_items)
    toward, toward_theta = np.zeros(n_items), np.zeros(n_items)
    parts = []
    for rows in _row_blocks(n_models, n_items):
        th = theta[rows]
        n, k = attempts[rows].astype(np.float64), successes[rows].astype(np.float64)
        signal = th[:, None] * a
        x = (signal + b) / sigma
        parts.append(_loss(x, n, k))
        block = n * signal + 4.0 * sigma * (k - n * _logistic(x))
        target[rows] = block
        weight += n.sum(axis=0)
        weight_theta += th @ n
        weight_theta2 += (th * th) @ n
        toward += block.sum(axis=0)
        toward_theta += th @ block
    value = math.fsum(parts) + _penalty(theta, a, b, ridge)

    stiffness = 4.0 * sigma * sigma
    new_a = np.maximum(0.0, _ratio(toward_theta, weight_theta2 + stiffness * ridge.discrimination, a))
    toward += weight * b  # Σ n Ỹ
    new_b = _ratio(toward - weight_theta * new_a, weight + stiffness * ridge.easiness, b)
    new_theta = np.empty_like(theta)
    for rows in _row_blocks(n_models, n_items):
        n = attempts[rows].astype(np.float64)
        score = target[rows] @ new_a + n @ (new_a * (b - new_b))
        new_theta[rows] = _ratio(score, n @ (new_a * new_a) + stiffness * ridge.ability, theta[rows])
    return Parameters(new_theta, new_a, new_b), value


def fit(
    attempts: CountArray,
    successes: CountArray,
    sigma: float = 1.0,
    ridge: Ridge = NO_RIDGE,
    *,
    start: Parameters | None = None,
    tolerance: float = 1e-4,
    max_sweeps: int = 10_000,
) -> ReferenceFit:
    """Iterate :func:`sweep` until F changes by less than ``tolerance`` relative to itself.

    Parameters
    ----------
    attempts, successes
        Counts (n_models, n_items).
    sigma, ridge
        As in :func:`objective`.
    start
        First point; by default :func:`initial`.
    tolerance
        Stop once |F_previous − F| ≤ tolerance · |F_previous|; 1e-4 is the paper's rule.
    max_sweeps
        Give up (``converged`` false) after this many sweeps.

    Raises
    ------
    ValueError
        On counts outside 0 ≤ successes ≤ attempts, a temperature that is not positive, or a negative penalty.
    """
    check_responses(attempts, successes)
    if not sigma > 0 or min(ridge) < 0:
        raise ValueError(f"sigma must be > 0 and every ridge >= 0, got sigma={sigma}, {ridge}")
    point = initial(attempts, successes, sigma) if start is None else start
    history: list[float] = []
    for _ in range(max_sweeps):
        following, value = sweep(point, attempts, successes, sigma, ridge)
        history.append(value)
        if _settled(history, tolerance):
            return ReferenceFit(point, np.array(history), True)
        point = following
    history.append(objective(*point, attempts, successes, sigma, ridge))
    return ReferenceFit(point, np.array(history), _settled(history, tolerance))


def _settled(history: list[float], tolerance: float) -> bool:
    return len(history) > 1 and abs(history[-2] - history[-1]) <= tolerance * abs(history[-2])


def _row_blocks(n_models: int, n_items: int) -> Iterator[slice]:
    step = max(1, _BLOCK_CELLS // max(1, n_items))
    for first in range(0, n_models, step):
        yield slice(first, min(n_models, first + step))


def _logistic(x: FloatArray) -> FloatArray:
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0, small) / (1.0 + small)


def _loss(x: FloatArray, n: FloatArray, k: FloatArray) -> float:
    rest = n - k
    linear = np.where(x >= 0, rest * x, -k * x)
    return float((linear + n * np.log1p(np.exp(-np.abs(x)))).sum())


def _penalty(theta: FloatArray, a: FloatArray, b: FloatArray, ridge: Ridge) -> float:
    return float(0.5 * (ridge.ability * (theta @ theta) + ridge.discrimination * (a @ a) + ridge.easiness * (b @ b)))


def _ratio(numerator: FloatArray, denominator: FloatArray, otherwise: FloatArray) -> FloatArray:
    return np.divide(numerator, denominator, out=otherwise.copy(), where=denominator > 0)
