"""What a response may be: rules for names, attempts, scores and dates, as functions on Arrow columns.

Every row either fulfils the contract of the `responses` table or carries one reason out of `REASONS`. Nothing is
dropped, nothing is guessed: an unreadable score is never a wrong answer.

This is the one definition of what a score means. Spark runs it on batches (`ingest.gather`), and one process can run it
without Spark. Columns are looked at value by distinct value: what a rule costs follows the distinct texts, not the
rows.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cbmm_spark.config.schema import ANY, IngestConfig
from cbmm_spark.readers.rows import LEFT_OUT, Rows
from cbmm_spark.responses.date_patterns import DatePatterns

Codes = npt.NDArray[np.int32]
Flags = npt.NDArray[np.bool_]

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

NO_DATE = np.iinfo(np.int64).min
"""Stands for "no date" among microseconds."""

_ACCEPTED = -1
_ALL_REASONS = (*LEFT_OUT, *REASONS)
_CODE = {name: code for code, name in enumerate(_ALL_REASONS)}

# What has no ink at either end of a name: ASCII and Unicode white space, and the byte order mark.
_BLANKS = "".join(map(chr, (*range(9, 14), *range(28, 33), 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029,
                            0x202F, 0x205F, 0x3000, 0xFEFF)))  # fmt: skip
_NO_VERDICT = ("", "nan", "null")
_INFINITE = re.compile(r"[+-]?inf(inity)?")
_NUMBER = re.compile(r"[+-]?([0-9]+[.]?[0-9]*|[.][0-9]+)(e[+-]?[0-9]+)?")
_TIME = re.compile(r"[0-9]:[0-9]{2}")
_OFFSET = re.compile(r"(Z|[+-][0-9]{2}:?[0-9]{2})$")
_INTEGER = re.compile(r"[+-]?[0-9]{1,10}([.]0*)?")
_LARGEST_ATTEMPT = (1 << 31) - 1

_FRACTIONS = {
    "soft": "score between 0 and 1 kept as a fraction (ingest.fractions = soft)",
    "threshold": "score between 0 and 1 taken as 1 from {threshold:g} on, as 0 below (ingest.fractions = threshold)",
}


@dataclass(frozen=True)
class Coded:
    """A column by its distinct values: `values[codes[i]]` is that of row i; code −1 is null."""

    codes: Codes
    values: Sequence[str]

    @classmethod
    def of(cls, array: pa.Array) -> Coded:
        """Take a column of texts apart."""
        coded = array if pa.types.is_dictionary(array.type) else array.dictionary_encode()
        codes = coded.indices.cast(pa.int32()).fill_null(-1).to_numpy(zero_copy_only=False)
        return cls(codes, coded.dictionary.to_pylist())

    def where(self, is_so: Callable[[str], bool]) -> Flags | None:
        """The rows whose value is so; None where no value is."""
        of_values = [is_so(value) for value in self.values]
        return self.spread(of_values) if any(of_values) else None

    def spread(self, of_values: Sequence[bool]) -> Flags:
        """From flags of values to flags of rows; null is not so."""
        return np.array([*of_values, False], dtype=np.bool_)[self.codes]

    def is_null(self) -> Flags | None:
        """The rows without a value; None where all have one."""
        missing = self.codes < 0
        return missing if missing.any() else None

    def renamed(self, names: Mapping[str, str]) -> tuple[Coded, Flags | None]:
        """The column under the names that values are stored under, and the rows that this changed."""
        changed = self.where(lambda value: names.get(value, value) != value)
        return (self, None) if changed is None else (Coded(self.codes, [names.get(v, v) for v in self.values]), changed)


@dataclass(frozen=True)
class Judged:
    """Rows as values, and which of them are accepted.

    Attributes
    ----------
    model, benchmark, item, source
        Names; benchmark and model as they are stored.
    attempt
        From 0; of accepted rows.
    score
        Between 0 and 1, NaN where there is no verdict; of accepted rows.
    date
        Microseconds since 1970, UTC; `NO_DATE` where none is given.
    content
        Contents of items; None where the source tells none.
    reason
        Per row the place in `_ALL_REASONS`, −1 where it is accepted.
    defaults
        What was assumed where the source does not say it, and about how many rows.
    """

    model: Coded
    benchmark: Coded
    item: Coded
    source: Coded
    attempt: npt.NDArray[np.int32]
    score: npt.NDArray[np.float64]
    date: npt.NDArray[np.int64]
    content: Coded | None
    reason: npt.NDArray[np.int8]
    defaults: Mapping[str, int]

    @property
    def is_accepted(self) -> Flags:
        """The rows that are responses."""
        return self.reason == _ACCEPTED

    def reasons(self) -> dict[str, int]:
        """How many rows were refused or left out, by reason."""
        counts = np.bincount(self.reason[self.reason >= 0], minlength=len(_ALL_REASONS))
        return {name: int(counts[code]) for name, code in _CODE.items() if counts[code]}

    def refused(self) -> npt.NDArray[np.int64]:
        """The numbers of the rows that go to quarantine."""
        return np.flatnonzero(self.reason >= len(LEFT_OUT))

    def reason_of(self, row: int) -> str:
        """Why a row was refused."""
        return _ALL_REASONS[self.reason[row]]


def judge(rows: Rows, rules: IngestConfig) -> Judged:
    """Read and judge every row.

    Parameters
    ----------
    rows
        As a reader gives them.
    rules
        Statuses, full scores, fraction policy, threshold, date patterns, other names of models and benchmarks.

    Raises
    ------
    ConfigError
        A pattern of dates cannot be read.
    """
    model, new_model = Coded.of(rows.model_id).renamed(rules.models)
    benchmark, new_benchmark = Coded.of(rows.benchmark).renamed(rules.benchmarks)
    item = Coded.of(rows.item_id)
    names = {"model": model, "benchmark": benchmark, "item": item}
    defaults = {name: _how_many(flags, len(rows)) for name, flags in rows.defaults.items()}
    for kind, changed in (("model", new_model), ("benchmark", new_benchmark)):
        if changed is not None:
            defaults[f"{kind} renamed by ingest.{kind}s"] = int(changed.sum())

    attempt, bad_attempt = _read_attempt(rows.attempt)
    score, bad_score = _read_score(rows.score, rules, benchmark, defaults)
    date, bad_date = _read_date(rows.evaluated_at, DatePatterns(rules.date_formats), defaults)
    is_fraction = (score > 0.0) & (score < 1.0)

    reason = np.full(len(rows), _ACCEPTED, dtype=np.int8)
    faults: list[tuple[str, Flags | None]] = [
        *((f"missing_{kind}", _either(names[kind].is_null(), names[kind].where(_is_blank))) for kind in names),
        *((f"undecodable_{kind}", names[kind].where(_is_undecodable)) for kind in names),
        *((f"space_around_{kind}", names[kind].where(_has_space_around)) for kind in names),
        ("unreadable_attempt", bad_attempt),
        ("unreadable_score", bad_score),
        ("score_out_of_range", (score < 0.0) | (score > 1.0)),
        ("fractional_score", is_fraction if rules.fractions == "reject" else None),
        ("unreadable_date", bad_date),
    ]
    for name, flags in reversed(faults):
        if flags is not None:
            reason[flags] = _CODE[name]
    told = _read_problem(rows.problem, reason)
    if rules.fractions in _FRACTIONS:
        defaults[_FRACTIONS[rules.fractions].format(threshold=rules.threshold)] = int((is_fraction & ~told).sum())
    if rules.fractions == "threshold":
        score = np.where(is_fraction, (score >= rules.threshold).astype(np.float64), score)
    return Judged(
        model=model,
        benchmark=benchmark,
        item=item,
        source=Coded.of(rows.source),
        attempt=attempt,
        score=score,
        date=date,
        content=None if rows.content_hash is None else Coded.of(rows.content_hash),
        reason=reason,
        defaults={name: count for name, count in defaults.items() if count},
    )


def _either(one: Flags | None, other: Flags | None) -> Flags | None:
    if one is None or other is None:
        return one if other is None else other
    return one | other


def _how_many(flags: Flags | bool, rows: int) -> int:
    return int(np.count_nonzero(flags)) if isinstance(flags, np.ndarray) else rows * bool(flags)


def _read_problem(problem: pa.Array | None, reason: npt.NDArray[np.int8]) -> Flags:
    """Write the reader's own problems over all other reasons; return the rows that have one."""
    if problem is None or problem.null_count == len(problem):
        return np.zeros(reason.size, dtype=np.bool_)
    column = Coded.of(problem)
    codes = np.array([*(_CODE[name] for name in column.values), _ACCEPTED], dtype=np.int8)[column.codes]
    told = codes != _ACCEPTED
    reason[told] = codes[told]
    return told


