"""Looking at files through Spark, so that every file system Spark knows works, and turning its refusals into one
line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import MappingProxyType

import numpy as np
import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, DataFrameReader, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import LongType, StructField, StructType

from cbmm_spark.config.schema import ColumnsConfig
from cbmm_spark.errors import InputError
from cbmm_spark.locations import AS_IN_A_NAME, hint_on_names
from cbmm_spark.readers.base import Sample

_LONGEST_FIRST_LINE = 16 << 20  # characters: the header of a wide table with 100,000 long names fits
_BEGINNING = 200  # lines
_BEGINNING_OF_LINE = 4096  # characters of each of them
_FILES_LOOKED_AT = 10_000  # names on the driver for detection; reading itself lists them all

ANY_NAME = MappingProxyType(
    {"fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem", "fs.file.impl.disable.cache": "true"}
)
"""Options of a read that let names of local files hold colons: Hadoop's file system with checksums refuses them."""


def all_files(spark: SparkSession) -> DataFrameReader:
    """Return a reader of every file under a path, whatever its name and however deep."""
    return spark.read.option("recursiveFileLookup", "true").options(**ANY_NAME)


# Spark's error conditions that are about the data given, by how the condition begins.
_ABOUT_INPUT = {
    "PATH_NOT_FOUND": "does not exist",
    "UNABLE_TO_INFER_SCHEMA": "holds no data files of this format",
    "FAILED_READ_FILE": "holds a file that cannot be read as the format it should have",
    "CANNOT_READ_FILE_FOOTER": "holds a file that is not Parquet",
    "FAILED_MERGE_SCHEMA": "holds files whose columns have different types",
    "CANNOT_MERGE_SCHEMAS": "holds files whose columns have different types",
    "CANNOT_MERGE_INCOMPATIBLE_DATA_TYPE": "holds files whose columns have different types",
    "COLUMN_ALREADY_EXISTS": "has two columns of the same name",
    "PARQUET_TYPE_": "has a Parquet column type that Spark cannot read",
    "PARQUET_COLUMN_DATA_TYPE_MISMATCH": "holds files whose columns have different types",
    "TABLE_OR_VIEW_NOT_FOUND": "does not exist in the catalog",
    "SCHEMA_NOT_FOUND": "does not exist in the catalog",
    "CATALOG_NOT_FOUND": "is in a catalog that this Spark session does not have (spark.sql.catalog.NAME)",
    "REQUIRES_SINGLE_PART_NAMESPACE": "is in a catalog that this Spark session does not have (spark.sql.catalog.NAME)",
    "PARSE_SYNTAX_ERROR": "is no name of a table; quote unusual parts: table:catalog.schema.`my table`",
    "INVALID_IDENTIFIER": "is no name of a table; quote unusual parts: table:catalog.schema.`my table`",
    "DELTA_TABLE_NOT_FOUND": "is not a Delta table",
    "DELTA_MISSING_DELTA_TABLE": "is not a Delta table",
    "DELTA_PATH_DOES_NOT_EXIST": "does not exist",
    "DELTA_": "is a Delta table that cannot be read",
    "_LEGACY_ERROR_TEMP_3241": "holds files whose headers differ",
}
_ABOUT_INPUT_TEXT = {
    "is not a Parquet file": "holds a file that is not Parquet",
    "CSV header does not conform": "holds files whose headers differ; ingest them one by one",
    "Number of column in CSV header": "holds files whose headers differ; ingest them one by one",
    "not a gzip file": "holds a file that ends in .gz but is not gzip",
    "incorrect header check": "holds a file that ends in .gz but is not gzip",
    "Unexpected end of input stream": "holds a compressed file that is cut off",
    "max length allowed": "holds a file over 2 GB that has to be read whole; split it or write it as Parquet",
    "Permission denied": "cannot be read: permission denied",
    "Illegal file pattern": "is a pattern of file names that cannot be read" + AS_IN_A_NAME,
}


@contextmanager
def reading(path: str) -> Iterator[None]:
    """Turn what Spark says about unreadable input into an `InputError`; anything else passes unchanged."""
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:  # what fails in a task may come as either
        complaint = _complaint(error)
        if complaint is None:
            raise
        hint = hint_on_names(path) if complaint == "does not exist" else ""
        raise InputError(f"{path} {complaint}{hint}") from None


