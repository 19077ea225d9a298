"""The ability update: with items fixed, a model is a one-dimensional root, found from tables or from exact sums.

theta_i solves ``G_i(theta) + lambda theta = S_i``, where ``G_i(theta) = sum_j n_ij a_j P(a_j theta + b_j)``
increases and ``S_i = sum_j k_ij a_j`` is what the model's answers earned. Source: method.md section 4, "Model stage".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cbmm_spark.kernels.items import damped
from cbmm_spark.kernels.model import F64
from cbmm_spark.kernels.nodes import ORDER, Nodes, horner, monomials, window_start


@dataclass
class AbilityUpdate:
    """Result of an ability update; arrays of shape (N,).

    Attributes
    ----------
    theta
        The new abilities.
    information
        Fisher information G'(theta) of the data, the ridge not included.
    """

    theta: F64
    information: F64


def interpolate(nodes: Nodes, table: F64, theta: F64) -> tuple[F64, F64]:
    """Return the tabulated function of each model at its own ability, and its derivative.

    Parameters
    ----------
    nodes
        The grid, Q nodes.
    table
        Values at the nodes, shape (N, Q).
    theta
        Shape (N,).
    """
    position = nodes.positions(theta)
    start = window_start(nodes, position)
    window = np.take_along_axis(table, start[:, None] + np.arange(ORDER), axis=1)
    z = position - start
    value, slope = horner(monomials(window), z)
    return value, slope / nodes.slope(position)


def solve_from_table(
    nodes: Nodes, table: F64, score: F64, ridge: float, correction: F64 | None = None, repeats: int = 60
) -> AbilityUpdate:
    """Solve every model's equation on the tabulated G: bracket between two nodes, then a safeguarded Newton inside.

    Parameters
    ----------
    nodes
        The grid.
    table
        G at the nodes, shape (N, Q), non-decreasing along a row.
    score
        S, shape (N,).
    ridge
        lambda of the abilities.
    correction
        Added to G of each model: exact minus tabulated value at the current ability, shape (N,). With it the fixed
        point of the alternation is the exact optimum, whatever the interpolation error.
    repeats
        Bound of Newton repeats; bisection safeguards each, so the result is inside its bracket in any case.

    Returns
    -------
    AbilityUpdate
        A root beyond the grid is put on the end node; the next grid reaches further.
    """
    t = nodes.abilities
    target = score if correction is None else score - correction
    above = table + ridge * t > target[:, None]
    upper = np.argmax(above, axis=1)
    never = ~above.any(axis=1)
    at_first = above[:, 0]
    low = np.clip(upper - 1, 0, nodes.count - 2).astype(np.float64)
    high = low + 1.0
    rows = np.arange(table.shape[0])
    left = (table[rows, low.astype(np.int64)] + ridge * t[low.astype(np.int64)]) - target
    right = (table[rows, high.astype(np.int64)] + ridge * t[high.astype(np.int64)]) - target
    share = np.clip(-left / np.where(right > left, right - left, 1.0), 0.0, 1.0)
    position = low + share
    start = window_start(nodes, low + 0.5)
    window = np.take_along_axis(table, start[:, None] + np.arange(ORDER), axis=1)
    coefficients = monomials(window)
    for _ in range(repeats):
        theta, slope = nodes.theta(position), nodes.slope(position)
        tabulated, rise = horner(coefficients, position - start)
        value = tabulated + ridge * theta - target
        gain = rise + ridge * slope
        high = np.where(value > 0.0, np.minimum(high, position), high)
        low = np.where(value <= 0.0, np.maximum(low, position), low)
        newton = position - value / np.where(gain > 0.0, gain, np.inf)
        inside = (newton >= low) & (newton <= high) & (gain > 0.0)
        proposal = np.where(inside, newton, 0.5 * (low + high))
        moved = np.abs(proposal - position)
        position = proposal
        if not (moved > 1e-13 * nodes.count).any():
            break
    position = np.where(never, nodes.count - 1.0, np.where(at_first, 0.0, position))
    theta = nodes.theta(position)
    _, information = interpolate(nodes, table, theta)
    return AbilityUpdate(theta, np.maximum(information, 0.0))


def newton_abilities(theta: F64, gradient: F64, information: F64, ridge: float, steepest: float) -> F64:
    """Take one Newton step on each model's own objective from exact sums, shortened where a whole one might overshoot.

    Parameters
    ----------
    theta
        Current abilities.
    gradient
        G_i(theta_i) - S_i, the ridge not included.
    information
        G_i'(theta_i).
    ridge
        lambda of the abilities.
    steepest
        Largest discrimination: a step d changes no x by more than ``steepest * |d|``; see `items.damped`.
    """
    step = -(gradient + ridge * theta) / np.maximum(information + ridge, 1e-300)
    return theta + step * damped(steepest * np.abs(step))
