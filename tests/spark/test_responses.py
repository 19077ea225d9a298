"""Validation: every malformed value has its reason, nothing unreadable becomes a number."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from cbmm_spark.config.schema import IngestConfig
from cbmm_spark.ingest import rules as responses
from cbmm_spark.ingest.rules import REASONS, applied_defaults, validate

GOOD = {
    "model_id": "m",
    "benchmark": "b",
    "item_id": "i",
    "attempt": "1",
    "score_raw": "1",
    "evaluated_at_raw": "2024-05-01",
    "content_hash": None,
    "source": "f",
    "position": None,
    "problem": None,
    "raw": "{}",
}

RESULT = ("benchmark", "model_id", "item_id", "attempt", "score", "evaluated_at", "content_hash", "source")

NO_VERDICT = (None, "", " ", "NaN", "nan", "null", "NULL", "\t")
SCORES = {
    "1": 1.0, "0": 0.0, "1.0": 1.0, "0.0": 0.0, "true": 1.0, "True": 1.0, "FALSE": 0.0, " 1 ": 1.0, "0.5": 0.5,
    ".25": 0.25, "1e-3": 0.001, "+1": 1.0, "-0": 0.0, "-0.0": 0.0, "1.": 1.0, "0e0": 0.0, "10e-1": 1.0,
}  # fmt: skip
REFUSED = {
    **dict.fromkeys(
        ("maybe", "1.0.0", "1,0", "0x1", "1f", "1d", "½", "١", "yes", "pass", "1 0", "--1", "e5", ".", "1_0", "[1]",
         "None", "50%", "correct", "NaN1", "in", "+-inf"),
        "unreadable_score",
    ),
    **dict.fromkeys(
        ("50", "9", "99", "-1", "1.0000001", "-1e-9", "Infinity", "-Infinity", "inf", "+inf", "1e309"),
        "score_out_of_range",
    ),
}  # fmt: skip


def frame(spark: SparkSession, rows: list[Mapping[str, Any]], **kinds: T.DataType) -> DataFrame:
    """Raw rows, each `GOOD` with some values replaced; columns are text unless a type is given."""
    types = {name: kinds.get(name, T.LongType() if name == "position" else T.StringType()) for name in GOOD}
    schema = T.StructType([T.StructField(name, kind) for name, kind in types.items()])
    return spark.createDataFrame([tuple({**GOOD, **row}.values()) for row in rows], schema)


def judge(spark: SparkSession, column: str, values: list[Any], config: IngestConfig | None = None, **kinds: T.DataType):
    """Each value judged in an otherwise good row, in one job."""
    rows = [{column: value, "position": index} for index, value in enumerate(values)]
    raw, config = frame(spark, rows, **kinds), config or IngestConfig()
    fast = responses.judge(raw, config).toDF(*("fast_" + name for name in responses.judge(raw, config).columns))
    both = validate(raw, config).join(fast, F.col("position") == F.col("fast_position")).collect()
    for row in both:  # the fast judgement and the explained one are the same
        assert row["fast_is_accepted"] is (row["reason"] is None), row
        if row["reason"] is None:
            assert [row["fast_" + name] for name in RESULT] == [row[name] for name in RESULT]
    return [row for _, row in sorted((row["position"], row) for row in both)]


@pytest.fixture(scope="module")
def scores(spark: SparkSession) -> dict[Any, T.Row]:
    values = [*NO_VERDICT, *SCORES, *REFUSED]
    return dict(zip(values, judge(spark, "score_raw", values), strict=True))


@pytest.mark.parametrize("text", NO_VERDICT)
def test_no_verdict_is_kept_as_null(scores: dict[Any, T.Row], text: str | None) -> None:
    assert (scores[text]["score"], scores[text]["reason"]) == (None, None)


@pytest.mark.parametrize(("text", "score"), SCORES.items())
def test_readable_score(scores: dict[Any, T.Row], text: str, score: float) -> None:
    assert (scores[text]["score"], scores[text]["reason"]) == (score, None)
    assert math.copysign(1, scores[text]["score"]) == 1


@pytest.mark.parametrize(("text", "reason"), REFUSED.items())
def test_malformed_score_is_refused(scores: dict[Any, T.Row], text: str, reason: str) -> None:
    assert scores[text]["reason"] == reason


@pytest.mark.parametrize(
    ("kind", "values", "expected"),
    [
        (T.BooleanType(), [True, False, None], [1.0, 0.0, None]),
        (T.ByteType(), [0, 1, None, 9], [0.0, 1.0, None, "score_out_of_range"]),
        (T.LongType(), [0, 1, 50, -1], [0.0, 1.0, "score_out_of_range", "score_out_of_range"]),
        (T.FloatType(), [0.5, math.nan], [0.5, None]),
        (
            T.DoubleType(),
            [0.5, math.nan, math.inf, -math.inf, -0.0, 1.5],
            [0.5, None, "score_out_of_range", "score_out_of_range", 0.0, "score_out_of_range"],
        ),
        (T.DecimalType(4, 2), [Decimal("0.25"), Decimal("1.00"), Decimal("1.01")], [0.25, 1.0, "score_out_of_range"]),
    ],
    ids=lambda value: value.simpleString() if isinstance(value, T.DataType) else "",
)
def test_typed_scores(spark: SparkSession, kind: T.DataType, values: list[Any], expected: list[Any]) -> None:
    judged = judge(spark, "score_raw", values, score_raw=kind)
    assert [row["reason"] or row["score"] for row in judged] == expected


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (IngestConfig(fractions="soft"), [0.0, 0.3, 0.5, 0.7, 1.0]),
        (IngestConfig(fractions="threshold", threshold=0.5), [0.0, 0.0, 1.0, 1.0, 1.0]),
        (IngestConfig(fractions="reject"), [0.0, "fractional_score", "fractional_score", "fractional_score", 1.0]),
    ],
    ids=["soft", "threshold", "reject"],
)
def test_fractions_follow_the_policy(spark: SparkSession, config: IngestConfig, expected: list[Any]) -> None:
    judged = judge(spark, "score_raw", ["0", "0.3", "0.5", "0.7", "1"], config)
    assert [row["reason"] or row["score"] for row in judged] == expected


@pytest.mark.parametrize(("column", "short"), [("model_id", "model"), ("benchmark", "benchmark"), ("item_id", "item")])
def test_names_are_kept_or_refused_never_changed(spark: SparkSession, column: str, short: str) -> None:
    blank = [None, "", " ", "\t\n", "\u00a0", "\u3000", "\ufeff"]
    spaced = ["x ", " x", "x\n", "\tx", "x\u00a0", "\u2003x", "x\r", "\ufeffx"]
    broken = ["M\ufffdller", "\ufffd", "x\ufffd", "\ufffd\ufffdx"]  # bytes that were no UTF-8: several names become one
    good = ["007", "x y", "a\nb", "Org/X:1(2)#+@%", "'\"`", "😀", "x" * 300, "null", "NaN", "$", "é", "e\u0301"]
    judged = judge(spark, column, [*blank, *spaced, *broken, *good])
    reasons = [row["reason"] for row in judged]
    refused = ((blank, "missing"), (spaced, "space_around"), (broken, "undecodable"))
    assert reasons == [*(f"{why}_{short}" for names, why in refused for _ in names), *[None] * len(good)]
    assert [row[column] for row in judged[-len(good) :]] == good


def test_attempts(spark: SparkSession) -> None:
    cases = {"0": 0, "1": 1, "2.0": 2, " 3 ": 3, "+4": 4, "2147483647": 2147483647}
    refused = [None, "", "x", "1.5", "-1", "1e3", "2147483648", "99999999999", "NaN", "true"]
    judged = judge(spark, "attempt", [*cases, *refused])
    assert [row["attempt"] for row in judged[: len(cases)]] == list(cases.values())
    assert {row["reason"] for row in judged[: len(cases)]} == {None}
    assert {row["reason"] for row in judged[len(cases) :]} == {"unreadable_attempt"}
    typed = judge(spark, "attempt", [1.0, 1.5, math.nan, math.inf, None, -1.0], attempt=T.DoubleType())
    assert [row["attempt"] for row in typed] == [1, None, None, None, None, None]


def test_dates(spark: SparkSession) -> None:
    cases = {
        "2024-11-04": datetime(2024, 11, 4),
        "2024-11-04 19:18": datetime(2024, 11, 4, 19, 18),
        "2024-11-04T23:30:00Z": datetime(2024, 11, 4, 23, 30),
        "2024-11-04T01:00:00+02:00": datetime(2024, 11, 3, 23),
        "2024-11-04T01:00:00.250": datetime(2024, 11, 4, 1, 0, 0, 250000),
        " 2024-11-04 ": datetime(2024, 11, 4),
    }
    missing = [None, "", " "]
    refused = [
        "20241029",
        "20250805-",
        "10132025",
        "1730747887000",
        "2024-13-40",
        "2024-02-30",
        "yesterday",
        "04/11/2024",
    ]
    judged = judge(spark, "evaluated_at_raw", [*cases, *missing, *refused])
    found = [row["evaluated_at"] for row in judged]
    assert [instant(value) for value in found[: len(cases)]] == [value.replace(tzinfo=UTC) for value in cases.values()]
    assert found[len(cases) :] == [None] * (len(missing) + len(refused))
    reasons = [row["reason"] for row in judged]
    assert reasons == [None] * (len(cases) + len(missing)) + ["unreadable_date"] * len(refused)


def instant(value: datetime) -> datetime:
    """Spark hands out timestamps in the local zone of Python."""
    return value.astimezone(UTC)


def test_typed_dates_and_declared_patterns(spark: SparkSession) -> None:
    day = judge(spark, "evaluated_at_raw", [date(2024, 5, 1), None], evaluated_at_raw=T.DateType())
    assert [row["evaluated_at"] and instant(row["evaluated_at"]) for row in day] == [
        datetime(2024, 5, 1, tzinfo=UTC),
        None,
    ]
    plain = judge(spark, "evaluated_at_raw", [datetime(2024, 5, 1, 7)], evaluated_at_raw=T.TimestampNTZType())
    assert instant(plain[0]["evaluated_at"]) == datetime(2024, 5, 1, 7, tzinfo=UTC)
    compact = IngestConfig(date_formats=("yyyyMMdd",))
    number = judge(spark, "evaluated_at_raw", [20241029, 10132025], compact, evaluated_at_raw=T.IntegerType())
    assert [row["reason"] for row in number] == [None, "unreadable_date"]


def test_the_first_fault_is_named_and_all_reasons_are_listed(spark: SparkSession) -> None:
    rows = [
        {"position": 0, "problem": "malformed_row", "model_id": None},
        {"position": 1, "model_id": " ", "item_id": " ", "score_raw": "x"},
        {"position": 2, "item_id": "i ", "score_raw": "x"},
        {"position": 3, "score_raw": "x", "evaluated_at_raw": "x"},
    ]
    judged = sorted((row["position"], row["reason"]) for row in validate(frame(spark, rows), IngestConfig()).collect())
    reasons = [reason for _, reason in judged]
    assert reasons == ["malformed_row", "missing_model", "space_around_item", "unreadable_score"]
    assert set(reasons) | set(REFUSED.values()) <= set(REASONS)


# ------------------------------------------------------------------------------------- case R7: statuses
def test_a_status_is_what_configuration_says(spark: SparkSession) -> None:
    words = ["resolved", "Resolved ", "UNRESOLVED", "passed", "failed", "timeout", "empty", "error", "incomplete"]
    rows = judge(spark, "score_raw", words)
    assert [row["reason"] for row in rows] == [None] * len(words)
    assert [row["score"] for row in rows] == [1.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0, None, None]


def test_a_status_may_be_declared_otherwise(spark: SparkSession) -> None:
    declared = IngestConfig(status={"C": 1.0, "P": 0.5, "I": 0.0, "N": "missing", "error": 0.0})
    rows = judge(spark, "score_raw", ["C", "p", "I", "N", "error", "resolved"], declared)
    assert [row["score"] for row in rows] == [1.0, 0.5, 0.0, None, 0.0, None]
    assert [row["reason"] for row in rows] == [None] * 5 + ["unreadable_score"]


# ------------------------------------------------------------------------------------- case R2: full scores
@pytest.mark.parametrize("declared", [{"b": 100.0}, {"*": 100.0, "other": 1.0}, {"b": 100.0, "*": 1.0}])
def test_a_declared_full_score_divides(spark: SparkSession, declared: dict[str, float]) -> None:
    rows = judge(spark, "score_raw", ["100", "0", "50", "101", "1"], IngestConfig(full_score=declared))
    assert [row["score"] for row in rows] == [1.0, 0.0, 0.5, 1.01, 0.01]
    assert [row["reason"] for row in rows] == [None, None, None, "score_out_of_range", None]


def test_a_full_score_holds_for_every_version_unless_one_has_its_own(spark: SparkSession) -> None:
    rules = IngestConfig(full_score={"b": 10.0, "b@2": 100.0})
    rows = [{"benchmark": name, "score_raw": "5", "position": i} for i, name in enumerate(["b", "b@1", "b@2", "c"])]
    judged = sorted(validate(frame(spark, rows), rules).collect(), key=lambda row: row["position"])
    assert [row["score"] for row in judged] == [0.5, 0.5, 0.05, 5.0]
    assert judged[3]["reason"] == "score_out_of_range"


def test_without_a_declared_scale_a_percentage_is_refused(spark: SparkSession) -> None:
    assert [row["reason"] for row in judge(spark, "score_raw", ["50", "100"])] == ["score_out_of_range"] * 2


def counted(spark: SparkSession, values: list[Any], config: IngestConfig, **kinds: T.DataType) -> dict[str, int]:
    """How many rows each default was applied to."""
    rows = frame(spark, [{"score_raw": value} for value in values], **kinds)
    conditions = applied_defaults(rows, config)
    found = rows.agg(*(F.count_if(each).alias(f"c{at}") for at, each in enumerate(conditions.values()))).head()
    return {name: count for name, count in zip(conditions, found, strict=True) if count}


def test_fractions_are_counted_as_what_they_were_taken(spark: SparkSession) -> None:
    values = ["0.5", "1", "0", "1e-3", None, "maybe", "1.0", "7"]
    soft = "score between 0 and 1 kept as a fraction (ingest.fractions = soft)"
    assert counted(spark, values, IngestConfig()) == {soft: 2}
    threshold = "score between 0 and 1 taken as 1 from 0.75 on, as 0 below (ingest.fractions = threshold)"
    assert counted(spark, values, IngestConfig(fractions="threshold", threshold=0.75)) == {threshold: 2}
    assert counted(spark, values, IngestConfig(fractions="reject")) == {}
    assert counted(spark, [1.0, 0.25, None], IngestConfig(), score_raw=T.DoubleType()) == {soft: 1}
    assert counted(spark, [1, 50], IngestConfig(full_score={"b": 100.0}), score_raw=T.IntegerType()) == {soft: 2}


def test_a_full_score_is_of_numbers_not_of_verdicts(spark: SparkSession) -> None:
    config = IngestConfig(full_score={"b": 100.0}, status={"resolved": 1.0, "half": 0.5})
    values = ["100", "1", "true", "resolved", "half", "0"]
    assert [row["score"] for row in judge(spark, "score_raw", values, config)] == [1.0, 0.01, 1.0, 1.0, 0.5, 0.0]
    booleans = judge(spark, "score_raw", [True, False], config, score_raw=T.BooleanType())
    assert [row["score"] for row in booleans] == [1.0, 0.0]
