"""Long Parquet, a file or a folder, one row a response. Format: https://parquet.apache.org/docs/file-format/."""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from cbmm_spark.readers.base import RawFrame, Reader, ReadOptions, Sample, assign_roles, canonical, row_as_json
from cbmm_spark.readers.delimited import looks_long
from cbmm_spark.readers.files import reading, session_settings


def _detect(sample: Sample) -> str | None:
    reason = looks_long(sample.parquet_columns, sample.columns)
    return f"Parquet, {reason}" if reason else None


def _read(spark: SparkSession, sample: Sample, options: ReadOptions) -> RawFrame:
    # A folder `model=007` must not become the number 7; files with other columns must not lose them in silence.
    with (
        reading(sample.path),
        session_settings(spark, spark__sql__sources__partitionColumnTypeInference__enabled="false"),
    ):
        frame = spark.read.option("mergeSchema", "true").parquet(sample.path)
    return canonical(
        frame,
        assign_roles(frame.columns, options, sample.path),
        options,
        sample.path,
        source=F.col("_metadata.file_path"),
        position=F.col("_metadata.row_index"),
        raw=row_as_json(frame),
    )


READER = Reader("parquet", "long Parquet, a file or a folder, one row a response", _detect, _read)
