"""The job: pin the input, pack, fit all scales, write results, publish."""

from __future__ import annotations

import contextlib
import datetime as dt
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from cbmm_spark.config.schema import Config
from cbmm_spark.console.listener import Clock, Listener
from cbmm_spark.errors import CbmmError, NotConvergedError
from cbmm_spark.faultpoints import faultpoint
from cbmm_spark.fit.fit_scales import fit_scales, not_converged, penalty_of
from cbmm_spark.fit.inputs import Inputs, read_inputs
from cbmm_spark.fit.scale_flags import scale_flags
from cbmm_spark.fit.scales import choose_scales
from cbmm_spark.fit.spark_blocks import SparkBlocks
from cbmm_spark.fit.starts import config_hash, resumed_abilities
from cbmm_spark.kernels.alternation import ScaleFit
from cbmm_spark.kernels.model import F64
from cbmm_spark.linking.linking import gate, link_scales
from cbmm_spark.packing.job import PackReport
from cbmm_spark.rescoring.fixed_items import (
    FrozenRun,
    frozen_abilities,
    frozen_items,
    frozen_scales,
    frozen_state,
    score_frozen,
)
from cbmm_spark.results.results import (
    RunFits,
    ability_rows,
    item_rows,
    iteration_rows,
    scale_rows,
    shown_discriminations,
    solve_fit_items,
)
from cbmm_spark.runs.claims import Heartbeat, Terms, check_free, start_run
from cbmm_spark.runs.gates import Verdict, compare_runs, verdict_of
from cbmm_spark.runs.publish import finish_runs, publish, write_results
from cbmm_spark.runs.table import RunKey
from cbmm_spark.spark.scoped import describe_jobs, job_description, side_by_side
from cbmm_spark.tables import Warehouse, add_provenance, recorded

RESULT_TABLES = ("abilities", "item_parameters", "runs", "run_scales", "run_iterations")
LATEST_TABLES = ("latest_abilities", "latest_item_parameters")


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
    packed
        What the same command packed just before; without it the stored tiles are brought up to date first.
    """

    fresh: bool = False
    take_over: bool = False
    accept_gates: bool = False
    items_from: str | None = None
    only_new: bool = False
    packed: PackReport | None = None


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
    clock = Clock()
    started_at = dt.datetime.now(dt.UTC)
    key = RunKey(f"{started_at:%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}", as_of or started_at.date())
    frozen = None if options.items_from is None else FrozenRun.read(warehouse, options.items_from)
    terms = Terms(config.rescore.claim_minutes, options.take_over)
    add_provenance(run_id=key.run_id, scored_on=key.scored_on)
    check_free(warehouse, [key.scored_on], terms)
    with contextlib.ExitStack() as held:
        with job_description(spark, f"cbmm-spark {key.run_id}: pack responses"):
            inputs = held.enter_context(read_inputs(spark, warehouse, config, as_of, listener, options.packed))
        clock.lap("pack")
        add_provenance(input_versions=inputs.versions)
        return _run(warehouse, config, inputs, frozen, key, started_at, options, terms, listener, clock)


def _run(
    warehouse: Warehouse,
    config: Config,
    inputs: Inputs,
    frozen: FrozenRun | None,
    key: RunKey,
    started_at: dt.datetime,
    options: RunOptions,
    terms: Terms,
    listener: Listener,
    clock: Clock,
) -> RescoreReport:
    """Claim the day, fit or score, write, hold against the gates, publish."""
    spark = warehouse.spark
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
            found = compare_runs(warehouse, key, config.gates.moved_se)
            verdict = verdict_of(found, config.gates, options.accept_gates)
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


def _fit_and_write(
    spark: SparkSession,
    warehouse: Warehouse,
    config: Config,
    inputs: Inputs,
    key: RunKey,
    listener: Listener,
    clock: Clock,
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
        run = RunFits(key, scales, fits)
        clock.lap("fit")
        unconverged = [name for name, fit in fits.items() if not fit.converged]
        if unconverged:
            _write_how_it_went(warehouse, config, run)
            raise NotConvergedError(not_converged(fits, unconverged, config.solver.max_iterations))
        _link_and_write(warehouse, config, blocks, run, inputs, listener, clock)
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
    clock: Clock,
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
        _write(warehouse, key, results)
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


def _link_and_write(
    warehouse: Warehouse,
    config: Config,
    blocks: SparkBlocks,
    run: RunFits,
    inputs: Inputs,
    listener: Listener,
    clock: Clock,
) -> None:
    """Solve the items, link the scales by them, and write all results on the scales they are published on.

    Raises
    ------
    GateError
        A scale cannot be linked; how far it got stands in `run_scales`.
    """
    spark, sigma, key = warehouse.spark, config.solver.sigma, run.key
    described = f"cbmm-spark {key.run_id}: solve the items at the final abilities"
    with blocks.computed(solve_fit_items(blocks, run.fits, config.rescore), described) as solved:
        links, complaints = link_scales(
            warehouse, key.run_id, key.scored_on, run.fits, run.scales, solved, inputs.items, config.linking,
            config.rescore, sigma, listener.event,
        )  # fmt: skip
        run = replace(run, links=links)
        if complaints:
            _write_how_it_went(warehouse, config, run)
            gate(complaints)
        clock.lap("link")
        shown = shown_discriminations(spark, [run], config.rescore, sigma, solved)
        results = {
            "run_iterations": iteration_rows(spark, [run]),
            "item_parameters": item_rows([run], inputs.items, config.rescore, sigma, solved),
            "abilities": ability_rows(spark, [run], inputs.model_benchmarks, config.rescore),
            "run_scales": scale_rows(spark, [run], config.rescore, shown),
        }
        _write(warehouse, key, results)


def _write_how_it_went(warehouse: Warehouse, config: Config, run: RunFits) -> None:
    """Write what is known of a fit that is not published."""
    spark = warehouse.spark
    facts = scale_rows(spark, [run], config.rescore, None)
    _write(warehouse, run.key, {"run_iterations": iteration_rows(spark, [run]), "run_scales": facts})


def _write(warehouse: Warehouse, key: RunKey, results: Mapping[str, DataFrame]) -> None:
    """Write the rows of a run side by side: nobody reads them before the run is published."""

    def write(name: str, rows: DataFrame) -> None:
        with job_description(warehouse.spark, f"cbmm-spark {key.run_id}: write {name.replace('_', ' ')}"):
            write_results(warehouse, name, rows, key.run_id, key.scored_on)
            faultpoint(name)

    side_by_side(warehouse.spark, *(partial(write, name, rows) for name, rows in results.items()))


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
