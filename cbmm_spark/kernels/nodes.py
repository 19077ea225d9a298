"""Ability nodes and the interpolation between them.

A function of ability that is needed at N abilities is computed at Q nodes and interpolated: ``f(theta_i) ~ sum_q
B_iq f(t_q)`` with few non-zero weights a row. Nodes are equidistant in ``u = arcsinh((t - centre) / width)``, so
that they are equidistant where models are and thin out smoothly in the tails: an outlier lengthens the grid by a few
nodes and does not coarsen it. Source: method.md section 4, "Nodes"; the order of interpolation and the mapping are
this project's (docs/decisions).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cbmm_spark.kernels.model import F64

ORDER = 8
"""Number of nodes each interpolation uses (a polynomial of degree 7 in u)."""

COLUMNS = 16
"""Numbers of nodes are multiples of this: a float32 product with 48 columns takes less time than one with 43."""

WIDTH_IN_SD = 3.0
"""Where nodes begin to thin out, in robust standard deviations of ability."""


@dataclass(frozen=True)
class Nodes:
    """A grid of ability nodes, equidistant in u.

    Parameters
    ----------
    centre, width
        Of the mapping ``t = centre + width * sinh(u)``.
    first
        u of the first node.
    step
        Distance of neighbouring nodes in u.
    count
        Number of nodes Q, at least ORDER.
    """

    centre: float
    width: float
    first: float
    step: float
    count: int

    @property
    def abilities(self) -> F64:
        """Abilities of the nodes, shape (Q,), increasing."""
        return self.centre + self.width * np.sinh(self.first + self.step * np.arange(self.count))

    @property
    def inner(self) -> tuple[float, float]:
        """The range of ability in which interpolation is central, hence accurate."""
        t = self.abilities
        half = ORDER // 2
        return float(t[half - 1]), float(t[-half])

    def positions(self, theta: F64) -> F64:
        """Return abilities as real-valued node numbers (0 is the first node), clipped to the grid."""
        u = np.arcsinh((theta - self.centre) / self.width)
        return np.clip((u - self.first) / self.step, 0.0, self.count - 1.0)

    def theta(self, position: F64) -> F64:
        """Inverse of `positions`."""
        return self.centre + self.width * np.sinh(self.first + self.step * position)

    def slope(self, position: F64) -> F64:
        """Return d theta / d position."""
        return self.step * self.width * np.cosh(self.first + self.step * position)


def make_nodes(theta: F64, spacing: float, least: int, most: int) -> Nodes:
    """Lay a grid over the abilities given.

    Parameters
    ----------
    theta
        Finite abilities, shape (N,).
    spacing
        Distance of nodes near the centre, in robust standard deviations of theta.
    least, most
        Bounds for the number of nodes. Where more would be needed, the spacing widens (never the range).

    Returns
    -------
    Nodes
        Reaching ORDER/2 nodes (and at least one robust sd) beyond the outermost abilities, so that every
        interpolation inside is central and models can move outwards.
    """
    low, median, high = (float(q) for q in np.quantile(theta, [0.16, 0.5, 0.84]))
    spread = max((high - low) / 2.0, float(theta.std()) * 0.25, 1e-3)
    width = WIDTH_IN_SD * spread
    ends = np.arcsinh((np.array([theta.min() - spread, theta.max() + spread]) - median) / width)
    extra = ORDER  # half the order on either side
    step = spacing * spread / width
    count = int(np.ceil((ends[1] - ends[0]) / step)) + 1 + extra
    count = -(-count // COLUMNS) * COLUMNS
    count = min(max(count, least), most)
    step = float(ends[1] - ends[0]) / (count - 1 - extra)
    middle = 0.5 * float(ends[0] + ends[1])
    return Nodes(median, width, middle - 0.5 * step * (count - 1), step, count)


def local_weights(nodes: Nodes, theta: F64) -> tuple[NDArray[np.int64], F64]:
    """Return Lagrange weights for each ability.

    Returns
    -------
    start
        First node used, shape (N,).
    weights
        Shape (N, ORDER); rows sum to 1.
    """
    position = nodes.positions(theta)
    start = window_start(nodes, position)
    return start, lagrange(position - start)


def window_start(nodes: Nodes, position: F64) -> NDArray[np.int64]:
    """Return the first of the ORDER nodes around each position, shape (N,)."""
    raw = np.floor(position).astype(np.int64) - (ORDER // 2 - 1)
    return np.clip(raw, 0, nodes.count - ORDER)


_DENOMINATOR = np.array([np.prod([float(k - m) for m in range(ORDER) if m != k]) for k in range(ORDER)])


def lagrange(z: F64) -> F64:
    """Return the Lagrange basis on nodes 0..ORDER-1 at z, shape (N, ORDER)."""
    difference = z[:, None] - np.arange(ORDER)
    before = np.ones_like(difference)
    after = np.ones_like(difference)
    np.cumprod(difference[:, :-1], axis=1, out=before[:, 1:])
    after[:, :-1] = np.cumprod(difference[:, :0:-1], axis=1)[:, ::-1]
    return before * after / _DENOMINATOR


_CENTRE = 0.5 * (ORDER - 1)
_MONOMIALS = np.linalg.inv(np.vander(np.arange(ORDER) - _CENTRE, increasing=True)).T
"""From values on nodes 0..ORDER-1 to coefficients of powers of z - centre: coefficients = values @ _MONOMIALS."""


def monomials(window: F64) -> F64:
    """Return the polynomials through ORDER values each as coefficients of powers of z - centre, shape (N, ORDER)."""
    return window @ _MONOMIALS


def horner(coefficients: F64, z: F64) -> tuple[F64, F64]:
    """Return polynomials from `monomials` and their derivatives at z, each of shape (N,)."""
    y = z - _CENTRE
    value, slope = coefficients[:, -1].copy(), np.zeros_like(y)
    for k in range(ORDER - 2, -1, -1):
        slope = slope * y + value
        value = value * y + coefficients[:, k]
    return value, slope


def weight_sums(nodes: Nodes, theta: F64) -> F64:
    """Return the column sums of B in float64: how many models weigh on each node, shape (Q,)."""
    start, weights = local_weights(nodes, theta)
    place = (start[:, None] + np.arange(ORDER)).ravel()
    return np.bincount(place, weights=weights.ravel(), minlength=nodes.count).astype(np.float64, copy=False)


def weight_matrix(nodes: Nodes, theta: F64) -> NDArray[np.float32]:
    """Return the interpolation weights B as a dense matrix, shape (N, Q), float32.

    Dense, because the products with it are faster dense than sparse up to Q of about a hundred.
    """
    start, weights = local_weights(nodes, theta)
    dense = np.zeros((theta.size, nodes.count), dtype=np.float32)
    np.put_along_axis(dense, start[:, None] + np.arange(ORDER), weights.astype(np.float32), axis=1)
    return dense
