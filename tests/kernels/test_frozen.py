"""Scoring against fixed items: the roots, what is counted, what is skipped, whatever the layout."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import brentq

from cbmm_spark.blocks import ITEM_BLOCK_SCHEMA, encode_cells, join_tiles, part_of_tile, read_block
from cbmm_spark.kernels.cells import Block
from cbmm_spark.kernels.frozen import (
    COUNTED,
    FrozenItems,
    FrozenSums,
    FrozenTask,
    add_frozen_block,
    frozen_nodes,
    score_models,
)
from tests.kernels.layouts import LAYOUTS, blocks_of, dense_of, drawn

RIDGE = 0.3
SIZE = (41, 60)
CASES = [(layout, 1) for layout in LAYOUTS] + [("counts", 4), ("scores", 4), ("sparse_scores", 4)]
EVERY = pytest.mark.parametrize(("layout", "attempts"), CASES)
UNKNOWN = np.arange(60) % 7 == 3


def answers(attempts: int, layout: str):
    return drawn(*SIZE, seed=8, observed=0.7, attempts=attempts, fractional=attempts > 1 and layout != "counts")


def items_of(seed: int = 2) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.lognormal(0.0, 0.5, SIZE[1]), rng.normal(0.0, 1.0, SIZE[1])


def task_of(models: np.ndarray, theta=None, ridge: float = RIDGE, doublings: int = 0, components=None) -> FrozenTask:
    a, b = items_of()
    a, b = np.where(UNKNOWN, np.nan, a)[:57], np.where(UNKNOWN, np.nan, b)[:57]  # three more came later
    component = np.ones(57, dtype=np.int64) if components is None else components
    nodes = frozen_nodes(np.linspace(-2, 2, 30), doublings, 0.1, 32, 192)
    count = int(component.max())
    return FrozenTask("s", {"b": FrozenItems(a, b, component)}, models, ridge, nodes, theta, count)


def known_of(n: np.ndarray, k: np.ndarray) -> tuple[np.ndarray, ...]:
    known = ~UNKNOWN & (np.arange(60) < 57)
    a, b = items_of()
    return n[:, known], k[:, known], a[known], b[known]


def summed(blocks: list[Block], task: FrozenTask) -> FrozenSums:
    sums = FrozenSums.zeros(task)
    for block in blocks:
        add_frozen_block(block, task, sums)
    return sums


def in_blocks(n: np.ndarray, k: np.ndarray, layout: str, size: int = 25) -> list[Block]:
    return [replace(b, item_start=1 + size * i) for i, b in enumerate(blocks_of(n, k, layout, size))]


def root(n: np.ndarray, k: np.ndarray, a: np.ndarray, b: np.ndarray, ridge: float = RIDGE) -> float:
    def gradient(t: float) -> float:
        return float((n / (1 + np.exp(-(a * t + b))) - k) @ a + ridge * t)

    return float(brentq(gradient, -200, 200, xtol=1e-13))


@EVERY
def test_first_pass_finds_the_roots_and_a_second_certifies_them(layout, attempts):
    n, k = answers(attempts, layout)
    blocks = in_blocks(n, k, layout)
    models = np.arange(SIZE[0])
    task = task_of(models)
    sums = summed(blocks, task)
    found = score_models(task, None, sums.values, sums.steepest)
    kn, kk, a, b = known_of(n, k)
    expected = np.array([root(kn[i], kk[i], a, b) for i in models])
    np.testing.assert_allclose(found.theta, expected, atol=2e-5)
    assert not found.residual.any()
    exact_task = replace(task, theta=found.theta)
    exact = summed(blocks, exact_task)
    checked = score_models(exact_task, found.theta, exact.values, exact.steepest)
    assert checked.residual.max() < 1e-4
    np.testing.assert_allclose(checked.theta, expected, atol=1e-9)
    np.testing.assert_allclose(checked.information, found.information, rtol=1e-3)
    x = np.outer(found.theta, a) + b
    assert exact.loss == pytest.approx(float((kn * np.logaddexp(0, x) - kk * x).sum()), rel=1e-10)
    for part in (sums, exact):
        np.testing.assert_allclose(part.counts[0], kn.sum(axis=1))
        np.testing.assert_allclose(part.counts[1], kk.sum(axis=1), atol=1e-9)
        np.testing.assert_allclose(part.counts[2], (kn > 0).sum(axis=1))
        np.testing.assert_allclose(part.counts[3], (n > 0).sum(axis=1) - (kn > 0).sum(axis=1))


def test_roots_beyond_the_nodes_are_told_and_found_on_a_wider_grid():
    n, k = drawn(*SIZE, seed=8)
    k[0], k[1] = n[0], 0.0
    blocks, models = in_blocks(n, k, "bits"), np.arange(SIZE[0])
    kn, kk, a, b = known_of(n, k)
    expected = [root(kn[i], kk[i], a, b, 1e-4) for i in (0, 1)]
    assert max(np.abs(expected)) > 10
    found = None
    for doublings in range(12):
        task = task_of(models, ridge=1e-4, doublings=doublings)
        sums = summed(blocks, task)
        found = score_models(task, None, sums.values, sums.steepest)
        if np.isfinite(found.residual).all():
            break
        assert doublings < 4
    assert doublings > 0
    np.testing.assert_allclose(found.theta[:2], expected, rtol=0.05)
    no_ridge = task_of(models, ridge=0.0, doublings=2)
    bounded = score_models(no_ridge, None, summed(blocks, no_ridge).values, 1.0)
    assert bounded.theta[:2].tolist() == [10.0, -10.0]
    assert np.isfinite(bounded.residual).all()


def test_a_model_with_three_known_items_and_one_with_unknown_ones_only():
    n, k = np.zeros((2, 60)), np.zeros((2, 60))
    n[0, [0, 1, 2, 3]], k[0, [0, 3]] = 1.0, 1.0
    n[1, [3, 59]] = 1.0
    task = task_of(np.arange(2))
    sums = summed(in_blocks(n, k, "bits"), task)
    found = score_models(task, None, sums.values, sums.steepest)
    kn, kk, a, b = known_of(n, k)
    assert found.theta[0] == pytest.approx(root(kn[0], kk[0], a, b), abs=1e-5)
    assert sums.counts[:COUNTED].T.tolist() == [[3, 1, 3, 1], [0, 0, 0, 2]]


def test_components_answered_are_counted():
    n, k = drawn(*SIZE, seed=8)
    n[:20, :30] = k[:20, :30] = 0.0
    n[20:, 30:] = k[20:, 30:] = 0.0
    component = np.where(np.arange(57) < 30, 2, 1)
    sums = summed(in_blocks(n, k, "bits"), task_of(np.arange(SIZE[0]), components=component))
    assert (np.argmax(sums.counts[COUNTED:], axis=0) + 1).tolist() == [1] * 20 + [2] * 21


@EVERY
def test_part_of_a_tile_has_the_answers_of_the_models_asked_for(layout, attempts):
    n, k = answers(attempts, layout)
    n[5] = k[5] = 0.0
    item, model = np.nonzero(n.T)
    sparse = 1.0 if layout.startswith("sparse") else 0.0
    packed = encode_cells(item, model, n.T[item, model].astype(int), k.T[item, model], 60, SIZE[0], sparse)
    tile = {
        "benchmark": "b", "item_block": 0, "item_start": 1, "n_items": 60, "model_start": 11, "n_models": SIZE[0],
        "encoding": packed.encoding, "attempted": packed.attempted, "solved": packed.solved,
    }  # fmt: skip
    whole = part_of_tile(tile, np.arange(10, 10 + SIZE[0]))
    assert whole == join_tiles([tile])
    for wanted in ([10], [13, 15, 30, 50], [3, 12, 99], list(range(20, 30))):
        part = part_of_tile(tile, np.array(wanted))
        assert part is not None
        assert set(part) == set(ITEM_BLOCK_SCHEMA.names)
        block = read_block(part)
        expected = [i for i in wanted if 10 <= i < 10 + SIZE[0] and n[i - 10].any()]
        assert block.models.tolist() == expected
        got = dense_of(block.cells)
        rows = np.array(expected) - 10
        np.testing.assert_array_equal(got[0], n[rows].T)
        np.testing.assert_allclose(got[1], k[rows].T, atol=1e-12)
    assert part_of_tile(tile, np.array([3, 9, 51])) is None
    assert part_of_tile(tile, np.array([15])) is None
