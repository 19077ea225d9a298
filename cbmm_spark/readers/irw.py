"""Tables of the Item Response Warehouse, CSV or Parquet: https://datapages.github.io/irw/standard.html.

One row a response: `id` (who answered), `item`, `resp`, and optional columns of which `wave` and `date` are read.
"""

from __future__ import annotations

import dataclasses

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from cbmm_spark.config.schema import ColumnsConfig
from cbmm_spark.readers import delimited, parquet
from cbmm_spark.readers.base import RawFrame, Reader, ReadOptions, Sample, find
from cbmm_spark.readers.wide import header_of

_NAMES = ("id", "item", "resp")
_NUMBER = r"^\s*[+-]?[0-9]+([.][0-9]*)?([eE][+-]?[0-9]+)?\s*$"
_NO_DATE = "_irw_date"
_NOT_AVAILABLE = "_irw_na"


def _detect(sample: Sample) -> str | None:
    header = header_of(sample)
    if not all(name in header for name in _NAMES):
        return None
    if all(find(role, header, sample.columns) for role in ("model", "score")):
        return None  # a long table that happens to have these columns as well
    return "its columns id, item and resp are those of the Item Response Warehouse"


def _read(spark: SparkSession, sample: Sample, options: ReadOptions) -> RawFrame:
    columns = _columns(options.columns)
    options = dataclasses.replace(options, rules=dataclasses.replace(options.rules, columns=columns))
    sample = dataclasses.replace(sample, columns=columns)
    raw = (_read_parquet if sample.parquet_columns else delimited.READER.read)(spark, sample, options)
    types = {each.name: each.dataType for each in raw.frame.schema.fields}
    date, no_date = _date(types["evaluated_at_raw"])
    score, not_available = _score(types["score_raw"])

    def change(frame: DataFrame) -> DataFrame:
        frame = frame.withColumns({_NO_DATE: no_date, _NOT_AVAILABLE: not_available})
        return frame.withColumns({"evaluated_at_raw": date, "score_raw": score})

    return dataclasses.replace(
        raw.changed(change),
        notes=(*raw.notes, *_several(sample)),
        defaults={
            "a date in seconds, which may count from 1970 or from the first response: left out": F.col(_NO_DATE),
            "NA, as R writes a missing response: no verdict": F.col(_NOT_AVAILABLE),
        },
    )


def _read_parquet(spark: SparkSession, sample: Sample, options: ReadOptions) -> RawFrame:
    frame = parquet.frame_of(spark, sample)
    seconds = [
        each.name for each in frame.schema.fields if each.name == "date" and isinstance(each.dataType, T.NumericType)
    ]
    return parquet.as_long(frame.withColumns({name: F.col(name).cast("string") for name in seconds}), sample, options)


def _columns(columns: ColumnsConfig) -> ColumnsConfig:
    """The names of the format; a wave of a panel is one more attempt at the same items."""
    return dataclasses.replace(
        columns, model=("id",), item=("item",), score=("resp",), date=("date",),
        attempt=tuple(dict.fromkeys((*columns.attempt, "wave"))),
    )  # fmt: skip


def _several(sample: Sample) -> tuple[str, ...]:
    if len(sample.files) < 2:
        return ()
    return (
        f"{len(sample.files):,} files are read as one table: equal ids in them are one person; ingest tables of "
        "different persons or items one by one, each with its --benchmark",
    )


def _date(kind: T.DataType) -> tuple[Column, Column]:
    given = F.col("evaluated_at_raw")
    if not isinstance(kind, T.StringType):
        return given, F.lit(False)
    seconds = F.coalesce(given.rlike(_NUMBER), F.lit(False))
    absent = F.coalesce(F.trim(given) == "NA", F.lit(False))
    return F.when(~seconds & ~absent, given), seconds


def _score(kind: T.DataType) -> tuple[Column, Column]:
    score = F.col("score_raw")
    if not isinstance(kind, T.StringType):
        return score, F.lit(False)
    absent = F.coalesce(F.trim(score) == "NA", F.lit(False))
    return F.when(~absent, score), absent


READER = Reader("irw", "tables of the Item Response Warehouse (id, item, resp), CSV or Parquet", _detect, _read)
