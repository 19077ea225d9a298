"""Wide tables, CSV or Parquet: models × items (a row a model) or items × models (a row an item).

Names of tens of thousands of columns never enter a Spark plan: whole files go to the executors as bytes, where Arrow
parses them and turns blocks of rows into long form, column by column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from cbmm_spark.config.schema import ColumnsConfig
from cbmm_spark.errors import InputError
from cbmm_spark.readers import arrow_csv
from cbmm_spark.readers.base import ROLES, RawFrame, Reader, ReadOptions, Roles, Sample, canonical, find
from cbmm_spark.readers.delimited import DELIMITERS, cells
from cbmm_spark.readers.files import binary_files

RowsAre = Literal["model", "item"]

_CELLS_PER_BATCH = 1 << 19
_SCHEMA = "row_key string, column_key string, score string, source string, position long, malformed string"
_ARROW = pa.schema(
    [("row_key", pa.string()), ("column_key", pa.string()), ("score", pa.string()), ("source", pa.string()),
     ("position", pa.int64()), ("malformed", pa.string())]
)  # fmt: skip


@dataclass(frozen=True)
class _Layout:
    """How to parse the files; travels to the executors."""

    delimiter: str
    parquet: bool
    key_column: str | None  # of Parquet; None: the first


def header_of(sample: Sample) -> list[str]:
    """The column names of a sample, literally."""
    return list(sample.parquet_columns) or cells(sample.first_line, _delimiter(sample.first_line))


def _delimiter(line: str) -> str:
    return max(DELIMITERS, key=line.count)


def orientation(header: Sequence[str], columns: ColumnsConfig, parquet: bool) -> tuple[RowsAre, str] | None:
    """What a row of a wide table is, and the column that says so; None if the header does not tell.

    A header tells if its first cell (Parquet: any column, since an index is stored last) is one of the names of a
    model or an item, and no other column has a name of the long format, which would make it a long table with a column
    missing.
    """
    known = {name: role for role in ROLES for name in find(role, header, columns)}
    keys = [name for name, role in known.items() if role in ("model", "item")]
    if len(known) != 1 or len(keys) != 1 or len(header) < 2 or not (parquet or header[0] == keys[0]):
        return None
    rows_are: RowsAre = "model" if known[keys[0]] == "model" else "item"
    return rows_are, keys[0]


def _detect(rows_are: RowsAre) -> Callable[[Sample], str | None]:
    def detect(sample: Sample) -> str | None:
        header = header_of(sample)
        told = orientation(header, sample.columns, bool(sample.parquet_columns))
        if told is None or told[0] != rows_are:
            return None
        others = len(header) - 1
        return f"column {told[1]} names the {rows_are}s and none of the other {others} has a name of the long format"

    return detect


def _read(rows_are: RowsAre) -> Callable[[SparkSession, Sample, ReadOptions], RawFrame]:
    def read(spark: SparkSession, sample: Sample, options: ReadOptions) -> RawFrame:
        header = header_of(sample)
        _check_header(header, sample)
        if options.model is not None:
            raise InputError(f"{sample.path} is a wide table, which names its models: leave out --model")
        told = orientation(header, sample.columns, bool(sample.parquet_columns))
        layout = _Layout(_delimiter(sample.first_line), bool(sample.parquet_columns), told[1] if told else None)

        def unpivot(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for path, content in zip(batch.column("path"), batch.column("content"), strict=True):
                    yield from _unpivot_file(path.as_py(), content.as_buffer(), layout)

        frame = binary_files(spark, sample.path).select("path", "content").mapInArrow(unpivot, _SCHEMA)
        row, across = ("model", "item") if rows_are == "model" else ("item", "model")
        malformed = F.col("malformed").isNotNull()
        return canonical(
            frame,
            Roles({row: "row_key", across: "column_key", "score": "score"}),
            options,
            sample.path,
            source=F.col("source"),
            position=F.col("position"),
            problem=F.when(malformed, "malformed_row"),
            raw=F.when(malformed, F.to_json(F.struct(F.col("malformed").alias("row")))).otherwise(
                F.to_json(
                    F.struct(F.col("row_key").alias(row), F.col("column_key").alias(across), "score"),
                    {"ignoreNullFields": "false"},
                )
            ),
        )

    return read


def _check_header(header: Sequence[str], sample: Sample) -> None:
    if len(header) < 2:
        raise InputError(f"{sample.path} has one column only ({header[0] if header else 'no name'}): not a wide table")
    if not sample.parquet_columns and all(_is_score(name) for name in header[1:]):
        raise InputError(
            f"{sample.path} has no header: its first line holds scores. Add a first line with the names of the columns"
        )


def _is_score(text: str) -> bool:
    try:
        return 0.0 <= float(text) <= 1.0
    except ValueError:
        return text.strip().lower() in ("", "true", "false")


def _unpivot_file(path: str, content: pa.Buffer, layout: _Layout) -> Iterator[pa.RecordBatch]:
    blocks = _parquet_blocks(content, layout) if layout.parquet else _csv_blocks(path, content, layout)
    for block in blocks:
        if block.malformed is not None:
            yield _malformed(path, block)
            continue
        rows = max(1, _CELLS_PER_BATCH // max(1, len(block.names)))
        for start in range(0, len(block.keys), rows):
            yield _long(path, block, start, rows)


@dataclass(frozen=True)
class _Block:
    """Some rows of a wide table: their keys and numbers, the names of the other columns, and those as arrays of any
    type."""

    keys: pa.Array
    positions: npt.NDArray[np.int64]
    names: pa.Array
    columns: Sequence[pa.Array]
    malformed: Sequence[str] | None = None


def _malformed(path: str, block: _Block) -> pa.RecordBatch:
    lines = block.malformed or ()
    nulls = pa.nulls(len(lines), pa.string())
    return pa.RecordBatch.from_arrays(
        [
            nulls,
            nulls,
            nulls,
            pa.array([path] * len(lines)),
            pa.array(block.positions, pa.int64()),
            pa.array(lines, pa.string()),
        ],
        schema=_ARROW,
    )


def _long(path: str, block: _Block, start: int, rows: int) -> pa.RecordBatch:
    """Rows `start` to `start + rows` of a block in long form, column after column."""
    keys = block.keys.slice(start, rows)
    n, width = len(keys), len(block.names)
    row = np.tile(np.arange(n), width)
    scores = pa.concat_arrays([column.slice(start, rows).cast(pa.string()) for column in block.columns])
    return pa.RecordBatch.from_arrays(
        [
            keys.take(pa.array(row)),
            block.names.take(pa.array(np.repeat(np.arange(width), n))),
            scores,
            pa.array([path], pa.string()).take(pa.array(np.zeros(n * width, dtype=np.int64))),
            pa.array(block.positions[start + row], pa.int64()),
            pa.nulls(n * width, pa.string()),
        ],
        schema=_ARROW,
    )


def _parquet_blocks(content: pa.Buffer, layout: _Layout) -> Iterator[_Block]:
    file = pq.ParquetFile(pa.BufferReader(content))
    names = file.schema_arrow.names
    key = names.index(layout.key_column) if layout.key_column is not None else 0
    others = [index for index in range(len(names)) if index != key]
    rows = max(1, _CELLS_PER_BATCH // max(1, len(others)))
    done = 0
    for batch in file.iter_batches(batch_size=rows):
        done += batch.num_rows
        yield _Block(
            batch.column(key).cast(pa.string()),
            np.arange(done - batch.num_rows, done),
            pa.array([names[index] for index in others], pa.string()),
            [batch.column(index) for index in others],
        )


def _csv_blocks(path: str, content: pa.Buffer, layout: _Layout) -> Iterator[_Block]:
    text = arrow_csv.unpacked(path, content)
    names = arrow_csv.header(text, layout.delimiter)
    across = pa.array(names[1:], pa.string())
    for block in arrow_csv.blocks(text, layout.delimiter, len(names)):
        if block.malformed:
            yield _Block(pa.nulls(0), block.positions, across, (), block.malformed)
        else:
            yield _Block(block.columns[0], block.positions, across, block.columns[1:])


WIDE_MODELS = Reader(
    "wide-models", "wide CSV or Parquet, a row a model, a column an item", _detect("model"), _read("model")
)
WIDE_ITEMS = Reader(
    "wide-items", "wide CSV or Parquet, a row an item, a column a model", _detect("item"), _read("item")
)
