"""What a response may be: validation, the fraction policy and the resolution of duplicates, as Spark SQL expressions.

Every row either fulfils the contract of the `responses` table or carries one reason out of `REASONS`. Nothing is
dropped, nothing is guessed: an unreadable score is never a wrong answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from cbmm_spark.config.schema import IngestConfig
from cbmm_spark.readers.mapping import full_score

REASONS = (
    "malformed_row",
    "unknown_metric",
    "unknown_item",
    "missing_model",
    "missing_benchmark",
    "missing_item",
    "missing_score",
    "undecodable_model",
    "undecodable_benchmark",
    "undecodable_item",
    "space_around_model",
    "space_around_benchmark",
    "space_around_item",
    "unreadable_attempt",
    "unreadable_score",
    "score_out_of_range",
    "fractional_score",
    "unreadable_date",
    "conflicting_duplicate",
)
"""Why a row is refused. A row with several faults has the first of this order."""

KEY = ("benchmark", "model_id", "item_id", "attempt")
"""What identifies a response."""

HASHED_KEY = ("benchmark_bucket", "model_hash", "item_hash", "attempt")
"""The same within a batch (`names`); the hash of an item is of its benchmark too."""

SLICES = 32
"""Slices of a benchmark's models: an ingest shuffles by benchmark and slice, which bounds its files per benchmark."""

MISSING = -1.0
"""Stands for "no verdict" where scores are compared; no score is negative."""

# What has no ink at either end of a name: ASCII and Unicode white space, and the byte order mark.
_BLANKS = "".join(map(chr, (*range(9, 14), *range(28, 33), 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029,
                            0x202F, 0x205F, 0x3000, 0xFEFF)))  # fmt: skip
_NO_VERDICT = ("", "nan", "null")
_INFINITE = r"^[+-]?inf(inity)?$"
_NUMBER = r"^[+-]?([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][+-]?[0-9]+)?$"
_TIME = r"[0-9]:[0-9]{2}"
_OFFSET = r"(Z|[+-][0-9]{2}:?[0-9]{2})$"
_INTEGER = r"^[+-]?[0-9]{1,10}([.]0*)?$"


def validate(raw: DataFrame, config: IngestConfig) -> DataFrame:
    """Read and judge every row of a raw frame.

    Parameters
    ----------
    raw
        The columns `readers.RAW_COLUMNS`.
    config
        Statuses, full scores, fraction policy, threshold and date patterns.

    Returns
    -------
    DataFrame
        benchmark, model_id, item_id (strings, unchanged), attempt (int), score (double in [0, 1] or null),
        evaluated_at (timestamp), content_hash, source, position, reason (null for an acceptable row), raw.
    """
    read = _read_values(raw, config)
    number = F.col("number")
    faults: list[tuple[Column, str | Column]] = [(F.col("problem").isNotNull(), F.col("problem"))]
    names = (("model_id", "model"), ("benchmark", "benchmark"), ("item_id", "item"))
    faults += [(_is_blank(F.col(name)), f"missing_{short}") for name, short in names]
    faults += [(_is_undecodable(F.col(name)), f"undecodable_{short}") for name, short in names]
    faults += [(_has_space_around(F.col(name)), f"space_around_{short}") for name, short in names]
    faults += [
        (F.col("attempt").isNull(), "unreadable_attempt"),
        (F.col("unreadable"), "unreadable_score"),
        ((number < 0.0) | (number > 1.0), "score_out_of_range"),
    ]
    if config.fractions == "reject":
        faults.append((_is_fraction(number), "fractional_score"))
    faults.append((F.col("date_unreadable"), "unreadable_date"))
    return read.select(
        "benchmark", "model_id", "item_id", "attempt", _by_policy(number, config).alias("score"),
        "evaluated_at", "content_hash", "source", "position", _first_fault(faults).alias("reason"), "raw",
    )  # fmt: skip


