"""From a fit to rows of the result tables. Nulls mean "has no value"; no NaN or infinity leaves this module."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows
from scipy.stats import norm

from cbmm_spark.config import RescoreConfig
from cbmm_spark.fit import SparkBlocks
from cbmm_spark.history_link import Link
from cbmm_spark.kernels.cells import Block
from cbmm_spark.kernels.components import first_observers
from cbmm_spark.kernels.history import seen_by
from cbmm_spark.kernels.loop import IterationRecord, ScaleFit
from cbmm_spark.kernels.model import F64, Gauge, standard_gauge
from cbmm_spark.kernels.passes import (
    ExactResult,
    ScaleView,
    evaluate_block,
    exact_block,
    item_moments,
    solve_block,
)
from cbmm_spark.kernels.stage import ScaleTask
from cbmm_spark.kernels.statistics import (
    ability_errors,
    accuracy_loss,
    constant_easiness,
    item_errors,
    ranks_within,
    spearman,
    wilson,
)
from cbmm_spark.scale_flags import scale_flags
from cbmm_spark.scales import Scales
from cbmm_spark.tables import SPECS

ITEM_COLUMNS = pa.schema(
    [
        ("label", pa.int32()),
        ("benchmark", pa.string()),
        ("item_index", pa.int32()),
        ("discrimination", pa.float64()),
        ("easiness", pa.float64()),
        ("difficulty", pa.float64()),
        ("discrimination_se", pa.float64()),
        ("easiness_se", pa.float64()),
        ("n_models", pa.int32()),
        ("accuracy", pa.float64()),
        ("information", pa.float64()),
        ("max_information", pa.float64()),
        ("component", pa.int32()),
        ("flag_reasons", pa.string()),
    ]
)
ITEM_DDL = (
    "label int, benchmark string, item_index int, discrimination double, easiness double, difficulty double, "
    "discrimination_se double, easiness_se double, n_models int, accuracy double, information double, "
    "max_information double, component int, flag_reasons string"
)
ESTIMATES_DDL = (
    "label int, model_index int, ability double, ability_se double, ability_lower double, ability_upper double, "
    "rank int, accuracy double, accuracy_lower double, accuracy_upper double, accuracy_rank int, n_items int, "
    "coverage double, component int, status string"
)


@dataclass(frozen=True)
class RunKey:
    """Which run rows belong to."""

    run_id: str
    scored_on: dt.date


@dataclass(frozen=True)
class RunFits:
    """The fits of one run.

    Attributes
    ----------
    key
        The run.
    scales
        Names under which fits are shown.
    fits
        By fitted scale. Runs of several dates share the fit of a scale that did not change between them.
    date
        Number of the run's date, where models are told by date (`ability_rows_of`).
    links
        By scale, onto the reference scale; a scale without one is standardised.
    """

    key: RunKey
    scales: Scales
    fits: Mapping[str, ScaleFit]
    date: int = 0
    links: Mapping[str, Link] = field(default_factory=dict)


@dataclass(frozen=True)
class _Label:
    """One scale of one run, as it is shown; rows carry its number until they have their names."""

    number: int
    run: RunFits
    scale: str

    @property
    def fit(self) -> ScaleFit:
        return self.run.fits[self.run.scales.fitted[self.scale]]

    @property
    def link(self) -> Link | None:
        return self.run.links.get(self.scale)


def _labels(runs: Sequence[RunFits]) -> list[_Label]:
    shown = [(run, scale) for run in runs for scale in run.scales.fitted]
    return [_Label(number, run, scale) for number, (run, scale) in enumerate(shown)]


@dataclass(frozen=True)
class Published:
    """A fit on its published scale: standardised over the models whose ability can be read.

    Attributes
    ----------
    gauge
        From the fit's scale to the published one.
    ability, error
        On the published scale, shape (N,).
    status
        Of every model, shape (N,).
    """

    gauge: Gauge
    ability: F64
    error: F64
    status: NDArray[np.str_]


def on_published_scale(fit: ScaleFit, config: RescoreConfig, link: Link | None = None) -> Published:
    """Standardise a fit: mean 0, sd 1 over models of status ``ok``; over all where fewer than two are.

    With a link, which leads from there to the reference scale, that scale is the published one.
    """
    counts = fit.counts
    status = np.full(fit.theta.size, "ok", dtype="<U12")
    status[counts.items < config.few_items] = "few_items"
    status[counts.successes <= 0.0] = "all_wrong"
    status[counts.successes >= counts.attempts] = "all_correct"
    reference = fit.theta[status == "ok"]
    gauge = standard_gauge(reference if reference.size > 1 else fit.theta)
    if link is not None:
        gauge = link.after(gauge)
    error = ability_errors(fit.information, fit.ridge.ability) / gauge.stretch
    return Published(gauge, gauge.abilities(fit.theta), error, status)


# ------------------------------------------------------------------------------------------------ abilities
def ability_rows(
    spark: SparkSession,
    fits: Mapping[str, ScaleFit],
    scales: Scales,
    model_benchmarks: DataFrame,
    config: RescoreConfig,
    key: RunKey,
) -> DataFrame:
    """Return the rows of `abilities`: every model that has a row in the scale's benchmarks, answered or not.

    Parameters
    ----------
    spark
        Session.
    fits
        By fitted scale.
    scales
        Names under which fits are shown.
    model_benchmarks
        From packing.
    config
        Level, thresholds.
    key
        Run.
    """
    return ability_rows_of(spark, [RunFits(key, scales, fits)], model_benchmarks, config)


def ability_rows_of(
    spark: SparkSession, runs: Sequence[RunFits], model_benchmarks: DataFrame, config: RescoreConfig
) -> DataFrame:
    """Return the rows of `abilities` of several runs; parameters are those of `ability_rows`.

    Where `model_benchmarks` has a column ``step``, a run sees only its rows with ``step`` up to the run's date.
    """
    labels = _labels(runs)
    estimates = pa.concat_tables([_estimates(label, config) for label in labels])
    members = _members(spark, labels)
    rows = model_benchmarks.join(F.broadcast(members), "benchmark")
    if "step" in model_benchmarks.columns:
        rows = rows.where("step <= date")
    models = rows.groupBy(*_LABEL_COLUMNS, "model_index", "model_id").agg(
        F.min("first_evaluated_at").alias("first_evaluated_at"),
        F.max("last_evaluated_at").alias("last_evaluated_at"),
    )
    joined = models.join(spark.createDataFrame(estimates, ESTIMATES_DDL), ["label", "model_index"], "left")
    full = joined.withColumns(
        {
            "n_items": F.coalesce("n_items", F.lit(0)),
            "coverage": F.coalesce("coverage", F.lit(0.0)),
            "status": F.coalesce("status", F.lit("no_responses")),
            "rank_shift": F.col("accuracy_rank") - F.col("rank"),
        }
    )
    return _complete(full, "abilities")


_LABEL_COLUMNS = ("label", "scale", "run_id", "scored_on")


def _members(spark: SparkSession, labels: Sequence[_Label]) -> DataFrame:
    """Return which benchmarks each scale of each run holds; small."""
    rows = [
        (label.number, label.scale, label.run.key.run_id, label.run.key.scored_on, label.run.date, benchmark)
        for label in labels
        for benchmark in sorted(label.run.scales.benchmarks[label.scale])
    ]
    return spark.createDataFrame(
        rows, "label int, scale string, run_id string, scored_on date, date int, benchmark string"
    )


def _estimates(label: _Label, config: RescoreConfig) -> pa.Table:
    fit = label.fit
    counts, shown = fit.counts, on_published_scale(fit, config, label.link)
    half = float(norm.ppf(0.5 + config.level / 2.0)) * shown.error
    accuracy = counts.successes / counts.attempts
    lower, upper = wilson(counts.successes, counts.attempts, config.level)
    component = fit.components
    columns = {
        "label": pa.array(np.full(fit.models.size, label.number, dtype=np.int32)),
        "model_index": pa.array((fit.models + 1).astype(np.int32)),
        "ability": finite(shown.ability),
        "ability_se": finite(shown.error),
        "ability_lower": finite(shown.ability - half),
        "ability_upper": finite(shown.ability + half),
        "rank": pa.array(ranks_within(component, shown.ability).astype(np.int32)),
        "accuracy": finite(accuracy),
        "accuracy_lower": finite(np.minimum(lower, accuracy)),
        "accuracy_upper": finite(np.maximum(upper, accuracy)),
        "accuracy_rank": pa.array(ranks_within(component, accuracy).astype(np.int32)),
        "n_items": pa.array(counts.items.astype(np.int32)),
        "coverage": finite(counts.items / max(counts.n_items, 1)),
        "component": pa.array(component.astype(np.int32)),
        "status": pa.array([str(s) for s in shown.status], pa.string()),
    }
    return pa.table(columns)


def finite(values: F64) -> pa.Array:
    """Return a column in which whatever is not finite is null."""
    return pa.array(values, pa.float64(), mask=~np.isfinite(values))


# ------------------------------------------------------------------------------------------------ items
def item_rows(
    blocks: SparkBlocks,
    fits: Mapping[str, ScaleFit],
    scales: Scales,
    items: DataFrame,
    config: RescoreConfig,
    sigma: float,
    key: RunKey,
) -> DataFrame:
    """Return the rows of `item_parameters`, computed on the executors from the final abilities.

    Parameters
    ----------
    blocks
        The cached blocks.
    fits, scales
        As in `ability_rows`.
    items
        The `items` table, for the names.
    config
        Thresholds.
    sigma
        Temperature.
    key
        Run.
    """
    return item_rows_of(blocks, [RunFits(key, scales, fits)], items, config, sigma)


@dataclass(frozen=True)
class _ItemPart:
    """What a worker must know to make the item rows of one fit, and under which labels they are shown."""

    task: ScaleTask
    gauge: Gauge
    components: NDArray[np.int64]
    labels: NDArray[np.int32]


_PartKey = tuple[str, Link | None]


def item_rows_of(
    blocks: SparkBlocks, runs: Sequence[RunFits], items: DataFrame, config: RescoreConfig, sigma: float
) -> DataFrame:
    """Return the rows of `item_parameters` of several runs; parameters are those of `item_rows`."""
    labels = _labels(runs)
    parts = _item_parts(labels, config)
    few = config.few_responses
    moments = {key: blocks.moments[key[0]] for key in parts if key[0] in blocks.moments}

    def rows(block: Block, row: Mapping[str, Any]) -> pa.RecordBatch:
        start = int(row["item_start"])
        mine = [key for key, part in parts.items() if block.benchmark in part.task.benchmarks]
        made = [
            _item_batch(seen, start, parts[key], sigma, few)
            for seen, keys in seen_by(block, mine, moments)
            for key in keys
        ]
        return pa.Table.from_batches(made, ITEM_COLUMNS).combine_chunks().to_batches()[0] if made else _no_items()

    computed = blocks.map_blocks(rows, ITEM_DDL)
    members = _members(items.sparkSession, labels)
    named = items.select("benchmark", "item_index", "item_id").join(F.broadcast(members), "benchmark")
    joined = named.join(computed, ["label", "benchmark", "item_index"], "left")
    flagged = joined.withColumns(
        {
            "n_models": F.coalesce("n_models", F.lit(0)),
            "flag_reasons": F.coalesce("flag_reasons", _when_few(F.col("n_models").isNull(), few)),
        }
    ).withColumn("is_flagged", F.col("flag_reasons").isNotNull())
    return _complete(flagged, "item_parameters")


def _item_parts(labels: Sequence[_Label], config: RescoreConfig) -> dict[_PartKey, _ItemPart]:
    """Return what is computed, by fit and link: what several labels show is computed once."""
    shown: dict[_PartKey, list[_Label]] = {}
    for label in labels:
        shown.setdefault((label.fit.name, label.link), []).append(label)
    parts = {}
    for (name, link), group in shown.items():
        fit = group[0].fit
        task = ScaleTask(name, fit.benchmarks, fit.models, fit.theta, fit.nodes, fit.ridge, "late", fit.items)
        numbers = np.array([label.number for label in group], dtype=np.int32)
        gauge = on_published_scale(fit, config, link).gauge
        parts[name, link] = _ItemPart(task, gauge, fit.components, numbers)
    return parts


def _when_few(nobody: Column, few: int) -> Column:
    """Return the flag of an item that nobody has a verdict on."""
    return F.when(nobody & (F.lit(few) > 0), F.lit("few_responses"))


def _no_items() -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema=ITEM_COLUMNS)


def _item_batch(block: Block, start: int, part: _ItemPart, sigma: float, few: int) -> pa.RecordBatch:
    """Solve one block's items at the final abilities and put them on the published scale."""
    cells, task, gauge = block.cells, part.task, part.gauge
    view = task.view(task.places(block.models))
    exact = _items_at(block, task, view)
    # An item that everybody or nobody solves says nothing about its slope: it is shown with none (cases F2).
    constant = (cells.successes <= 0.0) | (cells.successes >= cells.attempts)
    a = np.where(constant, 0.0, exact.a)
    flat = constant_easiness(cells.attempts, cells.successes, task.ridge.easiness)
    b = np.where(a > 0.0, exact.b, flat)
    errors = item_errors(exact.item_information, a, task.ridge, gauge, sigma)
    a_shown, b_shown = (sigma * value for value in gauge.items(a, b))
    seen = cells.observers > 0
    p = 0.5 * (1.0 + np.tanh(0.5 * b_shown / sigma))
    with np.errstate(divide="ignore", invalid="ignore"):
        difficulty = np.where(a_shown > 0.0, -b_shown / a_shown, np.nan)
        accuracy = np.where(seen, cells.successes / cells.attempts, np.nan)
    values = {
        "discrimination": np.where(seen, a_shown, np.nan),
        "easiness": np.where(seen, b_shown, np.nan),
        "difficulty": np.where(seen, difficulty, np.nan),
        "discrimination_se": np.where(seen, errors.discrimination, np.nan),
        "easiness_se": np.where(seen, errors.easiness, np.nan),
        "accuracy": accuracy,
        "information": np.where(seen, (a_shown / sigma) ** 2 * p * (1.0 - p), np.nan),
        "max_information": np.where(seen, 0.25 * (a_shown / sigma) ** 2, np.nan),
    }
    reasons = {
        "all_correct": seen & (cells.successes >= cells.attempts),
        "all_wrong": seen & (cells.successes <= 0.0),
        "uninformative": seen & (a == 0.0),
        "few_responses": cells.observers < few,
    }
    first = first_observers(cells)
    place = np.searchsorted(task.models, block.models)
    component = np.where(first >= 0, part.components[place[np.maximum(first, 0)]], 0).astype(np.int32)
    n, times = cells.n_items, part.labels.size
    columns: dict[str, pa.Array] = {
        "label": pa.array(np.repeat(part.labels, n)),
        "benchmark": pa.array([block.benchmark] * (n * times), pa.string()),
        "item_index": pa.array(np.tile(np.arange(start, start + n, dtype=np.int32), times)),
        "n_models": pa.array(np.tile(cells.observers.astype(np.int32), times)),
        "component": pa.array(np.tile(component, times), pa.int32(), mask=np.tile(component == 0, times)),
        "flag_reasons": pa.array(_join_reasons(reasons, n) * times, pa.string()),
    }
    columns |= {name: finite(np.tile(value, times)) for name, value in values.items()}
    return pa.RecordBatch.from_pydict({name: columns[name] for name in ITEM_COLUMNS.names}, schema=ITEM_COLUMNS)