def _complaint(error: PySparkException | Py4JJavaError) -> str | None:
    text = str(error)
    for marker, complaint in _ABOUT_INPUT_TEXT.items():
        if marker in text:
            return complaint
    condition = (error.getCondition() or "") if isinstance(error, PySparkException) else ""
    for marker, complaint in _ABOUT_INPUT.items():
        if condition.startswith(marker) or f"[{marker}" in text:
            return complaint
    return None


def look_at(spark: SparkSession, path: str, columns: ColumnsConfig) -> Sample:
    """List the files behind a path and read the first line of one.

    Raises
    ------
    InputError
        There is nothing, or every file is empty.
    """
    if not path.strip():
        raise InputError("no input path given")
    with reading(path):
        has_log = _has_delta_log(spark, path)
    if has_log:
        return Sample(path, (), "", (), True, columns)
    files = _list(spark, path)
    if not files:  # Spark does not list files of no bytes
        raise InputError(f"{path} is empty")
    named_parquet = all(name.lower().endswith((".parquet", ".pq")) for name in files)
    first = "" if named_parquet else _first_line(spark, path)
    parquet = named_parquet or first.startswith("PAR1")
    # A file of JSON lines is told by its first line; of JSON over many lines the first one is but a bracket.
    beginning = _beginning(spark, path) if first.strip() in ("{", "[", "[{") else first[: 1 << 16]
    return Sample(path, files, first, _parquet_columns(spark, path) if parquet else (), False, columns, beginning)


def _list(spark: SparkSession, path: str) -> list[str]:
    with reading(path):
        listed = binary_files(spark, path).select("path").limit(_FILES_LOOKED_AT).collect()
    return sorted(row.path for row in listed)


def binary_files(spark: SparkSession, path: str, names: str = "*") -> DataFrame:
    """One row per file whose name fits a pattern: path, length, and the content where it is selected."""
    return all_files(spark).format("binaryFile").option("pathGlobFilter", names).load(path)


def _has_delta_log(spark: SparkSession, path: str) -> bool:
    log = spark.read.format("binaryFile").option("pathGlobFilter", "*.json")
    try:
        return bool(log.load(f"{path.rstrip('/')}/_delta_log").select("path").head(1))
    except PySparkException as error:
        if (error.getCondition() or "").startswith("PATH_NOT_FOUND") or "is not a directory" in str(error).lower():
            return False
        raise


def _first_line(spark: SparkSession, path: str) -> str:
    lines = all_files(spark).text(path)
    with reading(path):
        rows = lines.where("length(trim(value)) > 0").select(F.substring("value", 1, _LONGEST_FIRST_LINE)).head(1)
    return str(rows[0][0]).removeprefix("\ufeff") if rows else ""


def _beginning(spark: SparkSession, path: str) -> str:
    lines = all_files(spark).text(path)
    with reading(path):
        rows = lines.select(F.substring("value", 1, _BEGINNING_OF_LINE)).head(_BEGINNING)
    return "\n".join(row[0] for row in rows)


def lines_of(spark: SparkSession, path: str) -> DataFrame:
    """One row per line that is not blank: its text as `value`, and the file it is in as `source`."""
    lines = all_files(spark).text(path).where("length(trim(value)) > 0")
    return lines.select("value", F.col("_metadata.file_path").alias("source"))


def numbered_lines(spark: SparkSession, path: str, sources: Sequence[str]) -> DataFrame:
    """As `lines_of`, of some of the files, with `position`: the number of the line from 0, blank ones counted."""
    lines = all_files(spark).text(path).select("value", *origin())
    return numbered(lines, sources).where("length(trim(value)) > 0")


START = "_cbmm_start"
"""Where in its file the part begins that a row is in, as `origin` has it."""


def origin(source: str = "source") -> list[Column]:
    """Columns that tell, in a scan of files, which part of which one a row is in; for `numbered`."""
    return [F.col("_metadata.file_path").alias(source), F.col("_metadata.file_block_start").alias(START)]