def judge(raw: DataFrame, config: IngestConfig) -> DataFrame:
    """Judge every row as `validate` does, without saying why.

    The condition is written for speed: whatever accepted rows of an input cost, they cost in here. The code that Spark
    makes of `validate` is longer than what the JVM compiles, and takes five times as long.

    Parameters
    ----------
    raw, config
        As for `validate`.

    Returns
    -------
    DataFrame
        benchmark, model_id, item_id, attempt, score, evaluated_at, content_hash, source and position as `validate`
        gives them, and is_accepted: whether it gives no reason.
    """
    read = _read_values(raw, config)
    number = F.col("number")
    accepted = F.col("problem").isNull() & F.col("attempt").isNotNull() & ~F.col("unreadable")
    for name in ("model_id", "benchmark", "item_id"):
        accepted &= _is_clean(F.col(name)) & ~_is_undecodable(F.col(name))
    accepted &= F.coalesce(number.between(0.0, 1.0), F.lit(True)) & ~F.col("date_unreadable")
    if config.fractions == "reject":
        accepted &= ~F.coalesce(_is_fraction(number), F.lit(False))
    return read.select(
        "benchmark", "model_id", "item_id", "attempt", _by_policy(number, config).alias("score"),
        "evaluated_at", "content_hash", "source", "position", accepted.alias("is_accepted"),
    )  # fmt: skip


def _read_values(raw: DataFrame, config: IngestConfig) -> DataFrame:
    """The raw columns with attempt, number, evaluated_at as values, and whether score and date cannot be read."""
    types = {field.name: field.dataType for field in raw.schema.fields}
    full = full_score(config, F.col("benchmark"))
    number, unreadable = _read_score(F.col("score_raw"), types["score_raw"], config.status, full)
    attempt = _read_attempt(F.col("attempt"), types["attempt"])
    date, date_unreadable = _read_date(F.col("evaluated_at_raw"), types["evaluated_at_raw"], config.date_formats)
    return raw.select(
        "benchmark", "model_id", "item_id", "content_hash", "source", "position", "problem", "raw",
        attempt.alias("attempt"), number.alias("number"), unreadable.alias("unreadable"),
        date.alias("evaluated_at"), date_unreadable.alias("date_unreadable"),
    )  # fmt: skip


def applied_defaults(raw: DataFrame, config: IngestConfig) -> dict[str, Column]:
    """Return what is assumed about single rows where the source does not say it: conditions on the raw columns.

    Parameters
    ----------
    raw
        As for `validate`.
    config
        As for `validate`.

    Returns
    -------
    dict
        From a sentence of the report to the rows it holds for.
    """
    types = {field.name: field.dataType for field in raw.schema.fields}
    found: dict[str, Column] = {}
    if _is_text(types["score_raw"]):
        text = F.lower(_trimmed(F.col("score_raw")))
        for status, meaning in config.status.items():
            shown = "no verdict" if meaning == "missing" else f"score {meaning:g}"
            found[f"status {status!r} taken as {shown} (ingest.status)"] = text == status.lower()
    fraction = _fraction(types["score_raw"], config)
    if fraction is not None:
        found[_FRACTIONS[config.fractions].format(threshold=config.threshold)] = F.col("problem").isNull() & fraction
    if _is_text(types["evaluated_at_raw"]):
        date = _trimmed(F.col("evaluated_at_raw"))
        has_time = date.rlike(_TIME) & ~date.rlike(_OFFSET)
        found["time without an offset taken as UTC"] = has_time
    return found


_FRACTIONS = {
    "soft": "score between 0 and 1 kept as a fraction (ingest.fractions = soft)",
    "threshold": "score between 0 and 1 taken as 1 from {threshold:g} on, as 0 below (ingest.fractions = threshold)",
}


def _fraction(kind: T.DataType, config: IngestConfig) -> Column | None:
    """Whether a raw score lies between 0 and 1 and is taken so; None where none can."""
    full = full_score(config, F.col("benchmark"))
    if config.fractions == "reject":
        return None
    if full is None and isinstance(kind, T.IntegralType | T.BooleanType | T.NullType):
        return None
    return _is_fraction(_read_score(F.col("score_raw"), kind, config.status, full)[0])