def _items_at(block: Block, task: ScaleTask, view: ScaleView) -> ExactResult:
    """Return the items' own optimum at the abilities, or what was given."""
    if task.items is not None:
        return evaluate_block(block.cells, view, *task.items[(block.benchmark, block.item_start)])
    counts, weighted = item_moments(block.cells, [view])[0]
    return exact_block(block.cells, view, solve_block(block.cells, view, counts, weighted), counts, weighted)


def _join_reasons(reasons: Mapping[str, NDArray[np.bool_]], n: int) -> list[str | None]:
    """Return the reasons of every item joined by ';' (as many distinct texts as there are combinations)."""
    code = np.zeros(n, dtype=np.int64)
    for bit, mask in enumerate(reasons.values()):
        code |= mask.astype(np.int64) << bit
    texts = {
        int(value): ";".join(name for bit, name in enumerate(reasons) if value >> bit & 1) or None
        for value in np.unique(code)
    }
    return [texts[value] for value in code.tolist()]


# ------------------------------------------------------------------------------------------------ runs
def scale_rows(
    spark: SparkSession,
    fits: Mapping[str, ScaleFit],
    scales: Scales,
    config: RescoreConfig,
    item_parameters: DataFrame | None,
    key: RunKey,
) -> DataFrame:
    """Return the rows of `run_scales`; discriminations are summarised from the item parameters as written, if any."""
    return scale_rows_of(spark, [RunFits(key, scales, fits)], config, item_parameters)


