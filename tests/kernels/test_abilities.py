"""The ability update against brentq on the exact equation."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import expit

from cbmm_spark.kernels.abilities import interpolate, newton_abilities, solve_from_table
from cbmm_spark.kernels.nodes import make_nodes

N_MODELS, N_ITEMS = 60, 40


class Equations:
    """G_i and S_i of some models, written out naively."""

    def __init__(self, seed: int, steep: float = 1.0) -> None:
        rng = np.random.default_rng(seed)
        self.truth = rng.normal(size=N_MODELS)
        self.a, self.b = steep * rng.lognormal(0, 0.4, N_ITEMS), rng.normal(0, 1, N_ITEMS)
        p = expit(np.outer(self.truth, self.a) + self.b)
        self.n = (rng.random(p.shape) < 0.8).astype(float)
        self.score = (rng.binomial(1, p) * self.n) @ self.a
        self.nodes = make_nodes(self.truth, 0.2, 32, 96)
        self.table = np.stack([self.gradient(np.full(N_MODELS, t)) for t in self.nodes.abilities], axis=1)

    def gradient(self, theta: np.ndarray) -> np.ndarray:
        return (self.n * self.a * expit(np.outer(theta, self.a) + self.b)).sum(axis=1)

    def information(self, theta: np.ndarray) -> np.ndarray:
        p = expit(np.outer(theta, self.a) + self.b)
        return (self.n * self.a**2 * p * (1 - p)).sum(axis=1)

    def objective(self, theta: np.ndarray, ridge: float) -> np.ndarray:
        loss = (self.n * np.logaddexp(0.0, np.outer(theta, self.a) + self.b)).sum(axis=1)
        return loss - self.score * theta + 0.5 * ridge * theta**2

    def roots(self, ridge: float) -> np.ndarray:
        def one(i: int) -> float:
            def f(t: float) -> float:
                return self.n[i] * self.a @ expit(t * self.a + self.b) + ridge * t - self.score[i]

            return brentq(f, -60, 60, xtol=1e-14)

        return np.array([one(i) for i in range(N_MODELS)])


@pytest.mark.parametrize("ridge", [0.02, 0.5, 20.0])
def test_the_root_of_every_equation_is_found(ridge):
    equations = Equations(0)
    found = solve_from_table(equations.nodes, equations.table, equations.score, ridge)
    roots = equations.roots(ridge)
    inside = (roots > equations.nodes.inner[0]) & (roots < equations.nodes.inner[1])
    assert inside.sum() > 50
    np.testing.assert_allclose(found.theta[inside], roots[inside], atol=1e-6)
    np.testing.assert_allclose(found.information[inside], equations.information(roots)[inside], rtol=1e-4)


def test_interpolation_of_a_table_and_its_slope():
    equations = Equations(1)
    theta = np.clip(equations.truth, *equations.nodes.inner)
    found, slope = interpolate(equations.nodes, equations.table, theta)
    np.testing.assert_allclose(found, equations.gradient(theta), rtol=1e-6)
    np.testing.assert_allclose(slope, equations.information(theta), rtol=1e-4)


def test_roots_beyond_the_grid_go_to_its_ends():
    equations = Equations(2)
    ends = equations.nodes.abilities[[0, -1]]
    score = np.where(np.arange(N_MODELS) % 2 == 0, equations.n @ equations.a, 0.0)  # all right, all wrong
    found = solve_from_table(equations.nodes, equations.table, score, 0.0)
    np.testing.assert_allclose(found.theta[::2], ends[1], rtol=1e-12)
    np.testing.assert_allclose(found.theta[1::2], ends[0], rtol=1e-12)
    assert np.isfinite(found.information).all()
    assert (found.information >= 0).all()


def test_perfect_and_hopeless_models_reach_their_penalised_root_over_grids():
    equations = Equations(2)
    equations.score = np.where(np.arange(N_MODELS) % 2 == 0, equations.n @ equations.a, 0.0)
    theta = equations.truth
    for _ in range(12):
        nodes = make_nodes(theta, 0.1, 32, 200)
        table = np.stack([equations.gradient(np.full(N_MODELS, t)) for t in nodes.abilities], axis=1)
        theta = solve_from_table(nodes, table, equations.score, 0.3).theta
    np.testing.assert_allclose(theta, equations.roots(0.3), atol=1e-4)


@pytest.mark.parametrize("steep", [1.0, 2.0])
def test_the_correction_makes_the_fixed_point_exact(steep):
    """On a coarse, wrong table the plain root is off; the corrected iteration still ends at the exact one."""
    equations = Equations(3, steep)
    nodes = make_nodes(equations.truth, 0.8, 8, 40)
    table = np.stack([equations.gradient(np.full(N_MODELS, t)) for t in nodes.abilities], axis=1) * 1.05 + 0.2
    roots = equations.roots(1.0)
    plain = solve_from_table(nodes, table, equations.score, 1.0).theta
    assert np.abs(plain - roots).max() > 1e-3
    for start, repeats in ((roots, 1), (equations.truth, 60)):
        theta = start
        for _ in range(repeats):
            tabulated, _ = interpolate(nodes, table, theta)
            theta = solve_from_table(nodes, table, equations.score, 1.0, equations.gradient(theta) - tabulated).theta
        np.testing.assert_allclose(theta, roots, atol=1e-9)


def test_newton_steps_from_exact_sums_end_at_the_root_and_descend():
    equations = Equations(4)
    roots = equations.roots(0.2)
    theta = np.full(N_MODELS, 6.0)  # where a whole step would overshoot
    steepest = float(equations.a.max())
    value = equations.objective(theta, 0.2)
    for _ in range(60):
        gradient = equations.gradient(theta) - equations.score
        theta = newton_abilities(theta, gradient, equations.information(theta), 0.2, steepest)
        after = equations.objective(theta, 0.2)
        assert (after <= value + 1e-12 * np.abs(value)).all()
        value = after
    np.testing.assert_allclose(theta, roots, atol=1e-9)


def test_a_model_without_information_stays_finite():
    moved = newton_abilities(np.zeros(2), np.array([5.0, -5.0]), np.zeros(2), 0.0, 0.5)
    assert np.isfinite(moved).all()
