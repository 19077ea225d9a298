"""The paper's recurrence over blocks against the dense oracle, sweep by sweep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from cbmm_spark.kernels.cells import Block
from cbmm_spark.kernels.in_process import count_scales
from cbmm_spark.kernels.initial import initial_abilities
from cbmm_spark.kernels.model import Ridge
from cbmm_spark.kernels.paper import PaperFit, PaperTask, run_paper, settled, sweep_blocks
from tests import reference
from tests.kernels.layouts import LAYOUTS, blocks_of, drawn

NONE, SOME = Ridge(0.0, 0.0, 0.0), Ridge(0.3, 0.25, 0.1)


def numbered(blocks: Sequence[Block]) -> list[Block]:
    """Blocks with the number of their first item, as packing gives them: it is part of the key of their items."""
    starts = np.cumsum([1] + [block.cells.n_items for block in blocks])
    return [replace(block, item_start=int(start)) for block, start in zip(blocks, starts, strict=False)]


def tasks_of(blocks: Sequence[Block], scales: dict[str, str], n_models: int, ridge: Ridge) -> list[PaperTask]:
    benchmarks = {name: frozenset(letters) for name, letters in scales.items()}
    tasks = []
    for name, counts in count_scales(blocks, benchmarks, n_models).items():
        models = np.flatnonzero(counts.attempts > 0)
        theta = initial_abilities(counts.of(models))
        tasks.append(PaperTask(name, benchmarks[name], models, theta, {}, ridge))
    return tasks


def run(blocks: Sequence[Block], n_models: int, ridge: Ridge, **options: Any) -> tuple[PaperFit, list[PaperTask]]:
    """The fit of one scale, and its point after every sweep."""
    points: list[PaperTask] = []
    fits = run_paper(
        tasks_of(blocks, {"s": "b"}, n_models, ridge), lambda tasks: sweep_blocks(blocks, tasks),
        listener=lambda fit: points.append(fit.task), **options,
    )  # fmt: skip
    return fits[0], points


def items_of(task: PaperTask) -> tuple[np.ndarray, np.ndarray]:
    order = sorted(task.items)
    return np.concatenate([task.items[key][0] for key in order]), np.concatenate([task.items[key][1] for key in order])


def check_point(task: PaperTask, wanted: reference.Parameters, sigma: float = 1.0, rtol: float = 1e-10) -> None:
    a, b = items_of(task)
    for found, meant in ((task.theta, wanted.theta), (a, wanted.a / sigma), (b, wanted.b / sigma)):
        np.testing.assert_allclose(found, meant, rtol=rtol, atol=rtol)


def check(
    n: np.ndarray, k: np.ndarray, layout: str, size: int, ridge: Ridge, tolerance: float, sigma: float = 1.0,
    rtol: float = 1e-10,
) -> None:  # fmt: skip
    blocks = numbered(blocks_of(n, k, layout, size))
    found, points = run(blocks, n.shape[0], ridge.for_temperature(sigma), tolerance=tolerance)
    n, k = n[found.task.models], k[found.task.models]
    weights = reference.Ridge(ridge.ability, ridge.discrimination, ridge.easiness)
    wanted = reference.fit(n, k, sigma, weights, tolerance=tolerance)
    assert found.converged
    assert wanted.converged
    assert len(found.history) > 5
    np.testing.assert_allclose(found.history, wanted.history, rtol=rtol)
    assert found.objective == found.history[-1]
    check_point(found.task, wanted.parameters, sigma, rtol)
    assert (np.diff(found.history) <= 1e-12 * np.abs(found.history[:-1])).all()
    point = reference.initial(n, k, sigma)
    for task in points[:-1]:  # the last sweep finds that the point before it has settled
        point, _ = reference.sweep(point, n, k, sigma, weights)
        check_point(task, point, sigma, rtol)


# ------------------------------------------------------------------------------------- against the oracle
@pytest.mark.parametrize("ridge", [NONE, SOME], ids=["paper", "penalised"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("observed", [1.0, 0.6], ids=["complete", "with gaps"])
def test_every_layout_goes_the_same_way(layout, observed, ridge):
    n, k = drawn(51, 37, seed=1, observed=observed)
    check(n, k * n, layout, 10, ridge, 1e-5)


@pytest.mark.parametrize("ridge", [NONE, SOME], ids=["paper", "penalised"])
@pytest.mark.parametrize("layout", ["counts", "sparse_scores", "scores"])
def test_counts_and_fractions(layout, ridge):
    n, k = drawn(45, 30, seed=2, observed=0.7, attempts=4, fractional=layout != "counts")
    check(n, k, layout, 11, ridge, 1e-5)


@pytest.mark.parametrize("ridge", [NONE, SOME], ids=["paper", "penalised"])
def test_fractions_of_dense_cells_to_float32(ridge):
    n, k = drawn(45, 30, seed=2, observed=0.7, attempts=4, fractional=True)
    check(n, k, "scores", 11, ridge, 1e-5, rtol=2e-6)


@pytest.mark.parametrize("layout", ["bits", "sparse_bits"])
@pytest.mark.parametrize("size", [1, 7, 64, 150])
def test_blocks_and_pieces_play_no_part(layout, size):
    """More items than a piece, more models than a byte; one item a block, and all in one."""
    n, k = drawn(29, 150, seed=3, observed=0.8)
    check(n, k, layout, size, SOME, 1e-6)


def test_more_models_than_a_piece():
    n, k = drawn(2051, 70, seed=4, observed=0.9)
    check(n, k, "bits", 66, NONE, 1e-4)


@pytest.mark.parametrize("sigma", [0.5, 3.0])
@pytest.mark.parametrize("layout", ["bits", "sparse_bits"])
def test_temperature(layout, sigma):
    n, k = drawn(40, 30, seed=5, observed=0.8)
    check(n, k, layout, 9, SOME, 1e-5, sigma)


@pytest.mark.parametrize("layout", ["bits", "sparse_bits"])
def test_models_that_did_not_run_a_block(layout):
    n, k = drawn(43, 40, seed=6)
    n[1::2, :20], n[7], n[:, 33] = 0.0, 0.0, 0.0  # every second model, one model nowhere, one item for nobody
    check(n, k * n, layout, 20, SOME, 1e-5)


# ------------------------------------------------------------------------------------- stop
@pytest.mark.parametrize("layout", ["bits", "sparse_bits"])
def test_sweeps_run_out(layout):
    n, k = drawn(40, 30, seed=7, observed=0.9)
    found, points = run(numbered(blocks_of(n, k, layout, 8)), 40, NONE, tolerance=1e-12, max_sweeps=4)
    assert not found.converged
    assert len(points) == 5
    wanted = reference.fit(n, k, tolerance=1e-12, max_sweeps=4)
    assert not wanted.converged
    np.testing.assert_allclose(found.history, wanted.history, rtol=1e-10)
    check_point(found.task, wanted.parameters)


def test_the_objective_belongs_to_the_point_also_where_sweeps_run_out():
    n, k = drawn(40, 30, seed=7, observed=0.9)
    found, _ = run(numbered(blocks_of(n, k, "bits", 8)), 40, NONE, tolerance=1e-12, max_sweeps=4)
    a, b = items_of(found.task)
    assert found.objective == pytest.approx(reference.objective(found.task.theta, a, b, n, k), rel=1e-10)


def test_a_single_sweep_has_items():
    n, k = drawn(40, 30, seed=7, observed=0.9)
    found, _ = run(numbered(blocks_of(n, k, "bits", 8)), 40, NONE, max_sweeps=1)
    assert (found.converged, len(found.history), len(found.task.items)) == (False, 2, 4)


def test_one_scale_settles_before_the_other():
    easy, hard = drawn(40, 24, seed=8, observed=0.9), drawn(40, 60, seed=9, observed=0.3)
    hard[0][:9] = 0.0
    parts = {"x": easy, "y": (hard[0], hard[1] * hard[0])}
    blocks = [block for name, (n, k) in parts.items() for block in numbered(blocks_of(n, k, "bits", 16, name))]
    asked: list[list[str]] = []

    def sweep(tasks):
        asked.append([task.name for task in tasks])
        return sweep_blocks(blocks, tasks)

    fits = {fit.task.name: fit for fit in run_paper(tasks_of(blocks, {"x": "x", "y": "y"}, 40, NONE), sweep, 1e-5)}
    sweeps = {name: sum(name in names for names in asked) for name in "xy"}
    assert sweeps["x"] != sweeps["y"]
    first = min(sweeps, key=sweeps.__getitem__)
    assert all(first in names for names in asked[: sweeps[first]])
    assert not any(first in names for names in asked[sweeps[first] :])
    for name, (n, k) in parts.items():
        seen = fits[name].task.models
        wanted = reference.fit(n[seen], k[seen], tolerance=1e-5)
        assert fits[name].converged
        assert len(fits[name].history) == sweeps[name]
        np.testing.assert_allclose(fits[name].history, wanted.history, rtol=1e-10)
        check_point(fits[name].task, wanted.parameters)


def test_a_scale_of_two_benchmarks_is_one_fit_of_all_their_items():
    n, k = drawn(30, 40, seed=10, observed=0.9)
    blocks = numbered(blocks_of(n[:, :25], k[:, :25], "bits", 10, "x"))
    blocks += numbered(blocks_of(n[:, 25:], k[:, 25:], "sparse_bits", 10, "y"))
    task = tasks_of(blocks, {"both": "xy"}, 30, SOME)
    found = run_paper(task, lambda tasks: sweep_blocks(blocks, tasks), 1e-6)[0]
    wanted = reference.fit(n, k, ridge=reference.Ridge(0.3, 0.25, 0.1), tolerance=1e-6)
    np.testing.assert_allclose(found.history, wanted.history, rtol=1e-10)
    check_point(found.task, wanted.parameters)


def test_settled_is_a_share_of_the_objective():
    assert not settled([100.0], 1.0)
    assert settled([100.0, 99.99], 1.01e-4)
    assert not settled([100.0, 99.99], 0.99e-4)
    history = [200.0, 100.0, 99.999]
    assert [settled(pair, 1e-4) for pair in pairwise(history)] == [False, True]
