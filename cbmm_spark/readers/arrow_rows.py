"""Columns of a source as `Rows`: the same roles, flags and defaults as `base.canonical` gives a frame of Spark."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cbmm_spark.errors import InputError
from cbmm_spark.readers.base import FALSE_TEXTS, TRUE_TEXTS, ReadOptions, Roles, absent_flags, assumptions, flag_counted
from cbmm_spark.readers.rows import FIRST_ATTEMPT, Flags, Rows

Texts = Callable[[npt.NDArray[np.int64]], Sequence[str]]


@dataclass(frozen=True)
class Columns:
    """Some rows of a source as it has them.

    Attributes
    ----------
    n_rows
        How many.
    roles
        One array a role that the source has.
    flags
        One array a flag of `[ingest.flags]` that the source has.
    source
        The name of the file.
    position, problem, raw
        As in `Rows`.
    next_position
        As in `Rows`.
    defaults
        Of the reader, beside those made here.
    content_hash
        As in `Rows`.
    """

    n_rows: int
    roles: Mapping[str, pa.Array]
    source: str
    flags: Mapping[str, pa.Array] = field(default_factory=dict)
    position: npt.NDArray[np.int64] | None = None
    next_position: int | None = None
    problem: pa.Array | None = None
    raw: Texts | None = None
    defaults: Mapping[str, Flags | bool] = field(default_factory=dict)
    content_hash: pa.Array | None = None


def notes_of(roles: Roles, flags: Sequence[str], options: ReadOptions) -> tuple[str, ...]:
    """What was decided for the whole input."""
    return (*roles.notes, *absent_flags(options, flags))


def canonical_rows(columns: Columns, roles: Roles, options: ReadOptions) -> Rows:
    """Give columns of a source their places in `Rows`.

    Parameters
    ----------
    columns
        What was read.
    roles
        The roles that the source has: what is assumed about the others is told.
    options
        As for a reader.
    """
    n = columns.n_rows
    benchmark = options.benchmark if options.benchmark is not None else options.default_benchmark
    otherwise = {"model": options.model or "", "benchmark": benchmark, "item": ""}
    names = {
        role: as_names(columns.roles[role]) if role in columns.roles else constant(text, n)
        for role, text in otherwise.items()
    }
    attempt = columns.roles["attempt"] if "attempt" in columns.roles else pa.repeat(pa.scalar(FIRST_ATTEMPT), n)
    score, problem = columns.roles["score"], columns.problem
    defaults: dict[str, Flags | bool] = {**columns.defaults, **dict.fromkeys(assumptions(roles, options), True)}
    if columns.flags:
        score, problem, counted = _flagged(score, problem, columns.flags, options)
        defaults |= counted
    return Rows(
        names["model"],
        names["benchmark"],
        names["item"],
        attempt,
        score,
        columns.roles["date"] if "date" in columns.roles else pa.nulls(n),
        constant(columns.source, n),
        columns.content_hash,
        columns.position,
        problem,
        columns.raw,
        defaults,
        columns.next_position,
    )


def constant(text: str | None, n: int) -> pa.DictionaryArray:
    """The same text n times, at the price of n small numbers."""
    zeros = pa.array(np.zeros(n, dtype=np.int8))
    return pa.DictionaryArray.from_arrays(zeros, pa.array([text], pa.string()))


def _flagged(
    score: pa.Array, problem: pa.Array | None, flags: Mapping[str, pa.Array], options: ReadOptions
) -> tuple[pa.Array, pa.Array | None, dict[str, Flags]]:
    is_set = {name: _is_one_of(values, TRUE_TEXTS, nulls=False) for name, values in flags.items()}
    score = plain(score)
    for name, flag in is_set.items():
        wrong = options.rules.flags[name] == "wrong"
        if wrong and pa.types.is_null(score.type):
            score = score.cast(pa.float64())
        verdict = pa.scalar(_zero(score.type) if wrong else None, score.type)
        score = pc.if_else(pa.array(flag), verdict, score)
    readable = np.ones(len(score), dtype=np.bool_)
    for values in flags.values():
        readable &= _is_one_of(values, (*TRUE_TEXTS, *FALSE_TEXTS), nulls=True)
    if not readable.all():
        unreadable = pc.if_else(pa.array(readable), pa.scalar(None, pa.string()), "unreadable_score")
        problem = unreadable if problem is None else pc.coalesce(plain(problem), unreadable)
    taken = np.ones(len(score), np.bool_) if problem is None else problem.is_null().to_numpy(zero_copy_only=False)
    return score, problem, {flag_counted(name, options): taken & flag for name, flag in is_set.items()}


def _zero(kind: pa.DataType) -> object:
    if pa.types.is_string(kind):
        return "0"
    return False if pa.types.is_boolean(kind) else 0


def _is_one_of(values: pa.Array, words: Sequence[str], *, nulls: bool) -> Flags:
    if pa.types.is_boolean(values.type):
        found = values if "false" not in words else pc.or_kleene(values, pc.invert(values))
    else:
        text = pc.utf8_lower(pc.ascii_trim(plain(as_names(values)), " "))
        found = pc.is_in(text, pa.array(words))
        found = pc.if_else(text.is_null(), pa.scalar(None, pa.bool_()), found)
    told: Flags = found.fill_null(nulls).to_numpy(zero_copy_only=False)
    return told


def plain(values: pa.Array) -> pa.Array:
    """The same without a dictionary."""
    return values.dictionary_decode() if isinstance(values, pa.DictionaryArray) else values


# Values as the text that Spark makes of them


def as_names(values: pa.Array) -> pa.Array:
    """Return values of any type that may be a name as text or a dictionary of texts, written as Spark writes them."""
    kind = values.type
    if pa.types.is_string(kind):
        return values
    if isinstance(values, pa.DictionaryArray):
        if pa.types.is_string(kind.value_type):
            return values
        return pa.DictionaryArray.from_arrays(values.indices, as_text(values.dictionary))
    if pa.types.is_null(kind):
        return values.cast(pa.string())
    if pa.types.is_integer(kind):
        return values.cast(pa.string())
    encoded = values.dictionary_encode()
    return pa.DictionaryArray.from_arrays(encoded.indices, as_text(encoded.dictionary))


def as_text(values: pa.Array) -> pa.Array:
    """Return values of any type that may be a name as text, written as Spark writes them."""
    kind = values.type
    if pa.types.is_floating(kind):
        is_short = pa.types.is_float32(kind) or pa.types.is_float16(kind)
        numbers = values.to_numpy(zero_copy_only=False)
        written = [float_text(number, is_short=is_short) for number in numbers]
        return pa.array(written, pa.string(), mask=values.is_null().to_numpy(zero_copy_only=False))
    if pa.types.is_decimal(kind):
        return pa.array([None if value is None else f"{value:f}" for value in values.to_pylist()], pa.string())
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        decoded = [None if value is None else value.decode(errors="replace") for value in values.to_pylist()]
        return pa.array(decoded, pa.string())
    return values.cast(pa.string())


def float_text(number: float, *, is_short: bool = False) -> str:
    """Return a number as Java writes it: 1.0, 1.0E10."""
    number = float(np.float32(number)) if is_short else float(number)
    if math.isnan(number):
        return "NaN"
    if math.isinf(number):
        return "Infinity" if number > 0 else "-Infinity"
    shortest = np.float32(number) if is_short else np.float64(number)
    if number == 0 or 1e-3 <= abs(number) < 1e7:
        return str(np.format_float_positional(shortest, trim="0"))
    mantissa, exponent = np.format_float_scientific(shortest, trim="0").split("e")
    return f"{mantissa}E{int(exponent)}"


# Types

_TEXT = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
_NUMBER = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_boolean)
_BINARY = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)
_NAME_TYPES = (*_TEXT, *_NUMBER, *_BINARY)
_ALLOWED = {
    "model": _NAME_TYPES,
    "item": _NAME_TYPES,
    "benchmark": _NAME_TYPES,
    "score": (*_TEXT, *_NUMBER, pa.types.is_null),
    "attempt": (*_TEXT, *_NUMBER, pa.types.is_null),
    "date": (*_TEXT, pa.types.is_integer, pa.types.is_date, pa.types.is_timestamp, pa.types.is_null),
}


def check_types(types: Mapping[str, pa.DataType], roles: Roles, path: str) -> None:
    """Refuse columns whose type cannot hold what they should.

    Raises
    ------
    InputError
        A list as a model's name, for example.
    """
    for role, allowed in _ALLOWED.items():
        name = roles.names.get(role)
        if name is None or name not in types:
            continue
        kind = types[name]
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        if not any(is_kind(kind) for is_kind in allowed):
            raise InputError(f"{path}: column {name} is of type {type_name(kind)}, which cannot be a {role}")


_SPARK_NAMES = (
    (pa.types.is_null, "void"), (pa.types.is_boolean, "boolean"), (pa.types.is_int8, "tinyint"),
    (pa.types.is_int16, "smallint"), (pa.types.is_int32, "int"), (pa.types.is_int64, "bigint"),
    (pa.types.is_uint8, "smallint"), (pa.types.is_uint16, "int"), (pa.types.is_uint32, "bigint"),
    (pa.types.is_uint64, "decimal(20,0)"), (pa.types.is_float16, "float"), (pa.types.is_float32, "float"),
    (pa.types.is_float64, "double"), (pa.types.is_date, "date"),
    *((is_text, "string") for is_text in _TEXT), *((is_binary, "binary") for is_binary in _BINARY),
)  # fmt: skip


def type_name(kind: pa.DataType) -> str:
    """The name that Spark gives to a type."""
    if pa.types.is_dictionary(kind):
        return type_name(kind.value_type)
    if pa.types.is_timestamp(kind):
        return "timestamp" if kind.tz else "timestamp_ntz"
    if pa.types.is_map(kind):
        return f"map<{type_name(kind.key_type)},{type_name(kind.item_type)}>"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return f"array<{type_name(kind.value_type)}>"
    if pa.types.is_struct(kind):
        inside = (kind.field(at) for at in range(kind.num_fields))
        return f"struct<{','.join(f'{each.name}:{type_name(each.type)}' for each in inside)}>"
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    return next((name for is_kind, name in _SPARK_NAMES if is_kind(kind)), re.sub(r"\s", "", str(kind)))
