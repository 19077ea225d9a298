"""What a reader is, and the canonical raw frame that every reader gives.

A reader turns one evaluation format into the same columns, without judging any value: ids are literal text, scores,
dates and attempts keep the type they were stored with (text stays text). `cbmm_spark.responses.rules` alone
judges them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from cbmm_spark.config.schema import ColumnsConfig, IngestConfig
from cbmm_spark.errors import InputError
from cbmm_spark.readers.listing import Listing
from cbmm_spark.readers.rows import FIRST_ATTEMPT, Scan

RAW_COLUMNS = (
    "model_id", "benchmark", "item_id", "attempt", "score_raw", "evaluated_at_raw", "content_hash", "source",
    "position", "problem", "raw",
)  # fmt: skip
"""Columns of the raw frame.

model_id, benchmark, item_id
    Text exactly as stored; null where the source has null.
attempt, score_raw, evaluated_at_raw
    As stored: text, or the type of a typed source.
content_hash
    Text that tells one content of an item from another, where the format has it, else null. Two contents under one id
    are a conflict.
source, position
    The file, and the row within it from 0 where the format has one (else null).
problem
    A reason for quarantine that only the reader can see (such as `malformed_row`), or one of `LEFT_OUT`, or null.
raw
    The row as JSON. Computed only for rows that are refused.
