"""The list of all items of a benchmark, for formats that list only some of them (`--items`)."""

from __future__ import annotations

import json

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from cbmm_spark.config.schema import ColumnsConfig
from cbmm_spark.errors import InputError
from cbmm_spark.locations import table_name
from cbmm_spark.readers import delimited
from cbmm_spark.readers.base import Sample, column
from cbmm_spark.readers.files import all_files, look_at, reading, whole_files

NAMES = ("item", "item_id", "instance_id")
"""Columns or keys that hold an item's id, in order of preference."""


def read_items(spark: SparkSession, path: str) -> DataFrame:
    """Read the ids of all items of a benchmark.

    Parameters
    ----------
    spark
        The session.
    path
        Text with one id a line, a JSON list of ids or objects, or a table with a column of one of `NAMES`: CSV with a
        header, Parquet, JSON lines, a Delta folder, or a table of the catalog.

    Returns
    -------
    DataFrame
        One row with the array `universe`: ids as text, unchanged, each once.

    Raises
    ------
    InputError
        There are no ids, or a table has no such column.
    """
    with reading(path):
        ids = _ids(spark, path).where("item_id IS NOT NULL AND item_id <> ''")
        found = ids.agg(F.collect_set("item_id").alias("universe")).head()
    universe = found["universe"] if found is not None else []
    if not universe:
        raise InputError(f"{path} holds no ids of items: write one a line")
    schema = T.StructType([T.StructField("universe", T.ArrayType(T.StringType()))])
    return spark.createDataFrame([(sorted(universe),)], schema)


def _ids(spark: SparkSession, path: str) -> DataFrame:
    name = table_name(path)
    if name is not None:
        return _of_table(spark.table(name), path)
    sample = look_at(spark, path, ColumnsConfig(item=NAMES))
    if sample.is_delta:
        return _of_table(spark.read.format("delta").load(path), path)
    if sample.parquet_columns:
        return _of_table(spark.read.parquet(path), path)
    if sample.first_line.lstrip().startswith("["):
        listed = F.explode(F.try_variant_get(F.try_parse_json("value"), "$", "array<variant>"))
        return whole_files(spark, path).select(listed.alias("element")).select(_of_element().alias("item_id"))
    lines = all_files(spark).text(path)
    if sample.first_line.lstrip().startswith("{") or delimited.has_suffix(sample.files, (".jsonl", ".ndjson")):
        return lines.select(F.try_parse_json("value").alias("element")).select(_of_element().alias("item_id"))
    return _of_text(spark, sample, lines)


def _of_text(spark: SparkSession, sample: Sample, lines: DataFrame) -> DataFrame:
    """CSV where the first line names a column of ids, else one id a line."""
    for delimiter in delimited.DELIMITERS:
        header = delimited.cells(sample.first_line, delimiter)
        if any(name in header for name in NAMES):
            reader = all_files(spark).option("header", "true").option("sep", delimiter).option("escape", '"')
            return _of_table(reader.csv(sample.path), sample.path)
    if delimited.has_suffix(sample.files, (".csv", ".tsv", ".tab")):
        raise InputError(f"{sample.path} has no column {' or '.join(NAMES)}")
    return lines.select(F.regexp_replace("value", "\r$|^\ufeff", "").alias("item_id"))


def _of_table(table: DataFrame, path: str) -> DataFrame:
    found = next((name for name in NAMES if name in table.columns), None)
    if found is None:
        raise InputError(
            f"{path} has no column {' or '.join(NAMES)}. Its columns are: {json.dumps(table.columns)[1:-1]}"
        )
    return table.select(column(found).cast("string").alias("item_id"))


def _of_element() -> Column:
    """The id in a JSON value: the value itself, or one of an object's keys."""
    element = F.col("element")
    keys = [F.try_variant_get(element, f"$.{name}", "string") for name in NAMES]
    is_object = F.startswith(F.schema_of_variant(element), F.lit("OBJECT"))
    return F.when(is_object, F.coalesce(*keys)).otherwise(F.try_variant_get(element, "$", "string"))
