"""What the tests of single readers share."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from cbmm_spark.config.schema import IngestConfig
from cbmm_spark.ingest import gather
from cbmm_spark.readers.base import RAW_COLUMNS, RawFrame, ReadOptions
from cbmm_spark.readers.registry import read_source
from cbmm_spark.responses.rules import NO_DATE, judge

HARD_NAMES = ("007", "1.0", "Org/X:1 (beta)#2+3@4%", 'say "hi", twice', "two\nlines", "😀 emoji", "'", "\\",
              "a,b;c\td|e", "x" * 300, "A whole sentence. And another one?", "{}", "[1]", "é", "e\u0301",
              " padded ")  # fmt: skip


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Read = Callable[..., tuple[RawFrame, str, str]]
"""The fixture `read`."""


def rows_with(raw: RawFrame, problem: str | None, *order: str) -> list[Row]:
    """The rows that have one problem, or none, sorted by some columns; null comes before everything."""
    found = raw.frame.where(F.col("problem").eqNullSafe(F.lit(problem))).collect()
    return sorted(found, key=lambda row: [(row[name] is not None, row[name]) for name in order])


def read_with(spark: SparkSession, path: Any, format: str = "auto", **options: Any) -> tuple[RawFrame, str, str]:
    """Read a source and see that its frame has the canonical columns."""
    raw, name, reason = read_source(spark, str(path), format, ReadOptions(**options))
    assert raw.frame.columns[: len(RAW_COLUMNS)] == list(RAW_COLUMNS)
    assert reason
    return raw, name, reason


def rows_of(frame: DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    """The rows of some columns, sorted."""
    return sorted((tuple(row) for row in frame.select(*columns).collect()), key=repr)


def defaults_of(raw: RawFrame) -> dict[str, int]:
    """How many rows each default was applied to; those of none are left out."""
    counted = [F.count_if(condition).alias(f"c{at}") for at, condition in enumerate(raw.defaults.values())]
    counts = dict(zip(raw.defaults, raw.frame.agg(*counted).head() or (), strict=True)) if counted else {}
    return {name: count for name, count in counts.items() if count}


def validate(frame: DataFrame, rules: IngestConfig) -> DataFrame:
    """Judge the rows of a raw frame, as ingest does, one by one: names, attempt, score and reason."""
    narrow = frame.select(*gather._COLUMNS).toArrow().combine_chunks()
    rows = gather.rows_of(pa.RecordBatch.from_arrays([c.combine_chunks() for c in narrow.columns], narrow.column_names))
    judged = judge(rows, rules)
    told = [
        {
            "model_id": rows.model_id[at].as_py(),
            "benchmark": rows.benchmark[at].as_py(),
            "item_id": rows.item_id[at].as_py(),
            "score": None if math.isnan(judged.score[at]) else float(judged.score[at]),
            "evaluated_at": None
            if judged.date[at] == NO_DATE
            else EPOCH + timedelta(microseconds=int(judged.date[at])),
            "reason": None if judged.reason[at] < 0 else judged.reason_of(at),
        }
        for at in range(len(rows))
    ]
    schema = "model_id string, benchmark string, item_id string, score double, evaluated_at timestamp, reason string"
    return frame.sparkSession.createDataFrame(told, schema)
