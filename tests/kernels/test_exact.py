"""Items given instead of solved: exact sums of a block at any item parameters."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cbmm_spark.kernels.aggregate import ScaleSums, ScaleTask, add_fixed_block
from cbmm_spark.kernels.block_items import solve_block
from cbmm_spark.kernels.block_products import item_moments
from cbmm_spark.kernels.cells import Block
from cbmm_spark.kernels.exact import ExactResult, evaluate_block, exact_block
from cbmm_spark.kernels.items import LARGEST_A, LARGEST_B
from cbmm_spark.kernels.model import Ridge
from cbmm_spark.kernels.nodes import make_nodes
from tests.kernels.layouts import LAYOUTS, blocks_of, drawn

RIDGE = Ridge(0.2, 0.25, 0.1)
CASES = [(layout, 1, observed) for layout in LAYOUTS for observed in (1.0, 0.6)]
CASES += [(layout, 4, 0.7) for layout in ("counts", "scores", "sparse_scores")]
EVERY = pytest.mark.parametrize(("layout", "attempts", "observed"), CASES)


def answers(layout: str, attempts: int, observed: float, size: tuple[int, int] = (83, 75)):
    fractional = attempts > 1 and layout != "counts"
    return drawn(*size, seed=21, observed=observed, attempts=attempts, fractional=fractional)


def task_of(theta: np.ndarray, items=None, ridge: Ridge = RIDGE) -> ScaleTask:
    nodes = make_nodes(theta, 0.2, 32, 96)
    return ScaleTask("s", frozenset("b"), np.arange(theta.size), theta, nodes, ridge, "fixed", items)


def solved(block: Block, theta: np.ndarray, ridge: Ridge = RIDGE, tolerance: float = 1e-8) -> ExactResult:
    view = task_of(theta, ridge=ridge).view(block.models)
    counts, weighted = item_moments(block.cells, [view])[0]
    start = solve_block(block.cells, view, counts, weighted)
    return exact_block(block.cells, view, start, counts, weighted, tolerance)


def by_hand(n, k, theta, a, b) -> tuple[float, np.ndarray, np.ndarray, np.ndarray]:
    """Loss, gradient and information of models, curvature (3, J) of items, from the cells; n and k models × items."""
    x = np.outer(theta, a) + b
    p = 1.0 / (1.0 + np.exp(-x))
    w = n * p * (1.0 - p)
    loss = float((n * np.logaddexp(0.0, x) - k * x).sum())
    curvature = np.stack([(theta**2) @ w, theta @ w, w.sum(axis=0)])
    return loss, (n * p - k) @ a, w @ (a * a), curvature


@EVERY
def test_at_the_solved_items_it_is_the_exact_evaluation(layout, attempts, observed):
    n, k = answers(layout, attempts, observed)
    theta = np.random.default_rng(1).normal(size=83)
    block = blocks_of(n, k, layout)[0]
    wanted = solved(block, theta)
    found = evaluate_block(block.cells, task_of(theta).view(block.models), wanted.a, wanted.b)
    assert found.loss == pytest.approx(wanted.loss, rel=1e-12)
    np.testing.assert_allclose(found.gradient, wanted.gradient, rtol=0, atol=1e-9)
    np.testing.assert_allclose(found.information, wanted.information, rtol=1e-12)
    np.testing.assert_allclose(found.item_information, wanted.item_information, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(found.residual, wanted.residual, atol=1e-10)
    assert found.residual.max() < 1e-6
    np.testing.assert_array_equal([found.a, found.b], [wanted.a, wanted.b])


@EVERY
def test_at_any_items_it_is_the_sum_over_cells(layout, attempts, observed):
    n, k = answers(layout, attempts, observed)
    rng = np.random.default_rng(2)
    theta, a, b = rng.normal(size=83), rng.lognormal(0, 0.5, 75), rng.normal(size=75)
    a[3] = 0.0
    block = blocks_of(n, k, layout)[0]
    found = evaluate_block(block.cells, task_of(theta).view(block.models), a, b)
    loss, gradient, information, curvature = by_hand(n, k, theta, a, b)
    assert found.loss == pytest.approx(loss, rel=1e-11)
    assert found.node_loss == found.loss
    np.testing.assert_allclose(found.gradient, gradient, rtol=0, atol=1e-8)
    np.testing.assert_allclose(found.information, information, rtol=1e-11)
    np.testing.assert_allclose(found.item_information, curvature, rtol=1e-11, atol=1e-11)


@EVERY
def test_elsewhere_the_residual_is_positive_and_grows(layout, attempts, observed):
    n, k = answers(layout, attempts, observed)
    theta = np.random.default_rng(3).normal(size=83)
    block = blocks_of(n, k, layout)[0]
    best, view = solved(block, theta), task_of(theta).view(block.models)
    before = best.residual
    for distance in (1e-3, 1e-2, 1e-1):
        moved = evaluate_block(block.cells, view, best.a, best.b + distance)
        assert (moved.residual > before).all()
        errors = distance * np.sqrt(best.item_information[2] + RIDGE.easiness)
        if distance <= 1e-2:  # where the objective is still a parabola: the step back, in the metric of the curvature
            inside = best.a > 1.0
            np.testing.assert_allclose(moved.residual[inside], errors[inside], rtol=0.05)
        before = moved.residual


def test_extreme_items_are_finite():
    n, k = drawn(40, 6, seed=5)
    a, b = np.array([LARGEST_A, LARGEST_A, 0.0, 0.0, 400.0, 1.0]), np.array([LARGEST_B, -LARGEST_B, 40, -40, 0, 900.0])
    theta = np.linspace(-10, 10, 40)
    for layout in LAYOUTS:
        block = blocks_of(n, k, layout)[0]
        found = evaluate_block(block.cells, task_of(theta, ridge=Ridge(0, 0, 0)).view(block.models), a, b)
        x = np.outer(theta, a) + b
        assert found.loss == pytest.approx(float((n * np.logaddexp(0, x) - k * x).sum()), rel=1e-9)
        assert np.isfinite([found.gradient, found.information]).all()
        assert np.isfinite(found.residual).all()


# ------------------------------------------------------------------------------------- sums of blocks
@EVERY
def test_blocks_add_up(layout, attempts, observed):
    n, k = answers(layout, attempts, observed)
    n[1::2, :20], k[1::2, :20] = 0.0, 0.0  # models that did not run the first block
    rng = np.random.default_rng(4)
    theta, a, b = rng.normal(size=83), rng.lognormal(0, 0.5, 75), rng.normal(size=75)
    parts = [slice(start, start + 20) for start in range(0, 75, 20)]
    blocks = [
        replace(block, item_start=part.start + 1)
        for block, part in zip(blocks_of(n, k, layout, 20), parts, strict=True)
    ]
    task = task_of(theta, {("b", part.start + 1): (a[part], b[part]) for part in parts})
    sums = ScaleSums.zeros(task)
    assert sums.table is None
    residual = 0.0
    for block in blocks:
        add_fixed_block(block, task, sums)
        own = evaluate_block(block.cells, task.view(block.models), *task.items[("b", block.item_start)])
        residual = max(residual, float(own.residual.max()))
    loss, gradient, information, _ = by_hand(n, k, theta, a, b)
    assert sums.totals.loss == pytest.approx(loss, rel=1e-11)
    np.testing.assert_allclose(sums.gradient, gradient, rtol=0, atol=1e-8)
    np.testing.assert_allclose(sums.information, information, rtol=1e-11)
    assert sums.totals.penalty == pytest.approx(0.5 * (0.25 * a @ a + 0.1 * b @ b))
    assert sums.totals.a_square == pytest.approx(a @ a)
    assert sums.totals.ab_sum == pytest.approx(a @ b)
    assert sums.totals.steepest == a.max()
    assert sums.totals.residual == residual > 0.01
    assert (sums.totals.node_error, sums.totals.repeats, sums.totals.at_bound) == (0.0, 0, 0.0)
    assert not sums.score.any()


def test_items_at_their_bounds_are_counted_where_there_is_no_penalty():
    n, k = drawn(40, 5, seed=6)
    items = np.array([1.0, LARGEST_A, 0.0, 2.0, 3.0]), np.array([0.0, 1.0, LARGEST_B, -LARGEST_B, 1.0])
    block, theta = blocks_of(n, k)[0], np.linspace(-2, 2, 40)
    for ridge, count in (
        (Ridge(0, 0, 0), 3), (Ridge(0, 0.1, 0), 2), (Ridge(0, 0, 0.1), 1), (Ridge(0, 0.1, 0.1), 0)
    ):  # fmt: skip
        task = task_of(theta, {("b", 1): items}, ridge)
        sums = ScaleSums.zeros(task)
        add_fixed_block(block, task, sums)
        assert sums.totals.at_bound == count
