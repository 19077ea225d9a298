"""The fits of all scales on cached blocks: how they start, which solver runs, and what is said where one fails."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from cbmm_spark.config.schema import SolverConfig
from cbmm_spark.console.listener import Listener
from cbmm_spark.errors import InputError
from cbmm_spark.faultpoints import faultpoint
from cbmm_spark.fit.checkpoint import AbilitySaver
from cbmm_spark.fit.scales import Scales
from cbmm_spark.fit.spark_blocks import SparkBlocks
from cbmm_spark.fit.starts import earlier_abilities
from cbmm_spark.kernels.aggregate import ScaleTask
from cbmm_spark.kernels.alternation import IterationRecord, LoopOptions, ScaleFit, alternate, start_scale
from cbmm_spark.kernels.components import component_numbers
from cbmm_spark.kernels.counts import Counts
from cbmm_spark.kernels.model import F64, Penalty
from cbmm_spark.kernels.paper import PaperFit, PaperTask, run_paper
from cbmm_spark.runs.table import RunKey
from cbmm_spark.tables import Warehouse

SAME_OPTIMUM = 1e-8
"""Relative difference of objectives below which two starts have found one optimum."""


def fit_scales(
    blocks: SparkBlocks,
    scales: Scales,
    config: SolverConfig,
    total_models: int,
    warehouse: Warehouse | None,
    key: RunKey,
    listener: Listener,
    refuse_disconnected: bool = False,
    reached: Mapping[str, F64] | None = None,
    check: Callable[[], None] = lambda: None,
    counts: Mapping[str, Counts] | None = None,
) -> dict[str, ScaleFit]:
    """Fit every scale on cached blocks; abilities are saved after each iteration where a warehouse is given.

    `reached` holds, by scale, abilities of shape (total_models,) that a dead run had reached; a scale goes on from them
    where they hold all of its models. `check` is called after every iteration, to end a fit that has become useless.
    Responses are counted first, unless they have been (`counts`).

    Raises
    ------
    InputError
        With `refuse_disconnected`, if the models of a scale fall into groups that share no item.
    """
    if counts is None:
        counts = blocks.count(scales.to_fit, total_models)
    if refuse_disconnected:
        check_connected(counts)
    penalty = penalty_of(config)
    options = loop_options(config)
    reached = {
        name: theta for name, theta in (reached or {}).items() if np.isfinite(theta[counts[name].attempts > 0]).all()
    }
    others = [name for name in scales.to_fit if name not in reached]
    known: dict[str, F64] = {}
    if warehouse is not None and others and config.warm_start and config.method != "paper":
        known = earlier_abilities(warehouse, key.scored_on, others, total_models, listener.event)
    fits: dict[str, ScaleFit] = {}
    for name, benchmarks in scales.to_fit.items():
        count = counts[name]
        ridge = penalty.of_scale(count.n_items, int(np.count_nonzero(count.attempts))).for_temperature(config.sigma)
        fits[name] = start_scale(
            name, benchmarks, count, ridge, options, theta=reached.get(name), known=known.get(name)
        )
    saver = AbilitySaver(warehouse, key.run_id) if warehouse is not None else None

    def tell(record: IterationRecord, theta: F64) -> None:
        change = record.max_ability_change if np.isfinite(record.max_ability_change) else None
        listener.iteration(key.run_id, record.scale, record.iteration, record.objective, change, record.seconds)
        if saver is not None:
            saver.put(record.scale, record.iteration, fits[record.scale].models, theta)
        faultpoint(f"iteration {record.iteration}")
        check()

    try:
        if config.method == "paper":
            _run_paper(blocks, fits, config, tell)
        else:
            alternate(list(fits.values()), blocks.run_pass, options, tell)
            first = {name: fit.iteration for name, fit in fits.items()}
            for name in _further_starts(blocks, fits, counts, config, listener):
                if saver is not None:  # a later night starts from what is published, which is saved last
                    last = max(first[name], fits[name].iteration) + 1
                    saver.put(name, last, fits[name].models, fits[name].theta)
    finally:
        if saver is not None:
            saver.close()
    return fits


def _further_starts(
    blocks: SparkBlocks,
    fits: dict[str, ScaleFit],
    counts: Mapping[str, Counts],
    config: SolverConfig,
    listener: Listener,
) -> set[str]:
    """Fit again from random abilities as often as `solver.starts` says, and keep whichever optimum is lowest.

    Returns the scales whose first fit was not the best one.
    """
    options = loop_options(config)
    better: set[str] = set()
    for number in range(1, config.starts):
        rng = np.random.default_rng([config.seed, number])
        others = {
            name: start_scale(
                name, fit.benchmarks, counts[name], fit.ridge, options, rng.standard_normal(counts[name].attempts.size)
            )
            for name, fit in fits.items()
        }
        alternate(list(others.values()), blocks.run_pass, options)
        for name, other in others.items():
            best = fits[name]
            gain = (best.objective - other.objective) / abs(best.objective)
            spread = float(best.theta.std()) or 1.0
            listener.event(
                "start",
                scale=name,
                number=number,
                converged=other.converged,
                objective=other.objective,
                relative_gain=gain,
                largest_distance_sd=float(np.abs(other.theta - best.theta).max()) / spread,
            )
            if other.converged and (not best.converged or gain > SAME_OPTIMUM):
                fits[name] = other
                better.add(name)
    return better


def check_connected(counts: Mapping[str, Counts]) -> None:
    """Refuse scales whose models fall into groups without a common item.

    Raises
    ------
    InputError
        Names the scales and the sizes of their groups.
    """
    apart = []
    for name, count in counts.items():
        sizes = np.bincount(component_numbers(count.of(np.flatnonzero(count.attempts > 0)).labels))[1:]
        if sizes.size > 1:
            shown = " + ".join(str(size) for size in sizes[:5]) + (" + …" if sizes.size > 5 else "")
            apart.append(f"{name!r} ({shown} models)")
    if apart:
        raise InputError(
            f"models that share no item cannot be ranked together: scale {', '.join(apart[:5])}; leave the scale out "
            '([scales]), or set rescore.disconnected = "publish" to rank every group by itself'
        )


def penalty_of(config: SolverConfig) -> Penalty:
    """Return the configured penalty; the paper's method has none."""
    if config.method == "paper":
        return Penalty(0.0, 0.0, 0.0)
    automatic = config.lambda_ability == "auto"
    return Penalty(
        None if automatic else float(config.lambda_ability), config.lambda_discrimination, config.lambda_easiness
    )