# --- names ---------------------------------------------------------------------------------------------------------
def _is_blank(name: str) -> bool:
    return not name.strip(_BLANKS)


def _is_undecodable(name: str) -> bool:
    """Whether a name holds the mark for bytes that were no UTF-8: several names may have become one."""
    return "\ufffd" in name


def _has_space_around(name: str) -> bool:
    return len(name.strip(_BLANKS)) < len(name)


# --- scores --------------------------------------------------------------------------------------------------------
def _read_score(
    array: pa.Array, rules: IngestConfig, benchmark: Coded, defaults: dict[str, int]
) -> tuple[npt.NDArray[np.float64], Flags | None]:
    """The score (NaN: no verdict; infinite where so written), and where it cannot be read.

    Numbers count as shares of the full score; true, false and statuses are verdicts already.
    """
    full = _full_score(rules, benchmark)
    if not _is_text(array.type):
        score = _as_floats(array)
        if full is not None and not pa.types.is_boolean(array.type):
            score = score / full
        return score + 0.0, None  # + 0.0 turns -0.0 into 0.0
    column = Coded.of(array)
    texts = [value.strip(_BLANKS).lower() for value in column.values]
    meanings = [_meaning(text, rules.status) for text in texts]
    score = np.array([*(value for value, _, _ in meanings), np.nan])[column.codes]
    if full is not None:
        is_share = column.spread([share for _, share, _ in meanings])
        score = np.where(is_share, score / full, score)
    for status, meaning in rules.status.items():
        shown = "no verdict" if meaning == "missing" else f"score {meaning:g}"
        flags = column.spread([text == status.lower() for text in texts])
        defaults[f"status {status!r} taken as {shown} (ingest.status)"] = int(flags.sum())
    unreadable = [is_unreadable for _, _, is_unreadable in meanings]
    return score + 0.0, column.spread(unreadable) if any(unreadable) else None


