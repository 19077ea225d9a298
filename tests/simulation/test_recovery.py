"""Comparison with a known truth: independent of the gauge, right on hand-made cases."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import spearmanr

from cbmm_spark.simulation import recovery
from cbmm_spark.simulation.generator import draw_matrix


def _truth(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=40), rng.uniform(0, 2, 30), rng.normal(size=30)


def _regauged(point, m: float, c: float):
    theta, a, b = point
    return (theta - m) / c, a * c, b + a * m


def test_the_gauge_does_not_matter():
    truth = _truth()
    found = recovery.compare_with_truth(_regauged(truth, 3.0, 0.2), truth)
    assert found.theta.rmse == pytest.approx(0.0, abs=1e-12)
    assert found.a.rmse == pytest.approx(0.0, abs=1e-12)
    assert found.b.rmse == pytest.approx(0.0, abs=1e-12)
    assert found.probability_rmse == pytest.approx(0.0, abs=1e-12)
    assert found.theta.spearman == pytest.approx(1.0)


def test_errors_are_measured_in_standard_deviations_of_the_truth():
    rng = np.random.default_rng(1)
    theta, a, b = _truth()
    noisy = theta + 0.3 * rng.normal(size=len(theta)), a, b
    plain = recovery.compare_with_truth(noisy, (theta, a, b))
    moved = recovery.compare_with_truth(_regauged(noisy, -1.0, 7.0), _regauged((theta, a, b), 2.0, 0.5))
    np.testing.assert_allclose(np.concatenate(plain[:3]), np.concatenate(moved[:3]), atol=1e-10)
    standard = [(v - v.mean()) / v.std() for v in (noisy[0], theta)]
    assert plain.theta.rmse == pytest.approx(np.sqrt(np.mean((standard[0] - standard[1]) ** 2)))
    assert plain.theta.pearson == pytest.approx(np.corrcoef(noisy[0], theta)[0, 1])
    assert plain.theta.spearman == pytest.approx(spearmanr(noisy[0], theta).statistic)
    p, q = (1 / (1 + np.exp(-(t[:, None] * a + b))) for t in (noisy[0], theta))
    assert plain.probability_rmse == pytest.approx(np.sqrt(np.mean((p - q) ** 2)))


def test_models_without_a_finite_estimate_and_items_left_out_do_not_count():
    theta, a, b = _truth()
    broken = theta.copy()
    broken[3] = np.nan
    wrong = a.copy()
    wrong[0] = 50.0
    items = np.arange(len(a)) > 0
    found = recovery.compare_with_truth((broken, wrong, b), (theta, a, b), items=items)
    assert (found.theta.n, found.a.n) == (len(theta) - 1, len(a) - 1)
    assert found.theta.rmse == pytest.approx(0.0, abs=1e-12)
    assert found.probability_rmse == pytest.approx(0.0, abs=1e-12)
    assert recovery.compare_with_truth((broken, wrong, b), (theta, a, b)).a.rmse > 5


def test_vectors_without_spread_or_entries_have_no_correlation():
    constant = recovery.agreement(np.ones(4), np.arange(4.0))
    assert np.isnan(constant.pearson)
    assert np.isnan(constant.spearman)
    assert recovery.agreement(np.full(2, np.nan), np.ones(2)).n == 0
    with pytest.raises(ValueError, match="do not differ"):
        recovery.standardise(np.ones(3), np.ones(2), np.ones(2))
    with pytest.raises(ValueError, match="shape"):
        recovery.compare_with_truth(_truth(), (np.ones(3), *_truth()[1:]))


def test_accuracy_is_ranked_over_the_models_that_answered():
    n, k, world = draw_matrix(80, 400, seed=3, missing=0.2)
    n[5], k[5] = 0, 0
    found = recovery.accuracy_agreement(n, k, world.theta)
    seen = np.arange(80) != 5
    expected = spearmanr(k[seen].sum(axis=1) / n[seen].sum(axis=1), world.theta[seen]).statistic
    assert found.n == 79
    assert found.spearman == pytest.approx(expected)
    assert found.spearman > 0.95