def _run_paper(
    blocks: SparkBlocks, fits: dict[str, ScaleFit], config: SolverConfig, tell: Callable[[IterationRecord, F64], None]
) -> None:
    """Fit by the paper's recurrence and stopping rule, then evaluate where it ended exactly, in one more pass."""
    began = time.perf_counter()

    def told(paper: PaperFit) -> None:
        nonlocal began
        now = time.perf_counter()
        fit = fits[paper.task.name]
        record = IterationRecord(
            fit.name, len(paper.history), "paper", paper.objective, np.inf, (now - began) / max(len(fits), 1), True
        )
        began = now
        fit.history.append(record)
        tell(record, paper.task.theta)

    tasks = [PaperTask(f.name, f.benchmarks, f.models, f.theta, {}, f.ridge) for f in fits.values()]
    done = run_paper(tasks, blocks.run_sweep, config.paper_tolerance, config.max_iterations, told)
    ends = []
    for paper in done:
        fit, task = fits[paper.task.name], paper.task
        fit.theta, fit.items, fit.converged, fit.iteration = task.theta, task.items, paper.converged, len(paper.history)
        ends.append(
            ScaleTask(fit.name, fit.benchmarks, fit.models, fit.theta, fit.nodes, fit.ridge, "fixed", task.items)
        )
    for name, result in blocks.run_pass(ends).items():
        fit = fits[name]
        fit.objective = (
            result.totals.loss + result.totals.penalty + 0.5 * fit.ridge.ability * float(fit.theta @ fit.theta)
        )
        fit.log_loss = result.totals.loss / max(float(fit.counts.attempts.sum()), 1.0)
        fit.information, fit.item_residual = result.models.information, result.totals.residual
        fit.ability_residual = float(result.models.residual.max(initial=0.0))


def loop_options(config: SolverConfig) -> LoopOptions:
    """Return the loop's settings from the configuration."""
    return LoopOptions(
        tolerance=config.tolerance,
        objective_tolerance=config.objective_tolerance,
        max_iterations=config.max_iterations,
        anderson_depth=config.anderson_depth,
        node_spacing=config.node_spacing,
        min_nodes=config.min_nodes,
        max_nodes=config.max_nodes,
    )


def not_converged(fits: Mapping[str, ScaleFit], unconverged: Sequence[str], iterations: int) -> str:
    """Return what to do about scales that did not converge."""
    bounded = [name for name in unconverged if fits[name].models_at_bound or fits[name].items_at_bound]
    if bounded:
        advice = f"estimates of {', '.join(bounded[:5])} are infinite without a penalty: set the lambdas of [solver]"
    else:
        advice = "raise solver.max_iterations or solver.tolerance"
    shown = ", ".join(unconverged[:5])
    return (
        f"{len(unconverged)} of {len(fits)} scales did not converge in {iterations} iterations ({shown}); "
        f"nothing published, {advice}"
    )
