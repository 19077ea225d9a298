"""From a fit to rows of the result tables. Nulls mean "has no value"; no NaN or infinity leaves this module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows
from scipy.stats import norm

from cbmm_spark.config.schema import RescoreConfig
from cbmm_spark.fit.scale_flags import scale_flags
from cbmm_spark.fit.scales import Scales
from cbmm_spark.fit.spark_blocks import SparkBlocks
from cbmm_spark.kernels.aggregate import ScaleTask
from cbmm_spark.kernels.alternation import IterationRecord, ScaleFit
from cbmm_spark.kernels.block_items import solve_block
from cbmm_spark.kernels.block_products import ScaleView, item_moments
from cbmm_spark.kernels.cells import Block
from cbmm_spark.kernels.components import first_observers
from cbmm_spark.kernels.dated_columns import seen_by
from cbmm_spark.kernels.exact import ExactResult, evaluate_block, exact_block
from cbmm_spark.kernels.model import F64, Gauge
from cbmm_spark.kernels.statistics import (
    accuracy_loss,
    constant_easiness,
    item_variances,
    ranks_within,
    spearman,
    wilson,
)
from cbmm_spark.results.published_scale import ScaleLink, on_published_scale
from cbmm_spark.runs.table import RunKey as RunKey
from cbmm_spark.tables import SPECS

SOLVED_SCHEMA = pa.schema(
    [
        ("fit", pa.string()),
        ("benchmark", pa.string()),
        ("item_index", pa.int32()),
        ("a", pa.float64()),
        ("b", pa.float64()),
        ("var_a", pa.float64()),
        ("cov", pa.float64()),
        ("var_b", pa.float64()),
        ("n_models", pa.int32()),
        ("accuracy", pa.float64()),
        ("component", pa.int32()),
        ("flag_reasons", pa.string()),
    ]
)
SOLVED_DDL = (
    "fit string, benchmark string, item_index int, a double, b double, var_a double, cov double, var_b double, "
    "n_models int, accuracy double, component int, flag_reasons string"
)
ESTIMATES_DDL = (
    "label int, model_index int, ability double, ability_se double, ability_lower double, ability_upper double, "
    "rank int, accuracy double, accuracy_lower double, accuracy_upper double, accuracy_rank int, n_items int, "
    "coverage double, component int, status string"
)


# ------------------------------------------------------------------------------------------------ runs and labels
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
    links
        By scale, how it is published; a scale without one is standardised.
    date
        Number of the run's date, where models are told by date (`ability_rows`).
    """

    key: RunKey
    scales: Scales
    fits: Mapping[str, ScaleFit]
    links: Mapping[str, ScaleLink] = field(default_factory=dict)
    date: int = 0

    def fit_of(self, scale: str) -> ScaleFit:
        """Return the fit that a scale shows."""
        return self.fits[self.scales.fitted[scale]]


@dataclass(frozen=True)
class _Label:
    """One scale of one run, as it is shown; rows carry its number until they have their names."""

    number: int
    run: RunFits
    scale: str

    @property
    def fit(self) -> ScaleFit:
        return self.run.fit_of(self.scale)

    @property
    def link(self) -> ScaleLink | None:
        return self.run.links.get(self.scale)

    def gauge(self, config: RescoreConfig) -> Gauge:
        """Return the change from the fit's scale to the published one."""
        return on_published_scale(self.fit, config).gauge if self.link is None else self.link.gauge


def _labels(runs: Sequence[RunFits]) -> list[_Label]:
    shown = [(run, scale) for run in runs for scale in run.scales.fitted]
    return [_Label(number, run, scale) for number, (run, scale) in enumerate(shown)]


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


# ------------------------------------------------------------------------------------------------ abilities
def ability_rows(
    spark: SparkSession, runs: Sequence[RunFits], model_benchmarks: DataFrame, config: RescoreConfig
) -> DataFrame:
    """Return the rows of `abilities`: every model that has a row in the scale's benchmarks, answered or not.

    Parameters
    ----------
    spark
        Session.
    runs
        One, or those of several dates.
    model_benchmarks
        From packing. Where it has a column ``step``, a run sees only rows with ``step`` up to the run's date.
    config
        Level, thresholds.
    """
    labels = _labels(runs)
    estimates = pa.concat_tables([_estimates(label, config) for label in labels])
    rows = model_benchmarks.join(F.broadcast(_members(spark, labels)), "benchmark")
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


