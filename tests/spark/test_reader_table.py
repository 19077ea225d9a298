"""Tables and views of a catalog."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
from pyspark.sql import SparkSession

from cbmm_spark.config.schema import Config
from cbmm_spark.errors import InputError
from cbmm_spark.ingest.job import ingest
from cbmm_spark.tables import Warehouse
from tests.spark.reader_samples import HARD_NAMES, read_with, rows_of

SCHEMA = "reader_tables"


@pytest.fixture
def schema(spark: SparkSession, tmp_path: Path) -> Iterator[str]:
    """A schema of the session's catalog, by its full name; dropped afterwards."""
    spark.sql(f"CREATE SCHEMA {SCHEMA} LOCATION '{tmp_path / 'schema'}'")
    yield f"spark_catalog.{SCHEMA}"
    spark.sql(f"DROP SCHEMA {SCHEMA} CASCADE")


def fill(spark: SparkSession, name: str, format: str = "delta", score: int = 1) -> None:
    rows = pd.DataFrame({"model": HARD_NAMES, "item": HARD_NAMES[::-1], "correct": score})
    spark.createDataFrame(rows).write.format(format).mode("append").saveAsTable(name)


@pytest.mark.parametrize("format", ["delta", "parquet"])
def test_tables_by_name(spark: SparkSession, schema: str, format: str) -> None:
    fill(spark, f"{schema}.results", format)
    expected = sorted(zip(HARD_NAMES, HARD_NAMES[::-1], strict=True), key=repr)
    for path in (f"{schema}.results", f"table:{SCHEMA}.results", f"table:{schema}.`results`"):
        raw, name, reason = read_with(spark, path)
        assert name == "table"
        assert "table of a catalog" in reason
        assert rows_of(raw.frame, "model_id", "item_id") == expected
        assert rows_of(raw.frame.distinct(), "source", "position")[0] == (path, None)
    told = "version 0 of the Delta table" if format == "delta" else "not a Delta table"
    assert any(told in note for note in raw.notes)
    assert read_with(spark, path, "long")[1] == "table"


def test_a_delta_table_is_read_at_one_version(spark: SparkSession, schema: str) -> None:
    fill(spark, f"{schema}.results", score=0)
    raw, _, _ = read_with(spark, f"{schema}.results")
    fill(spark, f"{schema}.results", score=1)
    assert rows_of(raw.frame, "score_raw") == [(0,)] * len(HARD_NAMES)


def test_views_are_read(spark: SparkSession, schema: str) -> None:
    fill(spark, f"{schema}.results")
    spark.sql(f"CREATE VIEW {schema}.`only_007` AS SELECT * FROM {schema}.results WHERE model = '007'")
    raw, _, _ = read_with(spark, f"table:{schema}.`only_007`")
    assert rows_of(raw.frame, "model_id") == [("007",)]
    spark.table(f"{schema}.results").createOrReplaceTempView("session_view")
    assert read_with(spark, "table:session_view")[0].frame.count() == len(HARD_NAMES)
    spark.catalog.dropTempView("session_view")


BAD = {
    "table:reader_tables.nothing": "does not exist in the catalog",
    "table:no_such_schema.results": "does not exist in the catalog",
    "no_such_catalog.schema.results": "catalog",
    "table:a b c": "no name of a table",
}


@pytest.mark.parametrize("path", BAD)
def test_bad_names_are_one_clear_line(spark: SparkSession, schema: str, path: str) -> None:
    with pytest.raises(InputError, match=BAD[path]) as raised:
        read_with(spark, path)
    assert path in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_table_without_the_columns(spark: SparkSession, schema: str) -> None:
    spark.sql(f"CREATE TABLE {schema}.other USING delta AS SELECT 1 AS x")
    with pytest.raises(InputError, match="Its columns are: x"):
        read_with(spark, f"{schema}.other")
    with pytest.raises(InputError, match="write table:NAME"):
        read_with(spark, __file__, "table")


def test_ingest_of_a_table_and_again(spark: SparkSession, schema: str, warehouse: Warehouse) -> None:
    rows = pd.DataFrame({"model": ["m1", "m2"], "item": ["i", "i"], "correct": [1, 0]})
    spark.createDataFrame(rows).write.format("delta").saveAsTable(f"{schema}.results")
    first, again = (ingest(spark, warehouse, Config(), f"{schema}.results") for _ in range(2))
    assert (first.format, first.new, again.new, again.unchanged) == ("table", 2, 0, 2)
