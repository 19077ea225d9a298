"""Spark: a full pack beside a plain shuffle of the same rows, and an incremental night of 1 % new models."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

from benchmarks.common import ITEMS_PER_BLOCK, report
from benchmarks.spark_common import last_query, session, spent
from cbmm_spark.config.schema import Config
from cbmm_spark.packing.job import pack
from cbmm_spark.tables import SPECS, Warehouse

ROWS = 20_000_000
BENCHMARKS, ITEMS = 5, 1_000
REPEATS = 3
PACKED = ("response_blocks", "model_benchmarks")
READ = ("benchmark", "benchmark_bucket", "item_index", "model_index", "attempt", "score")


def run(rows: int = ROWS) -> None:
    """Print and write the figures for so many responses."""
    models = max(100, rows // (BENCHMARKS * ITEMS))
    with tempfile.TemporaryDirectory(prefix="cbmm-bench-") as folder, session() as spark:
        warehouse = Warehouse(spark, str(Path(folder) / "warehouse"))
        warehouse.ensure("responses", "models")
        _add(spark, warehouse, 1, models)
        size = warehouse.read("responses").count()
        shuffle, full = float("inf"), float("inf")
        for _ in range(REPEATS):  # in turn, for the machine may be shared
            shuffle = min(shuffle, _seconds(lambda: _shuffle(warehouse)))
            full = min(full, _seconds(lambda: _packed_anew(spark, warehouse)))
        before = last_query(spark)
        _packed_anew(spark, warehouse)
        queries = sum(count for count, _ in spent(spark, before, ()).values())
        new = max(1, models // 100)
        night = float("inf")
        for number in range(REPEATS):
            first = models + 1 + number * new
            _add(spark, warehouse, first, first + new - 1)
            night = min(night, _seconds(lambda: _is(pack(spark, warehouse, Config()).mode, "incremental")))
    table = [
        {
            "responses": size,
            "plain shuffle M/s": size / shuffle / 1e6,
            "full pack M/s": size / full / 1e6,
            "pack / shuffle": full / shuffle,
            "full pack s": full,
            "queries": queries,
            "night of 1 % s": night,
            "night / full": night / full,
        }
    ]
    report("packing", f"Spark, two cores: packing {models} x {BENCHMARKS * ITEMS}, best of {REPEATS}", table)


def _shuffle(warehouse: Warehouse) -> None:
    tile = F.floor((F.col("item_index") - 1) / ITEMS_PER_BLOCK)
    rows = warehouse.read("responses").select(*READ).repartition("benchmark", tile)
    rows.write.format("noop").mode("overwrite").save()


def _packed_anew(spark: SparkSession, warehouse: Warehouse) -> None:
    for name in PACKED:
        shutil.rmtree(warehouse.location(name), ignore_errors=True)
    _is(pack(spark, warehouse, Config()).mode, "anew")


def _is(found: str, meant: str) -> None:
    if found != meant:
        raise RuntimeError(f"packed {found}, not {meant}")


def _add(spark: SparkSession, warehouse: Warehouse, first: int, last: int) -> None:
    """Append the responses of some models to all items, laid out as ingest lays them out."""
    rows = _responses(spark, first, last)
    slices = F.pmod(F.xxhash64("model_id"), F.lit(32))
    laid_out = rows.repartition(16, "benchmark", slices).sortWithinPartitions("benchmark_bucket", "model_index")
    warehouse.append(laid_out, "responses")
    dates = {f"{end}_evaluated_at": F.col("evaluated_at") for end in ("first", "last")}
    names = rows.where((F.col("item_index") == 1) & (F.col("benchmark") == "benchmark 0")).withColumns(dates)
    fields = SPECS["models"].schema.fields
    given = [(F.col(f.name) if f.name in names.columns else F.lit(None)).cast(f.dataType).alias(f.name) for f in fields]
    warehouse.append(names.select(*given).coalesce(1), "models")


def _responses(spark: SparkSession, first: int, last: int) -> DataFrame:
    each = BENCHMARKS * ITEMS
    number = F.col("id") % each
    when = F.lit("2026-05-11").cast("timestamp")
    rows = spark.range((first - 1) * each, last * each, 1, 32).select(
        (F.floor(F.col("id") / each) + 1).alias("model_index"),
        F.format_string("benchmark %d", F.floor(number / ITEMS).cast("int")).alias("benchmark"),
        (number % ITEMS + 1).alias("item_index"),
        F.pmod(F.xxhash64("id"), F.lit(2)).alias("score"),
        F.lit(0).alias("attempt"),
        F.lit("benchmark").alias("source"),
        when.alias("evaluated_at"),
        when.alias("ingested_at"),
    )
    named: dict[str, Any] = {
        "model_id": F.format_string("org/model-%06d", F.col("model_index").cast("int")),
        "item_id": F.format_string("item-%06d", F.col("item_index").cast("int")),
        "benchmark_bucket": F.expr("pmod(xxhash64(benchmark), 64)"),
    }
    fields = SPECS["responses"].schema.fields
    return rows.withColumns(named).select(*[F.col(f.name).cast(f.dataType) for f in fields])


def _seconds(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
