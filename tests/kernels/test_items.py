"""The item update against scipy's L-BFGS-B on single items."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from cbmm_spark.kernels.items import ItemProblem, solve_items


def value(problem: ItemProblem, j: int, x: np.ndarray) -> tuple[float, np.ndarray]:
    """f of item j and its gradient, written out once more."""
    t = problem.points if problem.points.ndim == 1 else problem.points[j]
    c = problem.weights[min(j, problem.weights.shape[0] - 1)]
    a, b = x
    z = a * t + b
    p = np.exp(-np.logaddexp(0.0, -z))
    f = c @ np.logaddexp(0.0, z) - problem.successes[j] * b - problem.weighted[j] * a
    f += 0.5 * (problem.ridge_a * a * a + problem.ridge_b * b * b)
    g_a = (c * p) @ t - problem.weighted[j] + problem.ridge_a * a
    return float(f), np.array([g_a, c @ p - problem.successes[j] + problem.ridge_b * b])


def optimum(problem: ItemProblem, j: int) -> tuple[float, np.ndarray]:
    best = None
    for start in ([0.5, 0.0], [3.0, 1.0], [0.0, -1.0]):
        found = minimize(
            lambda x: value(problem, j, x), start, jac=True, method="L-BFGS-B", bounds=[(0, None), (None, None)],
            options={"ftol": 1e-16, "gtol": 1e-11, "maxiter": 2000},
        )  # fmt: skip
        best = found if best is None or found.fun < best.fun else best
    return float(best.fun), best.x


def answers(
    seed: int, n_items: int, n_models: int, slopes: np.ndarray | float = 1.0, attempts: int = 1, observed: float = 1.0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Points, attempts and successes (items × models) of a 2PL."""
    rng = np.random.default_rng(seed)
    theta = np.sort(rng.normal(size=n_models))
    a = np.broadcast_to(np.asarray(slopes, dtype=float), n_items)
    p = 1 / (1 + np.exp(-(a[:, None] * theta + rng.normal(0, 1, (n_items, 1)))))
    n = rng.integers(1, attempts + 1, p.shape) * (rng.random(p.shape) < observed)
    return theta, n.astype(float), rng.binomial(n, p).astype(float)


def problem_of(theta, n, k, ridge_a: float = 0.25, ridge_b: float = 0.1) -> ItemProblem:
    return ItemProblem(theta, n, k.sum(axis=1), k @ theta, ridge_a, ridge_b)


def check(problem: ItemProblem, rel: float = 1e-9, **options) -> None:
    found = solve_items(problem, **options)
    for j in range(found.a.size):
        best, _ = optimum(problem, j)
        here, _ = value(problem, j, np.array([found.a[j], found.b[j]]))
        assert found.objective[j] == pytest.approx(here, rel=1e-11, abs=1e-10)
        assert found.objective[j] <= best + rel * (1 + abs(best))
    assert (found.a >= 0).all()
    assert (found.residual <= 1e-6).all()


@pytest.mark.parametrize("slope", [0.0, 0.3, 1.0, 4.0, -1.5])
def test_each_item_reaches_its_minimum(slope):
    problem = problem_of(*answers(1, 12, 150, slope, observed=0.8))
    check(problem)
    if slope < 0:
        found = solve_items(problem)
        assert (found.a == 0.0).all()  # exactly at the bound
        gradients = np.array([value(problem, j, np.array([0.0, found.b[j]]))[1] for j in range(12)])
        assert (gradients[:, 0] > 0).all()
        np.testing.assert_allclose(gradients[:, 1], 0.0, atol=1e-6)


def test_parameters_and_not_only_the_objective_agree():
    problem = problem_of(*answers(5, 10, 200, 1.2))
    found = solve_items(problem)
    for j in range(10):
        np.testing.assert_allclose([found.a[j], found.b[j]], optimum(problem, j)[1], atol=2e-6)


@pytest.mark.parametrize("slope", [0.0, 1.0, 6.0])
def test_repeats_never_raise_the_objective_and_end_at_the_minimum(slope):
    problem = problem_of(*answers(2, 8, 120, slope, observed=0.7), ridge_a=0.05, ridge_b=0.05)
    start = (np.full(8, 3.0), np.full(8, -4.0))
    path = np.array([
        solve_items(problem, start, 1e-9, max_repeats=r).objective for r in (0, 1, 2, 3, 5, 8, 20)
    ])  # fmt: skip
    assert (np.diff(path, axis=0) <= 1e-12 * (1 + np.abs(path[:-1]))).all()
    assert (path[0] > path[-1]).all()
    end = solve_items(problem, start, 1e-9, max_repeats=20_000)
    best = solve_items(problem, tolerance=1e-10)
    np.testing.assert_allclose(end.objective, best.objective, rtol=1e-11)
    np.testing.assert_allclose(end.a, best.a, atol=1e-5)
    np.testing.assert_allclose(end.b, best.b, atol=1e-5)


