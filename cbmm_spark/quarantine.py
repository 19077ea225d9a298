"""The rows that were refused: kept in `quarantine`, each once, and counted by reason with a few examples."""

from __future__ import annotations

from contextlib import ExitStack
from datetime import datetime

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from cbmm_spark.batch import Batch
from cbmm_spark.held import persisted
from cbmm_spark.ingest_report import Example
from cbmm_spark.merge import merge_settings
from cbmm_spark.readers import LEFT_OUT
from cbmm_spark.responses import KEY
from cbmm_spark.tables import Warehouse, with_commit_retry

Refused = dict[str, tuple[int, tuple[Example, ...]]]
"""By reason: the number of rows, and examples."""

_EXAMPLES = 3
_IDENTITY = ["raw", "reason", "source"]


def keep_refused(warehouse: Warehouse, batch: Batch, started: datetime) -> Refused:
    """Add the refused rows of a batch to `quarantine`.

    A row is known by its text, reason and source: the same input again adds nothing, and equal rows of one file are
    kept once (with the position of the first) but counted each.

    Raises
    ------
    ConflictError
        Other ingests kept committing first.
    """
    if batch.invalid == 0 and batch.undecidable is None:
        return {}
    with ExitStack() as held:
        refused = held.enter_context(persisted(_refused(batch)))
        found = _count_with_examples(refused)
        warehouse.ensure("responses", "quarantine", "models", "items")
        once = refused.groupBy(*_IDENTITY).agg(F.min("position").alias("position"))
        rows = held.enter_context(persisted(once.withColumn("ingested_at", F.lit(started).cast("timestamp"))))
        with_commit_retry(lambda: _add(warehouse, rows, batch.path), warehouse.location("quarantine"))
    return found


def _refused(batch: Batch) -> DataFrame:
    columns = ("raw", "reason", "source", "position")
    refused = batch.judged.where(F.col("reason").isNotNull() & ~F.col("reason").isin(*LEFT_OUT)).select(*columns)
    if batch.undecidable is None:
        return refused
    rows = batch.judged.where(F.col("reason").isNull()).join(batch.undecidable, list(KEY), "left_semi")
    return refused.unionByName(rows.withColumn("reason", F.lit("conflicting_duplicate")).select(*columns))


def _add(warehouse: Warehouse, rows: DataFrame, path: str) -> None:
    new = rows.join(warehouse.read("quarantine").select(*_IDENTITY), _IDENTITY, "left_anti")
    if new.isEmpty():
        return
    same = " AND ".join(f"t.{name} = s.{name}" for name in _IDENTITY)
    merge = warehouse.delta("quarantine").alias("t").merge(rows.alias("s"), same)
    with merge_settings(warehouse.spark, {"command": "ingest", "input": path}, insert_only=True):
        merge.whenNotMatchedInsertAll().execute()


def _count_with_examples(refused: DataFrame) -> Refused:
    counts = {row["reason"]: row["count"] for row in refused.groupBy("reason").count().collect()}
    found = {}
    for reason in sorted(counts):
        rows = refused.where(F.col("reason") == reason).orderBy("source", "position", "raw").limit(_EXAMPLES).collect()
        found[reason] = (counts[reason], tuple(Example.of(row["source"], row["position"], row["raw"]) for row in rows))
    return found
