"""Linking: a known change of scale is found, whatever the order and gauge; items that drifted are named."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from cbmm_spark.kernels.linking import (
    DRIFT_SIZE,
    LEAST_MODELS,
    Bank,
    curve_differences,
    link_items,
    link_models,
    mean_sigma,
    quantiles,
    robust_start,
    stocking_lord,
)
from cbmm_spark.kernels.model import IDENTITY, Gauge

METHODS = ("stocking-lord", "mean-sigma")
slopes, intercepts = st.floats(0.05, 20.0), st.floats(-20.0, 20.0)


def gauge_of(slope: float, intercept: float) -> Gauge:
    """The change of scale theta -> slope * theta + intercept."""
    return Gauge(-intercept / slope, 1.0 / slope)


def bank_of(size: int, seed: int, n: float = 1000.0) -> Bank:
    rng = np.random.default_rng(seed)
    theta = quantiles(rng.normal(0.0, 1.0, 500) + 0.5 * rng.exponential(1.0, 500))
    return Bank(rng.lognormal(0.0, 0.5, size), rng.normal(0.3, 1.2, size), np.full(size, n), theta)


def estimated(bank: Bank, seed: int) -> Bank:
    """The bank with the errors that its answers leave."""
    rng = np.random.default_rng(seed)
    p = 1.0 / (1.0 + np.exp(-(bank.a[:, None] * bank.theta + bank.b[:, None])))
    w = p * (1.0 - p) * (bank.n / bank.theta.size)[:, None]
    curvature = np.array([[w @ bank.theta**2, w @ bank.theta], [w @ bank.theta, w.sum(axis=1)]]).transpose(2, 0, 1)
    root = np.linalg.cholesky(np.linalg.inv(curvature + np.diag([0.25, 0.1])))
    error = np.einsum("jkl,jl->jk", root, rng.normal(size=(bank.a.size, 2)))
    return Bank(np.maximum(bank.a + error[:, 0], 0.0), bank.b + error[:, 1], bank.n, bank.theta)


@given(slopes, intercepts, st.integers(1, 200), st.integers(0, 2**32 - 1), st.sampled_from(METHODS))
@settings(max_examples=150)
def test_without_noise_the_change_of_scale_is_found_exactly(slope, intercept, size, seed, method):
    reference = bank_of(size, seed)
    new = reference.moved(gauge_of(slope, intercept).inverse())
    assume(reference.is_usable(0).any())
    found = link_items(reference, new, method)
    assert found.slope == pytest.approx(slope, rel=1e-7)
    assert found.intercept == pytest.approx(intercept, rel=1e-7, abs=1e-7 * max(1.0, slope))
    np.testing.assert_allclose(found.gauge.items(new.a, new.b), (reference.a, reference.b), rtol=1e-6, atol=1e-6)
    assert not found.drifted.any()
    assert (found.anchors == reference.is_usable(0)).all()
    assert found.slope > 0


@given(slopes, intercepts, slopes, intercepts, st.integers(0, 2**32 - 1), st.sampled_from(METHODS))
@settings(max_examples=60)
def test_order_and_gauge_of_either_side_do_not_matter(s0, i0, s1, i1, seed, method):
    reference = bank_of(120, seed)
    new = estimated(reference, seed + 1)
    new.b[:6] += 2.0
    expected = link_items(reference, new, method)
    order = np.random.default_rng(seed).permutation(120)
    shuffled = [Bank(x.a[order], x.b[order], x.n[order], x.theta) for x in (reference, new)]
    found = link_items(*shuffled, method)
    assert (found.slope, found.intercept) == pytest.approx((expected.slope, expected.intercept), rel=1e-8, abs=1e-8)
    assert (found.drifted == expected.drifted[order]).all()
    mine, theirs = gauge_of(s0, i0), gauge_of(s1, i1)
    moved = link_items(reference.moved(mine), new.moved(theirs), method)
    whole = theirs.inverse().then(expected.gauge).then(mine)
    assert moved.gauge.stretch == pytest.approx(whole.stretch, rel=1e-7)
    assert moved.gauge.shift == pytest.approx(whole.shift, rel=1e-7, abs=1e-6)
    assert (moved.drifted == expected.drifted).all()
    again = link_items(reference, new, method)
    assert (again.gauge, again.rounds) == (expected.gauge, expected.rounds)


@given(st.floats(0.01, 0.1), st.floats(0.6, 1.6), st.floats(-2.0, 2.0), st.integers(0, 2**32 - 1), st.booleans())
@settings(max_examples=40)
def test_drifted_items_are_found_and_left_out(share, slope, intercept, seed, one_sided):
    """Changed by 1.5 in easiness, all the same way (the worst case for a mean) or either way, among noisy estimates."""
    rng = np.random.default_rng(seed)
    truth = bank_of(600, seed)
    reference, new = estimated(truth, seed + 1), estimated(truth, seed + 2)
    changed = rng.permutation(600) < max(1, round(share * 600))
    by = changed * np.where(one_sided, 1.5, rng.choice([-1.5, 1.5], 600))
    new.b[:] += by
    expected = curve_differences(truth, Bank(truth.a, truth.b + by, truth.n, truth.theta), IDENTITY)[0]
    moved = new.moved(gauge_of(slope, intercept).inverse())
    for method in METHODS:
        found = link_items(reference, moved, method)
        clear = changed & (expected > 1.7 * DRIFT_SIZE)
        assert (found.drifted & clear).sum() >= 0.9 * clear.sum()
        assert (found.drifted & ~changed).sum() <= 1
        assert not (found.anchors & found.drifted).any()
        loose = 1.0 if method == "stocking-lord" else 2.5
        assert found.slope == pytest.approx(slope, rel=0.02 * loose)
        # An error of the slope is one of the intercept as well, the more so the farther the scales are apart.
        assert abs(found.intercept - intercept) < 0.02 * loose * max(1.0, slope) * (1.0 + abs(intercept))


def test_without_purification_the_same_drift_would_move_the_scale():
    truth = bank_of(600, 3)
    new = Bank(truth.a, truth.b + 1.5 * (np.arange(600) < 60), truth.n, truth.theta)
    everything = np.ones(600, dtype=bool)
    spoiled = stocking_lord(truth, new, everything, IDENTITY)
    found = link_items(truth, new)
    assert abs(spoiled.shift) > 0.08
    assert abs(found.gauge.shift) < 0.01
    assert found.anchors.sum() >= 500


def test_items_that_tell_nothing_do_not_spoil_the_link():
    truth = bank_of(200, 4)
    a = np.concatenate(
        [truth.a, np.zeros(40), np.full(40, 1e-9), np.full(20, 28.0), np.full(20, 0.8), np.full(30, 1.0)]
    )
    b = np.concatenate([truth.b, np.full(40, 2.0), np.full(40, 0.5), np.full(20, 3.0), np.full(20, 40.0), np.zeros(30)])
    n = np.full(350, 1000.0)
    n[-30:] = 3.0
    reference = Bank(a, b, n, truth.theta)
    rng = np.random.default_rng(5)
    noisy_a, noisy_b = a.copy(), b.copy()
    noisy_b[200:280] += rng.normal(0, 0.2, 80)
    noisy_a[200:280] += 1e-6 * rng.random(80)
    noisy_a[280:300], noisy_b[280:300] = 30.0, rng.normal(0, 20, 20)
    noisy_b[320:] += rng.normal(0, 3.0, 30)
    new = Bank(noisy_a, noisy_b, n, truth.theta).moved(gauge_of(1.4, -0.6).inverse())
    for method in METHODS:
        found = link_items(reference, new, method, least_answers=10)
        assert found.slope == pytest.approx(1.4, rel=1e-6)
        assert found.intercept == pytest.approx(-0.6, rel=1e-6)
        assert not found.anchors[200:].any()


def test_nothing_in_common():
    bank = bank_of(5, 1)
    flat = Bank(np.zeros(5), bank.b, bank.n, bank.theta)
    for reference, new in ((bank, flat), (flat, bank), (flat, flat), (Bank(*np.zeros((3, 0)), bank.theta),) * 2):
        found = link_items(reference, new)
        assert found.gauge == IDENTITY
        assert not found.anchors.any()
    with pytest.raises(ValueError, match="do not differ"):
        link_items(bank, Bank(bank.a, bank.b, bank.n, np.ones(41)))


def test_most_items_changed_leaves_few_anchors():
    """Then no link can be told, and the caller sees it by the number of anchors."""
    truth = bank_of(100, 9)
    rng = np.random.default_rng(1)
    new = Bank(truth.a, truth.b + rng.normal(0, 3.0, 100), truth.n, truth.theta)
    found = link_items(truth, new)
    assert found.anchors.sum() < 40


def test_a_single_item_and_items_of_one_difficulty_are_enough():
    for size in (1, 30):
        reference = Bank(
            np.linspace(0.7, 1.8, size), np.linspace(0.7, 1.8, size), np.full(size, 500.0), bank_of(1, 1).theta
        )
        new = reference.moved(gauge_of(0.7, 2.0).inverse())
        for method in METHODS:
            found = link_items(reference, new, method)
            assert (found.slope, found.intercept) == pytest.approx((0.7, 2.0), rel=1e-6)


def test_both_estimators_agree_on_noisy_items():
    truth = bank_of(2000, 6)
    reference, new = estimated(truth, 7), estimated(truth, 8)
    everything = reference.is_usable(0) & new.is_usable(0)
    start = robust_start(reference, new, everything)
    for found in (start, mean_sigma(reference, new, everything), stocking_lord(reference, new, everything, start)):
        assert found.stretch == pytest.approx(1.0, abs=0.05)
        assert found.shift == pytest.approx(0.0, abs=0.05)


def test_chance_alone_hardly_ever_looks_like_drift():
    """The ratio of difference and error is what the error says: about 1 on average, 3 hardly ever."""
    for n in (100.0, 1000.0):
        truth = bank_of(4000, 11, n)
        difference, error = curve_differences(estimated(truth, 12), estimated(truth, 13), IDENTITY)
        assert np.sqrt(np.mean(difference**2) / np.mean(error**2)) == pytest.approx(1.0, abs=0.1)
        assert (difference > 3.0 * error).mean() < 0.005


def test_a_large_bank_takes_about_a_second():
    truth = bank_of(12_032, 14)
    new = estimated(truth, 15).moved(gauge_of(1.2, 0.4).inverse())
    began = time.perf_counter()
    found = link_items(truth, new)
    assert time.perf_counter() - began < 10.0  # generous: machines are shared; 0.3 s alone
    assert found.slope == pytest.approx(1.2, rel=0.01)


# ------------------------------------------------------------------------------------------------ models
@given(slopes, intercepts, st.integers(LEAST_MODELS, 40), st.integers(0, 2**32 - 1))
def test_the_abilities_of_the_same_models_tell_the_change_of_scale(slope, intercept, models, seed):
    reference = np.random.default_rng(seed).normal(size=models)
    expected = gauge_of(slope, intercept)
    found = link_models(reference, expected.inverse().abilities(reference))
    assert found.stretch == pytest.approx(expected.stretch, rel=1e-9)
    assert found.shift == pytest.approx(expected.shift, rel=1e-9, abs=1e-7)


def test_too_few_models_or_models_all_alike_tell_nothing():
    spread = np.arange(5.0)
    assert link_models(spread[: LEAST_MODELS - 1], spread[: LEAST_MODELS - 1]) is None
    assert link_models(spread, np.ones(5)) is None
    assert link_models(np.ones(5), spread) is None
