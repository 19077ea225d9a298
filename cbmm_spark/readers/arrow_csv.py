"""Delimited text parsed by Arrow from the bytes of a whole file: every cell is literal text, the header included.

Used where Spark's own CSV reader cannot serve: wide tables (a Spark plan of 40,000 columns does not end) and quoted
cells that run over line ends (Spark cannot split such a file among tasks either, and turns a carriage return and line
feed in a cell into a line feed).
"""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv as pacsv

_BLOCK = 64 << 20  # bytes; the longest line has to fit


@dataclass(frozen=True)
class TextBlock:
    """Some rows of a file: a string array per column; or the lines with a wrong number of cells, at the end.

    `positions` are the numbers of the rows below the header, from 0, both kinds counted.
    """

    columns: Sequence[pa.Array]
    positions: npt.NDArray[np.int64]
    malformed: Sequence[str] = ()


def unpacked(path: str, content: pa.Buffer) -> pa.Buffer:
    """The text of a file, decompressed if its name ends in .gz."""
    return pa.py_buffer(gzip.decompress(content)) if path.lower().endswith(".gz") else content


def header(text: pa.Buffer, delimiter: str) -> list[str]:
    """The cells of the first row that is not empty."""
    csv.field_size_limit(1 << 30)
    decoded = io.TextIOWrapper(pa.BufferReader(text), encoding="utf-8-sig", newline="")
    return next((row for row in csv.reader(decoded, delimiter=delimiter) if row), [])


def blocks(text: pa.Buffer, delimiter: str, width: int) -> Iterator[TextBlock]:
    """The rows below the header, `width` cells each."""
    malformed: list[str] = []
    numbers: list[int] = []

    def keep(row: pacsv.InvalidRow) -> str:
        malformed.append(row.text)
        numbers.append(row.number - 2)  # Arrow counts the header, and from 1
        return "skip"

    # The columns get made-up names and the header is the first row of data: names may repeat, be empty or hold line
    # ends.
    reader = pacsv.open_csv(
        pa.BufferReader(text),
        read_options=pacsv.ReadOptions(autogenerate_column_names=True, block_size=_BLOCK, use_threads=False),
        parse_options=pacsv.ParseOptions(
            delimiter=delimiter, newlines_in_values=True, ignore_empty_lines=True, invalid_row_handler=keep
        ),
        convert_options=pacsv.ConvertOptions(
            column_types={f"f{index}": pa.string() for index in range(width)}, strings_can_be_null=False
        ),
    )
    skip, done = 1, 0
    for batch in reader:
        rows = batch.slice(skip)
        yield TextBlock(rows.columns, _positions(done, rows.num_rows, np.array(numbers, dtype=np.int64)))
        skip, done = 0, done + rows.num_rows
    if malformed:
        yield TextBlock((), np.array(numbers, dtype=np.int64), malformed)


def _positions(done: int, rows: int, malformed: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The numbers of `rows` good rows after `done` ones, among which bad ones have the numbers `malformed`.

    The k-th good row comes after every bad row that has at most k good ones before it.
    """
    good_before = malformed - np.arange(len(malformed))
    among_good = np.arange(done, done + rows, dtype=np.int64)
    return among_good + np.searchsorted(good_before, among_good, side="right")