def _meaning(text: str, status: Mapping[str, Any]) -> tuple[float, bool, bool]:
    """The value of a text, whether it is a number that counts as a share, and whether it cannot be read."""
    if text in ("true", "false"):
        return float(text == "true"), False, False
    if _NUMBER.fullmatch(text):
        return float(text), True, False
    if _INFINITE.fullmatch(text):
        return math.inf, False, False
    by_name = {name.lower(): meaning for name, meaning in status.items()}
    if text in by_name and by_name[text] != "missing":
        return float(by_name[text]), False, False
    return math.nan, False, text not in _NO_VERDICT and text not in by_name


def _full_score(rules: IngestConfig, benchmark: Coded) -> npt.NDArray[np.float64] | None:
    """The score that means fully solved, by row; None where it is 1 throughout.

    An entry holds for a benchmark with its version, or for all versions.
    """
    table = rules.full_score
    if not table:
        return None
    everywhere = table.get(ANY, 1.0)
    full = [table.get(name, table.get(name.split("@")[0], everywhere)) for name in benchmark.values]
    return np.array([*full, everywhere], dtype=np.float64)[benchmark.codes]


# --- attempts and dates --------------------------------------------------------------------------------------------
def _read_attempt(array: pa.Array) -> tuple[npt.NDArray[np.int32], Flags | None]:
    """The attempt from 0, and where it is no such number ("2.0", as pandas writes it, is one)."""
    if _is_text(array.type):
        column = Coded.of(array)
        texts = [value.strip(_BLANKS) for value in column.values]
        of_values = [float(text) if _INTEGER.fullmatch(text) else math.nan for text in texts]
        number = np.array([*of_values, math.nan])[column.codes]
    elif pa.types.is_integer(array.type) and not array.null_count:
        number = array.to_numpy(zero_copy_only=False)
        bad = (number < 0) | (number > _LARGEST_ATTEMPT)
        return np.where(bad, 0, number).astype(np.int32), bad if bad.any() else None
    elif pa.types.is_floating(array.type) or pa.types.is_decimal(array.type) or pa.types.is_integer(array.type):
        number = _as_floats(array)
    else:
        number = np.full(len(array), math.nan)
    good = (number == np.floor(number)) & (number >= 0) & (number <= _LARGEST_ATTEMPT)  # NaN is none of these
    return np.where(good, number, 0).astype(np.int32), None if good.all() else ~good


def _read_date(
    array: pa.Array, patterns: DatePatterns, defaults: dict[str, int]
) -> tuple[npt.NDArray[np.int64], Flags | None]:
    """The date in microseconds, and where it cannot be read."""
    kind = array.type
    if pa.types.is_null(kind):
        return np.full(len(array), NO_DATE, dtype=np.int64), None
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return _as_microseconds(array), None
    column = Coded.of(array if _is_text(kind) else array.cast(pa.string()))
    texts = [value.strip(_BLANKS) for value in column.values]
    read = [patterns.read(text) if text else None for text in texts]
    date = np.array([*(NO_DATE if value is None else value for value in read), NO_DATE], dtype=np.int64)[column.codes]
    if _is_text(kind):
        without = [bool(_TIME.search(text)) and not _OFFSET.search(text) for text in texts]
        defaults["time without an offset taken as UTC"] = int(column.spread(without).sum())
    unreadable = [bool(text) and value is None for text, value in zip(texts, read, strict=True)]
    return date, column.spread(unreadable) if any(unreadable) else None


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _as_floats(array: pa.Array) -> npt.NDArray[np.float64]:
    """Numbers or booleans as float64, null as NaN."""
    if pa.types.is_null(array.type):
        return np.full(len(array), math.nan)
    if pa.types.is_boolean(array.type) or pa.types.is_float16(array.type):
        array = array.cast(pa.float32())
    floats = pc.cast(array, pa.float64(), safe=False)
    return np.asarray(floats.fill_null(math.nan).to_numpy(zero_copy_only=False))


def _as_microseconds(array: pa.Array) -> npt.NDArray[np.int64]:
    """Times without a zone are in UTC; nanoseconds are cut off."""
    kind = array.type
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        floor = np.floor_divide(array.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False), 1000)
    else:
        zone = kind.tz if pa.types.is_timestamp(kind) else None
        floor = array.cast(pa.timestamp("us", zone)).cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    missing = np.asarray(array.is_null())
    return np.where(missing, NO_DATE, floor) if missing.any() else np.asarray(floor)


__all__ = ["NO_DATE", "REASONS", "Coded", "Judged", "judge"]
