"""Standard errors, intervals, ranks and baselines from what a fit leaves."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2, norm, rankdata, spearmanr

from cbmm_spark.kernels.model import F64, Ridge


def ability_errors(information: F64, ridge: float) -> F64:
    """Return the standard errors of abilities: 1 / sqrt(information + lambda), infinite where there is none of either.

    Source: method.md section 8, "Standard errors".
    """
    total = information + ridge
    return np.where(total > 1e-200, 1.0 / np.sqrt(np.maximum(total, 1e-200)), np.inf)


def item_variances(curvature: tuple[F64, F64, F64], a: F64, ridge: Ridge) -> tuple[F64, F64, F64]:
    """Return (var a, cov, var b) of each item on the fit's scale, for the parameters divided by sigma.

    Parameters
    ----------
    curvature
        (aa, ab, bb) without ridge, each of shape (J,).
    a
        Discrimination, shape (J,). Where it is 0 the problem is one-dimensional in b: var a is NaN and cov 0.
    ridge
        Penalty for the parameters divided by sigma.
    """
    aa, ab, bb = curvature[0] + ridge.discrimination, curvature[1], curvature[2] + ridge.easiness
    determinant = np.maximum(aa * bb - ab * ab, 1e-300)
    free = a > 0.0
    return (
        np.where(free, bb / determinant, np.nan),
        np.where(free, -ab / determinant, 0.0),
        np.where(free, aa / determinant, 1.0 / np.maximum(bb, 1e-300)),
    )


def constant_easiness(attempts: F64, successes: F64, ridge: float, repeats: int = 100) -> F64:
    """Return the easiness of items whose discrimination is 0: minimises n softplus(b) - r b + lambda/2 b^2."""
    share = (successes + 0.5) / (attempts + 1.0)
    b = np.log(share) - np.log1p(-share)
    for _ in range(repeats):
        p = 0.5 * (1.0 + np.tanh(0.5 * b))
        gradient = attempts * p - successes + ridge * b
        curvature = np.maximum(attempts * p * (1.0 - p) + ridge, 1e-12)
        step = np.clip(gradient / curvature, -1.0, 1.0)
        b = b - step
        if not (np.abs(step) > 1e-12).any():
            break
    return b


def wilson(successes: F64, attempts: F64, level: float) -> tuple[F64, F64]:
    """Return the Wilson score interval of a proportion; NaN where there is no attempt."""
    z = float(norm.ppf(0.5 + level / 2.0))
    with np.errstate(invalid="ignore", divide="ignore"):
        p = successes / attempts
        centre = (p + z * z / (2.0 * attempts)) / (1.0 + z * z / attempts)
        half = z * np.sqrt(p * (1.0 - p) / attempts + z * z / (4.0 * attempts**2)) / (1.0 + z * z / attempts)
    return np.maximum(centre - half, 0.0), np.minimum(centre + half, 1.0)


SAME = 1e-9
"""Values closer than this share of their spread have one rank: equal models differ by rounding."""


def competition_ranks(values: F64) -> NDArray[np.int64]:
    """Return ranks from 1 for the largest value, ties (within `SAME`) sharing the smaller rank."""
    if values.size == 0:
        return np.zeros(0, dtype=np.int64)
    order = np.argsort(-values, kind="stable")
    falls = -np.diff(values[order]) > SAME * max(float(values.std()), float(np.abs(values).max()) * 1e-6)
    step = np.concatenate([[0], np.cumsum(falls)])
    ranks = np.empty(values.size, dtype=np.int64)
    ranks[order] = rankdata(step, method="min")
    return ranks


def ranks_within(group: NDArray[np.int64], values: F64) -> NDArray[np.int64]:
    """Return `competition_ranks` within each group: models of different components are never compared."""
    ranks = np.empty(values.size, dtype=np.int64)
    for number in np.unique(group):
        mine = group == number
        ranks[mine] = competition_ranks(values[mine])
    return ranks


def accuracy_loss(attempts: F64, successes: F64) -> float:
    """Return the mean loss per attempt of predicting every model's own accuracy, in nats."""
    total = float(attempts.sum())
    if total == 0.0:
        return float("nan")
    p = np.clip(successes / np.maximum(attempts, 1e-300), 1e-15, 1.0 - 1e-15)
    return float(-(successes * np.log(p) + (attempts - successes) * np.log1p(-p)).sum() / total)


def spearman(x: F64, y: F64) -> float:
    """Return the rank correlation; NaN where one side is constant or shorter than two."""
    if x.size < 2 or np.ptp(x) == 0.0 or np.ptp(y) == 0.0:
        return float("nan")
    return float(spearmanr(x, y).statistic)


def chance_of_scores(successes: F64, expected: F64, variance: F64) -> float:
    """Return the probability of scores at least as different as these if all models were alike.

    If every model solved each item with the item's own probability, the squared distances of scores from their
    expectations, in units of their variances, would add up to a chi-square variable: Cochran's test of equal shares
    (Cochran 1950), extended to unequal items. Where the probability is not small, data hold no sign of a common
    ability, and discriminations fitted to them describe noise.

    Parameters
    ----------
    successes, expected, variance
        Per model, shape (N,): its score, and mean and variance of it if all models were alike.

    Returns
    -------
    float
        1 where there are fewer than two models with a variance.
    """
    seen = variance > 0.0
    if np.count_nonzero(seen) < 2:
        return 1.0
    distance = float(((successes[seen] - expected[seen]) ** 2 / variance[seen]).sum())
    return float(chi2.sf(distance, np.count_nonzero(seen) - 1))
