"""Linking: the change of scale that puts one fit's items and abilities on the scale of another.

A scale is only defined up to the gauge, so what two fits have in common must tell it: the items of both. Their
response curves P = logistic(a theta + b) are compared over the reference's distribution of abilities. Items whose curve
changed (drifted) are left out, the link is estimated from the others, and both are repeated until nothing changes.

Where the same models gave the same answers to both fits, their abilities tell the change as well (`link_models`):
better than items where one side has few models (docs/decisions/0047).

Sources: mean/sigma (Marco 1977), here with weights; the characteristic curve method of Stocking & Lord (1983);
iterative purification of anchors (Lord 1980; Candell & Drasgow 1988); the root mean square difference of curves with
the limit 0.1 (Joo et al. 2021 for PISA; the difference that Dorans & Kulick 1986 call unusual). See docs/linking.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from cbmm_spark.kernels.model import F64, IDENTITY, Gauge, sigmoid, standard_gauge

Method = Literal["stocking-lord", "mean-sigma"]
Mask = NDArray[np.bool_]

NODES = 41
"""Quantiles by which a distribution of abilities is told."""

PROBABILITIES = (np.arange(NODES) + 0.5) / NODES
"""Probabilities of these quantiles: each stands for an equal share of the models."""

DRIFT_SIZE = 0.1
"""Root mean square difference of two response curves above which an item may count as drifted: 0.1 in probability."""

DRIFT_ERRORS = 3.0
"""The same difference in units of its standard error above which it does."""

LEAST_RISE = 0.05
"""Rise of an item's curve over the abilities below which the item tells nothing of the scale."""

STEEPEST = 15.0
"""Discrimination, per standard deviation of ability, from which on an item is a step: estimates at a bound are."""

PRIOR = (0.25, 0.1)
"""Information on discrimination and easiness added to that of the answers (the default penalty), so that the error of
an item that everybody solves is large and not infinite."""

MOST_ROUNDS = 50
"""Rounds of purification after which items that keep coming and going are left out for good."""

LEAST_MODELS = 3
"""Models with the same answers below which their mean and spread say too little."""

_PIECE = 4096


@dataclass(frozen=True)
class Bank:
    """The common items as one of the two fits sees them.

    Attributes
    ----------
    a, b
        Discrimination (>= 0) and easiness, both divided by sigma, shape (J,).
    n
        Answers the estimates rest on, shape (J,).
    theta
        The fit's distribution of abilities as quantiles at `PROBABILITIES`, or any equally likely abilities, (Q,).
    """

    a: F64
    b: F64
    n: F64
    theta: F64

    def moved(self, gauge: Gauge) -> Bank:
        """Return the same bank on another scale."""
        return Bank(*gauge.items(self.a, self.b), self.n, gauge.abilities(self.theta))

    def is_usable(self, least_answers: float) -> Mask:
        """Whether an item tells anything of the scale, shape (J,).

        Its curve rises over the abilities, is no step, and rests on enough answers.
        """
        rise = sigmoid(self.a * self.theta.max() + self.b) - sigmoid(self.a * self.theta.min() + self.b)
        return (rise >= LEAST_RISE) & (self.a * float(self.theta.std()) <= STEEPEST) & (self.n >= least_answers)


@dataclass(frozen=True)
class Link:
    """What `link_items` returns.

    Attributes
    ----------
    gauge
        From the new scale to the reference scale.
    anchors
        Items the link rests on, shape (J,).
    drifted
        Items whose curve changed, shape (J,).
    difference, error
        Root mean square difference of the two curves on the reference scale, and its standard error, shape (J,).
    rounds
        Estimates until nothing changed.
    """

    gauge: Gauge
    anchors: Mask
    drifted: Mask
    difference: F64
    error: F64
    rounds: int

    @property
    def slope(self) -> float:
        """A in reference ability = A * ability + B."""
        return 1.0 / self.gauge.stretch

    @property
    def intercept(self) -> float:
        """B in reference ability = A * ability + B."""
        return -self.gauge.shift / self.gauge.stretch


def quantiles(theta: F64) -> F64:
    """Return a distribution of abilities as a `Bank` wants it, shape (NODES,)."""
    return np.quantile(theta, PROBABILITIES)


