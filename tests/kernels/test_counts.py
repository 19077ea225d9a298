"""What is counted before a fit, against the matrices themselves; and whether scores say more than chance."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import kstest

from cbmm_spark.kernels.counts import Counts
from cbmm_spark.kernels.in_process import count_scales
from cbmm_spark.kernels.statistics import chance_of_scores
from tests.kernels.layouts import LAYOUTS, blocks_of, drawn


def counted(n: np.ndarray, k: np.ndarray, layout: str = "bits", size: int = 32) -> Counts:
    return count_scales(blocks_of(n, k, layout, size), {"s": frozenset("b")}, n.shape[0])["s"]


def chance(n: np.ndarray, k: np.ndarray) -> float:
    counts = counted(n, k, "counts" if n.max() > 1 else "bits")
    return chance_of_scores(counts.successes, counts.expected, counts.variance)


@pytest.mark.parametrize("observed", [1.0, 0.8, 0.1])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_counts_are_sums_over_the_matrix(layout, observed):
    n, k = drawn(37, 150, seed=1, observed=observed)
    n[5], n[:, 7] = 0.0, 0.0
    check(n, k * n, counted(n, k * n, layout))


@pytest.mark.parametrize("layout", ["counts", "scores", "sparse_scores"])
def test_counts_of_repeated_attempts(layout):
    n, k = drawn(37, 150, seed=2, observed=0.6, attempts=5, fractional=layout != "counts")
    check(n, k, counted(n, k, layout))


def check(n: np.ndarray, k: np.ndarray, found: Counts) -> None:
    share = np.divide(k.sum(axis=0), n.sum(axis=0), out=np.zeros(n.shape[1]), where=n.any(axis=0))
    smooth = (k.sum(axis=0) + 0.5) / (n.sum(axis=0) + 1.0)
    np.testing.assert_array_equal(found.attempts, n.sum(axis=1))
    np.testing.assert_allclose(found.successes, k.sum(axis=1), rtol=1e-6)
    np.testing.assert_array_equal(found.items, (n > 0).sum(axis=1))
    np.testing.assert_allclose(found.easiness, n @ np.log(smooth / (1 - smooth)), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found.expected, n @ share, rtol=1e-6)
    np.testing.assert_allclose(found.variance, (n * n) @ (share * (1 - share)), rtol=1e-6)
    assert (found.n_items, found.cells) == (n.any(axis=0).sum(), np.count_nonzero(n))


# ------------------------------------------------------------------------------------- no signal
def shuffled(n: np.ndarray, k: np.ndarray, seed: int) -> np.ndarray:
    """The answers of every item dealt out among its observers again."""
    rng = np.random.default_rng(seed)
    dealt = np.zeros_like(k)
    for j in range(n.shape[1]):
        seen = np.flatnonzero(n[:, j])
        dealt[seen, j] = rng.permutation(k[seen, j])
    return dealt


@pytest.mark.parametrize(("shape", "observed"), [((24, 12), 1.0), ((60, 200), 0.7), ((300, 20), 0.5)])
def test_shuffled_answers_have_every_chance_alike(shape, observed):
    """A p-value of data without signal is uniform: its largest distance from uniform over 200 draws is small."""
    n, k = drawn(*shape, seed=3, observed=observed)
    chances = [chance(n, shuffled(n, k, seed)) for seed in range(200)]
    assert kstest(chances, "uniform").statistic < 0.15
    assert np.mean(np.array(chances) < 0.01) < 0.05


def test_repeated_attempts_are_not_taken_for_signal():
    """Five times the same answer is one answer."""
    n, k = drawn(24, 30, seed=4)
    chances = [chance(5 * n, 5 * shuffled(n, k, seed)) for seed in range(100)]
    assert np.mean(np.array(chances) < 0.05) < 0.15


@pytest.mark.parametrize("seed", range(5))
def test_a_real_ability_is_seen(seed):
    assert chance(*drawn(24, 60, seed)) < 1e-4


@pytest.mark.parametrize("n_models", [0, 1])
def test_fewer_than_two_models_have_no_signal(n_models):
    assert chance_of_scores(np.ones(n_models), np.full(n_models, 0.5), np.full(n_models, 0.25)) == 1.0


def test_constant_items_say_nothing():
    n = np.ones((10, 6))
    assert chance(n, n) == 1.0