def _is_fraction(number: Column) -> Column:
    return (number > 0.0) & (number < 1.0)


def _by_policy(number: Column, config: IngestConfig) -> Column:
    if config.fractions != "threshold":
        return number
    return F.when(_is_fraction(number), (number >= F.lit(config.threshold)).cast("double")).otherwise(number)


def _first_fault(faults: list[tuple[Column, str | Column]]) -> Column:
    reason = F.lit(None).cast("string")
    for condition, name in reversed(faults):
        reason = F.when(condition, F.lit(name) if isinstance(name, str) else name).otherwise(reason)
    return reason


def _trimmed(column: Column) -> Column:
    return F.trim(column, F.lit(_BLANKS))


def _is_clean(name: Column) -> Column:
    """Whether a name is neither blank nor has space around it.

    Nearly all names begin and end with a printable ASCII character, which is seen without looking at what is between
    (text is compared byte by byte).
    """
    last = F.substring(name.cast("binary"), -1, 1)
    is_plain = (name >= "!") & (name < "\x7f") & (last >= F.lit(b"!")) & (last < F.lit(b"\x7f"))
    return F.coalesce(is_plain | ((_trimmed(name) == name) & (name != "")), F.lit(False))


def _is_undecodable(name: Column) -> Column:
    """Whether a name holds the mark for bytes that were no UTF-8: several names may have become one."""
    return F.contains(name, F.lit("\ufffd"))


def _is_blank(column: Column) -> Column:
    return column.isNull() | (_may_have_space_around(column) & (F.length(_trimmed(column)) == 0))


def _has_space_around(column: Column) -> Column:
    return _may_have_space_around(column) & (F.octet_length(_trimmed(column)) < F.octet_length(column))


def _may_have_space_around(column: Column) -> Column:
    """Whether the first or last character is not a printable ASCII one; trimming a set of characters is ten times
    dearer.

    `ascii` gives the code of the first character, 0 for empty text.
    """
    first, last = F.ascii(column), F.ascii(F.substring(column, -1, 1))
    return ~(first.between(33, 126) & last.between(33, 126))


def _is_text(kind: T.DataType) -> bool:
    return isinstance(kind, T.StringType | T.CharType | T.VarcharType)


def _read_score(
    column: Column, kind: T.DataType, status: Mapping[str, float | Literal["missing"]], full: Column | None
) -> tuple[Column, Column]:
    """The score as a double (null: no verdict; infinite where so written) and whether it cannot be read.

    Numbers count as shares of `full`; true, false and statuses are verdicts already.
    """

    def share(number: Column) -> Column:
        # + 0.0 turns -0.0 into 0.0.
        positive = number + F.lit(0.0)
        return positive if full is None else positive / full

    if isinstance(kind, T.NullType):
        return F.lit(None).cast("double"), F.lit(False)
    if isinstance(kind, T.BooleanType):
        return column.cast("double"), F.lit(False)
    if not _is_text(kind):
        number = column.cast("double")
        return F.when(~F.isnan(number), share(number)), F.lit(False)  # NaN: there is no verdict
    text = F.lower(_trimmed(column))
    is_number = text.rlike(_NUMBER)
    one = F.lit(1.0)
    number = (
        F.when(text == "1", one if full is None else share(one))
        .when(text == "0", 0.0)
        .when(text == "true", 1.0)
        .when(text == "false", 0.0)
        .when(is_number, share(text.try_cast("double")))
        .when(text.rlike(_INFINITE), F.lit(float("inf")))
    )
    for name, meaning in status.items():
        if meaning != "missing":
            number = number.when(text == name.lower(), F.lit(meaning))
    no_verdict = (*_NO_VERDICT, *(name.lower() for name, meaning in status.items() if meaning == "missing"))
    unreadable = number.isNull() & text.isNotNull() & ~text.isin(*no_verdict)
    return number, F.coalesce(unreadable, F.lit(False))


