"""Responses that change from night to night as ingest changes them: one MERGE a night."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any

from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

from cbmm_spark.config.schema import PackConfig
from cbmm_spark.packing.job import stored_blocks, tiles_of
from cbmm_spark.tables import SPECS, Warehouse

Key = tuple[int, str, int, int]
"""Model, benchmark, item, attempt."""

GONE = object()
"""The value of a response that is taken away."""


def night(warehouse: Warehouse, changes: Mapping[Key, Any]) -> None:
    """Insert, correct and take away responses in one commit; `models` gets the new numbers."""
    spark = warehouse.spark
    warehouse.ensure("responses", "models", "items")
    rows = [(*key, None if score is GONE else score, score is GONE) for key, score in changes.items()]
    frame = spark.createDataFrame(
        rows, "model_index int, benchmark string, item_index int, attempt int, score double, gone boolean"
    ).withColumns(
        {
            "model_id": F.format_string("model %05d", "model_index"),
            "item_id": F.format_string("item %05d", "item_index"),
            "evaluated_at": F.lit(dt.datetime(2026, 5, 11, tzinfo=dt.UTC)) + F.expr("make_interval(0,0,0,attempt)"),
            "source": F.lit("test"),
            "ingested_at": F.lit(dt.datetime(2026, 5, 11, tzinfo=dt.UTC)),
            "benchmark_bucket": F.expr("pmod(xxhash64(benchmark), 64)").cast("int"),
        }
    )
    known = warehouse.read("models").agg(F.coalesce(F.max("model_index"), F.lit(0))).first()
    highest = max(key[0] for key in changes)
    if known is not None and highest > known[0]:
        fields = SPECS["models"].schema.fields
        given = {"model_id": F.format_string("model %05d", "id"), "model_index": F.col("id")}
        numbers = spark.range(known[0] + 1, highest + 1)
        columns = [given.get(f.name, F.lit(None)).cast(f.dataType).alias(f.name) for f in fields]
        warehouse.append(numbers.select(*columns).coalesce(1), "models")
    key = ("benchmark_bucket", "benchmark", "model_index", "item_index", "attempt")
    merge = (
        warehouse.delta("responses")
        .alias("t")
        .merge(frame.coalesce(1).alias("s"), " AND ".join(f"t.{name} = s.{name}" for name in key))
    )
    if any(score is GONE for score in changes.values()):
        merge = merge.whenMatchedDelete("s.gone")
    merge = merge.whenMatchedUpdate(set={"score": F.col("s.score")})
    columns = {name: F.col(f"s.{name}") for name in SPECS["responses"].column_names}
    merge.whenNotMatchedInsert("NOT s.gone", values=columns).execute()


def assert_as_rebuilt(warehouse: Warehouse, config: PackConfig) -> None:
    """The stored tiles are those of a full rebuild with the same boundaries, byte for byte, and so are the counts."""
    responses = warehouse.read("responses")
    stored = warehouse.read("response_blocks").drop("responses_version")
    blocks = stored_blocks(stored)
    rebuilt = tiles_of(responses, blocks[-1].end, config, 0, blocks).drop("responses_version")
    _assert_same(stored.collect(), rebuilt.collect(), ("benchmark", "item_block", "model_start"))
    meant = responses.groupBy("model_index", "model_id", "benchmark").agg(
        F.count("*").alias("n_rows"),
        F.count_if(F.col("score").isNull()).alias("n_null"),
        F.min("evaluated_at").alias("first_evaluated_at"),
        F.max("evaluated_at").alias("last_evaluated_at"),
    )
    counts = warehouse.read("model_benchmarks").select(*meant.columns)
    _assert_same(counts.collect(), meant.collect(), ("model_index", "benchmark"))


def _assert_same(found: list[Any], meant: list[Any], key: tuple[str, ...]) -> None:
    """Rows are the same, order aside; says which ones differ, not how (pytest would compare the bytes in words)."""
    left, right = ({tuple(row[name] for name in key): row.asDict() for row in rows} for rows in (found, meant))
    assert len(left) == len(found), "a key is there twice"
    differing = sorted(name for name in left.keys() | right.keys() if left.get(name) != right.get(name))
    assert not differing, f"{len(differing)} of {len(right)} rows differ, the first: {differing[0]}"


def files_of(warehouse: Warehouse, name: str) -> set[str]:
    """The data files of a table's last version."""
    return set(warehouse.read(name).inputFiles())
