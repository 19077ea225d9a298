"""How well estimates recover the truth of a simulation.

Estimates and truth are compared in one gauge: (θ, a, b) → ((θ − m)/c, c·a, b + m·a) leaves every probability as it is,
so each side is first put where its reference models have mean 0 and standard deviation 1.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit
from scipy.stats import rankdata

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

_BLOCK_CELLS = 1 << 18


class Agreement(NamedTuple):
    """Agreement of one parameter with its truth over the ``n`` entries compared; NaN where it has no value."""

    rmse: float
    pearson: float
    spearman: float
    n: int


class Recovery(NamedTuple):
    """What :func:`compare_with_truth` returns.

    Attributes
    ----------
    theta, a, b
        Agreement of abilities, discriminations and easinesses after both sides were standardised.
    probability_rmse
        Root mean square error of P(correct) over all cells of the models and items compared, missing ones included.
    """

    theta: Agreement
    a: Agreement
    b: Agreement
    probability_rmse: float


def standardise(
    theta: FloatArray, a: FloatArray, b: FloatArray, reference: BoolArray | None = None
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Move to the gauge in which the reference models have mean ability 0 and standard deviation 1.

    Parameters
    ----------
    theta
        Ability (n_models,).
    a, b
        Discrimination and easiness (n_items,).
    reference
        Which models count (n_models,); by default all with a finite ability.

    Raises
    ------
    ValueError
        If the abilities of the reference models do not differ.
    """
    chosen = theta[np.isfinite(theta) if reference is None else reference]
    centre, scale = (float(chosen.mean()), float(chosen.std())) if len(chosen) else (0.0, 0.0)
    if not scale > 0:
        raise ValueError("the abilities of the reference models do not differ: they define no scale")
    return (theta - centre) / scale, a * scale, b + a * centre


def agreement(estimate: FloatArray, truth: FloatArray, chosen: BoolArray | None = None) -> Agreement:
    """Compare two vectors where ``chosen`` (default everywhere) and both are finite; no gauge is applied."""
    kept = np.isfinite(estimate) & np.isfinite(truth)
    if chosen is not None:
        kept &= chosen
    x, y = estimate[kept], truth[kept]
    if not len(x):
        return Agreement(np.nan, np.nan, np.nan, 0)
    rmse = float(np.sqrt(np.mean((x - y) ** 2)))
    return Agreement(rmse, _correlation(x, y), _correlation(rankdata(x), rankdata(y)), len(x))


def compare_with_truth(
    estimate: tuple[FloatArray, FloatArray, FloatArray],
    truth: tuple[FloatArray, FloatArray, FloatArray],
    *,
    sigma: float = 1.0,
    models: BoolArray | None = None,
    items: BoolArray | None = None,
) -> Recovery:
    """Compare estimated and true (θ, a, b).

    Parameters
    ----------
    estimate, truth
        θ (n_models,), a and b (n_items,), each in any gauge.
    sigma
        Temperature of both.
    models
        Which models define the scale and are compared (n_models,), for example those without a perfect score: those
        have no finite true ability. By default all.
    items
        Which items are compared (n_items,), for example without miskeyed ones. By default all.

    Raises
    ------
    ValueError
        If the shapes differ, or on either side the abilities of the models do not differ.
    """
    for estimated, true in zip(estimate, truth, strict=True):
        if estimated.shape != true.shape:
            raise ValueError(f"estimate and truth differ in shape: {estimated.shape} and {true.shape}")
    kept = np.isfinite(estimate[0]) & np.isfinite(truth[0])
    if models is not None:
        kept &= models
    ours, theirs = standardise(*estimate, kept), standardise(*truth, kept)
    return Recovery(
        agreement(ours[0], theirs[0], kept),
        agreement(ours[1], theirs[1], items),
        agreement(ours[2], theirs[2], items),
        probability_rmse(estimate, truth, sigma=sigma, models=kept, items=items),
    )


def probability_rmse(
    estimate: tuple[FloatArray, FloatArray, FloatArray],
    truth: tuple[FloatArray, FloatArray, FloatArray],
    *,
    sigma: float = 1.0,
    models: BoolArray | None = None,
    items: BoolArray | None = None,
) -> float:
    """Return the root mean square error of P(correct) over the cells of the chosen models and items; any gauge."""
    row = slice(None) if models is None else models
    column = slice(None) if items is None else items
    theta, true_theta = estimate[0][row], truth[0][row]
    a, b = estimate[1][column], estimate[2][column]
    true_a, true_b = truth[1][column], truth[2][column]
    step, total = max(1, _BLOCK_CELLS // max(1, len(a))), 0.0
    for first in range(0, len(theta), step):
        here = slice(first, first + step)
        p = expit((theta[here, None] * a + b) / sigma)
        p -= expit((true_theta[here, None] * true_a + true_b) / sigma)
        total += float(np.vdot(p, p))
    cells = len(theta) * len(a)
    return float(np.sqrt(total / cells)) if cells else float("nan")


def accuracy_agreement(attempts: NDArray[np.generic], successes: NDArray[np.generic], theta: FloatArray) -> Agreement:
    """Compare plain accuracy with the true ability: the leaderboard that the model has to beat.

    Accuracy has no scale of its own, so both sides are standardised over the models that answered anything.
    """
    tried = attempts.sum(axis=1, dtype=np.float64)
    seen = tried > 0
    accuracy = np.divide(successes.sum(axis=1, dtype=np.float64), tried, out=np.full(len(tried), np.nan), where=seen)
    none = np.empty(0)
    return agreement(standardise(accuracy, none, none)[0], standardise(theta, none, none, seen)[0])


def _correlation(x: FloatArray, y: FloatArray) -> float:
    x, y = x - x.mean(), y - y.mean()
    norm = float(np.sqrt((x @ x) * (y @ y)))
    return float(np.clip((x @ y) / norm, -1.0, 1.0)) if norm > 0 else float("nan")
