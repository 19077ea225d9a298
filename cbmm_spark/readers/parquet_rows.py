"""Parquet files as `Rows`: row groups are read apart, only the columns that are needed, names as dictionaries."""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from cbmm_spark.errors import InputError
from cbmm_spark.readers.arrow_rows import Columns, canonical_rows, check_types, constant, notes_of, type_name
from cbmm_spark.readers.base import ReadOptions, Roles, Sample, assign_roles
from cbmm_spark.readers.listing import File, Listing
from cbmm_spark.readers.rows import Part, Rows, Scan
from cbmm_spark.readers.texts import PIECE

_BATCH = 1 << 17
_ROWS_A_PART = 1_000_000
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
_NAMES = ("model", "benchmark", "item")


@dataclass(frozen=True)
class Plan:
    """How to read the parts of an input; travels to the machines that read.

    Attributes
    ----------
    path
        Of the input, for messages.
    roles, options
        As for a reader.
    columns
        All column names of the input, in any file.
    folders
        By source, the columns that the names of its folders give (`benchmark=arc`).
    """

    path: str
    roles: Roles
    options: ReadOptions
    columns: Sequence[str]
    folders: Mapping[str, Mapping[str, str | None]] = field(default_factory=dict)


@contextmanager
def _reading(path: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
        if isinstance(error, PermissionError):
            raise InputError(f"{path} cannot be read: permission denied") from None
        if isinstance(error, FileNotFoundError):
            raise InputError(f"{path} holds a file that was taken away meanwhile") from None
        told = "holds a file that is not Parquet"
        if isinstance(error, pa.ArrowNotImplementedError):
            told = f"holds a Parquet file that cannot be read: {str(error).splitlines()[0]}"
        raise InputError(f"{path} {told}") from None


def open_parquet(file: File | Part, content: bytes | None = None, names: Sequence[str] = ()) -> pq.ParquetFile:
    """Open a file, with some of its columns as dictionaries."""
    given = file.content if isinstance(file, Part) else content
    options: dict[str, Any] = {"read_dictionary": list(names), "coerce_int96_timestamp_unit": "us"}
    if given is not None:
        return pq.ParquetFile(pa.BufferReader(given), **options)
    return pq.ParquetFile(file.path, memory_map=True, **options)


def columns_in(listing: Listing, most: int = 1) -> tuple[str, ...]:
    """The column names of the first files, those that folders' names give last.

    Raises
    ------
    InputError
        A file is not Parquet.
    """
    found: dict[str, None] = {}
    with _reading(listing.path):
        for file in listing.files[:most]:
            content = None if listing.fetch is None else listing.fetch(file)
            with open_parquet(file, content) as opened:
                found.update(dict.fromkeys(opened.schema_arrow.names))
    found.update(dict.fromkeys(name for file in listing.files[:most] for name in folder_columns(file)))
    return tuple(found)


def folder_columns(file: File) -> dict[str, str | None]:
    """The columns that the names of a file's folders give, as `benchmark=007` does; values are text."""
    found: dict[str, str | None] = {}
    for folder in file.folders:
        name, sign, value = folder.partition("=")
        if sign and name:
            found[unquote(name)] = None if value == _NO_VALUE else unquote(value)
    return found


def scan(sample: Sample, options: ReadOptions) -> Scan:
    """Cut long Parquet files into parts and say how each is read.

    Raises
    ------
    InputError
        A file is not Parquet, a column is missing or has a type that cannot be its role, or the types of a column
        differ among files.
    """
    assert sample.listing is not None
    listing, path = sample.listing, sample.path
    parts: list[Part] = []
    names: dict[str, str] = {}  # by name without regard to case: as it is first written
    types: dict[str, pa.DataType] = {}
    folders: dict[str, dict[str, str | None]] = {}
    groups: list[tuple[File, pq.FileMetaData]] = []
    for file in listing.files:
        with _reading(path):
            content = None if listing.fetch is None else listing.fetch(file)
            with open_parquet(file, content) as opened:
                schema, metadata = opened.schema_arrow, opened.metadata
        _note_columns(schema, names, types, path)
        groups.append((file, metadata))
        if given := folder_columns(file):
            folders[file.source] = given
    for name in dict.fromkeys(name for given in folders.values() for name in given):
        types[names.setdefault(name.casefold(), name)] = pa.string()
    columns = list(types)
    roles = assign_roles(columns, options, path)
    flags = [name for name in options.rules.flags if name in types]
    _check_conflicts(types, (*roles.names.values(), *flags), path)
    check_types(types, roles, path)
    plan = Plan(path, roles, options, columns, folders)
    needed = {*roles.names.values(), *flags}
    for file, metadata in groups:
        parts.extend(
            [Part(file.path, file.source, n_bytes=file.size)] if listing.fetch else _cut(file, metadata, needed)
        )
    return Scan(parts, partial(read_part, plan), notes_of(roles, flags, options))


_CONFLICT = pa.struct([("cbmm types that differ", pa.null())])


def _note_columns(schema: pa.Schema, names: dict[str, str], types: dict[str, pa.DataType], path: str) -> None:
    folded = [name.casefold() for name in schema.names]
    if len(set(folded)) < len(folded):
        raise InputError(f"{path} has two columns of the same name")
    for each in schema:
        name = names.setdefault(each.name.casefold(), each.name)
        known = types.setdefault(name, each.type)
        if pa.types.is_null(known):
            types[name] = each.type
        elif not pa.types.is_null(each.type) and not _are_alike(known, each.type):
            types[name] = _CONFLICT


def _are_alike(one: pa.DataType, other: pa.DataType) -> bool:
    if pa.types.is_decimal(one) and pa.types.is_decimal(other):
        return True
    return type_name(one) == type_name(other)


def _check_conflicts(types: Mapping[str, pa.DataType], needed: Sequence[str], path: str) -> None:
    for name in needed:
        if types[name] is _CONFLICT:
            raise InputError(f"{path} holds files whose columns have different types: {name}")


def _cut(file: File, metadata: pq.FileMetaData, needed: set[str]) -> list[Part]:
    """Parts of whole row groups: names repeat and take few bytes, so that rows are counted as well."""
    parts: list[Part] = []
    first, size, rows = 0, 0, 0
    for group in range(metadata.num_row_groups):
        told = metadata.row_group(group)
        rows += told.num_rows
        chunks = (told.column(at) for at in range(told.num_columns))
        size += sum(chunk.total_compressed_size for chunk in chunks if chunk.path_in_schema in needed)
        if size >= PIECE or rows >= _ROWS_A_PART or group == metadata.num_row_groups - 1:
            parts.append(Part(file.path, file.source, first, group + 1, size, number=len(parts)))
            first, size, rows = group + 1, 0, 0
    return parts


def read_part(plan: Plan, part: Part) -> Iterator[Rows]:
    """The rows of some row groups."""
    roles, folders = plan.roles.names, plan.folders.get(part.source, {})
    with _reading(plan.path), open_parquet(part) as file:
        schema = file.schema_arrow
    own = {name.casefold(): name for name in schema.names}
    texts = [
        own[roles[role].casefold()]
        for role in _NAMES
        if role in roles
        and (found := own.get(roles[role].casefold())) is not None
        and _is_text(schema.field(found).type)
    ]
    flags = {name: name for name in plan.options.rules.flags if name in plan.columns}
    wanted = {**roles, **{f"flag {name}": at for name, at in flags.items()}}
    stored = {key: own[at.casefold()] for key, at in wanted.items() if at.casefold() in own and at not in folders}
    done = 0
    with _reading(plan.path), open_parquet(part, names=texts) as file:
        last = file.metadata.num_row_groups if part.last < 0 else part.last
        for group in range(part.first, last):
            in_group = 0
            batches = file.iter_batches(
                _BATCH, row_groups=[group], columns=list(dict.fromkeys(stored.values())), use_threads=False
            )
            for batch in _batches(batches, file.metadata.row_group(group).num_rows, has_columns=bool(stored)):
                n = batch.num_rows

                def values(key: str, at: str, batch: pa.RecordBatch = batch, n: int = n) -> pa.Array:
                    if key in stored:
                        return _readable(batch.column(stored[key]))
                    return constant(folders.get(at), n)  # of another file's columns: null

                arrays = {key: values(key, at) for key, at in wanted.items()}
                columns = Columns(
                    n,
                    {role: arrays[role] for role in roles},
                    part.source,
                    {name: arrays[f"flag {name}"] for name in flags},
                    np.arange(done, done + n),
                    done + n,
                    raw=partial(_raw, plan, part, group, in_group),
                )
                yield canonical_rows(columns, plan.roles, plan.options)
                done, in_group = done + n, in_group + n


def _batches(batches: Iterator[pa.RecordBatch], rows: int, *, has_columns: bool) -> Iterator[pa.RecordBatch]:
    if has_columns:
        yield from batches
    else:  # all that is needed stands in the names of folders
        yield pa.RecordBatch.from_arrays([pa.nulls(rows)], names=["nothing"])


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _readable(values: pa.Array) -> pa.Array:
    """Dictionaries of plain strings, times in microseconds."""
    kind = values.type
    if isinstance(values, pa.DictionaryArray) and not pa.types.is_string(kind.value_type):
        return pa.DictionaryArray.from_arrays(values.indices, values.dictionary.cast(pa.string()))
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return values.cast(pa.string())
    if pa.types.is_timestamp(kind) and kind.unit != "us":
        return values.cast(pa.timestamp("us", kind.tz), safe=False)
    return values


# Rows as JSON


def _raw(plan: Plan, part: Part, group: int, begin: int, rows: npt.NDArray[np.int64]) -> list[str]:
    """Some rows of a group with all columns, read again from the file."""
    wanted = np.asarray(rows, dtype=np.int64) + begin
    order = np.argsort(wanted, kind="stable")
    found: list[str] = [""] * len(wanted)
    folders = plan.folders.get(part.source, {})
    at, reached = 0, 0
    with _reading(plan.path), open_parquet(part) as file:
        for batch in file.iter_batches(_BATCH, row_groups=[group], use_threads=False):
            until = int(np.searchsorted(wanted[order], reached + batch.num_rows))
            if until > at:
                taken = batch.take(pa.array(wanted[order[at:until]] - reached))
                for place, row in zip(order[at:until], taken.to_pylist(), strict=True):
                    own = {name.casefold(): value for name, value in {**row, **folders}.items()}
                    found[place] = as_json({name: own.get(name.casefold()) for name in plan.columns})
            at, reached = until, reached + batch.num_rows
    return found


def as_json(row: Mapping[str, Any]) -> str:
    """A row as JSON, values as Spark writes them."""
    return json.dumps({name: _plain(value) for name, value in row.items()}, ensure_ascii=False, separators=(",", ":"))


_PLAIN: tuple[tuple[Any, Callable[[Any], Any]], ...] = (
    (bytes, lambda value: base64.b64encode(value).decode()),
    (
        dt.datetime,
        lambda value: value.isoformat(timespec="milliseconds").replace("+00:00", "") + "Z" * bool(value.tzinfo),
    ),
    (dt.date | dt.time, lambda value: value.isoformat()),
    (decimal.Decimal, lambda value: int(value) if value == value.to_integral_value() else float(value)),
    (dict, lambda value: {str(name): _plain(each) for name, each in value.items()}),
    (list, lambda value: [_plain(each) for each in value]),
    (tuple, lambda value: [_plain(each) for each in value]),
)


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return next((change(value) for kind, change in _PLAIN if isinstance(value, kind)), value)
