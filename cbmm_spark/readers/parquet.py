"""Long Parquet, a file or a folder, one row a response. Format: https://parquet.apache.org/docs/file-format/."""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from cbmm_spark.readers.base import RawFrame, Reader, ReadOptions, Sample, assign_roles, canonical, row_as_json
from cbmm_spark.readers.delimited import looks_long
from cbmm_spark.readers.files import ANY_NAME, reading
from cbmm_spark.readers.parquet_rows import scan
from cbmm_spark.spark.scoped import session_settings


def _detect(sample: Sample) -> str | None:
    reason = looks_long(sample.parquet_columns, sample.columns)
    return f"Parquet, {reason}" if reason else None


def frame_of(spark: SparkSession, sample: Sample) -> DataFrame:
    """Return the rows of all files, with the columns of any of them."""
    # A folder `model=007` must not become the number 7; files with other columns must not lose them in silence.
    with (
        reading(sample.path),
        session_settings(spark, {"spark.sql.sources.partitionColumnTypeInference.enabled": "false"}),
    ):
        return spark.read.options(**ANY_NAME).option("mergeSchema", "true").parquet(sample.path)


def as_long(frame: DataFrame, sample: Sample, options: ReadOptions) -> RawFrame:
    """Give rows of `frame_of` their canonical columns."""
    raw = canonical(
        frame,
        assign_roles(frame.columns, options, sample.path),
        options,
        sample.path,
        source=F.col("_metadata.file_path"),
        position=F.col("_metadata.row_index"),
        raw=row_as_json(frame),
    )
    return replace(raw, is_columnar=True)


def _read(spark: SparkSession, sample: Sample, options: ReadOptions) -> RawFrame:
    return as_long(frame_of(spark, sample), sample, options)


READER = Reader("parquet", "long Parquet, a file or a folder, one row a response", _detect, _read, scan)
