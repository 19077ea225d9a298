"""The cases F1 to F12 of people who fit such models, each with its kind; what concerns tables is in tests/spark."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cbmm_spark.kernels.alternation import LoopOptions, ScaleFit
from cbmm_spark.kernels.in_process import fit_blocks, item_solution
from cbmm_spark.kernels.statistics import ability_errors, chance_of_scores
from tests.kernels.layouts import blocks_of, drawn
from tests.oracles import fit_lbfgsb


class Found:
    """A fit of one scale with its items side by side."""

    def __init__(self, n: np.ndarray, k: np.ndarray, layout: str = "bits", **options: Any) -> None:
        blocks = blocks_of(n, k * n, layout, 64)
        self.n, self.k = n, k * n
        self.fit: ScaleFit = fit_blocks(blocks, {"s": frozenset("b")}, n.shape[0], **options)["s"]
        items = [item_solution(block, self.fit) for block in blocks]
        self.a, self.b = (np.concatenate([getattr(each, name) for each in items]) for name in "ab")
        self.theta, self.error = self.fit.theta, ability_errors(self.fit.information, self.fit.ridge.ability)

    def check(self, optimum: bool = True) -> None:
        assert self.fit.converged
        assert np.isfinite(np.concatenate([self.theta, self.error, self.a, self.b])).all()
        assert (self.a >= 0).all()
        accepted = np.array([r.objective for r in self.fit.history if r.accepted])
        assert (np.diff(accepted) <= 1e-10 * np.abs(accepted[:-1])).all()
        if optimum:
            ridge = (self.fit.ridge.ability, self.fit.ridge.discrimination, self.fit.ridge.easiness)
            models = self.fit.models
            best = fit_lbfgsb(self.n[models], self.k[models], 1.0, ridge)
            assert self.fit.objective <= best.objective * (1 + 1e-8)


def start_of(seed: int, size: int) -> dict[str, np.ndarray]:
    return {"s": np.random.default_rng(seed).standard_normal(size)}


# ------------------------------------------------------------------------------------- F1
@pytest.mark.parametrize("shape", [(50, 20), (50, 200), (200, 20)])
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("start", [None, 4, 5])
def test_f1_all_correct_is_never_below_and_all_wrong_never_above_anybody(shape, seed, start):
    rng = np.random.default_rng(seed)
    n = np.ones(shape)
    k = rng.integers(0, 2, shape).astype(float)
    k[0], k[-1] = 1.0, 0.0
    found = Found(n, k, start=None if start is None else start_of(start, shape[0]))
    found.check(optimum=False)  # coin flips have many optima
    if start is not None and found.theta[0] < found.theta[-1]:
        pytest.fail("a start turned the scale over: more successes must mean more ability")
    assert found.theta[0] >= found.theta.max()
    assert found.theta[-1] <= found.theta.min()
    others = np.median(found.error[1:-1])
    assert found.error[0] > others
    assert found.error[-1] > others


# ------------------------------------------------------------------------------------- F2, F11
@pytest.mark.parametrize("constant", [1.0, 0.0])
@pytest.mark.parametrize("layout", ["bits", "sparse_bits", "counts"])
def test_f2_an_item_with_one_answer_stops_nothing(constant, layout):
    n, k = drawn(40, 30, seed=6)
    k[:, 3] = constant
    found = Found(n, k, layout)
    found.check()
    assert np.sign(found.b[3]) == (1 if constant else -1)


@pytest.mark.parametrize("kind", ["as drawn", "identical", "collinear", "all correct", "all wrong", "mixture"])
def test_f11_columns_that_stop_other_software(kind):
    n, k = drawn(20, 100, seed=7)
    if kind in ("identical", "mixture"):
        k[:, 10:20] = k[:, [10]]
    if kind in ("collinear", "mixture"):
        k[:, 30:35] = 1.0 - k[:, 20:25]
    if kind in ("all correct", "mixture"):
        k[:, 40:50] = 1.0
    if kind in ("all wrong", "mixture"):
        k[:, 50:60] = 0.0
    found = Found(n, k)
    found.check(optimum=False)
    if kind == "identical":
        np.testing.assert_allclose(found.a[10:20], found.a[10], rtol=1e-9)
        np.testing.assert_allclose(found.b[10:20], found.b[10], rtol=1e-9)


@pytest.mark.parametrize("options", [LoopOptions(exact_below=0), LoopOptions()], ids=["nodes first", "exact"])
def test_f11_a_column_beside_its_opposite_has_no_slope_in_one_of_them(options):
    n, k = drawn(20, 100, seed=3)
    k[:, 5], k[:, 7] = k[:, 4], 1 - k[:, 6]
    found = Found(n, k, options=options)
    found.check()
    assert found.a[4] == pytest.approx(found.a[5], abs=1e-6)
    assert min(found.a[6], found.a[7]) == 0.0


# ------------------------------------------------------------------------------------- F3, F6
def test_f3_shuffled_columns_are_fitted_without_a_confident_slope():
    n, k = drawn(24, 12, seed=3)
    rng = np.random.default_rng(3)
    for j in range(12):
        rng.shuffle(k[:, j])
    found = Found(n, k)
    found.check()
    assert chance_of_scores(found.fit.counts.successes, found.fit.counts.expected, found.fit.counts.variance) > 0.01


def test_f6_groups_without_a_common_item_are_told_apart():
    n, k = np.kron(np.eye(2), np.ones((20, 15))), drawn(40, 30, seed=3)[1]
    found = Found(n, k)
    found.check()
    np.testing.assert_array_equal(found.fit.components, np.repeat([1, 2], 20))


# ------------------------------------------------------------------------------------- F5, F10
@pytest.mark.parametrize("layout", ["bits", "sparse_bits", "counts"])
def test_f5_a_model_without_a_verdict_takes_no_part(layout):
    n, k = drawn(40, 30, seed=8)
    n[11] = 0.0
    found = Found(n, k, layout)
    found.check()
    assert 11 not in found.fit.models
    rest = np.delete(np.arange(40), 11)
    np.testing.assert_allclose(found.theta, Found(n[rest], k[rest], layout).theta, atol=1e-8)


@pytest.mark.parametrize("answers", [1, 2, 5])
def test_f10_few_answers_have_a_wide_error(answers):
    n, k = drawn(60, 80, seed=9)
    n[4, answers:] = 0.0
    n[:, 6] = 0.0
    n[10 : 10 + answers, 6] = 1.0  # and an item with as few
    found = Found(n, k)
    found.check()
    assert found.error[4] > 2.0 * np.median(found.error)
    assert abs(found.theta[4]) < np.abs(found.theta).max()


# ------------------------------------------------------------------------------------- F7
def booklets(seed: int, n_models: int = 300, n_items: int = 150, share: float = 0.1) -> tuple[np.ndarray, np.ndarray]:
    """Three groups of models, each with its third of the items and a few that all have, thinly filled."""
    rng = np.random.default_rng(seed)
    n, k = drawn(n_models, n_items, seed)
    booklet = np.arange(n_models) % 3
    third = np.arange(n_items) % 3
    common = np.arange(n_items) < 15
    open_cells = (booklet[:, None] == third[None, :]) | common[None, :]
    return n * (open_cells & (rng.random(n.shape) < share / open_cells.mean())), k


def test_f7_linked_booklets_have_one_optimum_from_every_start():
    n, k = booklets(10)
    assert 0.09 < n.mean() < 0.11
    first = Found(n, k, "sparse_bits")
    first.check()
    assert first.fit.components.max() == 1
    for seed in range(4):
        other = Found(n, k, "sparse_bits", start=start_of(seed, n.shape[0]))
        other.check(optimum=False)
        assert other.fit.objective == pytest.approx(first.fit.objective, rel=1e-8)
        np.testing.assert_allclose(other.theta, first.theta, atol=1e-3 * first.theta.std())


# ------------------------------------------------------------------------------------- F12
def test_f12_easiness_is_an_intercept_with_a_plus_sign():
    """a = 2, intercept -3 has difficulty 1.5: half of those at ability 1.5 solve it."""
    rng = np.random.default_rng(12)
    theta = np.linspace(-3, 3, 2000)
    a, b = np.concatenate([[2.0], rng.lognormal(0, 0.3, 199)]), np.concatenate([[-3.0], rng.normal(size=199)])
    k = (rng.random((theta.size, a.size)) < 1 / (1 + np.exp(-(np.outer(theta, a) + b)))).astype(float)
    found = Found(np.ones_like(k), k, options=LoopOptions(exact_below=0))
    found.check(optimum=False)
    slope, origin = np.polyfit(found.theta, theta, 1)
    assert slope > 0
    difficulty = -found.b[0] / found.a[0] * slope + origin
    assert difficulty == pytest.approx(1.5, abs=0.1)
    assert found.a[0] / slope == pytest.approx(2.0, rel=0.15)
    assert found.b[0] < 0
