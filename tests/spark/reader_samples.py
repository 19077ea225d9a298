"""What the tests of single readers share."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame, SparkSession

from cbmm_spark.readers import RAW_COLUMNS, RawFrame, ReadOptions, read_source

HARD_NAMES = ("007", "1.0", "Org/X:1 (beta)#2+3@4%", 'say "hi", twice', "two\nlines", "😀 emoji", "'", "\\",
              "a,b;c\td|e", "x" * 300, "A whole sentence. And another one?", "{}", "[1]", "é", "e\u0301",
              " padded ")  # fmt: skip


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
    counts = {name: raw.frame.where(condition).count() for name, condition in raw.defaults.items()}
    return {name: count for name, count in counts.items() if count}
