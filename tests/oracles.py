"""Independent answers that the kernels are tested against: scipy L-BFGS-B on the same penalised objective.

Nothing here imports the package: the objective is written out once more, so an error in the package cannot hide.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from scipy.optimize import minimize

SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
_BLOCK_CELLS = 1 << 15  # two float64 scratch blocks of this size stay in the cache


class OracleFit(NamedTuple):
    """Best point found by L-BFGS-B.

    Attributes
    ----------
    theta, a, b
        Ability (n_models,), discrimination >= 0 and easiness (n_items,), in the gauge of the penalties.
    objective
        Penalised objective F, float64, a sum over cells.
    projected_gradient
        Largest absolute entry of the gradient of F after dropping what only pushes a below 0; each entry is divided by
        the square root of its variable's curvature, so the unit is sqrt(F).
    evaluations, rounds
        Evaluations of F, and restarts with rescaled variables.
    """

    theta: np.ndarray
    a: np.ndarray
    b: np.ndarray
    objective: float
    projected_gradient: float
    evaluations: int
    rounds: int


class Responses(NamedTuple):
    """A response matrix read from a long file: counts (n_models, n_items) and the sorted identifiers."""

    attempts: np.ndarray
    successes: np.ndarray
    models: list[str]
    items: list[str]


class PenalisedObjective:
    """F and its gradient on dense counts; ``ridge`` holds the penalties of ability, discrimination and easiness."""

    def __init__(self, attempts: np.ndarray, successes: np.ndarray, sigma: float, ridge: tuple[float, float, float]):
        self.attempts = np.ascontiguousarray(attempts, dtype=np.float64)
        self.successes = np.ascontiguousarray(successes, dtype=np.float64)
        self.n_models, self.n_items = self.attempts.shape
        self.sigma, self.ridge = float(sigma), ridge
        self.complete = bool((self.attempts == 1.0).all())
        self.model_successes = self.successes.sum(axis=1)
        self.item_successes = self.successes.sum(axis=0)
        self.evaluations = 0

    def split(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Views of θ, a and b in one vector."""
        return x[: self.n_models], x[self.n_models : self.n_models + self.n_items], x[self.n_models + self.n_items :]

    def __call__(self, x: np.ndarray) -> tuple[float, np.ndarray]:
        """Return F and its gradient (not projected)."""
        self.evaluations += 1
        theta, a, b = self.split(x)
        gradient = np.zeros_like(x)
        g_theta, g_a, g_b = self.split(gradient)
        rows = max(1, _BLOCK_CELLS // max(1, self.n_items))
        loss = 0.0
        for first in range(0, self.n_models, rows):
            here = slice(first, first + rows)
            z = (theta[here, None] * a + b) / self.sigma
            n, k = self.attempts[here], self.successes[here]
            small = np.exp(-np.abs(z))
            softplus = np.log1p(small) + np.maximum(z, 0.0)
            loss += float((softplus if self.complete else n * softplus).sum() - np.vdot(k, z))
            residual = np.where(z >= 0.0, 1.0, small) / (1.0 + small)
            if not self.complete:
                residual *= n
            residual -= k
            g_theta[here] = residual @ a
            g_a += theta[here] @ residual
            g_b += residual.sum(axis=0)
        gradient /= self.sigma
        penalty = 0.0
        for weight, part, slope in zip(self.ridge, (theta, a, b), (g_theta, g_a, g_b), strict=True):
            penalty += 0.5 * weight * float(part @ part)
            slope += weight * part
        return loss + penalty, gradient

    def curvature(self, x: np.ndarray) -> np.ndarray:
        """Diagonal of the expected Hessian at ``x``, kept away from zero: the scaling of the variables."""
        theta, a, b = self.split(x)
        h = np.zeros_like(x)
        h_theta, h_a, h_b = self.split(h)
        rows = max(1, _BLOCK_CELLS // max(1, self.n_items))
        for first in range(0, self.n_models, rows):
            here = slice(first, first + rows)
            small = np.exp(-np.abs((theta[here, None] * a + b) / self.sigma))
            w = self.attempts[here] * small / (1.0 + small) ** 2
            h_theta[here] = w @ (a * a)
            h_a += (theta[here] ** 2) @ w
            h_b += w.sum(axis=0)
        h /= self.sigma**2
        for weight, part in zip(self.ridge, (h_theta, h_a, h_b), strict=True):
            part += weight
            floor = 1e-3 * (part[part > 0].mean() if (part > 0).any() else 1.0)
            np.maximum(part, floor, out=part)
        return h


def accuracy_start(attempts: np.ndarray, successes: np.ndarray, sigma: float) -> np.ndarray:
    """Start vector (θ, a, b): standardised logit of smoothed accuracy, a = σ, b = σ · smoothed item logit."""

    def logit(axis: int) -> np.ndarray:
        k = successes.sum(axis=axis)
        return np.log((k + 0.5) / (attempts.sum(axis=axis) - k + 0.5))

    theta = logit(1)
    theta = (theta - theta.mean()) / max(float(theta.std()), 1e-12)
    return np.concatenate([theta, np.full(attempts.shape[1], float(sigma)), sigma * logit(0)])


def fit_lbfgsb(
    attempts: np.ndarray,
    successes: np.ndarray,
    sigma: float = 1.0,
    ridge: tuple[float, float, float] = (0.0, 0.0, 0.0),
    *,
    start: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None,
    relative: float = 1e-13,
    max_rounds: int = 12,
    max_iterations: int = 3000,
    memory: int = 30,
) -> OracleFit:
    """Minimise F by L-BFGS-B in diagonally scaled variables, a >= 0, restarted until a restart gains nothing.

    Parameters
    ----------
    attempts, successes
        Counts (n_models, n_items); attempts 0 is missing, successes may be fractional.
    sigma, ridge
        Temperature, and the penalties of ability, discrimination and easiness.
    start
        θ, a, b; by default :func:`accuracy_start`.
    relative
        Stop when a whole round lowers F by less than this share of itself.
    max_rounds, max_iterations, memory
        Rounds, iterations of a round, and pairs kept by L-BFGS-B.

    Notes
    -----
    Without penalties F may have no finite minimum (a model or item that is all right or all wrong, a separable item):
    the point then drifts outwards and every round is used up, minutes on sparse data. Bound the rounds there.
    """
    objective = PenalisedObjective(attempts, successes, sigma, ridge)
    n, j = objective.n_models, objective.n_items
    x = accuracy_start(objective.attempts, objective.successes, sigma) if start is None else np.concatenate(start)
    lower = np.full(n + 2 * j, -np.inf)
    lower[n : n + j] = 0.0
    value, rounds = objective(x)[0], 0
    while rounds < max_rounds:
        rounds += 1
        scale = 1.0 / np.sqrt(objective.curvature(x))
        found = _round(objective, x, scale, lower, max_iterations, memory)
        gain = value - found[1]
        if gain > 0:
            x, value = found
        if gain <= relative * abs(value):
            break
    gradient = objective(x)[1]
    gradient[(x <= 0.0) & (lower == 0.0) & (gradient > 0.0)] = 0.0
    residual = float(np.abs(gradient / np.sqrt(objective.curvature(x))).max())
    theta, a, b = (part.copy() for part in objective.split(x))
    return OracleFit(theta, a, b, value, residual, objective.evaluations, rounds)


def _round(
    objective: PenalisedObjective, x: np.ndarray, scale: np.ndarray, lower: np.ndarray, iterations: int, memory: int
) -> tuple[np.ndarray, float]:
    def scaled(u: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = objective(u * scale)
        return value, gradient * scale

    bounds = np.column_stack([lower, np.full_like(lower, np.inf)])
    options = {"maxcor": memory, "maxiter": iterations, "maxfun": 4 * iterations, "ftol": 0.0, "gtol": 1e-9}
    result = minimize(scaled, x / scale, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    return result.x * scale, float(result.fun)


def standardise(
    theta: np.ndarray, a: np.ndarray, b: np.ndarray, reference: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the same X = θaᵀ + 1bᵀ in the gauge where the ``reference`` models (default all) have mean 0, sd 1."""
    chosen = theta if reference is None else theta[reference]
    mean, spread = chosen.mean(), chosen.std()
    if not spread > 0:
        raise ValueError("abilities without spread have no standard scale")
    return (theta - mean) / spread, a * spread, b + a * mean


def load_matrix(name: str, models: int | None = None) -> Responses:
    """Read a long Parquet file of the shared data as counts; skip the test where the file is absent.

    Repeated runs of a model and item add up: attempts counts the rows, successes sums their scores. A row without a
    verdict is missing. With ``models`` only that many models, the first by name, are kept.
    """
    pa_compute = pytest.importorskip("pyarrow.compute")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = SHARED_DATA / name
    if not path.exists():
        pytest.skip(f"shared data not here: {path}")
    table = parquet.read_table(path)
    score_name = "score" if "score" in table.column_names else "correct"
    table = table.filter(pa_compute.is_valid(table[score_name]))
    model_ids, model_at = np.unique(table["model"].to_numpy().astype(str), return_inverse=True)
    item_ids, item_at = np.unique(table["item"].to_numpy().astype(str), return_inverse=True)
    score = table[score_name].cast("float64").to_numpy()
    shape = (len(model_ids), len(item_ids))
    attempts, successes = np.zeros(shape), np.zeros(shape)
    np.add.at(attempts, (model_at, item_at), 1.0)
    np.add.at(successes, (model_at, item_at), score)
    kept = slice(models)
    return Responses(attempts[kept], successes[kept], model_ids[kept].tolist(), item_ids.tolist())
