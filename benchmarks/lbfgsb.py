"""The strongest rival measured: scipy L-BFGS-B on all parameters at once, variables scaled by their curvature.

The same penalised objective as the fit; float64, blocked so that scratch arrays stay in the cache, one exponential and
one logarithm a cell and evaluation.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from cbmm_spark.kernels.model import F64, Ridge

CACHE_CELLS = 1 << 15


@dataclass(frozen=True)
class RivalFit:
    """Where L-BFGS-B ended."""

    theta: F64
    a: F64
    b: F64
    objective: float
    seconds: float
    evaluations: int


class Objective:
    """F and its gradient for responses +1, -1 and 0 (missing), shape (n_models, n_items), int8."""

    def __init__(self, y: NDArray[np.int8], ridge: Ridge) -> None:
        self.y, self.ridge = y, ridge
        self.n_models, self.n_items = y.shape
        self.rows = max(1, min(self.n_models, CACHE_CELLS // self.n_items))
        self.missing = int(y.size - np.count_nonzero(y))
        self.z, self.e = np.empty((self.rows, self.n_items)), np.empty((self.rows, self.n_items))
        self.evaluations = 0

    def __call__(self, x: F64) -> tuple[float, F64]:
        """Return F and its gradient at (theta, a, b)."""
        self.evaluations += 1
        theta, a, b = np.split(x, [self.n_models, self.n_models + self.n_items])
        value = -self.missing * np.log(2.0)
        gradient = np.zeros_like(x)
        g_theta, g_a, g_b = np.split(gradient, [self.n_models, self.n_models + self.n_items])
        for start in range(0, self.n_models, self.rows):
            span = slice(start, start + self.rows)
            y, th = self.y[span], theta[span]
            z, e = self.z[: th.size], self.e[: th.size]
            np.multiply(th[:, None], -a, out=z)
            z -= b
            z *= y
            np.minimum(z, 700.0, out=z)
            np.exp(z, out=e)
            np.log1p(e, out=z)
            value += float(z.sum())
            np.add(e, 1.0, out=z)
            e /= z
            e *= y
            g_theta[span] = -(e @ a)
            g_a -= th @ e
            g_b -= e.sum(axis=0)
        r = self.ridge
        value += 0.5 * (r.ability * theta @ theta + r.discrimination * a @ a + r.easiness * b @ b)
        g_theta += r.ability * theta
        g_a += r.discrimination * a
        g_b += r.easiness * b
        return float(value), gradient


def fit(y: NDArray[np.int8], ridge: Ridge, ftol: float = 1e-10, maxcor: int = 20) -> RivalFit:
    """Fit from the accuracy start.

    Parameters
    ----------
    y
        Responses +1, -1, 0, shape (n_models, n_items).
    ridge
        Penalty.
    ftol
        scipy's relative tolerance of the objective.
    maxcor
        Corrections kept.
    """
    n_models, n_items = y.shape
    objective = Objective(y, ridge)
    began = time.perf_counter()

    def odds(axis: int) -> F64:
        right, wrong = np.count_nonzero(y == 1, axis=axis), np.count_nonzero(y == -1, axis=axis)
        return np.log((right + 0.5) / (wrong + 0.5))

    theta = odds(1)
    theta = (theta - theta.mean()) / max(theta.std(), 1e-12)
    x = np.concatenate([theta, np.ones(n_items), odds(0)])
    scale = np.ones_like(x)
    scale[:n_models] = 1.0 / np.sqrt(0.15 * np.maximum(np.count_nonzero(y, axis=1), 1))
    scale[n_models:] = 1.0 / np.sqrt(0.15 * np.tile(np.maximum(np.count_nonzero(y, axis=0), 1), 2))
    bounds = np.full((x.size, 2), (-np.inf, np.inf))
    bounds[n_models : n_models + n_items, 0] = 0.0

    def scaled(u: F64) -> tuple[float, F64]:
        value, gradient = objective(u * scale)
        return value, gradient * scale

    options = {"maxcor": maxcor, "maxiter": 3000, "maxfun": 9000, "ftol": ftol, "gtol": 1e-9}
    result = minimize(scaled, x / scale, jac=True, method="L-BFGS-B", bounds=bounds, options=options)  # type: ignore[call-overload]
    seconds = time.perf_counter() - began
    theta, a, b = np.split(result.x * scale, [n_models, n_models + n_items])
    return RivalFit(theta, a, b, float(result.fun), seconds, objective.evaluations)