def _estimates(label: _Label, config: RescoreConfig) -> pa.Table:
    fit = label.fit
    counts, shown = fit.counts, on_published_scale(fit, config, label.gauge(config))
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
def solve_fit_items(blocks: SparkBlocks, fits: Mapping[str, ScaleFit], config: RescoreConfig) -> DataFrame:
    """Return every fit's items at its final abilities, on the fit's scale and divided by sigma (`SOLVED_DDL`).

    Computed on the executors, once for all scales that show a fit; who uses the frame twice persists it.

    Parameters
    ----------
    blocks
        The cached blocks.
    fits
        By fitted scale.
    config
        Thresholds.
    """
    parts = {
        name: (
            ScaleTask(name, fit.benchmarks, fit.models, fit.theta, fit.nodes, fit.ridge, "late", fit.items),
            fit.components,
        )
        for name, fit in fits.items()
    }
    few = config.few_responses
    moments = {name: blocks.moments[name] for name in parts if name in blocks.moments}

    def rows(block: Block, row: Mapping[str, Any]) -> pa.RecordBatch:
        start = int(row["item_start"])
        mine = [name for name, (task, _) in parts.items() if block.benchmark in task.benchmarks]
        made = [
            _item_batch(seen, start, *parts[name], few)
            for seen, names in seen_by(block, mine, moments)
            for name in names
        ]
        return pa.Table.from_batches(made, SOLVED_SCHEMA).combine_chunks().to_batches()[0] if made else _no_items()

    return blocks.map_blocks(rows, SOLVED_DDL)


def item_rows(
    runs: Sequence[RunFits], items: DataFrame, config: RescoreConfig, sigma: float, solved: DataFrame
) -> DataFrame:
    """Return the rows of `item_parameters`: every item of the scales' benchmarks, answered or not.

    Parameters
    ----------
    runs
        As in `ability_rows`.
    items
        The `items` table, for the names.
    config
        Thresholds.
    sigma
        Temperature.
    solved
        From `solve_fit_items` of the runs' fits.
    """
    spark, labels = items.sparkSession, _labels(runs)
    gauges = [(label, label.gauge(config)) for label in labels]
    shown_as = spark.createDataFrame(
        [(label.fit.name, label.number, gauge.shift, gauge.stretch) for label, gauge in gauges],
        "fit string, label int, shift double, stretch double",
    )
    computed = on_scale(solved, shown_as, sigma)
    members = _members(spark, labels)
    named = items.select("benchmark", "item_index", "item_id").join(F.broadcast(members), "benchmark")
    joined = named.join(computed, ["label", "benchmark", "item_index"], "left")
    few = config.few_responses
    reasons = F.coalesce("flag_reasons", _when_few(F.col("n_models").isNull(), few))
    drifted = _drifted(spark, labels)
    if drifted is not None:
        joined = joined.join(F.broadcast(drifted), ["label", "benchmark", "item_index"], "left")
        reasons = F.nullif(F.concat_ws(";", reasons, F.when(F.col("has_drifted"), F.lit("drifted"))), F.lit(""))
    flagged = joined.withColumns({"n_models": F.coalesce("n_models", F.lit(0)), "flag_reasons": reasons}).withColumn(
        "is_flagged", F.col("flag_reasons").isNotNull()
    )
    return _complete(flagged, "item_parameters")


def shown_discriminations(
    spark: SparkSession, runs: Sequence[RunFits], config: RescoreConfig, sigma: float, solved: DataFrame
) -> DataFrame:
    """Return run_id, scale and discrimination of every solved item as `item_rows` shows it: what scales summarise.

    Parameters are those of `item_rows`.
    """
    labels = _labels(runs)
    gauges = [(label, label.gauge(config)) for label in labels]
    shown_as = spark.createDataFrame(
        [(each.fit.name, each.run.key.run_id, each.scale, gauge.shift, gauge.stretch) for each, gauge in gauges],
        "fit string, run_id string, scale string, shift double, stretch double",
    )
    return on_scale(solved, shown_as, sigma).select("run_id", "scale", "discrimination")


def on_scale(solved: DataFrame, shown_as: DataFrame, sigma: float) -> DataFrame:
    """Return solved items with parameters, errors and information on the published scales.

    Parameters
    ----------
    solved
        From `solve_fit_items`.
    shown_as
        How each fit is published: fit, the gauge's shift and stretch, and what else the rows are to carry. Small.
    sigma
        Temperature.
    """
    a, b, m, c = F.col("a"), F.col("b"), F.col("shift"), F.col("stretch")
    moved = F.col("var_b") + 2.0 * m * F.col("cov") + m * m * F.coalesce("var_a", F.lit(0.0))
    joined = solved.join(F.broadcast(shown_as), "fit").withColumns(
        {
            "discrimination": sigma * (a * c),
            "easiness": sigma * (b + m * a),
            "discrimination_se": sigma * (c * F.sqrt("var_a")),
            "easiness_se": sigma * F.sqrt(F.greatest(moved, F.lit(0.0))),
        }
    )
    odds = F.exp(-F.abs(F.col("easiness")) / sigma)
    square = (F.col("discrimination") / sigma) * (F.col("discrimination") / sigma)
    return joined.withColumns(
        {
            "difficulty": F.when(F.col("discrimination") > 0.0, -F.col("easiness") / F.col("discrimination")),
            "information": square * (odds / ((1.0 + odds) * (1.0 + odds))),
            "max_information": 0.25 * square,
        }
    )


