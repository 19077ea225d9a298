"""The paper's recurrence: monotone, and its limit is what a general optimiser finds for the same objective."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cbmm_spark.simulation.generator import draw_matrix
from tests import reference
from tests.oracles import fit_lbfgsb, load_matrix, standardise
from tests.reference import Parameters, Ridge


@st.composite
def problems(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, float, Ridge]:
    """Small problems of any kind: missing cells, empty rows and columns, fractions, any σ, ridge or none."""
    n_models, n_items = draw(st.integers(1, 9)), draw(st.integers(1, 9))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    attempts = rng.integers(0, draw(st.sampled_from([2, 5])), (n_models, n_items)).astype(float)
    share = rng.choice([0.0, 0.3, 1.0, rng.random()], (n_models, n_items))
    successes = attempts * share if draw(st.booleans()) else np.round(attempts * share)
    sigma = draw(st.sampled_from([0.25, 1.0, 4.0]))
    ridge = draw(st.sampled_from([Ridge(), Ridge(0.3, 0.25, 0.1), Ridge(0.0, 2.0, 0.0)]))
    return attempts, successes, sigma, ridge


@given(problems())
@settings(max_examples=150, deadline=None)
def test_the_objective_never_rises_and_everything_stays_finite(problem):
    attempts, successes, sigma, ridge = problem
    found = reference.fit(attempts, successes, sigma, ridge, tolerance=0.0, max_sweeps=25)
    rises = np.diff(found.history)
    assert (rises <= 1e-12 * (1.0 + np.abs(found.history[:-1]))).all()
    assert all(np.isfinite(part).all() for part in found.parameters)
    assert (found.parameters.a >= 0).all()
    assert found.objective == pytest.approx(
        reference.objective(*found.parameters, attempts, successes, sigma, ridge), rel=1e-12, abs=1e-12
    )


@given(problems(), st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None)
def test_the_gradient_is_the_slope_of_the_objective(problem, seed):
    attempts, successes, sigma, ridge = problem
    rng = np.random.default_rng(seed)
    point = Parameters(*(rng.normal(size=n) for n in (len(attempts), *[attempts.shape[1]] * 2)))
    slopes = reference.gradient(*point, attempts, successes, sigma, ridge)
    step = 1e-5
    for which, (part, slope) in enumerate(zip(point, slopes, strict=True)):
        direction = rng.normal(size=part.shape)
        values = [
            reference.objective(
                *(p + s * step * direction * (k == which) if k == which else p for k, p in enumerate(point)),
                attempts,
                successes,
                sigma,
                ridge,
            )
            for s in (1.0, -1.0)
        ]
        assert (values[0] - values[1]) / (2 * step) == pytest.approx(slope @ direction, rel=1e-5, abs=1e-5)


def test_one_sweep_is_the_one_in_the_paper():
    """Complete ±1 responses, no ridge: the four formulas of the paper, written out naively."""
    rng = np.random.default_rng(7)
    sigma, y = 0.7, rng.choice([-1.0, 1.0], (6, 5))
    theta, a, b = rng.normal(size=6), rng.uniform(0.1, 2, 5), rng.normal(size=5)
    x = np.outer(theta, a) + b
    target = x + 4 * sigma * y * (1 - 1 / (1 + np.exp(-y * x / sigma)))
    new_a = np.maximum(0, theta @ (target - b) / (theta @ theta))
    new_b = (target - np.outer(theta, new_a)).mean(axis=0)
    new_theta = (target - new_b) @ new_a / (new_a @ new_a)
    found, value = reference.sweep(Parameters(theta, a, b), np.ones_like(y), (y + 1) / 2, sigma)
    np.testing.assert_allclose(found.a, new_a, rtol=1e-12)
    np.testing.assert_allclose(found.b, new_b, rtol=1e-12)
    np.testing.assert_allclose(found.theta, new_theta, rtol=1e-12)
    assert value == pytest.approx(np.log1p(np.exp(-y * x / sigma)).sum(), rel=1e-13)


@pytest.mark.parametrize("attempts", [1, 3])
@pytest.mark.parametrize("sigma", [0.25, 1.0, 4.0])
def test_the_limit_is_the_optimum_of_lbfgsb(sigma, attempts):
    n, k, _ = draw_matrix(40, 100, seed=5, missing=0.2, attempts=attempts, miskeyed=0.03, perfect=1, hopeless=1)
    ridge = Ridge(0.25 * 100 / 40 * sigma, 0.25 / sigma, 0.1)
    oracle = fit_lbfgsb(n, k, sigma, ridge)
    found = reference.fit(n, k, sigma, ridge, tolerance=1e-11, max_sweeps=30_000)
    assert found.converged
    assert oracle.projected_gradient < 1e-4
    assert found.objective == pytest.approx(oracle.objective, rel=2e-8)
    assert found.objective >= oracle.objective * (1 - 1e-12)
    difference = standardise(*found.parameters)[0] - standardise(oracle.theta, oracle.a, oracle.b)[0]
    assert np.abs(difference).max() < 2e-3


def test_fractions_reach_the_same_optimum_too():
    rng = np.random.default_rng(3)
    n = (rng.random((25, 40)) < 0.8).astype(float)
    k = n * rng.random((25, 40)) ** rng.uniform(0.3, 3, 40)
    ridge = reference.default_ridge(25, 40)
    oracle = fit_lbfgsb(n, k, 1.0, ridge)
    found = reference.fit(n, k, 1.0, ridge, tolerance=1e-11, max_sweeps=30_000)
    assert found.objective == pytest.approx(oracle.objective, rel=2e-8)
    assert reference.objective(oracle.theta, oracle.a, oracle.b, n, k, 1.0, ridge) == pytest.approx(
        oracle.objective, rel=1e-12
    )


def test_attempts_equal_that_many_models_of_one_ability():
    """n attempts with k successes are n cells of the same θ: objective and item gradients agree exactly."""
    rng = np.random.default_rng(11)
    n = rng.integers(0, 5, (7, 9))
    k = rng.integers(0, n + 1)
    theta, a, b = rng.normal(size=7), rng.uniform(0, 2, 9), rng.normal(size=9)
    copies = np.repeat(np.arange(7), 4)
    turn = np.tile(np.arange(4), 7)[:, None]
    attempts, successes = (turn < n[copies]).astype(float), (turn < k[copies]).astype(float)
    single = reference.gradient(theta, a, b, n, k)
    many = reference.gradient(theta[copies], a, b, attempts, successes)
    assert reference.objective(theta, a, b, n, k) == pytest.approx(
        reference.objective(theta[copies], a, b, attempts, successes), rel=1e-13
    )
    np.testing.assert_allclose(many.a, single.a, atol=1e-12)
    np.testing.assert_allclose(many.b, single.b, atol=1e-12)
    np.testing.assert_allclose(many.theta.reshape(7, 4).sum(axis=1), single.theta, atol=1e-12)


def test_the_temperature_only_rescales_the_items():
    n, k, _ = draw_matrix(30, 50, seed=2, missing=0.1)
    plain = reference.fit(n, k, 1.0, tolerance=0.0, max_sweeps=30)
    warm = reference.fit(n, k, 4.0, tolerance=0.0, max_sweeps=30)
    np.testing.assert_allclose(warm.history, plain.history, rtol=1e-10)
    np.testing.assert_allclose(warm.parameters.theta, plain.parameters.theta, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(warm.parameters.a, 4.0 * plain.parameters.a, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(warm.parameters.b, 4.0 * plain.parameters.b, rtol=1e-8, atol=1e-10)


def test_the_objective_does_not_overflow_or_cancel():
    one = np.ones((1, 1))
    huge, zero = np.array([1e6]), np.zeros(1)
    assert reference.objective(huge, np.ones(1), zero, one, one) == 0.0
    assert reference.objective(huge, np.ones(1), zero, one, 0 * one) == 1e6
    assert reference.objective(np.array([40.0]), np.ones(1), zero, one, one) == pytest.approx(np.exp(-40.0), rel=1e-12)


def test_a_large_matrix_is_worked_on_in_blocks_without_a_difference(monkeypatch):
    n, k, world = draw_matrix(41, 37, seed=9, missing=0.3)
    point = Parameters(world.theta, world.items.a, world.items.b)
    whole = reference.sweep(point, n, k), reference.gradient(*point, n, k)
    monkeypatch.setattr(reference, "_BLOCK_CELLS", 100)
    cut = reference.sweep(point, n, k), reference.gradient(*point, n, k)
    assert cut[0][1] == pytest.approx(whole[0][1], rel=1e-13)
    for left, right in zip((*cut[0][0], *cut[1]), (*whole[0][0], *whole[1]), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-10, atol=1e-12)


def test_the_paper_s_rule_ends_the_sweeps_and_running_out_of_them_is_reported():
    n, k, _ = draw_matrix(200, 300, seed=4)
    found = reference.fit(n, k)
    steps = np.abs(np.diff(found.history)) / found.history[:-1]
    assert found.converged
    assert steps[-1] <= 1e-4 < steps[:-1].min()
    short = reference.fit(n, k, max_sweeps=3)
    assert not short.converged
    assert short.sweeps == 3


@pytest.mark.parametrize("name", ["lsat6.parquet", "lsat7.parquet"])
@pytest.mark.parametrize("penalised", [True, False])
def test_five_items_stay_finite(name, penalised):
    data = load_matrix(name)
    ridge = reference.default_ridge(*data.attempts.shape) if penalised else reference.NO_RIDGE
    found = reference.fit(data.attempts, data.successes, 1.0, ridge, tolerance=0.0, max_sweeps=300)
    assert all(np.isfinite(part).all() for part in found.parameters)
    assert (np.diff(found.history) <= 1e-9).all()


@pytest.mark.parametrize(
    ("attempts", "successes"),
    [
        (np.ones((2, 2)), np.full((2, 2), 1.5)),
        (np.ones((2, 2)), np.full((2, 2), -0.5)),
        (np.ones((2, 2)), np.array([[np.nan, 0], [0, 1]])),
        (np.full((2, 2), np.inf), np.ones((2, 2))),
        (np.ones((2, 2)), np.ones((2, 3))),
    ],
)
def test_impossible_counts_are_refused(attempts, successes):
    with pytest.raises(ValueError, match=r"cell|shape"):
        reference.fit(attempts, successes)


@pytest.mark.parametrize(("sigma", "ridge"), [(0.0, Ridge()), (float("nan"), Ridge()), (1.0, Ridge(-1.0))])
def test_impossible_settings_are_refused(sigma, ridge):
    with pytest.raises(ValueError, match="sigma"):
        reference.fit(np.ones((2, 2)), np.ones((2, 2)), sigma, ridge)