def link_items(reference: Bank, new: Bank, method: Method = "stocking-lord", least_answers: float = 0.0) -> Link:
    """Estimate the change of scale from the new to the reference fit, leaving drifted items out.

    Parameters
    ----------
    reference, new
        The same items in the same order, each on its own scale.
    method
        Estimator.
    least_answers
        Items with fewer answers on either side are no anchors.

    Returns
    -------
    Link
        The identity without any anchor, where no item is usable. The caller says how many anchors are enough.

    Raises
    ------
    ValueError
        The abilities of one side are all alike: they define no scale.
    """
    own = standard_gauge(new.theta)
    theirs = standard_gauge(reference.theta)
    if not (np.ptp(new.theta) > 0.0 and np.ptp(reference.theta) > 0.0):
        raise ValueError("the abilities of a side do not differ: they define no scale")
    # Both sides standardised: whatever gauge they come in, the same numbers are worked on.
    old, now = reference.moved(theirs), new.moved(own)
    usable = old.is_usable(least_answers) & now.is_usable(least_answers)
    if not usable.any():
        none = np.zeros(usable.size)
        return Link(IDENTITY, usable, np.zeros(usable.size, dtype=bool), none, none, 0)
    inner, anchors, drifted, rounds = _purified(old, now, usable, method)
    difference, error = curve_differences(old, now, inner)
    return Link(own.then(inner).then(theirs.inverse()), anchors, drifted, difference, error, rounds)


def _purified(old: Bank, now: Bank, usable: Mask, method: Method) -> tuple[Gauge, Mask, Mask, int]:
    """Repeat {find drifted items, link over the others} until the set of drifted items stands still.

    The first round starts from medians, which drifted items hardly move.
    """
    gauge = robust_start(old, now, usable)
    seen: list[Mask] = []
    barred = np.zeros(usable.size, dtype=bool)
    while True:
        drifted = is_drifted(*curve_differences(old, now, gauge)) | barred
        anchors = usable & ~drifted
        if not anchors.any() or (seen and (drifted == seen[-1]).all()):
            return gauge, anchors, drifted, len(seen)
        if len(seen) >= MOST_ROUNDS or any((drifted == earlier).all() for earlier in seen):
            # Sets that come back never settle: an item that drifted in any of them is out from now on.
            barred = np.logical_or.reduce([drifted, *seen])
            seen = []
            continue
        seen.append(drifted)
        gauge = stocking_lord(old, now, anchors, gauge) if method == "stocking-lord" else mean_sigma(old, now, anchors)


def link_models(reference: F64, new: F64) -> Gauge | None:
    """Return the change of scale that gives the same models the mean and spread they have in the reference.

    Mean/sigma over models. Only models whose answers are the same on both sides tell a change of scale.

    Parameters
    ----------
    reference, new
        Abilities of the same models in the same order, each on its own scale, shape (N,).

    Returns
    -------
    Gauge or None
        None for fewer than `LEAST_MODELS` models, and where those of one side are all alike.
    """
    if new.size < LEAST_MODELS or not (np.ptp(new) > 0.0 and np.ptp(reference) > 0.0):
        return None
    stretch = float(new.std() / reference.std())
    return Gauge(float(new.mean()) - stretch * float(reference.mean()), stretch)


def is_drifted(difference: F64, error: F64) -> Mask:
    """Return which items changed by more than a practical size, and by more than chance explains."""
    return (difference > DRIFT_SIZE) & (difference > DRIFT_ERRORS * error)


# ------------------------------------------------------------------------------------------------ estimators
def robust_start(reference: Bank, new: Bank, items: Mask) -> Gauge:
    """Return the change of scale by weighted medians over items: half of the weight may be drifted."""
    a0, a1, b0, b1 = reference.a[items], new.a[items], reference.b[items], new.b[items]
    stretch = float(np.exp(_weighted_median(np.log(a0 / a1), np.sqrt(a0 * a1))))
    return Gauge(_weighted_median((b0 - b1) / a1, a1), stretch)


def mean_sigma(reference: Bank, new: Bank, items: Mask) -> Gauge:
    """Return the change of scale that matches mean and standard deviation of the items' difficulties -b/a.

    A difficulty is known the better the steeper its item: weights are the products of both sides' discriminations,
    which a change of either scale multiplies by a common factor. Where all difficulties are alike, they tell no
    stretch, and the mean discriminations are matched (mean/mean, Loyd & Hoover 1980).

    Source: Marco (1977); weights as in Linn, Levine, Hastings & Wardrop (1981).
    """
    a0, a1 = reference.a[items], new.a[items]
    weight = a0 * a1 / (a0 @ a1)
    d0, d1 = -reference.b[items] / a0, -new.b[items] / a1
    m0, m1 = float(weight @ d0), float(weight @ d1)
    v0, v1 = float(weight @ (d0 - m0) ** 2), float(weight @ (d1 - m1) ** 2)
    alike = 1e-20 * (1.0 + m0 * m0 + m1 * m1)
    stretch = float(np.sqrt(v1 / v0)) if min(v0, v1) > alike else float(a0.sum() / a1.sum())
    return Gauge(m1 - stretch * m0, stretch)


