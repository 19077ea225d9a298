"""What the readers of evaluation harnesses' logs share: names of files, times, narrow JSON, counted defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from cbmm_spark.config.schema import ANY, IngestConfig
from cbmm_spark.readers.base import RAW_COLUMNS
from cbmm_spark.readers.mapping import known_metrics
from cbmm_spark.readers.rows import FIRST_ATTEMPT

LONGEST_RAW = 10_000
"""Characters kept of a record that cannot be read: enough to find it, and quarantine does not fill with prompts."""

STAMP = r"\d{4}-\d{2}-\d{2}T\d{2}[-:]\d{2}[-:]\d{2}(?:\.\d+)?"
"""A time in the name of a file or folder, with dashes where a file system allows no colons."""

_ISO = r"^\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(:\d{2}(\.\d+)?)?( ?(Z|[+-]\d{2}:?\d{2}))?$"


def decoded(path: Column) -> Column:
    """Return a path as it is on the file system; Spark's own column of file names has it encoded as a URI."""
    return F.coalesce(F.try_url_decode(F.replace(path, F.lit("+"), F.lit("%2B"))), path)


def base_name(path: Column) -> Column:
    """Return the part of a path after its last slash."""
    return F.substring_index(path, "/", -1)


def folder_of(path: Column) -> Column:
    """Return the part of a path before its last slash."""
    return F.regexp_extract(path, r"^(.*)/[^/]*$", 1)


def as_time(text: Column, patterns: Sequence[str]) -> Column:
    """Return the time in a text: ISO 8601, as harnesses write it with any number of decimals, else a declared pattern.

    Null where there is none and where it cannot be read.
    """
    iso = F.when(text.rlike(_ISO), F.try_to_timestamp(text))
    return F.coalesce(iso, *(F.try_to_timestamp(text, F.lit(pattern)) for pattern in patterns))


def stamp_as_time(stamp: Column) -> Column:
    """Return the time in the name of a file."""
    iso = F.regexp_replace(stamp, r"T(\d{2})[-:](\d{2})[-:](\d{2})", "T$1:$2:$3")
    return F.when(F.length(stamp) > 0, F.try_to_timestamp(iso))


def nothing() -> Column:
    """Return a text column without a value."""
    return F.lit(None).cast("string")


def raw_frame(frame: DataFrame, columns: Mapping[str, Column], counted: Mapping[str, Column]) -> DataFrame:
    """Return `RAW_COLUMNS`, and after them columns that conditions on defaults are about.

    Parameters
    ----------
    frame
        What the columns are made from.
    columns
        Some of `RAW_COLUMNS`; the others are null, attempt is 1.
    counted
        Further columns, their names beginning with an underscore.
    """
    otherwise = {"attempt": F.lit(FIRST_ATTEMPT), "position": F.lit(None).cast("long"),
                 "evaluated_at_raw": F.lit(None).cast("timestamp")}  # fmt: skip
    taken = [columns.get(name, otherwise.get(name, nothing())).alias(name) for name in RAW_COLUMNS]
    return frame.select(*taken, *(column.alias(name) for name, column in counted.items()))


def named_metric(rules: IngestConfig, benchmark: Column, metric: Column) -> Column:
    """Return the metric where the entry for all benchmarks named it and not the benchmark's own, else null."""
    own = [name for name in rules.metrics if name != ANY]
    return F.when(~benchmark.isin(*own), metric) if own else metric


def metric_defaults(rules: IngestConfig, column: str) -> dict[str, Column]:
    """Return a condition for each metric that `named_metric` may have put into a column."""
    taken = F.col(column)
    return {f'metric {name} taken by ingest.metrics."*"': taken.eqNullSafe(name) for name in known_metrics(rules)}


def cut(text: Column) -> Column:
    """Return an unreadable record as JSON, shortened."""
    return F.to_json(F.struct(F.substring(text, 1, LONGEST_RAW).alias("row")))