def _drifted(spark: SparkSession, labels: Sequence[_Label]) -> DataFrame | None:
    """Return the drifted items of all scales; None where there is none."""
    parts = [
        pa.table(
            {
                "label": pa.array(np.full(numbers.size, label.number, dtype=np.int32)),
                "benchmark": pa.array([benchmark] * numbers.size, pa.string()),
                "item_index": pa.array(numbers.astype(np.int32)),
            }
        )
        for label in labels
        if label.link is not None
        for benchmark, numbers in label.link.drifted.items()
    ]
    return spark.createDataFrame(pa.concat_tables(parts)).withColumn("has_drifted", F.lit(True)) if parts else None


def _when_few(nobody: Column, few: int) -> Column:
    """Return the flag of an item that nobody has a verdict on."""
    return F.when(nobody & (F.lit(few) > 0), F.lit("few_responses"))


def _no_items() -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema=SOLVED_SCHEMA)


def _item_batch(block: Block, start: int, task: ScaleTask, components: NDArray[np.int64], few: int) -> pa.RecordBatch:
    """Solve one block's items at the final abilities."""
    cells = block.cells
    view = task.view(task.places(block.models))
    exact = _items_at(block, task, view)
    # An item that everybody or nobody solves says nothing about its slope: it is shown with none (cases F2).
    constant = (cells.successes <= 0.0) | (cells.successes >= cells.attempts)
    a = np.where(constant, 0.0, exact.a)
    flat = constant_easiness(cells.attempts, cells.successes, task.ridge.easiness)
    b = np.where(a > 0.0, exact.b, flat)
    var_a, cov, var_b = item_variances(exact.item_information, a, task.ridge)
    seen = cells.observers > 0
    with np.errstate(divide="ignore", invalid="ignore"):
        accuracy = np.where(seen, cells.successes / cells.attempts, np.nan)
    values = {"a": a, "b": b, "var_a": var_a, "cov": cov, "var_b": var_b, "accuracy": accuracy}
    reasons = {
        "all_correct": seen & (cells.successes >= cells.attempts),
        "all_wrong": seen & (cells.successes <= 0.0),
        "uninformative": seen & (a == 0.0),
        "few_responses": cells.observers < few,
    }
    first = first_observers(cells)
    place = np.searchsorted(task.models, block.models)
    component = np.where(first >= 0, components[place[np.maximum(first, 0)]], 0).astype(np.int32)
    n = cells.n_items
    columns: dict[str, pa.Array] = {
        "fit": pa.array([task.name] * n, pa.string()),
        "benchmark": pa.array([block.benchmark] * n, pa.string()),
        "item_index": pa.array(np.arange(start, start + n, dtype=np.int32)),
        "n_models": pa.array(cells.observers.astype(np.int32)),
        "component": pa.array(component, pa.int32(), mask=component == 0),
        "flag_reasons": pa.array(_join_reasons(reasons, n), pa.string()),
    }
    columns |= {name: finite(np.where(seen, value, np.nan)) for name, value in values.items()}
    return pa.RecordBatch.from_pydict({name: columns[name] for name in SOLVED_SCHEMA.names}, schema=SOLVED_SCHEMA)


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


# ------------------------------------------------------------------------------------------------ scales
def scale_rows(
    spark: SparkSession, runs: Sequence[RunFits], config: RescoreConfig, item_parameters: DataFrame | None
) -> DataFrame:
    """Return the rows of `run_scales`; discriminations are summarised from the item parameters as written, if any."""
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
    fit = label.fit
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
        "flag_reasons": ";".join(flag.reason for flag in scale_flags(label.scale, fit, config)) or None,
        **_link_facts(label.link),
    }


def _link_facts(link: ScaleLink | None) -> dict[str, object]:
    return {
        "link_slope": None if link is None else link.slope,
        "link_intercept": None if link is None else link.intercept,
        "n_anchors": None if link is None else link.n_anchors,
        "n_drifted": None if link is None else link.n_drifted,
        "n_anchor_models": None if link is None else link.n_anchor_models,
        "reference_run_id": None if link is None else link.reference_run_id,
        "link_run_id": None if link is None else link.link_run_id,
        "items_from_run_id": None if link is None else link.items_from_run_id,
        "gauge_shift": None if link is None else link.gauge.shift,
        "gauge_stretch": None if link is None else link.gauge.stretch,
    }


def _facts_frame(spark: SparkSession, facts: Sequence[Mapping[str, object]]) -> DataFrame:
    return spark.createDataFrame(
        [tuple(fact.values()) for fact in facts],
        "run_id string, scale string, n_models int, n_items int, n_responses long, iterations int, converged boolean, "
        "objective double, log_loss double, accuracy_log_loss double, kkt_residual double, node_error double, "
        "ability_accuracy_spearman double, flag_reasons string, link_slope double, link_intercept double, "
        "n_anchors int, n_drifted int, n_anchor_models int, reference_run_id string, link_run_id string, "
        "items_from_run_id string, gauge_shift double, gauge_stretch double",
    )


def iteration_rows(spark: SparkSession, runs: Sequence[RunFits]) -> DataFrame:
    """Return the rows of `run_iterations`."""

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