def test_no_start_is_too_far():
    problem = problem_of(*answers(3, 6, 80, 1.0))
    best = solve_items(problem)
    for a, b in ((0.0, 0.0), (50.0, -80.0), (0.0, 60.0), (200.0, 300.0)):
        found = solve_items(problem, (np.full(6, a), np.full(6, b)))
        np.testing.assert_allclose(found.objective, best.objective, rtol=1e-9)
        assert (found.residual <= 1e-6).all()


def test_k_of_n_is_the_same_as_single_attempts():
    theta, n, k = answers(4, 7, 60, 1.0, attempts=4)
    counts = solve_items(problem_of(theta, n, k), tolerance=1e-9)
    for j in range(7):
        rows = np.repeat(np.arange(60), n[j].astype(int))
        single = np.concatenate([np.arange(int(m)) < s for m, s in zip(n[j], k[j], strict=True)]).astype(float)
        alone = solve_items(problem_of(theta[rows], np.ones((1, rows.size)), single[None, :]), tolerance=1e-9)
        np.testing.assert_allclose([counts.a[j], counts.b[j]], [alone.a[0], alone.b[0]], atol=1e-7)


def test_fractional_successes():
    theta, n, _ = answers(4, 9, 90)
    k = np.random.default_rng(8).random(n.shape) / (1 + np.exp(-theta))
    check(problem_of(theta, n, k))


def test_weights_and_points_may_be_shared_or_each_items_own():
    theta, n, k = answers(6, 5, 70)
    shared = solve_items(problem_of(theta, np.ones((1, 70)), k), tolerance=1e-9)
    own = solve_items(problem_of(theta, n, k), tolerance=1e-9)
    weighted = k @ theta
    points = solve_items(ItemProblem(np.tile(theta, (5, 1)), n, k.sum(axis=1), weighted, 0.25, 0.1), tolerance=1e-9)
    for other in (own, points):
        np.testing.assert_allclose(other.a, shared.a, atol=1e-8)
        np.testing.assert_allclose(other.b, shared.b, atol=1e-8)
        np.testing.assert_allclose(other.objective, shared.objective, rtol=1e-11)


@pytest.mark.parametrize("solved", [0.0, 1.0])
def test_constant_items_are_finite_and_optimal(solved):
    theta, n, k = answers(7, 4, 50)
    check(problem_of(theta, n, np.full_like(k, solved)))
    check(problem_of(theta, n, np.full_like(k, solved), ridge_a=1e-3, ridge_b=1e-3), rel=1e-8)


@pytest.mark.parametrize("observers", [1, 2, 3])
def test_few_observers(observers):
    rng = np.random.default_rng(observers)
    n = np.zeros((20, 40))
    for row in n:
        row[rng.choice(40, observers, replace=False)] = 1.0
    check(problem_of(rng.normal(size=40), n, n * (rng.random(n.shape) < 0.5)))


def test_an_item_without_observers_is_zero():
    found = solve_items(problem_of(np.linspace(-1, 1, 5), np.zeros((1, 5)), np.zeros((1, 5))))
    assert (found.a[0], found.b[0]) == pytest.approx((0.0, 0.0), abs=1e-6)


@pytest.mark.parametrize("ridge", [0.25, 1e-2, 1e-4, 1e-6])
def test_separable_items_become_as_steep_as_the_penalty_lets_them(ridge):
    theta = np.random.default_rng(9).normal(size=60)
    k = (theta > np.array([[-0.5], [0.0], [1.0]])).astype(float)
    problem = problem_of(theta, np.ones_like(k), k, ridge, ridge)
    check(problem, rel=1e-8)
    assert solve_items(problem).a.min() > 3.0


@st.composite
def item_blocks(draw: st.DrawFn) -> ItemProblem:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n_items, q = draw(st.integers(1, 6)), draw(st.integers(1, 12))
    theta = rng.normal(0, draw(st.sampled_from([0.01, 1.0, 10.0])), q)
    n = rng.integers(0, draw(st.sampled_from([2, 50, 5000])), (n_items, q)).astype(float)
    share = rng.choice([0.0, 0.2, 1.0, rng.random()], n.shape)
    ridge = draw(st.sampled_from([1e-3, 0.25, 10.0]))
    return problem_of(theta, n, n * share, ridge, ridge)


@given(item_blocks())
@settings(max_examples=100, deadline=None)
def test_any_block_ends_at_its_minimum(problem):
    found = solve_items(problem)
    assert np.isfinite([found.a, found.b, found.objective, found.residual]).all()
    assert (found.a >= 0).all()
    for j in range(found.a.size):
        best, _ = optimum(problem, j)
        assert found.objective[j] <= best + 1e-9 * (1 + abs(best))
