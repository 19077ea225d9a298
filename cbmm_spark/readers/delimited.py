"""Long CSV and other delimited text, one row a response. Format: RFC 4180, UTF-8, with a header line.

No schema is inferred: every cell is text until `cbmm_spark.responses` reads it, so "007" stays "007".
"""

from __future__ import annotations

import csv
from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from cbmm_spark.config import ColumnsConfig
from cbmm_spark.errors import InputError
from cbmm_spark.readers.base import (
    RawFrame,
    Reader,
    ReadOptions,
    Sample,
    assign_roles,
    canonical,
    column,
    find,
    row_as_json,
)
from cbmm_spark.readers.files import reading

DELIMITERS = (",", "\t", ";", "|")
SUFFIXES = (".csv", ".tsv", ".tab", ".txt")
_MALFORMED = "_cbmm_malformed"


def cells(line: str, delimiter: str) -> list[str]:
    """The cells of one delimited line, literally."""
    csv.field_size_limit(1 << 30)
    return next(csv.reader([line], delimiter=delimiter), [])


def pick_delimiter(line: str, columns: ColumnsConfig) -> str:
    """The delimiter under which most needed column names appear in the header; of equals, the one that occurs most."""

    def merit(delimiter: str) -> tuple[int, int]:
        names = cells(line, delimiter)
        return sum(bool(find(role, names, columns)) for role in ("model", "item", "score")), line.count(delimiter)

    return max(DELIMITERS, key=merit)


def has_suffix(files: Sequence[str], suffixes: Sequence[str]) -> bool:
    """Whether every file ends in one of the suffixes, compressed or not."""
    compressed = ("", ".gz", ".bz2", ".zst")
    endings = tuple(suffix + extra for suffix in suffixes for extra in compressed)
    return bool(files) and all(name.lower().endswith(endings) for name in files)


def looks_long(names: Sequence[str], columns: ColumnsConfig) -> str | None:
    """Why a header is that of a long table, or None."""
    found = [role for role in ("model", "item", "score") if find(role, names, columns)]
    return f"its header names {' and '.join(found)}" if len(found) > 1 else None


def _detect(sample: Sample) -> str | None:
    if not has_suffix(sample.files, SUFFIXES) and sample.first_line[:1] in "{[":
        return None
    if sample.parquet_columns or "\x00" in sample.first_line:
        return None
    return looks_long(cells(sample.first_line, pick_delimiter(sample.first_line, sample.columns)), sample.columns)


def _has_open_quotes(spark: SparkSession, path: str) -> bool:
    """Whether a quoted cell runs over a line end: then some physical line has an odd number of quotes.

    Only then is `multiLine` needed, under which Spark cannot split a file among tasks.
    """
    lines = spark.read.option("recursiveFileLookup", "true").text(path)
    quotes = F.length("value") - F.length(F.replace("value", F.lit('"'), F.lit("")))
    return bool(lines.where(quotes % 2 == 1).head(1))


def _load(spark: SparkSession, sample: Sample) -> DataFrame:
    delimiter = pick_delimiter(sample.first_line, sample.columns)
    reader = (
        spark.read.option("recursiveFileLookup", "true")
        .option("header", "true")
        .option("sep", delimiter)
        .option("quote", '"')
        .option("escape", '"')
        .option("encoding", "UTF-8")
        .option("multiLine", str(_has_open_quotes(spark, sample.path)).lower())
        .option("enforceSchema", "false")  # files whose headers differ are refused, not read by position
        .option("columnPruning", "false")  # a row is malformed or not, whatever columns a query asks for
        .option("mode", "PERMISSIVE")
        .option("columnNameOfCorruptRecord", _MALFORMED)
    )
    with reading(sample.path):
        schema = reader.csv(sample.path).schema
        return reader.schema(schema.add(_MALFORMED, "string")).csv(sample.path)


def _read(spark: SparkSession, sample: Sample, options: ReadOptions) -> RawFrame:
    header = cells(sample.first_line, pick_delimiter(sample.first_line, sample.columns))
    twice = sorted({name for name in header if header.count(name) > 1 and name})
    if twice:
        raise InputError(f"{sample.path} has two columns of the name {twice[0]}")
    frame = _load(spark, sample)
    roles = assign_roles([name for name in frame.columns if name != _MALFORMED], options, sample.path)
    malformed = column(_MALFORMED)
    text = F.to_json(F.struct(malformed.alias("row")))
    return canonical(
        frame,
        roles,
        options,
        sample.path,
        source=F.col("_metadata.file_path"),
        problem=F.when(malformed.isNotNull(), "malformed_row"),
        raw=F.when(malformed.isNotNull(), text).otherwise(row_as_json(frame, (_MALFORMED,))),
    )


READER = Reader("csv", "long CSV or other delimited text (.csv, .csv.gz, .tsv), one row a response", _detect, _read)
