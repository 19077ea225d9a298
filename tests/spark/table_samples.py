"""Rows that every table accepts, made from the specifications."""

from __future__ import annotations

import datetime as dt
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from cbmm_spark.tables import SPECS

DAY = dt.date(2026, 5, 11)
NOON = dt.datetime(2026, 5, 11, 12, 30, 15, 123456, tzinfo=dt.UTC)

_BY_KIND: dict[str, Any] = {
    "binary": b"\x00\xff\x10",
    "boolean": True,
    "date": DAY,
    "double": 0.5,
    "int": 1,
    "long": 2**40,
    "string": "a/b: é 日本 '\"`\n",
    "timestamp": NOON,
}
_BY_COLUMN: dict[str, Any] = {"rank_shift": 0, "flag_reasons": "all_wrong;misfit", "benchmark_bucket": 63}
_STATUS = {"abilities": "ok", "latest_abilities": "ok", "runs": "published"}


def full_row(name: str, **changes: Any) -> dict[str, Any]:
    """A row with a value in every column."""
    values = {c.name: _BY_COLUMN.get(c.name, _BY_KIND[c.kind]) for c in SPECS[name].columns}
    if "status" in values:
        values["status"] = _STATUS[name]
    return values | changes


def sparse_row(name: str, **changes: Any) -> dict[str, Any]:
    """A row with nulls wherever they are allowed."""
    required = {c.name for c in SPECS[name].columns if c.required}
    values = {key: value if key in required else None for key, value in full_row(name).items()}
    if "is_flagged" in values:
        values["is_flagged"] = False
    return values | changes


def frame(spark: SparkSession, name: str, *rows: dict[str, Any]) -> DataFrame:
    """Rows as a frame of the table's schema."""
    columns = SPECS[name].column_names
    return spark.createDataFrame([tuple(row[c] for c in columns) for row in rows], SPECS[name].schema)
