"""Standard errors, intervals, ranks and baselines against formulas and published values."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

from cbmm_spark.kernels.model import Gauge, Ridge
from cbmm_spark.kernels.statistics import (
    ability_errors,
    accuracy_loss,
    competition_ranks,
    constant_easiness,
    item_variances,
    spearman,
    wilson,
)

RIDGE = Ridge(0.3, 0.25, 0.1)


def hessian(f, x: np.ndarray, h: float = 1e-4) -> np.ndarray:
    size = x.size
    out = np.empty((size, size))
    for i in range(size):
        for j in range(size):
            values = [f(x + h * (s * np.eye(size)[i] + t * np.eye(size)[j])) * s * t for s in (1, -1) for t in (1, -1)]
            out[i, j] = sum(values) / (4 * h * h)
    return out


def test_item_variances_are_those_of_the_numerical_hessian_on_the_published_scale():
    """The likelihood as a function of the published (a, b): its inverse Hessian is their covariance."""
    rng = np.random.default_rng(0)
    sigma, gauge = 0.5, Gauge(0.7, 1.8)
    theta, a, b = rng.normal(1.0, 2.0, 300), 0.9, -0.4  # on the fit's scale, divided by sigma
    published = gauge.abilities(theta)
    p = 1 / (1 + np.exp(-(a * theta + b)))
    w = p * (1 - p)
    curvature = tuple(np.array([v]) for v in ((w * theta**2).sum(), (w * theta).sum(), w.sum()))
    var_a, cov, var_b = (float(x[0]) for x in item_variances(curvature, np.array([a]), RIDGE))

    def objective(x: np.ndarray) -> float:
        a2, b2 = x / sigma
        a1 = a2 / gauge.stretch
        b1 = b2 - gauge.shift * a1
        z = a2 * published + b2
        return float((np.logaddexp(0, z) - p * z).sum() + 0.5 * (RIDGE.discrimination * a1**2 + RIDGE.easiness * b1**2))

    shown = np.array(gauge.items(np.array(a), np.array(b))) * sigma
    to_published = sigma * np.array([[gauge.stretch, 0.0], [gauge.shift, 1.0]])  # `Gauge.items`, which is linear
    found = to_published @ np.array([[var_a, cov], [cov, var_b]]) @ to_published.T
    np.testing.assert_allclose(found, np.linalg.inv(hessian(objective, shown)), rtol=1e-3)


def test_an_item_at_its_bound_has_a_one_dimensional_variance():
    curvature = (np.array([50.0]), np.array([20.0]), np.array([40.0]))
    var_a, cov, var_b = item_variances(curvature, np.array([0.0]), RIDGE)
    assert np.isnan(var_a[0])
    assert cov[0] == 0.0
    assert var_b[0] == pytest.approx(1.0 / 40.1)


def test_ability_errors():
    np.testing.assert_allclose(ability_errors(np.array([3.75, 0.0]), 0.25), [0.5, 2.0])
    assert ability_errors(np.zeros(1), 0.0)[0] > 1e100  # nothing is known: written as null


@pytest.mark.parametrize("ridge", [0.1, 5.0])
def test_constant_easiness_is_the_minimum(ridge):
    n, k = np.array([10.0, 10.0, 10.0, 500.0, 7.0, 1e6]), np.array([0.0, 10.0, 4.0, 3.0, 2.5, 1e6])
    found = constant_easiness(n, k, ridge)
    p = 1 / (1 + np.exp(-found))
    np.testing.assert_allclose((n * p - k + ridge * found) / (n * p * (1 - p) + ridge), 0.0, atol=1e-8)
    best = minimize(lambda b: float(10 * np.logaddexp(0, b[0]) - 4 * b[0] + 0.5 * ridge * b[0] ** 2), [0.0])
    assert found[2] == pytest.approx(best.x[0], abs=1e-5)


def test_wilson_has_its_published_values():
    """Newcombe (1998), table I, method 3: 81/263, 15/148, 0/20, 1/29 at 95 %."""
    low, high = wilson(np.array([81.0, 15.0, 0.0, 1.0]), np.array([263.0, 148.0, 20.0, 29.0]), 0.95)
    np.testing.assert_allclose(low, [0.2553, 0.0624, 0.0, 0.0061], atol=5e-5)
    np.testing.assert_allclose(high, [0.3662, 0.1605, 0.1611, 0.1718], atol=5e-5)


def test_wilson_is_the_set_of_shares_that_are_not_rejected():
    k, n, z = np.array([3.0, 7.5]), np.array([11.0, 9.0]), 1.6448536269514722
    for end in wilson(k, n, 0.90):
        np.testing.assert_allclose(np.abs(k / n - end) / np.sqrt(end * (1 - end) / n), z, rtol=1e-9)


def test_wilson_without_attempts_and_at_the_ends():
    low, high = wilson(np.array([0.0, 0.0, 5.0]), np.array([0.0, 5.0, 5.0]), 0.95)
    assert np.isnan([low[0], high[0]]).all()
    assert (low[1], high[2]) == (0.0, pytest.approx(1.0))
    assert 0 < low[2] < 1
    assert 0 < high[1] < 1


def test_ranks_share_the_smaller_number():
    assert competition_ranks(np.array([0.5, 2.0, 0.5, -1.0, 2.0, 0.1])).tolist() == [3, 1, 3, 6, 1, 5]
    assert competition_ranks(np.array([7.0])).tolist() == [1]


def test_accuracy_loss():
    n, k = np.array([10.0, 4.0, 0.0]), np.array([7.0, 4.0, 0.0])
    expected = -(7 * np.log(0.7) + 3 * np.log(0.3)) / 14
    assert accuracy_loss(n, k) == pytest.approx(expected, rel=1e-9)
    assert np.isnan(accuracy_loss(np.zeros(2), np.zeros(2)))


def test_spearman():
    x = np.array([1.0, 2.0, 3.0, 4.0])
    assert spearman(x, np.exp(x)) == pytest.approx(1.0)
    assert spearman(x, np.array([1.0, 3.0, 2.0, 4.0])) == pytest.approx(0.8)
    assert np.isnan(spearman(x, np.ones(4)))
    assert np.isnan(spearman(x[:1], x[:1]))


def test_values_that_differ_by_rounding_share_a_rank():
    x = np.array([1.0, 2.0, 2.0 + 4e-16, 0.5, 1.0 - 2e-16, 2.0 + 1e-3])
    assert competition_ranks(x).tolist() == [4, 2, 2, 6, 4, 1]
    assert competition_ranks(np.zeros(3)).tolist() == [1, 1, 1]
    assert competition_ranks(np.zeros(0)).size == 0
    tiny = np.array([3e-12, 1e-12, 2e-12])
    assert competition_ranks(tiny).tolist() == [1, 3, 2]
