"""A long table or view of a catalog, one row a response: `catalog.schema.table`, or `table:` before any name.

Names are those of Spark SQL: https://spark.apache.org/docs/latest/sql-ref-identifier.html.
"""

from __future__ import annotations

from dataclasses import replace

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from cbmm_spark.errors import InputError
from cbmm_spark.locations import table_name
from cbmm_spark.readers.base import RawFrame, Reader, ReadOptions, Sample
from cbmm_spark.readers.delta import whole_table
from cbmm_spark.readers.files import reading

_NOT_PINNED = "not a Delta table: nothing may write to it during the ingest"
_NO_HISTORY = ("DELTA_", "EXPECT_TABLE_NOT_VIEW", "EXPECT_PERMANENT_TABLE", "UNSUPPORTED_FEATURE")


def _detect(sample: Sample) -> str | None:
    return "it is named as a table of a catalog" if table_name(sample.path) is not None else None


def _read(spark: SparkSession, sample: Sample, options: ReadOptions) -> RawFrame:
    name = table_name(sample.path)
    if name is None:
        raise InputError(f"{sample.path} is not named as a table: write table:NAME or catalog.schema.table")
    with reading(sample.path):
        frame, note = pinned(spark, name)
    raw = whole_table(frame, sample, options)
    # What is no Delta table may be a view that is dear to evaluate, or change: it is read once.
    return replace(raw, notes=(*raw.notes, note), is_columnar=note != _NOT_PINNED)


def pinned(spark: SparkSession, name: str) -> tuple[DataFrame, str]:
    """Return a table, of Delta at the version that it has now, and which that is.

    An ingest reads its input more than once and must find the same rows each time; what is no Delta table has no
    version to hold on to.
    """
    frame = spark.table(name)
    try:
        history = spark.sql(f"DESCRIBE HISTORY {name} LIMIT 1").head()
    except PySparkException as error:
        if not (error.getCondition() or "").startswith(_NO_HISTORY):
            raise
        return frame, _NOT_PINNED
    assert history is not None
    version = history["version"]
    return spark.read.option("versionAsOf", version).table(name), f"version {version} of the Delta table was read"


READER = Reader("table", "a long table or view of a catalog, one row a response", _detect, _read)
