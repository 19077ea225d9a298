"""The job: pin the input, pack, fit all scales, write results, publish."""

from __future__ import annotations

import contextlib
import datetime as dt
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

from cbmm_spark.checkpoint import AbilitySaver
from cbmm_spark.claims import Heartbeat, Terms, check_free, start_run
from cbmm_spark.config import Config, SolverConfig
from cbmm_spark.describe import describe_jobs, job_description
from cbmm_spark.errors import CbmmError, InputError, NotConvergedError
from cbmm_spark.faultpoints import faultpoint
from cbmm_spark.fit import SparkBlocks
from cbmm_spark.frozen import (
    FrozenRun,
    frozen_abilities,
    frozen_items,
    frozen_scales,
    frozen_state,
    score_frozen,
)
from cbmm_spark.gates import Verdict, compare, judge
from cbmm_spark.kernels.components import component_numbers
from cbmm_spark.kernels.dense import Penalty
from cbmm_spark.kernels.loop import IterationRecord, LoopOptions, ScaleFit, alternate, start_scale
from cbmm_spark.kernels.model import F64
from cbmm_spark.kernels.paper import PaperFit, PaperTask, run_paper
from cbmm_spark.kernels.stage import Counts, ScaleTask
from cbmm_spark.linking import gate, link_scales
from cbmm_spark.pack import model_benchmarks, n_models, pack, tiles_of
from cbmm_spark.publish import finish_runs, publish, write_results
from cbmm_spark.published_scale import ScaleLink
from cbmm_spark.results import ability_rows, item_rows, iteration_rows, scale_rows, solve_items
from cbmm_spark.resume import config_hash, resumed_abilities
from cbmm_spark.runs import RunKey
from cbmm_spark.scale_flags import scale_flags
from cbmm_spark.scales import Scales, choose_scales
from cbmm_spark.tables import Warehouse, add_provenance, recorded
from cbmm_spark.warm import earlier_abilities

SAME_OPTIMUM = 1e-8
"""Relative difference of objectives below which two starts have found one optimum."""

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
    versions: Mapping[str, int]


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


@dataclass(frozen=True)
class RunOptions:
    """What one run is asked to do differently; none of it is configuration.

    Attributes
    ----------
    fresh
        Begin the fit anew, even where a dead run of the day has saved abilities.
    take_over
        Take the day from another run, even from one that lives.
    accept_gates
        Publish although gates fail.
    items_from
        Published run whose item parameters are kept fixed.
    only_new
        With `items_from`: models that have an ability in that run keep it as it is.
    """

    fresh: bool = False
    take_over: bool = False
    accept_gates: bool = False
    items_from: str | None = None
    only_new: bool = False


@recorded("rescore")
def rescore(
    spark: SparkSession,
    warehouse: Warehouse,
    config: Config,
    as_of: dt.date | None,
    listener: Listener,
    options: RunOptions | None = None,
) -> RescoreReport:
    """Fit all scales to the responses and publish abilities and item parameters of one day.

    With `items_from` nothing is fitted: models are scored against the items of that run.

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
    options
        What this run is asked to do differently.

    Returns
    -------
    RescoreReport

    Raises
    ------
    InputError
        There is nothing to fit, or no published run `items_from`.
    NotConvergedError
        A scale did not converge; nothing was published and the last published results stay visible.
    GateError
        A scale has too few items in common with earlier runs, or the results are too far from the last night's; nothing
        was published.
    ConflictError
        A living run holds the day, or others hold the tables.
    """
    options = options or RunOptions()
    clock = _Clock()
    started_at = dt.datetime.now(dt.UTC)
    key = RunKey(f"{started_at:%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}", as_of or started_at.date())
    frozen = None if options.items_from is None else FrozenRun.read(warehouse, options.items_from)
    terms = Terms(config.rescore.claim_minutes, options.take_over)
    add_provenance(run_id=key.run_id, scored_on=key.scored_on)
    check_free(warehouse, [key.scored_on], terms)
    with job_description(spark, f"cbmm-spark {key.run_id}: pack responses"):
        inputs = _inputs(spark, warehouse, config, as_of, listener)
    clock.lap("pack")
    add_provenance(input_versions=inputs.versions)
    describe_jobs(spark, f"cbmm-spark {key.run_id}: start")
    hashed = config_hash(config)
    stale = start_run(
        warehouse,
        key.run_id,
        key.scored_on,
        config.as_json(),
        inputs.responses_version,
        started_at,
        config_hash=hashed,
        terms=terms,
    )
    if stale:
        listener.event("taken_over", run_id=key.run_id, scored_on=key.scored_on, from_runs=stale)
    faultpoint("claimed")
    describe_jobs(spark, f"cbmm-spark {key.run_id}: fit")
    verdict: Verdict | None = None
    try:
        with Heartbeat(warehouse, [key.run_id], config.rescore.claim_minutes) as claim:
            if frozen is None:
                resume = None if options.fresh else hashed
                report = _fit_and_write(spark, warehouse, config, inputs, key, listener, clock, claim, resume)
            else:
                report = _score_and_write(warehouse, config, inputs, frozen, options.only_new, key, listener, clock)
            verdict = judge(compare(warehouse, key, config.gates.moved_se), config.gates, options.accept_gates)
            listener.event("gates", **verdict.facts())
            verdict.enforce()
    except BaseException as error:
        status = "not_converged" if isinstance(error, NotConvergedError) else "failed"
        message = str(error) if isinstance(error, CbmmError) else f"{type(error).__name__}: {error}"
        said = {key.run_id: verdict.as_json()} if verdict else {}
        with contextlib.suppress(Exception):  # a lost session cannot be told; the next run of the day tidies up
            finish_runs(warehouse, [key.run_id], status, " ".join(message.split())[:1000], said)
        raise
    describe_jobs(spark, f"cbmm-spark {key.run_id}: publish")
    publish(warehouse, key.run_id, key.scored_on, verdict.as_json())
    for warning in verdict.warnings:
        listener.event("warning", message=warning)
    clock.lap("publish")
    return replace(report, warnings=(*report.warnings, *verdict.warnings))