def numbered(rows: DataFrame, sources: Sequence[str], source: str = "source", position: str = "position") -> DataFrame:
    """Number the rows of some files from 0, as `position`.

    A task reads a part of a file from its beginning to its end, so rows are numbered within their part on the way, and
    the parts are counted: the files are read twice, by as many tasks as ever, and nothing is sorted or brought together
    but one row a part.

    Parameters
    ----------
    rows
        Straight from a scan, with the columns `origin`.
    sources
        Names of files.
    source, position
        Names of the columns for the file and the number.
    """

    def number(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return number_batches(batches, source, START, position)

    named = rows.where(F.col(source).isin(list(sources)))
    within = named.mapInArrow(number, StructType([*named.schema.fields, StructField(position, LongType())]))
    parts = within.groupBy(source, START).agg((F.max(position) + 1).alias("_cbmm_rows"))
    before = Window.partitionBy(source).orderBy(START).rowsBetween(Window.unboundedPreceding, -1)
    parts = parts.select(source, START, F.coalesce(F.sum("_cbmm_rows").over(before), F.lit(0)).alias("_cbmm_before"))
    placed = within.join(F.broadcast(parts), [source, START])
    return placed.withColumn(position, F.col(position) + F.col("_cbmm_before")).drop("_cbmm_before", START)


def number_batches(
    batches: Iterator[pa.RecordBatch], source: str, start: str, position: str
) -> Iterator[pa.RecordBatch]:
    """Number the rows of each part of a file from 0.

    Parameters
    ----------
    batches
        Rows in the order of their files; those of one part, with equal `source` and `start`, follow one another.
    source, start
        Names of the columns that tell the part.
    position
        Name of the column with the numbers, put last.
    """
    last: tuple[object, object] | None = None
    reached = 0
    for batch in batches:
        if batch.num_rows == 0:
            continue
        sources, starts = batch.column(source), batch.column(start)
        names = sources.dictionary_encode().indices.to_numpy(zero_copy_only=False)
        offsets = starts.to_numpy(zero_copy_only=False)
        begins = np.flatnonzero((names[1:] != names[:-1]) | (offsets[1:] != offsets[:-1])) + 1
        begins = np.concatenate([[0], begins])
        first = np.repeat(begins, np.diff([*begins, batch.num_rows]))
        positions = np.arange(batch.num_rows) - first
        if (sources[0].as_py(), starts[0].as_py()) == last:
            positions[: begins[1] if len(begins) > 1 else None] += reached
        last, reached = (sources[-1].as_py(), starts[-1].as_py()), int(positions[-1]) + 1
        yield pa.RecordBatch.from_arrays(
            [*batch.columns, pa.array(positions, pa.int64())], names=[*batch.schema.names, position]
        )


def files_of(spark: SparkSession, path: str) -> set[str]:
    """Return the names of the files behind a path, as any reader may call them; none where nothing is.

    Raises
    ------
    InputError
        They cannot be listed.
    """
    try:
        names = binary_files(spark, path).select("path", F.col("_metadata.file_path").alias("uri")).collect()
    except PySparkException as error:
        if (error.getCondition() or "").startswith("PATH_NOT_FOUND"):
            return set()
        with reading(path):
            raise
    return {name for row in names for name in row}


def whole_files(spark: SparkSession, path: str, pattern: str | None = None) -> DataFrame:
    """One row per text file: its whole text as `value`, and its `source`.

    Parameters
    ----------
    spark
        The session.
    path
        File, folder or glob.
    pattern
        Only files whose name fits it.
    """
    reader = all_files(spark)
    if pattern is not None:
        reader = reader.option("pathGlobFilter", pattern)
    with reading(path):
        return reader.text(path, wholetext=True).select("value", F.col("_metadata.file_path").alias("source"))


def _parquet_columns(spark: SparkSession, path: str) -> Sequence[str]:
    with reading(path):
        try:
            return tuple(spark.read.options(**ANY_NAME).parquet(path).columns)
        except PySparkException as error:  # files in folders of folders that are no partitions
            if error.getCondition() != "UNABLE_TO_INFER_SCHEMA":
                raise
            return tuple(spark.read.options(recursiveFileLookup="true", **ANY_NAME).parquet(path).columns)
