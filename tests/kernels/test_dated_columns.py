"""Several dates in one set of blocks: each sees the models as they stood, and is fitted as if it were alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from cbmm_spark.history.states import States
from cbmm_spark.kernels.aggregate import ScaleSums, ScaleTask, add_block, model_stage
from cbmm_spark.kernels.alternation import LoopOptions, ScaleFit, ScalePass, alternate, start_scale
from cbmm_spark.kernels.cells import Block, columns
from cbmm_spark.kernels.counts import Counts, count_block
from cbmm_spark.kernels.dated_columns import Lives, Moment, seen_by
from cbmm_spark.kernels.in_process import fit_blocks
from cbmm_spark.kernels.model import Penalty
from tests.kernels.layouts import LAYOUTS, blocks_of, cells_of, drawn

FEW = LoopOptions(tolerance=1e-8)


def matrices(cells: object) -> tuple[np.ndarray, np.ndarray]:
    """(attempts, successes), items × models, of cells in any layout."""
    from cbmm_spark.packing.tile_codec import cell_list

    n, k = np.zeros((2, cells.n_items, cells.n_models))  # type: ignore[attr-defined]
    item, model, attempts, successes = cell_list(cells)  # type: ignore[arg-type]
    n[item, model], k[item, model] = attempts, successes
    return n, k


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("observed", [1.0, 0.6])
@pytest.mark.parametrize("chosen", [range(16), range(13), range(1), range(3, 20), [0, 2, 3, 19], range(20), []])
def test_columns_are_selected_in_every_layout(layout: str, observed: float, chosen: Sequence[int]) -> None:
    n, k = drawn(20, 9, seed=3, observed=observed)
    where = np.array(chosen, dtype=np.int64)
    cells = cells_of(n, k, layout).select(where)
    found = matrices(cells)
    assert cells.n_models == where.size
    np.testing.assert_array_equal(found[0], n.T[:, where])
    np.testing.assert_array_equal(found[1], k.T[:, where])
    np.testing.assert_array_equal(cells.observers, (n.T[:, where] > 0).sum(axis=1))
    np.testing.assert_allclose(cells.successes, k.T[:, where].sum(axis=1))


def test_a_run_of_numbers_is_a_slice_only_in_order() -> None:
    assert columns(np.array([3, 4, 5])) == slice(3, 6)
    np.testing.assert_array_equal(columns(np.array([3, 5, 4, 6])), [3, 5, 4, 6])


# ------------------------------------------------------------------------------------------------ as it stood
class History:
    """Random responses of two benchmarks, each with its first date, as blocks of states and date by date."""

    def __init__(self, layout: str, seed: int, n_dates: int = 3) -> None:
        rng = np.random.default_rng(seed)
        self.n_dates, self.n_models, self.layout = n_dates, 18, layout
        self.parts = {}
        for name, size, begins in (("x", 40, 0), ("y", 30, 1)):
            n, k = drawn(self.n_models, size, seed + size, observed=0.8, attempts=1)
            step = np.broadcast_to(rng.integers(begins, n_dates, self.n_models)[:, None], n.shape).copy()
            straddling = rng.random(self.n_models) < 0.5
            step[straddling] = rng.integers(begins, n_dates, (int(straddling.sum()), size))
            self.parts[name] = (n, k * n, step)
        entries = [
            (name, model + 1, date)
            for name, (n, _, step) in self.parts.items()
            for model in range(self.n_models)
            for date in range(n_dates)
            if ((n[model] > 0) & (step[model] == date)).any()
        ]
        names, models, steps = zip(*entries, strict=True)
        order = rng.permutation(len(entries))
        self.states = States.of(
            [names[i] for i in order], np.array(models, np.int32)[order], np.array(steps, np.int32)[order], n_dates
        )

    def blocks(self) -> list[Block]:
        """Blocks with a column a state."""
        found = []
        for number, name in enumerate(self.states.benchmarks):
            n, k, step = self.parts[name]
            own = self.states.benchmark == number
            model, first = self.states.model[own] - 1, self.states.first[own]
            seen = step[model] <= first[:, None]
            found += blocks_of(n[model] * seen, k[model] * seen, self.layout, 16, name)
        starts = dict.fromkeys(self.states.benchmarks, 1)
        numbered = []
        for block in found:
            numbered.append(Block(block.benchmark, block.cells, block.models, starts[block.benchmark]))
            starts[block.benchmark] += block.cells.n_items
        return numbered

    def alone(self, date: int) -> list[Block]:
        """Blocks of one date alone."""
        found = []
        for name, (n, k, step) in self.parts.items():
            seen = step <= date
            if (n * seen).any():
                found += [b for b in blocks_of(n * seen, k * seen, self.layout, 16, name) if b.models.size]
        return found


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_date_sees_the_models_as_they_stood(layout: str) -> None:
    history = History(layout, seed=5)
    lives = history.states.lives()
    for date in range(history.n_dates):
        moment = Moment(lives, date)
        for block in history.blocks():
            n, k, step = (
                part.T[block.item_start - 1 :][: block.cells.n_items] for part in history.parts[block.benchmark]
            )
            seen = moment.of(block)
            found_n, found_k = np.zeros_like(n, dtype=float), np.zeros_like(k, dtype=float)
            if seen is not None:
                assert np.unique(seen.models).size == seen.models.size
                found_n[:, seen.models], found_k[:, seen.models] = matrices(seen.cells)
            np.testing.assert_array_equal(found_n, n * (step <= date))
            np.testing.assert_array_equal(found_k, k * (step <= date))


def test_nobody_is_seen_before_anything_was_evaluated() -> None:
    history = History("bits", seed=6)
    first = Moment(history.states.lives(), 0)
    late = [block for block in history.blocks() if block.benchmark == "y"]  # begins at date 1
    assert late
    assert all(first.of(block) is None for block in late)
    assert list(seen_by(late[0], ["a"], {"a": first})) == []
    assert first.of(Block("unknown", late[0].cells, late[0].models)) is None


def fit_history(history: History, scales: dict[str, tuple[frozenset[str], int]]) -> dict[str, ScaleFit]:
    """All dates in the same passes: what `fit.spark_blocks.SparkBlocks` does, in this process."""
    blocks, lives = history.blocks(), history.states.lives()
    moments = {name: Moment(lives, date) for name, (_, date) in scales.items()}
    counts = {name: Counts.zeros(history.n_models) for name in scales}
    for block in blocks:
        mine = [name for name, (benchmarks, _) in scales.items() if block.benchmark in benchmarks]
        for seen, names in seen_by(block, mine, moments):
            for name in names:
                count_block(seen.cells, seen.models, counts[name])

    def run_pass(tasks: Sequence[ScaleTask]) -> dict[str, ScalePass]:
        by_name = {task.name: task for task in tasks}
        sums = {task.name: ScaleSums.zeros(task) for task in tasks}
        for block in blocks:
            mine = [task.name for task in tasks if block.benchmark in task.benchmarks]
            for seen, names in seen_by(block, mine, moments):
                add_block(seen.cells, seen.models, [by_name[name] for name in names], sums)
        return {t.name: ScalePass(model_stage(t, t.theta, sums[t.name]), sums[t.name].totals) for t in tasks}

    fits = []
    for name, (benchmarks, _) in scales.items():
        ridge = Penalty().of_scale(counts[name].n_items, int(np.count_nonzero(counts[name].attempts)))
        fits.append(start_scale(name, benchmarks, counts[name], ridge, FEW))
    alternate(fits, run_pass, FEW)
    return {fit.name: fit for fit in fits}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_date_is_fitted_as_if_it_were_alone(layout: str) -> None:
    history = History(layout, seed=7)
    both, x, y = frozenset("xy"), frozenset("x"), frozenset("y")
    scales = {f"{date} both": (both, date) for date in range(3)} | {"1 y": (y, 1), "2 x": (x, 2)}
    found = fit_history(history, scales)
    for name, (benchmarks, date) in scales.items():
        alone = fit_blocks(history.alone(date), {"s": benchmarks}, history.n_models, options=FEW)["s"]
        fit = found[name]
        assert fit.converged
        assert alone.converged
        np.testing.assert_array_equal(fit.models, alone.models)
        for ours, theirs in zip(fit.counts.sums, alone.counts.sums, strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-9)
        np.testing.assert_array_equal(fit.components, alone.components)
        assert (fit.counts.n_items, fit.counts.cells) == (alone.counts.n_items, alone.counts.cells)
        assert fit.objective == pytest.approx(alone.objective, rel=1e-11)
        np.testing.assert_allclose(fit.theta, alone.theta, atol=1e-6)
        np.testing.assert_allclose(fit.information, alone.information, rtol=1e-5)


def test_a_model_evaluated_at_once_has_one_column_however_many_dates_see_it() -> None:
    states = States.of(["b"] * 3, np.array([3, 1, 2], np.int32), np.array([0, 1, 4], np.int32), 200)
    assert states.widest == 3
    np.testing.assert_array_equal(states.lives()["b"].models, [2, 0, 1])  # as they come
    np.testing.assert_array_equal(states.end, [200, 200, 200])
    np.testing.assert_array_equal(states.changes()["b"], [0, 1, 4])


def test_a_state_ends_where_the_models_next_one_begins() -> None:
    names, models = ["b", "a", "b", "b"], np.array([1, 1, 1, 2], np.int32)
    states = States.of(names, models, np.array([2, 1, 0, 2], np.int32), 5)
    lives = states.lives()
    np.testing.assert_array_equal(lives["b"].first, [0, 2, 2])
    np.testing.assert_array_equal(lives["b"].end, [2, 5, 5])
    np.testing.assert_array_equal(lives["b"].models, [0, 0, 1])
    np.testing.assert_array_equal(lives["a"].end, [5])
    np.testing.assert_array_equal(states.column, [1, 1, 2, 3])
    assert isinstance(lives["a"], Lives)