def _inputs(
    spark: SparkSession, warehouse: Warehouse, config: Config, as_of: dt.date | None, listener: Listener
) -> Inputs:
    """Pin what is read: the stored blocks, or for an earlier day tiles of the responses up to it."""
    version = warehouse.version("responses")  # first of all: a warehouse without responses is told so
    versions = {"responses": version}
    if as_of is not None:
        total = n_models(warehouse)
        versions["items"] = warehouse.version("items")
        items = warehouse.read("items", versions["items"])
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
            return Inputs(tiles, model_benchmarks(kept), items, version, total, versions)
    packed = pack(spark, warehouse, config)
    listener.event("packed", **vars(packed))
    blocks = warehouse.read("response_blocks", packed.blocks_version)
    members = warehouse.read("model_benchmarks", packed.benchmarks_version)
    # Read after packing, so that an ingest beside this run cannot have packed numbers that are not here.
    versions |= {"responses": packed.responses_version, "items": warehouse.version("items")}
    versions |= {"response_blocks": packed.blocks_version, "model_benchmarks": packed.benchmarks_version}
    items = warehouse.read("items", versions["items"])
    return Inputs(blocks, members, items, packed.responses_version, n_models(warehouse), versions)


def _fit_and_write(
    spark: SparkSession,
    warehouse: Warehouse,
    config: Config,
    inputs: Inputs,
    key: RunKey,
    listener: Listener,
    clock: _Clock,
    claim: Heartbeat,
    resume: str | None,
) -> RescoreReport:
    with SparkBlocks(spark, inputs.tiles, config.solver.partitions) as blocks:
        scales = choose_scales(config.scales, blocks.benchmarks)
        refuse = config.rescore.disconnected == "refuse"
        reached: dict[str, F64] = {}
        if resume is not None and config.solver.method != "paper":
            version, total = inputs.responses_version, inputs.n_models
            reached = resumed_abilities(warehouse, key, version, resume, scales.to_fit, total, listener.event)
        fits = fit_scales(
            blocks, scales, config.solver, inputs.n_models, warehouse, key, listener, refuse, reached, claim.check
        )
        clock.lap("fit")
        describe_jobs(spark, f"cbmm-spark {key.run_id}: write iterations")
        unconverged = [name for name, fit in fits.items() if not fit.converged]
        write_results(warehouse, "run_iterations", iteration_rows(spark, fits, scales, key), key.run_id, key.scored_on)
        faultpoint("run_iterations")
        if unconverged:
            facts = scale_rows(spark, fits, scales, config.rescore, None, key)
            write_results(warehouse, "run_scales", facts, key.run_id, key.scored_on)
            raise NotConvergedError(_not_converged(fits, unconverged, config.solver.max_iterations))
        links = _write_items(warehouse, config, blocks, fits, scales, inputs, key, listener, clock)
        faultpoint("item_parameters")
    abilities = ability_rows(spark, fits, scales, inputs.model_benchmarks, config.rescore, key, links)
    with job_description(spark, f"cbmm-spark {key.run_id}: write abilities"):
        write_results(warehouse, "abilities", abilities, key.run_id, key.scored_on)
        faultpoint("abilities")
        written = warehouse.read("item_parameters").where(
            (F.col("scored_on") == F.lit(key.scored_on)) & (F.col("run_id") == key.run_id)
        )
        facts = scale_rows(spark, fits, scales, config.rescore, written, key, links)
        write_results(warehouse, "run_scales", facts, key.run_id, key.scored_on)
        faultpoint("run_scales")
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


