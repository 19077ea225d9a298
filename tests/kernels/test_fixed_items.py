"""Scoring against fixed items: the roots, what is counted, what is skipped, whatever the layout."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import brentq

from cbmm_spark.kernels.cells import Block
from cbmm_spark.kernels.fixed_items import COUNTED, FrozenItems, FrozenTask, solve_models
from cbmm_spark.kernels.in_process import fit_blocks, item_solution
from cbmm_spark.kernels.linking import Bank, link_items, quantiles
from cbmm_spark.kernels.model import Ridge
from cbmm_spark.packing.tile_codec import ITEM_BLOCK_SCHEMA, encode_cells, join_tiles, part_of_tile, read_block
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


def task_of(models: np.ndarray, fresh: bool = False, ridge: float = RIDGE, components=None, **other) -> FrozenTask:
    a, b = items_of()
    a, b = np.where(UNKNOWN, np.nan, a)[:57], np.where(UNKNOWN, np.nan, b)[:57]  # three more came later
    component = np.ones(57, dtype=np.int64) if components is None else components
    items = {"b": FrozenItems(a, b, np.full(57, 200.0), component)}
    penalty, sample = Ridge(ridge, 0.25, 0.1), np.linspace(-2, 2, 30)
    count = int(component.max())
    return FrozenTask("s", items, models, np.full(models.size, fresh), penalty, sample, count, **other)


def known_of(n: np.ndarray, k: np.ndarray) -> tuple[np.ndarray, ...]:
    known = ~UNKNOWN & (np.arange(60) < 57)
    a, b = items_of()
    return n[:, known], k[:, known], a[known], b[known]


def in_blocks(n: np.ndarray, k: np.ndarray, layout: str, size: int = 25) -> list[Block]:
    return [replace(b, item_start=1 + size * i) for i, b in enumerate(blocks_of(n, k, layout, size))]


def root(n: np.ndarray, k: np.ndarray, a: np.ndarray, b: np.ndarray, ridge: float = RIDGE) -> float:
    def gradient(t: float) -> float:
        return float((n / (1 + np.exp(-(a * t + b))) - k) @ a + ridge * t)

    return float(brentq(gradient, -200, 200, xtol=1e-13))


@EVERY
def test_the_roots_are_found_and_certified(layout, attempts):
    n, k = answers(attempts, layout)
    models = np.arange(SIZE[0])
    found = solve_models(in_blocks(n, k, layout), task_of(models, tolerance=1e-9))
    kn, kk, a, b = known_of(n, k)
    expected = np.array([root(kn[i], kk[i], a, b) for i in models])
    np.testing.assert_allclose(found.theta, expected, atol=1e-8)
    assert found.residual.max() <= 1e-9
    x = np.outer(found.theta, a) + b
    p = 1 / (1 + np.exp(-x))
    np.testing.assert_allclose(found.information, (kn * p * (1 - p)) @ (a * a), rtol=1e-9)
    assert found.loss == pytest.approx(float((kn * np.logaddexp(0, x) - kk * x).sum()), rel=1e-10)
    counts = [kn.sum(axis=1), kk.sum(axis=1), (kn > 0).sum(axis=1), (n > 0).sum(axis=1) - (kn > 0).sum(axis=1)]
    np.testing.assert_allclose(found.counts[:COUNTED], counts, atol=1e-9)
    loose = solve_models(in_blocks(n, k, layout, 7), task_of(models))
    assert loose.passes <= found.passes
    np.testing.assert_allclose(loose.theta, expected, atol=1e-3)


@EVERY
def test_models_are_independent_and_a_fresh_one_is_pulled_by_its_own_answers(layout, attempts):
    n, k = answers(attempts, layout)
    models = np.arange(SIZE[0])
    plain, fresh = (
        solve_models(in_blocks(n, k, layout), task_of(models, fresh, tolerance=1e-9)) for fresh in (False, True)
    )
    mixed = task_of(models, tolerance=1e-9)
    mixed.fresh[::2] = True
    found = solve_models(in_blocks(n, k, layout), mixed)
    np.testing.assert_allclose(found.theta, np.where(mixed.fresh, fresh.theta, plain.theta), atol=1e-7)
    outside = np.abs(plain.theta) > 0.5
    assert (np.abs(fresh.theta) > np.abs(plain.theta))[outside].all()
    chosen = slice(10, 17)
    alone = solve_models(
        [replace(b, models=b.models) for b in in_blocks(n[chosen], k[chosen], layout)],
        replace(mixed, models=np.arange(7), fresh=mixed.fresh[chosen]),
    )
    np.testing.assert_allclose(alone.theta, found.theta[chosen], atol=1e-7)


def test_a_fresh_model_stands_where_a_refit_would_put_it():
    """With many items a model, the pull of its own answers is what a refit differs by."""
    n, k = drawn(168, 1500, seed=4, observed=0.95)
    old = 160
    first = fit_blocks(blocks_of(n[:old], k[:old]), {"b": frozenset("b")}, old)["b"]
    refit = fit_blocks(blocks_of(n, k), {"b": frozenset("b")}, 168)["b"]
    banks = []
    for fit, size in ((first, old), (refit, 168)):
        items = item_solution(blocks_of(n[:size], k[:size])[0], fit)
        banks.append(Bank(items.a, items.b, n[:size].sum(axis=0), quantiles(fit.theta)))
    link = link_items(*banks)
    one = np.ones(1500, dtype=np.int64)
    items = {"b": FrozenItems(banks[0].a, banks[0].b, banks[0].n, one)}
    away = {}
    for fresh in (False, True):
        task = FrozenTask("s", items, np.arange(8), np.full(8, fresh), first.ridge, first.theta)
        found = solve_models(blocks_of(n[old:], k[old:]), task)
        error = 1 / np.sqrt(found.information + first.ridge.ability)
        away[fresh] = np.abs(link.gauge.abilities(refit.theta)[old:] - found.theta) / error
    assert away[True].max() < 0.2
    assert away[False].max() > 3 * away[True].max()


def test_roots_far_beyond_the_known_abilities_are_found_on_wider_grids():
    n, k = drawn(*SIZE, seed=8)
    k[0], k[1] = n[0], 0.0
    blocks, models = in_blocks(n, k, "bits"), np.arange(SIZE[0])
    kn, kk, a, b = known_of(n, k)
    expected = [root(kn[i], kk[i], a, b, 1e-4) for i in (0, 1)]
    assert max(np.abs(expected)) > 10
    found = solve_models(blocks, task_of(models, ridge=1e-4, tolerance=1e-8))
    np.testing.assert_allclose(found.theta[:2], expected, rtol=1e-5)
    assert found.residual.max() <= 1e-8
    bounded = solve_models(blocks, task_of(models, ridge=0.0))
    assert bounded.theta[:2].tolist() == [10.0, -10.0]
    assert bounded.residual.max() <= 1e-4


def test_a_model_with_three_known_items_and_one_with_unknown_ones_only():
    n, k = np.zeros((2, 60)), np.zeros((2, 60))
    n[0, [0, 1, 2, 3]], k[0, [0, 3]] = 1.0, 1.0
    n[1, [3, 59]] = 1.0
    found = solve_models(in_blocks(n, k, "bits"), task_of(np.arange(2)))
    kn, kk, a, b = known_of(n, k)
    assert found.theta[0] == pytest.approx(root(kn[0], kk[0], a, b), abs=1e-4)
    assert found.counts[:COUNTED].T.tolist() == [[3, 1, 3, 1], [0, 0, 0, 2]]


def test_components_answered_are_counted():
    n, k = drawn(*SIZE, seed=8)
    n[:20, :30] = k[:20, :30] = 0.0
    n[20:, 30:] = k[20:, 30:] = 0.0
    component = np.where(np.arange(57) < 30, 2, 1)
    found = solve_models(in_blocks(n, k, "bits"), task_of(np.arange(SIZE[0]), components=component))
    assert (np.argmax(found.counts[COUNTED:], axis=0) + 1).tolist() == [1] * 20 + [2] * 21


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