def scale_rows_of(
    spark: SparkSession, runs: Sequence[RunFits], config: RescoreConfig, item_parameters: DataFrame | None
) -> DataFrame:
    """Return the rows of `run_scales` of several runs; parameters are those of `scale_rows`."""
    frame = _facts_frame(spark, [_facts_of(label, config) for label in _labels(runs)])
    if item_parameters is None:
        return _complete(frame, "run_scales")
    summary = item_parameters.groupBy("run_id", "scale").agg(
        F.avg("discrimination").alias("discrimination_mean"),
        F.stddev_pop("discrimination").alias("discrimination_sd"),
        F.count_if(F.col("discrimination") == 0).cast("int").alias("uninformative_items"),
    )
    return _complete(frame.join(summary, ["run_id", "scale"], "left"), "run_scales")


def _facts_of(label: _Label, config: RescoreConfig) -> dict[str, object]:
    fit, link = label.fit, label.link
    accuracy = fit.counts.successes / fit.counts.attempts
    return {
        "run_id": label.run.key.run_id,
        "scale": label.scale,
        "n_models": int(fit.models.size),
        "n_items": fit.counts.n_items,
        "n_responses": int(fit.counts.attempts.sum()),
        "iterations": fit.iteration,
        "converged": fit.converged,
        "objective": _value(fit.objective),
        "log_loss": _value(fit.log_loss),
        "accuracy_log_loss": _value(accuracy_loss(fit.counts.attempts, fit.counts.successes)),
        "kkt_residual": _value(fit.kkt_residual),
        "node_error": _value(abs(fit.node_error)),
        "ability_accuracy_spearman": _value(spearman(fit.theta, accuracy)),
        "link_slope": None if link is None else link.slope,
        "link_intercept": None if link is None else link.intercept,
        "n_anchors": None if link is None else link.n_anchors,
        "flag_reasons": ";".join(flag.reason for flag in scale_flags(label.scale, fit, config)) or None,
    }


