"""Link, gauge and penalty."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.special import expit

from cbmm_spark.kernels.model import Gauge, Ridge, best_gauge, logit, sigmoid, standard_gauge


@st.composite
def gauge_problems(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray, Ridge]:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n, j = draw(st.integers(2, 30)), draw(st.integers(1, 30))
    theta = rng.normal(rng.normal() * 2, rng.lognormal(0, 1), n)
    a, b = rng.lognormal(0, 0.7, j) * (rng.random(j) < 0.8), rng.normal(rng.normal(), 1.5, j)
    weights = (draw(st.sampled_from([0.01, 0.5, 20.0])) for _ in range(3))
    return theta, a, b, Ridge(*weights)


def penalty(gauge: Gauge, theta, a, b, ridge: Ridge) -> float:
    a2, b2 = gauge.items(a, b)
    t2 = gauge.abilities(theta)
    return 0.5 * (ridge.ability * t2 @ t2 + ridge.discrimination * a2 @ a2 + ridge.easiness * b2 @ b2)


def best(theta, a, b, ridge: Ridge) -> Gauge:
    return best_gauge(float(theta.sum()), float(theta @ theta), theta.size, float(a @ a), float(a @ b), ridge)


@given(gauge_problems())
@settings(max_examples=150, deadline=None)
def test_the_gauge_minimises_the_ridge_terms_and_leaves_probabilities_alone(problem):
    theta, a, b, _ = problem
    assume((a > 0).any())
    gauge = best(*problem)
    here = penalty(gauge, *problem)
    assert here <= penalty(Gauge(0.0, 1.0), *problem) * (1 + 1e-12)
    np.testing.assert_allclose(
        np.outer(gauge.abilities(theta), gauge.items(a, b)[0]) + gauge.items(a, b)[1], np.outer(theta, a) + b, atol=1e-8
    )
    found = minimize(
        lambda x: penalty(Gauge(x[0], float(np.exp(x[1]))), *problem),
        [gauge.shift + 0.3, np.log(gauge.stretch) - 0.2],
        method="Nelder-Mead",
        options={"xatol": 1e-9, "fatol": 1e-13, "maxiter": 4000, "maxfev": 4000},
    )
    assert here <= found.fun * (1 + 1e-9)


def test_the_gauge_never_raises_the_penalty_where_no_item_discriminates():
    problem = np.array([0.8, 0.3]), np.zeros(3), np.ones(3), Ridge(0.3, 0.25, 0.1)
    assert penalty(best(*problem), *problem) <= penalty(Gauge(0.0, 1.0), *problem)


def test_a_second_gauge_changes_nothing():
    rng = np.random.default_rng(0)
    theta, a, b, ridge = rng.normal(1, 2, 50), rng.lognormal(size=30), rng.normal(size=30), Ridge(0.3, 0.25, 0.1)
    first = best(theta, a, b, ridge)
    second = best(first.abilities(theta), *first.items(a, b), ridge)
    assert second.shift == pytest.approx(0.0, abs=1e-9)
    assert second.stretch == pytest.approx(1.0, abs=1e-9)


def test_without_penalty_the_gauge_standardises():
    theta = np.random.default_rng(0).normal(3.0, 2.0, 200)
    gauge = best(theta, np.ones(4), np.zeros(4), Ridge(0.0, 0.0, 0.0))
    assert gauge.abilities(theta).mean() == pytest.approx(0.0, abs=1e-12)
    assert gauge.abilities(theta).std() == pytest.approx(1.0)


@pytest.mark.parametrize("ridge", [Ridge(0.3, 0.25, 0.1), Ridge(0.0, 0.0, 0.0), Ridge(0.3, 0.25, 0.0)])
@pytest.mark.parametrize(("theta", "a"), [([0.5] * 4, [1.0, 2.0]), ([0.5], [1.0, 0.3]), ([0.1, 0.4], [0.0, 0.0])])
def test_degenerate_scales_have_a_finite_gauge(ridge, theta, a):
    theta, a = np.array(theta), np.array(a)
    gauge = best(theta, a, np.array([0.3, -0.7]), ridge)
    assert np.isfinite([gauge.shift, gauge.stretch]).all()
    assert gauge.stretch > 0


def test_standard_gauge():
    theta = np.array([1.0, 3.0, 8.0])
    gauge = standard_gauge(theta)
    assert gauge.abilities(theta).mean() == pytest.approx(0.0, abs=1e-15)
    assert gauge.abilities(theta).std() == pytest.approx(1.0)
    for flat in (np.full(3, 2.0), np.array([2.0]), np.zeros(0)):
        assert standard_gauge(flat).stretch == 1.0


def test_the_link_and_its_inverse():
    x = np.array([-800.0, -40.0, -1.0, 0.0, 2.0, 800.0])
    with np.errstate(all="raise"):
        np.testing.assert_allclose(sigmoid(x), expit(x), rtol=1e-12, atol=1e-16)
    p = np.array([1e-12, 0.2, 0.5, 0.999])
    np.testing.assert_allclose(logit(p), np.log(p / (1 - p)), rtol=1e-12)


def test_temperature_only_rescales_the_penalty_of_items():
    ridge = Ridge(0.3, 0.25, 0.1).for_temperature(4.0)
    assert (ridge.ability, ridge.discrimination, ridge.easiness) == (0.3, 4.0, 1.6)
