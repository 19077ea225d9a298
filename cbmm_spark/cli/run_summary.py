"""What a person sees of a published run: the top of a ranking, and for simulated data how well the truth was found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from cbmm_spark.console.ranking_table import top_table
from cbmm_spark.simulation.truth import Truth
from cbmm_spark.tables import Warehouse

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from cbmm_spark.rescoring.job import RescoreReport

OVERALL = "overall"
SHOWN = (
    *("rank", "rank_lower", "rank_upper", "model_id", "ability", "ability_se", "ability_lower", "ability_upper"),
    *("accuracy", "accuracy_rank", "rank_shift", "status"),
)
"""Columns of `abilities` that a ranking shows."""


def shown_scale(scales: Sequence[str]) -> str:
    """The scale whose ranking is shown: `overall` if it was fitted, else the first by name."""
    return OVERALL if OVERALL in scales else min(scales)


def top_rows(warehouse: Warehouse, run_id: str, scale: str, top: int) -> list[dict[str, Any]]:
    """The first `top` rows of a ranking, as dictionaries of `SHOWN`.

    Parameters
    ----------
    warehouse
        Holds the run.
    run_id, scale
        Which ranking.
    top
        How many rows at most.
    """
    rows = _of_run(warehouse, "abilities", run_id, scale).where("rank is not null").orderBy("rank", "model_id")
    return [row.asDict() for row in rows.select(*SHOWN).limit(top).collect()]


def as_text(
    report: RescoreReport,
    scale: str,
    rows: Sequence[dict[str, Any]],
    truth: Truth | None,
    found: dict[str, float] | None,
) -> str:
    """A run as a person reads it.

    Parameters
    ----------
    report
        What the run did.
    scale, rows
        The ranking to show, as `top_rows` returns it; nothing where it is empty.
    truth, found
        For simulated data: the truth, and what `recovery` says.
    """
    paragraphs = []
    if rows:
        known = None if truth is None else truth.ability_by_model()
        models = report.scales[scale]["models"]
        paragraphs.append(f"top {len(rows)} of {models:,} models on the scale {scale}")
        paragraphs.append(top_table(rows, known))
    if found is not None:
        paragraphs.append(recovery_text(found))
    paragraphs.append(f"published run {report.run_id} for {report.scored_on}\n{tables_text(report.tables)}")
    return "\n\n".join(paragraphs)


def recovery(warehouse: Warehouse, run_id: str, truth: Truth, sigma: float) -> dict[str, float]:
    """How well a run's `overall` scale agrees with the truth of its simulation.

    Both sides are standardised over the ordinary models (a perfect or hopeless model has no finite true ability);
    items whose key is wrong are left out, for their true discrimination is that of another question.

    Parameters
    ----------
    warehouse, run_id
        The run; models and items it lacks are left out.
    truth
        What was simulated.
    sigma
        The temperature of the fit.

    Returns
    -------
    dict
        Spearman correlations of ability, accuracy (the baseline) and discrimination with the truth, and root mean
        square errors of ability (in standard deviations of ability) and of the probabilities.
    """
    from cbmm_spark.simulation.recovery import agreement, compare_with_truth

    models = _joined(
        truth.abilities,
        _of_run(warehouse, "abilities", run_id, OVERALL).selectExpr(
            "model_id model", "ability estimate", "accuracy accuracy"
        ),
        ["model"],
    )
    items = _joined(
        truth.items,
        _of_run(warehouse, "item_parameters", run_id, OVERALL).selectExpr(
            "benchmark", "item_id item", "discrimination estimate_a", "easiness estimate_b"
        ),
        ["benchmark", "item"],
    )
    ordinary = ~(_array(models, "is_perfect") | _array(models, "is_hopeless"))
    straight = _array(items, "kind") != "miskeyed"
    true_theta = _array(models, "ability")
    found = compare_with_truth(
        (_array(models, "estimate"), _array(items, "estimate_a"), _array(items, "estimate_b")),
        (true_theta, _array(items, "discrimination"), _array(items, "easiness")),
        sigma=sigma,
        models=ordinary,
        items=straight,
    )
    return {
        "ability_spearman": found.theta.spearman,
        "accuracy_spearman": agreement(_array(models, "accuracy"), true_theta, ordinary).spearman,
        "ability_rmse": found.theta.rmse,
        "discrimination_spearman": found.a.spearman,
        "probability_rmse": found.probability_rmse,
    }


def recovery_text(found: dict[str, float]) -> str:
    """The recovery as one line."""
    return (
        f"truth recovered: Spearman of ability {found['ability_spearman']:.4f} (of mean accuracy "
        f"{found['accuracy_spearman']:.4f}), of discrimination {found['discrimination_spearman']:.4f}; "
        f"error of ability {found['ability_rmse']:.3f} SD, of a probability {found['probability_rmse']:.4f}"
    )


def tables_text(tables: dict[str, str]) -> str:
    """Where the tables are, one a line."""
    width = max(map(len, tables))
    return "\n".join(["tables", *(f"  {name:<{width}}  {location}" for name, location in tables.items())])


def _of_run(warehouse: Warehouse, table: str, run_id: str, scale: str) -> DataFrame:
    from pyspark.sql import functions as sf

    rows = warehouse.read(table)
    return rows.where((sf.col("run_id") == run_id) & (sf.col("scale") == scale))


def _joined(truth: pa.Table, estimates: DataFrame, keys: list[str]) -> pa.Table:
    """Truth beside estimates, in the order of the keys."""
    joined = truth.join(estimates.toArrow(), keys, join_type="inner")
    return joined.sort_by([(key, "ascending") for key in keys])


def _array(table: pa.Table, name: str) -> np.ndarray[Any, Any]:
    return table[name].to_numpy()
