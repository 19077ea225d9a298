"""The job: pin the input, pack, fit all scales, write results, publish."""

from __future__ import annotations

import contextlib
import datetime as dt
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

from cbmm_spark.checkpoint import AbilitySaver
from cbmm_spark.config import Config, SolverConfig
from cbmm_spark.errors import CbmmError, InputError, NotConvergedError
from cbmm_spark.fit import SparkBlocks, job_description
from cbmm_spark.kernels.components import component_numbers
from cbmm_spark.kernels.dense import Penalty
from cbmm_spark.kernels.loop import IterationRecord, LoopOptions, ScaleFit, alternate, start_scale
from cbmm_spark.kernels.model import F64
from cbmm_spark.kernels.paper import PaperFit, PaperTask, run_paper
from cbmm_spark.kernels.stage import Counts, ScaleTask
from cbmm_spark.pack import model_benchmarks, n_models, pack, tiles_of
from cbmm_spark.publish import finish_run, publish, start_run, write_results
from cbmm_spark.results import RunKey, ability_rows, item_rows, iteration_rows, scale_rows
from cbmm_spark.scale_flags import scale_flags
from cbmm_spark.scales import Scales, choose_scales
from cbmm_spark.tables import Warehouse
from cbmm_spark.warm import earlier_abilities

SAME_OPTIMUM = 1e-8
"""Relative difference of objectives below which two starts have found one optimum."""

_AFTER_ALL = 1_000_000_000
"""Number of an iteration that comes after all others."""

RESULT_TABLES = ("abilities", "item_parameters", "runs", "run_scales", "run_iterations")
LATEST_TABLES = ("latest_abilities", "latest_item_parameters")


class Listener(Protocol):
    """What a run tells about itself; `output.Progress` is one."""

    def iteration(
        self,
        run_id: str,
        scale: str,
        iteration: int,
        objective: float,
        max_ability_change: float | None,
        seconds: float,
    ) -> None:
        """One iteration of one scale is done."""

    def event(self, name: str, **fields: Any) -> None:
        """Something happened."""


@dataclass(frozen=True)
class Inputs:
    """What a fit reads, pinned to versions."""

    tiles: DataFrame
    model_benchmarks: DataFrame
    items: DataFrame
    responses_version: int
    n_models: int


@dataclass(frozen=True)
class RescoreReport:
    """What a run did.

    Attributes
    ----------
    run_id, scored_on
        The run and its day.
    scales
        Facts of every scale: models, items, responses, iterations, whether converged.
    tables
        Location of every result table.
    seconds
        Wall-clock time by step.
    warnings
        What a reader of the ranking should know.
    """

    run_id: str
    scored_on: dt.date
    scales: dict[str, dict[str, Any]]
    tables: dict[str, str]
    seconds: dict[str, float] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    exit_code: int = 0


def rescore(
    spark: SparkSession, warehouse: Warehouse, config: Config, as_of: dt.date | None, listener: Listener
) -> RescoreReport:
    """Fit all scales to the responses and publish abilities and item parameters of one day.

    Parameters
    ----------
    spark
        Session with Delta.
    warehouse
        Where `responses` is and results go.
    config
        Everything else.
    as_of
        The day scored; responses evaluated after it are left out. Today (UTC), with all responses, if not given.
    listener
        Told of every iteration and step.

    Returns
    -------
    RescoreReport

    Raises
    ------
    InputError
        There is nothing to fit.
    NotConvergedError
        A scale did not converge; nothing was published and the last published results stay visible.
    ConflictError
        Another run holds the tables.
    """
    clock = Clock()
    started_at = dt.datetime.now(dt.UTC)
    key = RunKey(f"{started_at:%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}", as_of or started_at.date())
    with job_description(spark, f"cbmm-spark {key.run_id}: pack responses"):
        inputs = _inputs(spark, warehouse, config, as_of, listener)
    clock.lap("pack")
    start_run(warehouse, key.run_id, key.scored_on, config.as_json(), inputs.responses_version, started_at)
    try:
        report = _fit_and_write(spark, warehouse, config, inputs, key, listener, clock)
    except NotConvergedError as error:
        finish_run(warehouse, key.run_id, "not_converged", str(error))
        raise
    except BaseException as error:
        message = str(error) if isinstance(error, CbmmError) else f"{type(error).__name__}: {error}"
        with contextlib.suppress(Exception):  # a lost session cannot be told; the next run of the day tidies up
            finish_run(warehouse, key.run_id, "failed", " ".join(message.split())[:1000])
        raise
    publish(warehouse, key.run_id, key.scored_on)
    clock.lap("publish")
    return report


def _inputs(
    spark: SparkSession, warehouse: Warehouse, config: Config, as_of: dt.date | None, listener: Listener
) -> Inputs:
    """Pin what is read: the stored blocks, or for an earlier day tiles of the responses up to it."""
    version = warehouse.version("responses")  # first of all: a warehouse without responses is told so
    total = n_models(warehouse)
    items = warehouse.read("items", warehouse.version("items"))
    if as_of is not None:
        responses = warehouse.read("responses", version)
        end = dt.datetime.combine(as_of + dt.timedelta(days=1), dt.time(), dt.UTC)
        late = F.col("evaluated_at").isNotNull() & (F.col("evaluated_at") >= F.lit(end))
        left_out = responses.where(late).count()
        if left_out:
            listener.event("left_out", responses=left_out, reason=f"evaluated after {as_of}")
            kept = responses.where(~late)
            if kept.isEmpty():
                raise InputError(f"no response was evaluated by {as_of}; choose a later --as-of")
            tiles = tiles_of(kept, total, config.pack, version)
            return Inputs(tiles, model_benchmarks(kept), items, version, total)
    packed = pack(spark, warehouse, config)
    listener.event("packed", **vars(packed))
    blocks = warehouse.read("response_blocks", warehouse.version("response_blocks"))
    members = warehouse.read("model_benchmarks", warehouse.version("model_benchmarks"))
    return Inputs(blocks, members, items, packed.responses_version, total)


