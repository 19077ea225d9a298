"""The response model: link, ridge penalty, gauge and standardisation.

Source: method.md sections 1, 2 and 5 after Qu, Heng, Zeng & Liu (arXiv:2605.07046), who write Phi for the link.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]

Index = NDArray[np.int64]
"""Positions or numbers of models."""

Items = tuple[F64, F64]
"""Discrimination and easiness of a block's items, divided by sigma."""


@dataclass(frozen=True)
class Ridge:
    """Weights of the quadratic penalty ``ability/2 sum(theta^2) + discrimination/2 sum(a^2) + easiness/2 sum(b^2)``.

    Zero in all three is the paper's estimator. Positive weights make every optimum finite (method.md section 2).
    """

    ability: float
    discrimination: float
    easiness: float

    def for_temperature(self, sigma: float) -> Ridge:
        """Return the same penalty for parameters a/sigma and b/sigma."""
        return Ridge(self.ability, self.discrimination * sigma**2, self.easiness * sigma**2)


@dataclass(frozen=True)
class Penalty:
    """The configured penalty; an ability weight of None means lambda_a * J / N of the scale (method.md section 2)."""

    ability: float | None = None
    discrimination: float = 0.25
    easiness: float = 0.1

    def of_scale(self, n_items: int, n_models: int) -> Ridge:
        """Return the penalty of a scale with J items and N models."""
        balanced = self.discrimination * n_items / max(n_models, 1)
        return Ridge(balanced if self.ability is None else self.ability, self.discrimination, self.easiness)


@dataclass(frozen=True)
class Gauge:
    """The change of scale theta -> (theta - shift) / stretch, a -> stretch * a, b -> b + shift * a.

    It leaves every probability as it is.
    """

    shift: float
    stretch: float

    def abilities(self, theta: F64) -> F64:
        """Apply to abilities."""
        return (theta - self.shift) / self.stretch

    def items(self, a: F64, b: F64) -> tuple[F64, F64]:
        """Apply to discriminations and easinesses."""
        return a * self.stretch, b + self.shift * a

    def then(self, other: Gauge) -> Gauge:
        """Return the change of scale that applies this one first and `other` after it."""
        return Gauge(self.shift + self.stretch * other.shift, self.stretch * other.stretch)

    def inverse(self) -> Gauge:
        """Return the change of scale that takes this one back."""
        return Gauge(-self.shift / self.stretch, 1.0 / self.stretch)


IDENTITY = Gauge(0.0, 1.0)


def sigmoid(x: F64) -> F64:
    """Return 1 / (1 + exp(-x)) without overflow."""
    return 0.5 * (1.0 + np.tanh(0.5 * x))


def logit(p: F64) -> F64:
    """Return log(p / (1 - p)) for 0 < p < 1."""
    return np.log(p) - np.log1p(-p)


def best_gauge(
    theta_sum: float, theta_square: float, n_models: int, a_square: float, ab_sum: float, ridge: Ridge
) -> Gauge:
    """Return the gauge that minimises the ridge terms along the class of equal probabilities.

    Parameters
    ----------
    theta_sum, theta_square
        Sum of theta and of theta squared over the models of the scale.
    n_models
        Number of models in the sums.
    a_square, ab_sum
        Sums of a^2 and of a*b over the items of the scale.
    ridge
        Penalty weights. Without any the gauge standardises: mean 0, standard deviation 1.

    Notes
    -----
    For a given stretch c the best shift m is linear, and for a given shift c^4 is a ratio; the two are alternated until
    they stand still. Each half step minimises exactly, so the penalty never rises (method.md section 5, "Gauge").
    """
    mean = theta_sum / n_models
    variance = max(theta_square / n_models - mean**2, 0.0)
    if a_square <= 0.0 and ridge.ability > 0.0:
        return Gauge(
            mean, 1.0
        )  # any larger stretch would be better still: abilities that nothing holds go to 0 by themselves
    if ridge.ability <= 0.0 or ridge.discrimination <= 0.0 or a_square <= 0.0:
        return Gauge(mean, float(np.sqrt(variance))) if variance > 0.0 else Gauge(mean, 1.0)
    shift, stretch = 0.0, 1.0
    for _ in range(200):
        weight = ridge.ability / stretch**2
        new_shift = (weight * theta_sum - ridge.easiness * ab_sum) / (weight * n_models + ridge.easiness * a_square)
        spread = max(theta_square - 2.0 * new_shift * theta_sum + n_models * new_shift**2, 0.0)
        if spread == 0.0:
            return Gauge(new_shift, 1.0)
        new_stretch = (ridge.ability * spread / (ridge.discrimination * a_square)) ** 0.25
        still = abs(new_shift - shift) + abs(new_stretch - stretch) <= 1e-15 * (1.0 + abs(new_shift) + new_stretch)
        shift, stretch = new_shift, new_stretch
        if still:
            break
    return Gauge(float(shift), float(stretch))


def standard_gauge(theta: F64) -> Gauge:
    """Return the gauge that gives these abilities mean 0 and standard deviation 1 (population form)."""
    spread = float(theta.std()) if theta.size else 0.0
    return Gauge(float(theta.mean()) if theta.size else 0.0, spread if spread > 0.0 else 1.0)
