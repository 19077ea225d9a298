"""Abilities a fit starts from: from accuracy, or from those of an earlier fit (method.md section 7)."""

from __future__ import annotations

import numpy as np

from cbmm_spark.kernels.counts import Counts
from cbmm_spark.kernels.model import F64, standard_gauge

WARM_MODELS = 3
"""Models with an earlier ability from which on a start from them makes sense."""

WARM_SPREAD, WARM_CORRELATION = (0.02, 50.0), 0.3
"""Standard deviations of earlier abilities, in the gauge of a fit, and their least correlation with accuracy, from
which a fit may start: outside of them the earlier run was of another configuration, or had collapsed."""

LEAST_SPREAD = 1e-9
"""Spread of the start below which all models count as alike."""


def initial_abilities(counts: Counts) -> F64:
    """Return the start: standardised log-odds of smoothed accuracy, less the mean easiness of the items answered.

    Source: method.md section 7.
    """
    share = (counts.successes + 0.5) / (counts.attempts + 1.0)
    raw = np.log(share) - np.log1p(-share) - counts.easiness / np.maximum(counts.attempts, 1.0)
    if raw.size > 1 and raw.std() <= LEAST_SPREAD:
        # Abilities that are all alike are a saddle, which no step leaves: any direction is better than none.
        raw = np.random.default_rng(raw.size).standard_normal(raw.size)
    return standard_gauge(raw).abilities(raw)


def warm_abilities(counts: Counts, known: F64) -> F64:
    """Return the start from abilities of an earlier fit; models it did not have are placed by their accuracy.

    Parameters
    ----------
    counts
        Of the scale's models, shape (N,).
    known
        Their earlier abilities, NaN where there is none.

    Returns
    -------
    ndarray
        On the scale of the earlier fit: what the new models' accuracies mean there is told by a line through the
        models of both. Where fewer than `WARM_MODELS` are known, their abilities have collapsed to one point or run
        away, or they agree too little with accuracy (`WARM_CORRELATION`), the start from accuracy.
    """
    cold = initial_abilities(counts)
    old = np.isfinite(known)
    if np.count_nonzero(old) < WARM_MODELS or np.ptp(cold[old]) <= LEAST_SPREAD:
        return cold
    low, high = WARM_SPREAD
    spread = float(known[old].std())
    if not low <= spread <= high or abs(float(known[old].mean())) > high:
        return cold
    if float(np.corrcoef(cold[old], known[old])[0, 1]) < WARM_CORRELATION:
        return cold
    slope, origin = np.polyfit(cold[old], known[old], 1)
    return np.where(old, known, slope * cold + origin)