def _fit_and_write(
    spark: SparkSession,
    warehouse: Warehouse,
    config: Config,
    inputs: Inputs,
    key: RunKey,
    listener: Listener,
    clock: Clock,
) -> RescoreReport:
    with SparkBlocks(spark, inputs.tiles, config.solver.partitions) as blocks:
        scales = choose_scales(config.scales, blocks.benchmarks)
        refuse = config.rescore.disconnected == "refuse"
        fits = fit_scales(blocks, scales, config.solver, inputs.n_models, warehouse, key, listener, refuse)
        clock.lap("fit")
        unconverged = [name for name, fit in fits.items() if not fit.converged]
        write_results(warehouse, "run_iterations", iteration_rows(spark, fits, scales, key), key.run_id, key.scored_on)
        if unconverged:
            facts = scale_rows(spark, fits, scales, config.rescore, None, key)
            write_results(warehouse, "run_scales", facts, key.run_id, key.scored_on)
            raise NotConvergedError(not_converged(fits, unconverged, config.solver.max_iterations))
        items = item_rows(blocks, fits, scales, inputs.items, config.rescore, config.solver.sigma, key)
        with job_description(spark, f"cbmm-spark {key.run_id}: write item parameters"):
            write_results(warehouse, "item_parameters", items, key.run_id, key.scored_on)
    abilities = ability_rows(spark, fits, scales, inputs.model_benchmarks, config.rescore, key)
    with job_description(spark, f"cbmm-spark {key.run_id}: write abilities"):
        write_results(warehouse, "abilities", abilities, key.run_id, key.scored_on)
        written = warehouse.read("item_parameters").where(
            (F.col("scored_on") == F.lit(key.scored_on)) & (F.col("run_id") == key.run_id)
        )
        facts = scale_rows(spark, fits, scales, config.rescore, written, key)
        write_results(warehouse, "run_scales", facts, key.run_id, key.scored_on)
    clock.lap("write")
    flags = [flag for name, source in scales.fitted.items() for flag in scale_flags(name, fits[source], config.rescore)]
    warnings = tuple(flag.sentence for flag in flags)
    for warning in warnings:
        listener.event("warning", message=warning)
    return RescoreReport(
        key.run_id,
        key.scored_on,
        {name: _facts(fits[source]) for name, source in scales.fitted.items()},
        {name: warehouse.location(name) for name in (*RESULT_TABLES, *LATEST_TABLES)},
        clock.laps,
        warnings,
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


def fit_scales(
    blocks: SparkBlocks,
    scales: Scales,
    config: SolverConfig,
    total_models: int,
    warehouse: Warehouse | None,
    key: RunKey,
    listener: Listener,
    refuse_disconnected: bool = False,
    counts: Mapping[str, Counts] | None = None,
) -> dict[str, ScaleFit]:
    """Fit every scale on cached blocks; abilities are saved after each iteration where a warehouse is given.

    Responses are counted first, unless they have been.

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
    known: dict[str, F64] = {}
    if warehouse is not None and config.warm_start and config.method != "paper":
        known = earlier_abilities(warehouse, key.scored_on, scales.to_fit, total_models, listener.event)
    fits: dict[str, ScaleFit] = {}
    for name, benchmarks in scales.to_fit.items():
        count = counts[name]
        ridge = penalty.of_scale(count.n_items, int(np.count_nonzero(count.attempts))).for_temperature(config.sigma)
        fits[name] = start_scale(name, benchmarks, count, ridge, options, known=known.get(name))
    saver = AbilitySaver(warehouse, key.run_id) if warehouse is not None else None

    def tell(record: IterationRecord, theta: F64) -> None:
        change = record.max_ability_change if np.isfinite(record.max_ability_change) else None
        listener.iteration(key.run_id, record.scale, record.iteration, record.objective, change, record.seconds)
        if saver is not None:
            saver.put(record.scale, record.iteration, fits[record.scale].models, theta)

    try:
        if config.method == "paper":
            _run_paper(blocks, fits, config, tell)
        else:
            alternate(list(fits.values()), blocks.run_pass, options, tell)
            for name in _further_starts(blocks, fits, counts, config, listener):
                if saver is not None:  # a later night starts from what is published
                    saver.put(name, _AFTER_ALL, fits[name].models, fits[name].theta)
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
    """Refuse scales whose models fall into groups without a common item (case F6).

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


def _facts(fit: ScaleFit) -> dict[str, Any]:
    return {
        "models": int(fit.models.size),
        "items": fit.counts.n_items,
        "responses": int(fit.counts.attempts.sum()),
        "iterations": fit.iteration,
        "converged": fit.converged,
        "objective": fit.objective,
        "kkt_residual": fit.kkt_residual,
        "node_error": abs(fit.node_error),
    }


class Clock:
    """Seconds by step."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.laps[name] = round(now - self._last, 3)
        self._last = now
