"""From a fit to rows of the result tables. Nulls mean "has no value"; no NaN or infinity leaves this module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows
from scipy.stats import norm

from cbmm_spark.config import RescoreConfig
from cbmm_spark.fit import SparkBlocks
from cbmm_spark.kernels.cells import Block
from cbmm_spark.kernels.components import first_observers
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
from cbmm_spark.runs import RunKey as RunKey
from cbmm_spark.scale_flags import scale_flags
from cbmm_spark.scales import Scales
from cbmm_spark.tables import SPECS

ITEM_COLUMNS = pa.schema(
    [
        ("scale", pa.string()),
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
    "scale string, benchmark string, item_index int, discrimination double, easiness double, difficulty double, "
    "discrimination_se double, easiness_se double, n_models int, accuracy double, information double, "
    "max_information double, component int, flag_reasons string"
)
ESTIMATES_DDL = (
    "scale string, model_index int, ability double, ability_se double, ability_lower double, ability_upper double, "
    "rank int, accuracy double, accuracy_lower double, accuracy_upper double, accuracy_rank int, n_items int, "
    "coverage double, component int, status string"
)


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


def on_published_scale(fit: ScaleFit, config: RescoreConfig) -> Published:
    """Standardise a fit: mean 0, sd 1 over models of status ``ok``; over all where fewer than two are."""
    counts = fit.counts
    status = np.full(fit.theta.size, "ok", dtype="<U12")
    status[counts.items < config.few_items] = "few_items"
    status[counts.successes <= 0.0] = "all_wrong"
    status[counts.successes >= counts.attempts] = "all_correct"
    reference = fit.theta[status == "ok"]
    gauge = standard_gauge(reference if reference.size > 1 else fit.theta)
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
    estimates = pa.concat_tables([_estimates(name, fits[source], config) for name, source in scales.fitted.items()])
    members = _members(spark, scales)
    models = (
        model_benchmarks.join(F.broadcast(members), "benchmark")
        .groupBy("scale", "model_index", "model_id")
        .agg(
            F.min("first_evaluated_at").alias("first_evaluated_at"),
            F.max("last_evaluated_at").alias("last_evaluated_at"),
        )
    )
    joined = models.join(spark.createDataFrame(estimates, ESTIMATES_DDL), ["scale", "model_index"], "left")
    full = joined.withColumns(
        {
            "n_items": F.coalesce("n_items", F.lit(0)),
            "coverage": F.coalesce("coverage", F.lit(0.0)),
            "status": F.coalesce("status", F.lit("no_responses")),
            "rank_shift": F.col("accuracy_rank") - F.col("rank"),
        }
    )
    return _complete(key.onto(full), "abilities")


def _members(spark: SparkSession, scales: Scales) -> DataFrame:
    """Return which benchmarks each scale holds; small."""
    pairs = [(name, benchmark) for name, group in scales.benchmarks.items() for benchmark in sorted(group)]
    return spark.createDataFrame(pairs, "scale string, benchmark string")


def _estimates(name: str, fit: ScaleFit, config: RescoreConfig) -> pa.Table:
    counts, shown = fit.counts, on_published_scale(fit, config)
    half = float(norm.ppf(0.5 + config.level / 2.0)) * shown.error
    accuracy = counts.successes / counts.attempts
    lower, upper = wilson(counts.successes, counts.attempts, config.level)
    component = fit.components
    columns = {
        "scale": pa.array([name] * fit.models.size, pa.string()),
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
    parts = [
        (
            ScaleTask(name, fit.benchmarks, fit.models, fit.theta, fit.nodes, fit.ridge, "late", fit.items),
            on_published_scale(fit, config).gauge,
            fit.components,
            tuple(scales.shown_by(name)),
        )
        for name, fit in fits.items()
    ]
    few = config.few_responses

    def rows(block: Block, row: Mapping[str, Any]) -> pa.RecordBatch:
        start = int(row["item_start"])
        made = [
            _item_batch(block, start, task, gauge, components, sigma, few, names)
            for task, gauge, components, names in parts
            if block.benchmark in task.benchmarks
        ]
        return pa.Table.from_batches(made, ITEM_COLUMNS).combine_chunks().to_batches()[0] if made else _no_items()

    computed = blocks.map_blocks(rows, ITEM_DDL)
    members = _members(items.sparkSession, scales)
    named = items.select("benchmark", "item_index", "item_id").join(F.broadcast(members), "benchmark")
    joined = named.join(computed, ["scale", "benchmark", "item_index"], "left")
    flagged = joined.withColumns(
        {
            "n_models": F.coalesce("n_models", F.lit(0)),
            "flag_reasons": F.coalesce("flag_reasons", _when_few(F.col("n_models").isNull(), few)),
        }
    ).withColumn("is_flagged", F.col("flag_reasons").isNotNull())
    return _complete(key.onto(flagged), "item_parameters")


def _when_few(nobody: Column, few: int) -> Column:
    """Return the flag of an item that nobody has a verdict on."""
    return F.when(nobody & (F.lit(few) > 0), F.lit("few_responses"))


def _no_items() -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema=ITEM_COLUMNS)


def _item_batch(
    block: Block,
    start: int,
    task: ScaleTask,
    gauge: Gauge,
    components: NDArray[np.int64],
    sigma: float,
    few: int,
    names: Sequence[str],
) -> pa.RecordBatch:
    """Solve one block's items at the final abilities and put them on the published scale."""
    cells = block.cells
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
    component = np.where(first >= 0, components[place[np.maximum(first, 0)]], 0).astype(np.int32)
    n, times = cells.n_items, len(names)
    columns: dict[str, pa.Array] = {
        "scale": pa.array([name for name in names for _ in range(n)], pa.string()),
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
    facts = []
    for name, source in scales.fitted.items():
        fit = fits[source]
        accuracy = fit.counts.successes / fit.counts.attempts
        facts.append(
            {
                "scale": name,
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
                "flag_reasons": ";".join(flag.reason for flag in scale_flags(name, fit, config)) or None,
            }
        )
    if item_parameters is None:
        return _complete(_facts_frame(spark, facts).withColumn("run_id", F.lit(key.run_id)), "run_scales")
    summary = item_parameters.groupBy("scale").agg(
        F.avg("discrimination").alias("discrimination_mean"),
        F.stddev_pop("discrimination").alias("discrimination_sd"),
        F.count_if(F.col("discrimination") == 0).cast("int").alias("uninformative_items"),
    )
    frame = _facts_frame(spark, facts)
    return _complete(frame.join(summary, "scale", "left").withColumn("run_id", F.lit(key.run_id)), "run_scales")


def _facts_frame(spark: SparkSession, facts: Sequence[Mapping[str, object]]) -> DataFrame:
    return spark.createDataFrame(
        [tuple(fact.values()) for fact in facts],
        "scale string, n_models int, n_items int, n_responses long, iterations int, converged boolean, "
        "objective double, log_loss double, accuracy_log_loss double, kkt_residual double, node_error double, "
        "ability_accuracy_spearman double, flag_reasons string",
    )


def iteration_rows(spark: SparkSession, fits: Mapping[str, ScaleFit], scales: Scales, key: RunKey) -> DataFrame:
    """Return the rows of `run_iterations`."""

    def row(name: str, record: IterationRecord) -> tuple[object, ...]:
        change = _value(record.max_ability_change)
        return (key.run_id, name, record.iteration, float(record.objective), change, record.seconds)

    rows = [row(name, record) for name, source in scales.fitted.items() for record in fits[source].history]
    return spark.createDataFrame(rows, SPECS["run_iterations"].schema)


def _value(x: float) -> float | None:
    return float(x) if np.isfinite(x) else None


def _complete(df: DataFrame, table: str) -> DataFrame:
    """Add the columns that are not computed yet as nulls of their type, and put all in the table's order."""
    columns = []
    for field in SPECS[table].schema.fields:
        column = F.col(field.name) if field.name in df.columns else F.lit(None)
        columns.append(column.cast(field.dataType).alias(field.name))
    return df.select(*columns)