def stocking_lord(reference: Bank, new: Bank, items: Mask, start: Gauge) -> Gauge:
    """Return the change of scale under which both test characteristic curves agree best.

    Minimises the mean over the reference's abilities t of (sum_j P_new,j(t) - sum_j P_ref,j(t))^2 over the logarithm
    of the stretch and the shift (so that a slope is never negative), by Levenberg-Marquardt with the exact Jacobian.

    Source: Stocking & Lord (1983).
    """
    t = reference.theta
    target = np.zeros(t.size)
    a, b = new.a[items], new.b[items]
    for a0, b0 in _pieces(reference.a[items], reference.b[items]):
        target += sigmoid(a0[:, None] * t + b0[:, None]).sum(axis=0)

    def curve(x: F64) -> tuple[F64, F64]:
        ability = np.exp(x[0]) * t + x[1]
        value, slope = np.zeros(t.size), np.zeros(t.size)
        for a1, b1 in _pieces(a, b):
            p = sigmoid(a1[:, None] * ability + b1[:, None])
            value += p.sum(axis=0)
            slope += a1 @ (p * (1.0 - p))
        return value, slope

    def residual(x: F64) -> F64:
        return (curve(x)[0] - target) / a.size

    def jacobian(x: F64) -> F64:
        slope = curve(x)[1] / a.size
        return np.stack([slope * np.exp(x[0]) * t, slope], axis=1)

    begin = np.array([np.log(start.stretch), start.shift])
    tight = float(np.finfo(np.float64).eps)
    found = least_squares(residual, begin, jacobian, method="lm", ftol=tight, xtol=tight, gtol=tight)
    return Gauge(float(found.x[1]), float(np.exp(found.x[0])))


# ------------------------------------------------------------------------------------------------ drift
def curve_differences(reference: Bank, new: Bank, gauge: Gauge) -> tuple[F64, F64]:
    """Compare every item's two response curves over the reference's abilities.

    Parameters
    ----------
    reference, new
        The same items.
    gauge
        From the new to the reference scale.

    Returns
    -------
    difference
        sqrt(mean over t of (P_new(t) - P_ref(t))^2), shape (J,).
    error
        sqrt(mean over t of the variances of P_new(t) and P_ref(t)), shape (J,): what the difference would be by chance.
        Each fit's items have the errors that their answers leave, spread like the fit's abilities. Two nights share
        most of their answers, so chance explains less than this.
    """
    t = reference.theta
    ability = gauge.stretch * t + gauge.shift
    both = (reference.a, reference.b, reference.n, new.a, new.b, new.n)
    found = []
    for a0, b0, n0, a1, b1, n1 in _pieces(*both):
        p0, p1 = sigmoid(a0[:, None] * t + b0[:, None]), sigmoid(a1[:, None] * ability + b1[:, None])
        variance = _curve_variance(p0, t, item_variance(a0, b0, n0, reference.theta))
        variance += _curve_variance(p1, ability, item_variance(a1, b1, n1, new.theta))
        found.append((np.sqrt(np.mean((p1 - p0) ** 2, axis=1)), np.sqrt(variance.mean(axis=1))))
    return np.concatenate([d for d, _ in found]), np.concatenate([e for _, e in found])


def item_variance(a: F64, b: F64, n: F64, theta: F64, prior: tuple[float, float] = PRIOR) -> tuple[F64, F64, F64]:
    """Return variance of a, covariance, and variance of b of items answered by n models from a distribution.

    Parameters
    ----------
    a, b, n
        The items, shape (J,).
    theta
        Equally likely abilities, shape (Q,).
    prior
        Information on a and b beside that of the answers.
    """
    p = sigmoid(a[:, None] * theta + b[:, None])
    w = p * (1.0 - p)
    share = n / theta.size
    aa, ab, bb = share * (w @ theta**2) + prior[0], share * (w @ theta), share * w.sum(axis=1) + prior[1]
    determinant = aa * bb - ab * ab
    return bb / determinant, -ab / determinant, aa / determinant


def _curve_variance(p: F64, ability: F64, variance: tuple[F64, F64, F64]) -> F64:
    """Return the variance of P at abilities, by the delta method, shape (J, Q)."""
    var_a, cov, var_b = (value[:, None] for value in variance)
    return (p * (1.0 - p)) ** 2 * (var_a * ability**2 + 2.0 * cov * ability + var_b)


def _weighted_median(values: F64, weights: F64) -> float:
    """Return the middle of the values between which half of the weight lies on either side."""
    order = np.argsort(values, kind="stable")
    total = np.cumsum(weights[order])
    low = int(np.searchsorted(total, 0.5 * total[-1] * (1.0 - 1e-12)))
    high = min(int(np.searchsorted(total, 0.5 * total[-1] * (1.0 + 1e-12))), values.size - 1)
    return 0.5 * float(values[order[low]] + values[order[high]])


def _pieces(*columns: F64) -> Iterator[tuple[F64, ...]]:
    """Cut columns into pieces of items whose curves fit the cache; one empty piece where there is no item."""
    for start in range(0, max(columns[0].size, 1), _PIECE):
        yield tuple(column[start : start + _PIECE] for column in columns)