"""

ROLES = ("model", "item", "score", "benchmark", "attempt", "date")

_ID_TYPES = (T.StringType, T.CharType, T.VarcharType, T.IntegralType, T.DecimalType, T.FractionalType, T.BooleanType,
             T.BinaryType)  # fmt: skip
_SCORE_TYPES = (T.StringType, T.CharType, T.VarcharType, T.NumericType, T.BooleanType, T.NullType)
_DATE_TYPES = (T.StringType, T.CharType, T.VarcharType, T.IntegralType, T.DateType, T.TimestampType, T.TimestampNTZType,
               T.NullType)  # fmt: skip


@dataclass(frozen=True)
class ReadOptions:
    """What the person who started the ingest said about the source.

    Attributes
    ----------
    rules
        `[ingest]` of the configuration.
    benchmark, model
        Given on the command line, for a source without such a column.
    items
        A file or list of all items of a benchmark, for formats that list only some of them.
    """

    rules: IngestConfig = field(default_factory=IngestConfig)
    benchmark: str | None = None
    model: str | None = None
    items: str | None = None

    @property
    def columns(self) -> ColumnsConfig:
        """The names under which each column may be found."""
        return self.rules.columns

    @property
    def default_benchmark(self) -> str:
        """The benchmark of a source that does not name one."""
        return self.rules.default_benchmark


@dataclass(frozen=True)
class Sample:
    """What detection may look at.

    Attributes
    ----------
    path
        As the user gave it.
    files
        Paths of the files behind it, sorted.
    first_line
        Of one of the files, as text (bytes that are not text are replaced); empty where the names say Parquet.
    parquet_columns
        Column names where the files are Parquet.
    is_delta
        Whether the folder has a Delta log.
    columns
        The accepted column names.
    beginning
        The first lines of the file of `first_line`, for formats whose first line tells nothing.
    listing
        The files themselves, where the input is read without Spark.
    """

    path: str
    files: Sequence[str]
    first_line: str
    parquet_columns: Sequence[str]
    is_delta: bool
    columns: ColumnsConfig
    beginning: str = ""
    listing: Listing | None = None


@dataclass(frozen=True)
class RawFrame:
    """What a reader gives.

    Attributes
    ----------
    frame
        `RAW_COLUMNS`, and after them any columns, named with an underscore first, that `defaults` are about.
    notes
        What was decided on the way for the whole source, in sentences for the report.
    defaults
        Conditions on the columns of `frame`, by what they say: how many rows each default was applied to is counted for
        the report.
    is_columnar
        Whether reading a few columns again is cheaper than keeping them.
    numbered
        Gives `frame` with the positions of rows, of some files alone, where `frame` itself has none: a dearer way to
        read, taken for files with refused rows.
    first_line
        The line of a file, from 1, on which its row 0 is, where rows are lines.
    """

    frame: DataFrame
    notes: tuple[str, ...] = ()
    defaults: Mapping[str, Column] = field(default_factory=dict)
    is_columnar: bool = False
    numbered: Callable[[Sequence[str]], DataFrame] | None = None
    first_line: int | None = None

    def changed(self, change: Callable[[DataFrame], DataFrame]) -> RawFrame:
        """The same with every row changed, however it is read."""
        numbered = self.numbered
        again = None if numbered is None else lambda sources: change(numbered(sources))
        return dataclasses.replace(self, frame=change(self.frame), numbered=again)


@dataclass(frozen=True)
class Reader:
    """One evaluation format.

    Attributes
    ----------
    name
        As given to `--format`.
    description
        One line for the help text.
    detect
        Why the sample is of this format, or None.
    read
        Gives the raw frame; lazily, no row is read yet.
    scan
        Reads the files of `Sample.listing` without Spark, where the format has such a reader.
    """

    name: str
    description: str
    detect: Callable[[Sample], str | None]
    read: Callable[[SparkSession, Sample, ReadOptions], RawFrame]
    scan: Callable[[Sample, ReadOptions], Scan] | None = None


@dataclass(frozen=True)
class Roles:
    """Which column of a source plays which role."""

    names: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def find(role: str, present: Sequence[str], columns: ColumnsConfig) -> list[str]:
    """The columns that may play a role, in order of preference: by exact name, else by name without regard to case."""
    aliases = getattr(columns, role)
    exact = [alias for alias in aliases if alias in present]
    if exact:
        return exact
    return [name for alias in aliases for name in present if name.casefold() == alias.casefold()]


def assign_roles(present: Sequence[str], options: ReadOptions, path: str) -> Roles:
    """Find each role's column by the configured names; the first name of a role's list that is there is taken.

    Raises
    ------
    InputError
        A needed column is missing (the message lists those found and the names accepted), or one was given twice over.
    """
    names: dict[str, str] = {}
    notes: list[str] = []
    for role in ROLES:
        found = find(role, present, options.columns)
        if found:
            names[role] = found[0]
        if len(found) > 1:
            notes.append(
                f"column {found[0]} was taken as {role}, {', '.join(found[1:])} left out "
                f"(ingest.columns.{role} sets the order)"
            )
    _check_roles(names, present, options, path)
    return Roles(names, tuple(notes))


def _check_roles(names: dict[str, str], present: Sequence[str], options: ReadOptions, path: str) -> None:
    for role, given in (("model", options.model), ("benchmark", options.benchmark)):
        if given is not None and role in names:
            raise InputError(f"{path} has a column {names[role]}: leave out --{role}")
    needed = [role for role in ("model", "item", "score") if not (role == "model" and options.model is not None)]
    missing = [role for role in needed if role not in names]
    if missing:
        wanted = "; ".join(f"{role} ({' or '.join(getattr(options.columns, role))})" for role in missing)
        hint = "; a single model's results need --model NAME" if missing == ["model"] else ""
        raise InputError(f"{path} has no column for {wanted}. Its columns are: {_listed(present)}{hint}")


def _listed(names: Sequence[str], most: int = 20) -> str:
    shown = ", ".join(repr(name) if name.strip() != name or not name else name for name in names[:most])
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")


def column(name: str) -> Column:
    """A column by its literal name, whatever characters it has."""
    escaped = name.replace("`", "``")
    return F.col(f"`{escaped}`")


def canonical(
    frame: DataFrame,
    roles: Roles,
    options: ReadOptions,
    path: str,
    *,
    source: Column,
    raw: Column,
    position: Column | None = None,
    problem: Column | None = None,
    flags: Mapping[str, str] | None = None,
) -> RawFrame:
    """Give a long frame its canonical columns.

    Parameters
    ----------
    frame, roles
        Rows, and which of their columns plays which role.
    options, path
        As for a reader.
    source, raw, position, problem
        As in `RAW_COLUMNS`.
    flags
        The columns of the flags of `[ingest.flags]`, by the flags' names; None: those of the same name.

    Raises
    ------
    InputError
        A column has a type that cannot hold what it should (a list as a model's name).
    """
    types = {each.name: each.dataType for each in frame.schema.fields}
    for role, allowed in (
        ("model", _ID_TYPES), ("item", _ID_TYPES), ("benchmark", _ID_TYPES),
        ("score", _SCORE_TYPES), ("attempt", _SCORE_TYPES), ("date", _DATE_TYPES),
    ):  # fmt: skip
        name = roles.names.get(role)
        if name is not None and not isinstance(types[name], allowed):
            raise InputError(f"{path}: column {name} is of type {types[name].simpleString()}, which cannot be a {role}")

    def text(role: str, otherwise: str) -> Column:
        return column(roles.names[role]).cast("string") if role in roles.names else F.lit(otherwise)

    def as_stored(role: str, otherwise: Column) -> Column:
        return column(roles.names[role]) if role in roles.names else otherwise

    benchmark = options.benchmark if options.benchmark is not None else options.default_benchmark
    columns = {name: name for name in options.rules.flags if name in types} if flags is None else flags
    set_flags = {name: is_true(at, types[at]) for name, at in columns.items()}
    score, unreadable = as_stored("score", F.lit(None)), F.lit(False)
    for name, is_set in set_flags.items():
        verdict = F.lit(None) if options.rules.flags[name] == "missing" else F.lit(0)
        score = F.when(is_set, verdict).otherwise(score)
        unreadable |= ~is_flag(columns[name], types[columns[name]])
    told = F.lit(None).cast("string") if problem is None else problem
    return RawFrame(
        frame.select(
            text("model", options.model or "").alias("model_id"),
            text("benchmark", benchmark).alias("benchmark"),
            text("item", "").alias("item_id"),
            as_stored("attempt", F.lit(FIRST_ATTEMPT)).alias("attempt"),
            score.alias("score_raw"),
            as_stored("date", F.lit(None).cast("timestamp")).alias("evaluated_at_raw"),
            F.lit(None).cast("string").alias("content_hash"),
            source.alias("source"),
            (F.lit(None).cast("long") if position is None else position).alias("position"),
            F.coalesce(told, F.when(unreadable, "unreadable_score")).alias("problem"),
            raw.alias("raw"),
            *(is_set.alias(f"_flag {name}") for name, is_set in set_flags.items()),
        ),
        (*roles.notes, *absent_flags(options, columns)),
        {**assumed(roles, options), **_counted_flags(options, columns)},
    )


TRUE_TEXTS, FALSE_TEXTS = ("true", "1", "1.0"), ("false", "0", "0.0", "", "nan", "null")
"""Texts, in small letters, of a flag that is set and of one that is not."""


def is_true(name: str, kind: T.DataType) -> Column:
    """Whether the flag in a column is set."""
    is_set = column(name) if isinstance(kind, T.BooleanType) else _plain(name).isin(*TRUE_TEXTS)
    return F.coalesce(is_set, F.lit(False))


def is_flag(name: str, kind: T.DataType) -> Column:
    """Whether the value of a column is true, false or absent."""
    if isinstance(kind, T.BooleanType):
        return F.lit(True)
    return F.coalesce(_plain(name).isin(*TRUE_TEXTS, *FALSE_TEXTS), F.lit(True))


def _plain(name: str) -> Column:
    return F.lower(F.trim(column(name).cast("string")))


def _counted_flags(options: ReadOptions, columns: Mapping[str, str]) -> dict[str, Column]:
    taken = F.col("problem").isNull()
    return {flag_counted(name, options): taken & column(f"_flag {name}") for name in columns}


def flag_counted(name: str, options: ReadOptions) -> str:
    """What the report says of the rows in which a flag is set."""
    words = {"wrong": "wrong", "missing": "no verdict"}
    return f"{name} counted as {words[options.rules.flags[name]]} (ingest.flags)"


def absent_flags(options: ReadOptions, columns: Collection[str]) -> tuple[str, ...]:
    """What the report says of flags that the source has no column for."""
    missing = [name for name in options.rules.flags if name not in columns]
    return (f"no column for {', '.join(missing)} of ingest.flags",) if missing else ()


def assumed(roles: Roles, options: ReadOptions) -> dict[str, Column]:
    """Return the defaults that stand for columns the source does not have: they hold for every row."""
    return {sentence: F.lit(True) for sentence in assumptions(roles, options)}


def assumptions(roles: Roles, options: ReadOptions) -> tuple[str, ...]:
    """What the report says of columns that the source does not have."""
    found: list[str] = []
    if "benchmark" not in roles.names and options.benchmark is None:
        found.append(f"no benchmark named: ingest.default_benchmark ({options.default_benchmark}) was taken")
    if "attempt" not in roles.names:
        found.append(f"no column for the attempt: every row is attempt {FIRST_ATTEMPT}")
    return tuple(found)


def unquoted(number: Column) -> Column:
    """Take off the quotes that Spark gives to NaN and Infinity of a JSON text where these stood without."""
    return F.regexp_replace(number, '^"([+-]?(?:NaN|INF|Infinity))"$', "$1")


def row_as_json(frame: DataFrame, leave_out: Sequence[str] = ()) -> Column:
    """All columns of a row as a JSON object, nulls included."""
    kept = [column(name) for name in frame.columns if name not in leave_out]
    return F.to_json(F.struct(*kept), {"ignoreNullFields": "false"})