def _facts_frame(spark: SparkSession, facts: Sequence[Mapping[str, object]]) -> DataFrame:
    return spark.createDataFrame(
        [tuple(fact.values()) for fact in facts],
        "run_id string, scale string, n_models int, n_items int, n_responses long, iterations int, converged boolean, "
        "objective double, log_loss double, accuracy_log_loss double, kkt_residual double, node_error double, "
        "ability_accuracy_spearman double, link_slope double, link_intercept double, n_anchors int, "
        "flag_reasons string",
    )


def iteration_rows(spark: SparkSession, fits: Mapping[str, ScaleFit], scales: Scales, key: RunKey) -> DataFrame:
    """Return the rows of `run_iterations`."""

    return iteration_rows_of(spark, [RunFits(key, scales, fits)])


def iteration_rows_of(spark: SparkSession, runs: Sequence[RunFits]) -> DataFrame:
    """Return the rows of `run_iterations` of several runs."""

    def row(label: _Label, record: IterationRecord) -> tuple[object, ...]:
        change = _value(record.max_ability_change)
        run_id = label.run.key.run_id
        return (run_id, label.scale, record.iteration, float(record.objective), change, record.seconds)

    rows = [row(label, record) for label in _labels(runs) for record in label.fit.history]
    return spark.createDataFrame(rows, SPECS["run_iterations"].schema)


def _value(x: float) -> float | None:
    return float(x) if np.isfinite(x) else None


def _complete(df: DataFrame, table: str) -> DataFrame:
    """Add the columns that are not computed yet as nulls of their type, and put all in the table's order."""
    columns = []
    for each in SPECS[table].schema.fields:
        column = F.col(each.name) if each.name in df.columns else F.lit(None)
        columns.append(column.cast(each.dataType).alias(each.name))
    return df.select(*columns)
