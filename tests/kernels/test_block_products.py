"""One pass over a block: every layout gives what naive float64 sums give, whatever the shape of the block."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.special import expit

from cbmm_spark.kernels.aggregate import ScaleSums, ScaleTask, add_block
from cbmm_spark.kernels.block_items import solve_block
from cbmm_spark.kernels.block_products import ScaleView, ability_tables, item_moments
from cbmm_spark.kernels.exact import evaluate_block, exact_block
from cbmm_spark.kernels.model import Ridge
from cbmm_spark.kernels.nodes import make_nodes, weight_matrix
from tests.kernels.layouts import LAYOUTS, cells_of, drawn

RIDGE = Ridge(0.3, 0.25, 0.1)
SHAPES = [(5, 3), (8, 1), (13, 40), (1, 6), (77, 20), (130, 7)]
"""Models × items: fewer models than nodes, more, not a multiple of 8, one of either."""

LARGE = (2311, 301)
"""Larger than the rectangles that are unpacked at once, in both directions."""


def view_of(n_models: int, seed: int = 0) -> ScaleView:
    theta = np.random.default_rng(seed).normal(size=n_models)
    return ScaleView.of(theta, make_nodes(theta, 0.2, 32, 96), RIDGE)


def moments(cells: Any, view: ScaleView) -> tuple[np.ndarray, np.ndarray]:
    counts, weighted = item_moments(cells, [view])[0]
    return np.broadcast_to(counts, (cells.n_items, counts.shape[1])), weighted


def solved(cells: Any, view: ScaleView) -> Any:
    counts, weighted = item_moments(cells, [view])[0]
    return exact_block(cells, view, solve_block(cells, view, counts, weighted), counts, weighted)


def known(k: np.ndarray, layout: str) -> float:
    """How exactly sums of k are known: fractions in dense pieces pass through float32."""
    return 2e-7 if layout == "scores" and (k != np.floor(k)).any() else 1e-9


def check_moments(n: np.ndarray, k: np.ndarray, layout: str) -> None:
    view = view_of(n.shape[0])
    counts, weighted = moments(cells_of(n, k, layout), view)
    size = max(float(n.sum(axis=0).max()), 1.0)
    np.testing.assert_allclose(counts, n.T @ weight_matrix(view.nodes, view.theta).astype(float), atol=2e-6 * size)
    np.testing.assert_allclose(counts.sum(axis=1), n.sum(axis=0), rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(weighted, k.T @ view.theta, rtol=0, atol=known(k, layout) * size)


def check_tables(n: np.ndarray, k: np.ndarray, layout: str) -> None:
    view, cells = view_of(n.shape[0]), cells_of(n, k, layout)
    counts, weighted = item_moments(cells, [view])[0]
    items = solve_block(cells, view, counts, weighted)
    gradient, score = ability_tables(cells, [view], [items])[0]
    t = items.a[:, None] * expit(items.a[:, None] * view.nodes.abilities + items.b[:, None])
    size = max(float((n @ items.a).max()), 1.0)
    np.testing.assert_allclose(np.broadcast_to(gradient, (n.shape[0], t.shape[1])), n @ t, atol=2e-6 * size)
    np.testing.assert_allclose(score, k @ items.a, atol=known(k, layout) * size)


def check_exact(n: np.ndarray, k: np.ndarray, layout: str) -> None:
    view = view_of(n.shape[0])
    found = solved(cells_of(n, k, layout), view)
    z = np.outer(view.theta, found.a) + found.b
    p = expit(z)
    w = n * p * (1 - p)
    precision = known(k, layout)
    loss = float((n * np.logaddexp(0, z) - k * z).sum())
    assert found.loss == pytest.approx(loss, rel=max(precision / 10, 1e-11), abs=1e-9)
    np.testing.assert_allclose(found.gradient, (n * p - k) @ found.a, atol=precision * (1 + float((n @ found.a).max())))
    np.testing.assert_allclose(found.information, w @ found.a**2, rtol=1e-9, atol=1e-12)
    theta = view.theta
    for got, meant in zip(found.item_information, (theta**2 @ w, theta @ w, w.sum(axis=0)), strict=True):
        np.testing.assert_allclose(got, meant, rtol=1e-9, atol=1e-12 * n.shape[0])
    # the items are at their own minima: KKT conditions from the cells themselves
    grad_a = theta @ (n * p - k) + RIDGE.discrimination * found.a
    grad_b = (n * p - k).sum(axis=0) + RIDGE.easiness * found.b
    scale_a = np.sqrt(theta**2 @ w + RIDGE.discrimination)
    free = found.a > 0
    assert (np.abs(grad_a / scale_a)[free] < 2e-5).all()
    assert (grad_a[~free] > -1e-6).all()
    assert (np.abs(grad_b) / np.sqrt(w.sum(axis=0) + RIDGE.easiness) < 2e-5).all()
    assert (found.residual < 1e-5).all()


CHECKS = [check_moments, check_tables, check_exact]


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("observed", [1.0, 0.96, 0.6], ids=["complete", "few gaps", "many gaps"])
def test_sums_of_single_attempts(check, layout, shape, observed):
    check(*drawn(*shape, seed=3, observed=observed), layout)


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("layout", ["counts", "scores", "sparse_scores"])
@pytest.mark.parametrize("shape", [(13, 4), (90, 11)], ids=str)
def test_sums_of_repeated_attempts(check, layout, shape):
    check(*drawn(*shape, seed=4, observed=0.7, attempts=5, fractional=layout != "counts"), layout)


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("layout", ["bits", "counts", "scores", "sparse_bits"])
@pytest.mark.parametrize("observed", [1.0, 0.97, 0.9], ids=["complete", "few gaps", "many gaps"])
def test_blocks_larger_than_the_internal_pieces(check, layout, observed):
    check(*drawn(*LARGE, seed=5, observed=observed), layout)


@pytest.mark.parametrize("check", CHECKS)
def test_repeated_attempts_in_a_large_block(check):
    check(*drawn(*LARGE, seed=6, observed=0.8, attempts=3, fractional=True), "scores")


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("layout", ["counts", "scores", "sparse_scores"])
def test_hundreds_of_attempts_a_cell(check, layout):
    check(*drawn(2100, 140, seed=12, observed=0.9, attempts=900), layout)


def test_items_with_few_and_with_many_observers_in_one_block():
    n, k = drawn(300, 24, seed=7)
    rng = np.random.default_rng(7)
    for j, observers in enumerate([0, 1, 2, 5, 20, 31, 60]):
        n[:, j] = 0.0
        n[rng.choice(300, observers, replace=False), j] = 1.0
    k *= n
    for layout in ("bits", "counts", "sparse_bits"):
        check_exact(n, k, layout)


def test_steep_and_extreme_items_stay_exact():
    """Far abilities and separable items: the exponents leave the range in which products may be taken together."""
    rng = np.random.default_rng(8)
    theta = rng.normal(size=70) * 30.0
    view = ScaleView.of(theta, make_nodes(theta, 0.2, 32, 96), Ridge(0.3, 1e-8, 1e-8))
    n = np.ones((70, 5))
    k = (theta[:, None] > np.array([-20.0, -1.0, 0.0, 5.0, 40.0])).astype(float)
    for layout in ("bits", "counts", "sparse_bits"):
        found = solved(cells_of(n, k, layout), view)
        z = np.outer(theta, found.a) + found.b
        assert np.abs(z).max() > 40.0
        assert found.loss == pytest.approx(float((np.logaddexp(0, z) - k * z).sum()), abs=1e-11 * np.abs(z).sum())
        assert np.isfinite([found.a, found.b, found.residual]).all()


def test_several_scales_at_once_are_each_its_own():
    n, k = drawn(60, 9, seed=9, observed=0.8)
    views = [view_of(60, seed) for seed in (1, 2, 3)]
    for layout in ("bits", "sparse_bits"):
        cells = cells_of(n, k, layout)
        together = item_moments(cells, views)
        solutions = [
            solve_block(cells, view, counts, weighted) for view, (counts, weighted) in zip(views, together, strict=True)
        ]
        tables = ability_tables(cells, views, solutions)
        for view, moment, solution, table in zip(views, together, solutions, tables, strict=True):
            for got, meant in zip(moment, item_moments(cells, [view])[0], strict=True):
                np.testing.assert_allclose(got, meant, rtol=1e-6, atol=1e-6)
            for got, meant in zip(table, ability_tables(cells, [view], [solution])[0], strict=True):
                np.testing.assert_allclose(got, meant, rtol=1e-6, atol=1e-6)


def test_solutions_on_nodes_are_close_to_those_on_cells():
    n, k = drawn(500, 30, seed=10, observed=0.9)
    view, cells = view_of(500), cells_of(n, k, "bits")
    counts, weighted = item_moments(cells, [view])[0]
    on_nodes = solve_block(cells, view, counts, weighted)
    exact = exact_block(cells, view, on_nodes, counts, weighted)
    np.testing.assert_allclose(on_nodes.a, exact.a, rtol=1e-4)
    np.testing.assert_allclose(on_nodes.b, exact.b, atol=1e-4)
    assert abs(exact.node_loss - exact.loss) < 1e-6 * exact.loss


@pytest.mark.parametrize("mode", ["nodes", "exact", "late"])
def test_sums_over_blocks_add_up_and_models_find_their_places(mode):
    """Three blocks with different models (one of them with gaps in its numbers) give the sums of one block."""
    n, k = drawn(50, 30, seed=11, observed=0.8)
    n[::3, :10] = 0.0
    n[20:, 10:20] = 0.0
    k *= n > 0
    theta = np.random.default_rng(1).normal(size=50)
    task = ScaleTask("s", frozenset(["b"]), np.arange(50), theta, make_nodes(theta, 0.2, 32, 96), RIDGE, mode)  # type: ignore[arg-type]
    whole, parts = {"s": ScaleSums.zeros(task)}, {"s": ScaleSums.zeros(task)}
    add_block(cells_of(n, k, "bits"), np.arange(50), [task], whole)
    for items in (slice(0, 10), slice(10, 20), slice(20, 30)):
        models = np.flatnonzero(n[:, items].any(axis=1))
        add_block(cells_of(n[models, items], k[models, items], "bits"), models, [task], parts)
    for name in ("score", "gradient", "information"):
        np.testing.assert_allclose(getattr(parts["s"], name), getattr(whole["s"], name), atol=1e-4)
    assert parts["s"].totals.loss == pytest.approx(whole["s"].totals.loss, rel=1e-6)
    assert parts["s"].totals.penalty == pytest.approx(whole["s"].totals.penalty, rel=1e-5)
    if mode != "late":
        np.testing.assert_allclose(parts["s"].table, whole["s"].table, atol=1e-3)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_block_without_models_adds_nothing(layout):
    cells = cells_of(np.zeros((0, 5)), np.zeros((0, 5)), layout)
    view = ScaleView.of(np.zeros(0), view_of(9).nodes, RIDGE)
    found = evaluate_block(cells, view, np.ones(5), np.zeros(5))
    assert found.loss == 0.0
    assert (found.gradient.size, found.residual.size) == (0, 5)
