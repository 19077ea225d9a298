"""The fit in one process, through the same blocks and loop as on Spark: for tests, small data and benchmarks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from cbmm_spark.kernels.aggregate import ScaleSums, ScaleTask, add_block, model_stage
from cbmm_spark.kernels.alternation import Listener, LoopOptions, ScaleFit, ScalePass, alternate, start_scale
from cbmm_spark.kernels.block_items import solve_block
from cbmm_spark.kernels.block_products import item_moments
from cbmm_spark.kernels.cells import Block
from cbmm_spark.kernels.counts import Counts, count_block
from cbmm_spark.kernels.exact import exact_block
from cbmm_spark.kernels.items import ItemSolution
from cbmm_spark.kernels.model import F64, Penalty


def count_scales(blocks: Sequence[Block], scales: Mapping[str, frozenset[str]], n_models: int) -> dict[str, Counts]:
    """Count responses per model for every scale."""
    counts = {name: Counts.zeros(n_models) for name in scales}
    for block in blocks:
        for name, benchmarks in scales.items():
            if block.benchmark in benchmarks:
                count_block(block.cells, block.models, counts[name])
    return counts


def run_blocks(blocks: Sequence[Block], tasks: Sequence[ScaleTask]) -> dict[str, ScalePass]:
    """Compute one pass over blocks in this process."""
    sums = {task.name: ScaleSums.zeros(task) for task in tasks}
    for block in blocks:
        mine = [task for task in tasks if block.benchmark in task.benchmarks]
        if mine:
            add_block(block.cells, block.models, mine, sums)
    return {t.name: ScalePass(model_stage(t, t.theta, sums[t.name]), sums[t.name].totals) for t in tasks}


def fit_blocks(
    blocks: Sequence[Block],
    scales: Mapping[str, frozenset[str]],
    n_models: int,
    penalty: Penalty | None = None,
    sigma: float = 1.0,
    options: LoopOptions | None = None,
    start: Mapping[str, F64] | None = None,
    known: Mapping[str, F64] | None = None,
    listener: Listener | None = None,
) -> dict[str, ScaleFit]:
    """Fit scales to blocks held in memory.

    Parameters
    ----------
    blocks
        Item blocks.
    scales
        Benchmarks of each scale.
    n_models
        Number of models M that the blocks' model positions refer to.
    penalty
        Ridge weights, for parameters as reported (not divided by sigma).
    sigma
        Temperature.
    options, start, known, listener
        See `alternation`; starts by scale name.

    Returns
    -------
    dict of ScaleFit by scale name; item parameters (divided by sigma) are had from `item_solution`.
    """
    options = options or LoopOptions()
    penalty = penalty or Penalty()
    counts = count_scales(blocks, scales, n_models)
    fits = []
    for name, benchmarks in scales.items():
        present = int(np.count_nonzero(counts[name].attempts))
        ridge = penalty.of_scale(counts[name].n_items, present).for_temperature(sigma)
        theta = None if start is None else start.get(name)
        earlier = None if known is None else known.get(name)
        fits.append(start_scale(name, benchmarks, counts[name], ridge, options, theta, earlier))
    alternate(fits, lambda tasks: run_blocks(blocks, tasks), options, listener)
    return {fit.name: fit for fit in fits}


def item_solution(block: Block, fit: ScaleFit) -> ItemSolution:
    """Return the exact item parameters (divided by sigma) of one block at the fit's abilities."""
    task = ScaleTask(fit.name, fit.benchmarks, fit.models, fit.theta, fit.nodes, fit.ridge, "late")
    view = task.view(task.places(block.models))
    counts, weighted = item_moments(block.cells, [view])[0]
    solution = solve_block(block.cells, view, counts, weighted)
    exact = exact_block(block.cells, view, solution, counts, weighted)
    return ItemSolution(exact.a, exact.b, solution.objective, exact.residual, solution.repeats)
