"""Long CSV and other delimited text, one row a response. Format: RFC 4180, UTF-8, with a header line.

No schema is inferred: every cell is text until `cbmm_spark.responses.rules` reads it, so "007" stays "007".
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from cbmm_spark.config.schema import ColumnsConfig
from cbmm_spark.errors import InputError
from cbmm_spark.readers import arrow_csv
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
from cbmm_spark.readers.files import START, all_files, binary_files, numbered, origin, reading

DELIMITERS = (",", "\t", ";", "|")
SUFFIXES = (".csv", ".tsv", ".tab", ".txt")
_MALFORMED = "_cbmm_malformed"
_SOURCE = "_cbmm_source"
_POSITION = "_cbmm_position"


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

    Only then are files read whole, one a task.
    """
    lines = all_files(spark).text(path)
    quotes = F.length("value") - F.length(F.replace("value", F.lit('"'), F.lit("")))
    return bool(lines.where(quotes % 2 == 1).head(1))


def _split_by_spark(spark: SparkSession, path: str, delimiter: str) -> DataFrame:
    """The usual way: lines are rows, files are split among tasks."""
    reader = (
        all_files(spark)
        .option("header", "true")
        .option("sep", delimiter)
        .option("quote", '"')
        .option("escape", '"')
        .option("encoding", "UTF-8")
        .option("enforceSchema", "false")  # files whose headers differ are refused, not read by position
        .option("columnPruning", "false")  # a row is malformed or not, whatever columns a query asks for
        .option("mode", "PERMISSIVE")
        .option("columnNameOfCorruptRecord", _MALFORMED)
    )
    with reading(path):
        schema = reader.csv(path).schema
        frame = reader.schema(schema.add(_MALFORMED, "string")).csv(path)
    return frame.select("*", *origin(_SOURCE))


def _split_by_arrow(spark: SparkSession, path: str, delimiter: str) -> DataFrame:
    """Where quoted cells run over line ends: whole files, one a task."""
    with reading(path):
        first = binary_files(spark, path).select("path", "content").orderBy("path").head()
    assert first is not None
    names = arrow_csv.header(arrow_csv.unpacked(first["path"], pa.py_buffer(bytes(first["content"]))), delimiter)
    own = [*(f"c{index}" for index in range(len(names))), _MALFORMED, _SOURCE]
    schema = pa.schema([*((name, pa.string()) for name in own), (_POSITION, pa.int64())])

    def parse(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for file, content in zip(batch.column("path"), batch.column("content"), strict=True):
                yield from _parse_file(file.as_py(), content.as_buffer(), delimiter, names, schema)

    spark_schema = ", ".join(f"`{name}` string" for name in own) + f", `{_POSITION}` long"
    parsed = binary_files(spark, path).select("path", "content").mapInArrow(parse, spark_schema)
    return parsed.toDF(*names, _MALFORMED, _SOURCE, _POSITION)


def _parse_file(
    path: str, content: pa.Buffer, delimiter: str, names: Sequence[str], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    text = arrow_csv.unpacked(path, content)
    if arrow_csv.header(text, delimiter) != names:
        raise ValueError(f"CSV header does not conform to that of the first file: {path}")
    for block in arrow_csv.blocks(text, delimiter, len(names)):
        n = len(block.positions)
        nothing = pa.nulls(n, pa.string())
        columns = [nothing] * len(names) if block.malformed else list(block.columns)
        malformed = pa.array(block.malformed, pa.string()) if block.malformed else nothing
        positions = pa.array(block.positions, pa.int64())
        yield pa.RecordBatch.from_arrays([*columns, malformed, pa.array([path] * n), positions], schema=schema)


def _read(spark: SparkSession, sample: Sample, options: ReadOptions) -> RawFrame:
    header = cells(sample.first_line, pick_delimiter(sample.first_line, sample.columns))
    twice = sorted({name for name in header if header.count(name) > 1 and name})
    if twice:
        raise InputError(f"{sample.path} has two columns of the name {twice[0]}")
    delimiter = pick_delimiter(sample.first_line, sample.columns)
    if _has_open_quotes(spark, sample.path):
        return _canonical(_split_by_arrow(spark, sample.path, delimiter), sample, options)
    rows = _split_by_spark(spark, sample.path, delimiter)

    def again(sources: Sequence[str]) -> DataFrame:
        return _canonical(numbered(rows, sources, _SOURCE, _POSITION), sample, options).frame

    return replace(_canonical(rows, sample, options), numbered=again, first_line=2)


def _canonical(frame: DataFrame, sample: Sample, options: ReadOptions) -> RawFrame:
    own = (_MALFORMED, _SOURCE, _POSITION, START)
    roles = assign_roles([name for name in frame.columns if name not in own], options, sample.path)
    malformed = column(_MALFORMED)
    text = F.to_json(F.struct(malformed.alias("row")))
    return canonical(
        frame,
        roles,
        options,
        sample.path,
        source=F.col(_SOURCE),
        position=F.col(_POSITION) if _POSITION in frame.columns else None,
        problem=F.when(malformed.isNotNull(), "malformed_row"),
        raw=F.when(malformed.isNotNull(), text).otherwise(row_as_json(frame, own)),
    )


READER = Reader("csv", "long CSV or other delimited text (.csv, .csv.gz, .tsv), one row a response", _detect, _read)
