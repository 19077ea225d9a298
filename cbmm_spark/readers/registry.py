"""Evaluation formats. `READERS` is the registry; a new format is a module with one `Reader` and one line here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from pyspark.sql import SparkSession

from cbmm_spark.errors import ConfigError, InputError
from cbmm_spark.locations import local_path, table_name
from cbmm_spark.readers import (
    delimited,
    delta,
    details,
    helm,
    id_list,
    inspect_log,
    irw,
    jsonl,
    lm_eval,
    openai_evals,
    parquet,
    py_irt,
    swe_bench,
    table,
    wide,
)
from cbmm_spark.readers.base import RAW_COLUMNS, RawFrame, Reader, ReadOptions, Sample, assign_roles
from cbmm_spark.readers.files import look_at
from cbmm_spark.readers.left import left_files, refuse_joined_objects, refuse_several
from cbmm_spark.readers.listing import list_files
from cbmm_spark.readers.local_sample import sample_of
from cbmm_spark.readers.rows import FIRST_ATTEMPT, LEFT_OUT, Scan

READERS: Mapping[str, Reader] = MappingProxyType(
    {
        reader.name: reader
        for reader in (
            # Those that name every column as they like come last: each of the others looks like one of them.
            *(table.READER, delta.READER, lm_eval.READER, details.READER, inspect_log.READER, helm.READER),
            *(openai_evals.READER, swe_bench.READER, py_irt.READER, irw.READER, id_list.READER),
            *(parquet.READER, jsonl.READER, delimited.READER, wide.WIDE_MODELS, wide.WIDE_ITEMS),
        )
    }
)
"""All formats by name, in the order in which they are tried."""

_FAMILIES = MappingProxyType(
    {
        "auto": tuple(READERS),
        "long": ("table", "delta", "irw", "parquet", "jsonl", "csv"),
        "wide": ("wide-models", "wide-items"),
    }
)

FORMATS = (*_FAMILIES, *READERS)
"""What `--format` accepts."""


def read_source(spark: SparkSession, path: str, format: str, options: ReadOptions) -> tuple[RawFrame, str, str]:
    """Find out the format of a source and give its raw frame.

    Parameters
    ----------
    spark
        The session.
    path
        File, folder or glob on any file system Spark knows, or the name of a catalog's table.
    format
        One of `FORMATS`.
    options
        Column names and what the command line gave.

    Returns
    -------
    frame, name, reason
        The raw frame (lazy), the format's name, and why it was chosen.

    Raises
    ------
    ConfigError
        There is no such format.
    InputError
        The source is missing, empty, or not what the format needs.
    """
    if format not in FORMATS:
        raise ConfigError(f"unknown format {format}: use one of {', '.join(FORMATS)}")
    is_table = format in (*_FAMILIES, table.READER.name) and table_name(path) is not None
    sample = Sample(path, (), "", (), False, options.columns) if is_table else look_at(spark, path, options.columns)
    if format not in READERS:
        refuse_several(sample)
    name, reason = (format, "given") if format in READERS else _detect(sample, format, options)
    raw = READERS[name].read(spark, sample, options)
    refuse_joined_objects(spark, path, name)
    return replace(raw, notes=(*raw.notes, *left_files(sample, name))), name, reason


def open_source(spark: SparkSession, path: str, format: str, options: ReadOptions) -> tuple[RawFrame | Scan, str, str]:
    """Find out the format of a source as `read_source` does, and read it without Spark where that can be.

    That is long Parquet on a disk; whatever else there is, Spark reads.

    Parameters and errors are those of `read_source`. Models and benchmarks have the names that the source gives them.
    """
    sample = _local_parquet(path, options) if format in ("auto", "long", "parquet") else None
    if sample is not None:
        told = (format, "given") if format == "parquet" else _detect(sample, format, options)
        scan = READERS[told[0]].scan
        if scan is not None:
            return scan(sample, options), *told
    return read_source(spark, path, format, options)


def _local_parquet(path: str, options: ReadOptions) -> Sample | None:
    """A look at local files that are all named as Parquet; None where there is anything else."""
    local = None if table_name(path) is not None else local_path(path)
    if local is None or not path.strip() or not local.exists():
        return None
    listing = list_files(path)
    names = [file.name.lower() for file in listing.files]
    if listing.is_delta or not names or not all(name.endswith((".parquet", ".pq")) for name in names):
        return None
    return sample_of(listing, options.columns)


def _detect(sample: Sample, family: str, options: ReadOptions) -> tuple[str, str]:
    for name in _FAMILIES[family]:
        reason = READERS[name].detect(sample)
        if reason:
            return name, reason
    raise InputError(_not_told(sample, family, options))


def _not_told(sample: Sample, family: str, options: ReadOptions) -> str:
    """Why no format fits: mostly a needed column is missing, which is said as for a long table."""
    header = wide.header_of(sample)
    if "\x00" in sample.first_line and not sample.parquet_columns:
        return f"{sample.path} is binary and not Parquet; use --format to say what it is"
    told = "; a table of models × items needs --format wide-models (a row a model) or wide-items (a row an item)"
    if family != "wide" and header and header[0].strip():
        try:
            assign_roles(header, options, sample.path)
        except InputError as error:
            return f"{error}{told}"
    return f"{sample.path}: cannot tell its format from its first line{told}"


__all__ = [
    "FIRST_ATTEMPT",
    "FORMATS",
    "LEFT_OUT",
    "RAW_COLUMNS",
    "READERS",
    "RawFrame",
    "ReadOptions",
    "Reader",
    "Sample",
    "open_source",
    "read_source",
]