def _score_and_write(
    warehouse: Warehouse,
    config: Config,
    inputs: Inputs,
    run: FrozenRun,
    only_new: bool,
    key: RunKey,
    listener: Listener,
    clock: _Clock,
) -> RescoreReport:
    """Score models against the items of a run, and write a whole night of results."""
    spark, penalty = warehouse.spark, penalty_of(run.solver)
    scored = score_frozen(
        warehouse, run, inputs.tiles, inputs.model_benchmarks, inputs.items, penalty, config.solver, only_new,
        listener.event,
    )  # fmt: skip
    clock.lap("score")
    with job_description(spark, f"cbmm-spark {key.run_id}: write what was scored against {run.run_id}"):
        members = inputs.model_benchmarks
        results = {
            "item_parameters": frozen_items(warehouse, run, key),
            "abilities": frozen_abilities(warehouse, run, scored, members, config.rescore, only_new, key),
            "run_scales": frozen_scales(spark, run, scored, only_new, key),
            "run_abilities": frozen_state(spark, scored, key),
        }
        for name, rows in results.items():
            write_results(warehouse, name, rows, key.run_id, key.scored_on)
    clock.lap("write")
    unknown = {name: fit.unknown for name, fit in scored.fits.items() if fit.unknown}
    warnings = tuple(
        f"scale {name!r}: {count:,} answers to items that run {run.run_id} does not know were skipped"
        for name, count in unknown.items()
    )
    for warning in warnings:
        listener.event("warning", message=warning)
    return RescoreReport(
        key.run_id,
        key.scored_on,
        {name: _facts(fit) | {"models": scored.n_models(name)} for name, fit in scored.fits.items()},
        {name: warehouse.location(name) for name in (*RESULT_TABLES, *LATEST_TABLES)},
        clock.laps,
        warnings,
    )


def _write_items(
    warehouse: Warehouse,
    config: Config,
    blocks: SparkBlocks,
    fits: Mapping[str, ScaleFit],
    scales: Scales,
    inputs: Inputs,
    key: RunKey,
    listener: Listener,
    clock: _Clock,
) -> dict[str, ScaleLink]:
    """Solve the items, link the scales by them, and write them on the scales they are published on.

    Raises
    ------
    GateError
        A scale cannot be linked; how far it got stands in `run_scales`.
    """
    spark, sigma = warehouse.spark, config.solver.sigma
    solved = solve_items(blocks, fits, config.rescore).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        with job_description(spark, f"cbmm-spark {key.run_id}: solve the items at the final abilities"):
            solved.count()
        links, complaints = link_scales(
            warehouse, key.run_id, key.scored_on, fits, scales, solved, inputs.items, config.linking, config.rescore,
            sigma, listener.event,
        )  # fmt: skip
        if complaints:
            facts = scale_rows(spark, fits, scales, config.rescore, None, key, links)
            write_results(warehouse, "run_scales", facts, key.run_id, key.scored_on)
            gate(complaints)
        clock.lap("link")
        rows = item_rows(blocks, fits, scales, inputs.items, config.rescore, sigma, key, links, solved)
        with job_description(spark, f"cbmm-spark {key.run_id}: write item parameters"):
            write_results(warehouse, "item_parameters", rows, key.run_id, key.scored_on)
    finally:
        solved.unpersist()
    return links


def _not_converged(fits: Mapping[str, ScaleFit], unconverged: Sequence[str], iterations: int) -> str:
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
    reached: Mapping[str, F64] | None = None,
    check: Callable[[], None] = lambda: None,
) -> dict[str, ScaleFit]:
    """Fit every scale on cached blocks; abilities are saved after each iteration where a warehouse is given.

    `reached` holds, by scale, abilities of shape (total_models,) that a dead run had reached; a scale goes on from them
    where they hold all of its models. `check` is called after every iteration, to end a fit that has become useless.

    Raises
    ------
    InputError
        With `refuse_disconnected`, if the models of a scale fall into groups that share no item.
    """
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


class _Clock:
    """Seconds by step."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.laps[name] = round(now - self._last, 3)
        self._last = now
