"""A long Delta table by path, one row a response. Format: https://github.com/delta-io/delta/blob/master/PROTOCOL.md."""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from cbmm_spark.errors import InputError
from cbmm_spark.locations import absolute
from cbmm_spark.readers.base import RawFrame, Reader, ReadOptions, Sample, assign_roles, canonical, row_as_json
from cbmm_spark.readers.files import reading


def _detect(sample: Sample) -> str | None:
    return "it has a Delta log" if sample.is_delta else None


def _read(spark: SparkSession, sample: Sample, options: ReadOptions) -> RawFrame:
    if not sample.is_delta:
        raise InputError(f"{sample.path} is not a Delta table: it has no _delta_log")
    with reading(sample.path):
        # The data files of a table are rewritten by maintenance, so the table, not the file, is the source of a row;
        # one version is read throughout, also where rows are read a second time.
        version = spark.sql(f"DESCRIBE HISTORY delta.`{sample.path.replace('`', '``')}` LIMIT 1").head()
        assert version is not None
        frame = spark.read.format("delta").option("versionAsOf", version["version"]).load(sample.path)
    return whole_table(frame, replace(sample, path=absolute(sample.path)), options)


def whole_table(frame: DataFrame, sample: Sample, options: ReadOptions) -> RawFrame:
    """Give a table its canonical columns; the table, not a file, is the source of a row."""
    raw = canonical(
        frame,
        assign_roles(frame.columns, options, sample.path),
        options,
        sample.path,
        source=F.lit(sample.path),
        raw=row_as_json(frame),
    )
    return replace(raw, is_columnar=True)


READER = Reader("delta", "a long Delta table, one row a response", _detect, _read)