def _read_attempt(column: Column, kind: T.DataType) -> Column:
    """The attempt as an int from 0, null where it is no such number ("2.0", as pandas writes it, is one)."""
    if _is_text(kind):
        text = _trimmed(column)
        number = F.when(text.rlike(_INTEGER), text.try_cast("double"))
    elif isinstance(kind, T.NumericType):
        number = column.cast("double")
    else:
        return F.lit(None).cast("int")
    whole = (number == F.floor(number)) & number.between(0.0, float((1 << 31) - 1))
    return F.when(whole, number.try_cast("int"))


def _read_date(column: Column, kind: T.DataType, patterns: tuple[str, ...]) -> tuple[Column, Column]:
    """The date as a UTC timestamp (null: none given) and whether it cannot be read."""
    if isinstance(kind, T.NullType):
        return F.lit(None).cast("timestamp"), F.lit(False)
    if isinstance(kind, T.DateType | T.TimestampType | T.TimestampNTZType):
        return column.cast("timestamp"), F.lit(False)
    text = _trimmed(column.cast("string"))
    given = F.when(F.length(text) > 0, text)
    date = F.coalesce(*(F.try_to_timestamp(given, F.lit(pattern)) for pattern in patterns))
    return date, given.isNotNull() & date.isNull()


def one_row_per_key(valid: DataFrame) -> DataFrame:
    """Bring the rows of each key together: one shuffle, whose layout is also that of the files written.

    Parameters
    ----------
    valid
        Acceptable rows: the hashed key, score, evaluated_at, source_hash.

    Returns
    -------
    DataFrame
        The hashed key, n_rows, lowest and highest score (`MISSING` where there is no verdict), evaluated_at (the
        earliest date) and source_hash (the smallest). The scores of a key disagree where lowest < highest. All columns
        are of fixed width, so that Spark hashes and does not sort.
    """
    score = F.coalesce("score", F.lit(MISSING))
    slice_of_models = F.pmod("model_hash", F.lit(SLICES))
    spread = valid.withColumn("slice", slice_of_models).repartition("benchmark_bucket", "slice")
    return (
        spread.groupBy("slice", *HASHED_KEY)
        .agg(
            F.count("*").alias("n_rows"),
            F.min(score).alias("lowest"),
            F.max(score).alias("highest"),
            F.min("evaluated_at").alias("evaluated_at"),
            F.min("source_hash").alias("source_hash"),
        )
        .drop("slice")
    )


def resolve_conflicts(rows: DataFrame, rule: Literal["latest", "first"]) -> DataFrame:
    """Decide keys whose rows disagree, by date and not by the order of the rows.

    Parameters
    ----------
    rows
        All acceptable rows of the keys in question.
    rule
        `latest` or `first` by evaluated_at; a row without a date counts as the oldest for `latest` and the newest for
        `first`, so that it never wins against a dated one.

    Returns
    -------
    DataFrame
        As `one_row_per_key`. lowest < highest still where the rows of the winning date disagree: undecidable.
    """
    winning_date = F.max("evaluated_at") if rule == "latest" else F.min("evaluated_at")
    best = rows.groupBy(*HASHED_KEY).agg(F.count("*").alias("n_rows"), winning_date.alias("winning_date"))
    score = F.coalesce("score", F.lit(MISSING))
    return (
        rows.join(best, on=list(HASHED_KEY))
        .where(F.col("evaluated_at").eqNullSafe(F.col("winning_date")))
        .groupBy(*HASHED_KEY)
        .agg(
            F.max("n_rows").alias("n_rows"),
            F.min(score).alias("lowest"),
            F.max(score).alias("highest"),
            F.max("winning_date").alias("evaluated_at"),
            F.min("source_hash").alias("source_hash"),
        )
    )
