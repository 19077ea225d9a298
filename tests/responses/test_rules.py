"""Validation: every malformed value has its reason, nothing unreadable becomes a number."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from cbmm_spark.config.schema import IngestConfig
from cbmm_spark.readers.rows import Rows
from cbmm_spark.responses.rules import NO_DATE, REASONS
from cbmm_spark.responses.rules import judge as judge_rows

GOOD = {
    "model_id": "m",
    "benchmark": "b",
    "item_id": "i",
    "attempt": "1",
    "score_raw": "1",
    "evaluated_at_raw": "2024-05-01",
    "source": "f",
    "problem": None,
}

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

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


def rows_of(rows: list[Mapping[str, Any]], **kinds: pa.DataType) -> Rows:
    """Raw rows, each `GOOD` with some values replaced; columns are text unless a type is given."""
    columns = {name: [{**GOOD, **row}[name] for row in rows] for name in GOOD}
    arrays = {name: pa.array(values, kinds.get(name, pa.string())) for name, values in columns.items()}
    return Rows(
        model_id=arrays["model_id"],
        benchmark=arrays["benchmark"],
        item_id=arrays["item_id"],
        attempt=arrays["attempt"],
        score=arrays["score_raw"],
        evaluated_at=arrays["evaluated_at_raw"],
        source=arrays["source"],
        problem=arrays["problem"],
    )


def explained(rows: Rows, config: IngestConfig) -> list[dict[str, Any]]:
    """Judged rows one by one; of a refused one only the reason and the names count."""
    judged = judge_rows(rows, config)
    found = []
    for at in range(len(rows)):
        reason = None if judged.reason[at] < 0 else judged.reason_of(at)
        date = None if judged.date[at] == NO_DATE else EPOCH + timedelta(microseconds=int(judged.date[at]))
        score = None if math.isnan(judged.score[at]) else float(judged.score[at])
        names = {"model_id": judged.model, "benchmark": judged.benchmark, "item_id": judged.item}
        values = {name: None if c.codes[at] < 0 else c.values[c.codes[at]] for name, c in names.items()}
        found.append(
            {"reason": reason, "score": score, "evaluated_at": date, "attempt": int(judged.attempt[at]), **values}
        )
    return found


def judge(
    column: str, values: list[Any], config: IngestConfig | None = None, **kinds: pa.DataType
) -> list[dict[str, Any]]:
    """Each value judged in an otherwise good row; a dictionary array says the same as a plain one."""
    config = config or IngestConfig()
    rows = rows_of([{column: value} for value in values], **kinds)
    found = explained(rows, config)
    field = {"score_raw": "score", "evaluated_at_raw": "evaluated_at"}.get(column, column)
    array = getattr(rows, field)
    if pa.types.is_string(array.type):
        assert explained(replace(rows, **{field: array.dictionary_encode()}), config) == found
    return found


@pytest.fixture(scope="module")
def scores() -> dict[Any, dict[str, Any]]:
    values = [*NO_VERDICT, *SCORES, *REFUSED]
    return dict(zip(values, judge("score_raw", values), strict=True))


@pytest.mark.parametrize("text", NO_VERDICT)
def test_no_verdict_is_kept_as_null(scores: dict[Any, dict[str, Any]], text: str | None) -> None:
    assert (scores[text]["score"], scores[text]["reason"]) == (None, None)


@pytest.mark.parametrize(("text", "score"), SCORES.items())
def test_readable_score(scores: dict[Any, dict[str, Any]], text: str, score: float) -> None:
    assert (scores[text]["score"], scores[text]["reason"]) == (score, None)
    assert math.copysign(1, scores[text]["score"]) == 1


@pytest.mark.parametrize(("text", "reason"), REFUSED.items())
def test_malformed_score_is_refused(scores: dict[Any, dict[str, Any]], text: str, reason: str) -> None:
    assert scores[text]["reason"] == reason


@pytest.mark.parametrize(
    ("kind", "values", "expected"),
    [
        (pa.bool_(), [True, False, None], [1.0, 0.0, None]),
        (pa.int8(), [0, 1, None, 9], [0.0, 1.0, None, "score_out_of_range"]),
        (pa.int64(), [0, 1, 50, -1], [0.0, 1.0, "score_out_of_range", "score_out_of_range"]),
        (pa.float32(), [0.5, math.nan], [0.5, None]),
        (
            pa.float64(),
            [0.5, math.nan, math.inf, -math.inf, -0.0, 1.5],
            [0.5, None, "score_out_of_range", "score_out_of_range", 0.0, "score_out_of_range"],
        ),
        (pa.decimal128(4, 2), [Decimal("0.25"), Decimal("1.00"), Decimal("1.01")], [0.25, 1.0, "score_out_of_range"]),
    ],
    ids=lambda value: str(value) if isinstance(value, pa.DataType) else "",
)
def test_typed_scores(kind: pa.DataType, values: list[Any], expected: list[Any]) -> None:
    judged = judge("score_raw", values, score_raw=kind)
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
def test_fractions_follow_the_policy(config: IngestConfig, expected: list[Any]) -> None:
    judged = judge("score_raw", ["0", "0.3", "0.5", "0.7", "1"], config)
    assert [row["reason"] or row["score"] for row in judged] == expected


@pytest.mark.parametrize(("column", "short"), [("model_id", "model"), ("benchmark", "benchmark"), ("item_id", "item")])
def test_names_are_kept_or_refused_never_changed(column: str, short: str) -> None:
    blank = [None, "", " ", "\t\n", "\u00a0", "\u3000", "\ufeff"]
    spaced = ["x ", " x", "x\n", "\tx", "x\u00a0", "\u2003x", "x\r", "\ufeffx"]
    broken = ["M\ufffdller", "\ufffd", "x\ufffd", "\ufffd\ufffdx"]  # bytes that were no UTF-8: several names become one
    good = ["007", "x y", "a\nb", "Org/X:1(2)#+@%", "'\"`", "😀", "x" * 300, "null", "NaN", "$", "é", "e\u0301"]
    judged = judge(column, [*blank, *spaced, *broken, *good])
    reasons = [row["reason"] for row in judged]
    refused = ((blank, "missing"), (spaced, "space_around"), (broken, "undecodable"))
    assert reasons == [*(f"{why}_{short}" for names, why in refused for _ in names), *[None] * len(good)]
    assert [row[column] for row in judged[-len(good) :]] == good


def test_attempts() -> None:
    cases = {"0": 0, "1": 1, "2.0": 2, " 3 ": 3, "+4": 4, "2147483647": 2147483647}
    refused = [None, "", "x", "1.5", "-1", "1e3", "2147483648", "99999999999", "NaN", "true"]
    judged = judge("attempt", [*cases, *refused])
    assert [row["attempt"] for row in judged[: len(cases)]] == list(cases.values())
    assert {row["reason"] for row in judged[: len(cases)]} == {None}
    assert {row["reason"] for row in judged[len(cases) :]} == {"unreadable_attempt"}
    typed = judge("attempt", [1.0, 1.5, math.nan, math.inf, None, -1.0], attempt=pa.float64())
    assert [row["reason"] for row in typed] == [None, *["unreadable_attempt"] * 5]
    assert typed[0]["attempt"] == 1


def test_dates() -> None:
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
    judged = judge("evaluated_at_raw", [*cases, *missing, *refused])
    found = [row["evaluated_at"] for row in judged]
    assert found[: len(cases)] == [value.replace(tzinfo=UTC) for value in cases.values()]
    assert found[len(cases) :] == [None] * (len(missing) + len(refused))
    reasons = [row["reason"] for row in judged]
    assert reasons == [None] * (len(cases) + len(missing)) + ["unreadable_date"] * len(refused)


def test_typed_dates_and_declared_patterns() -> None:
    day = judge("evaluated_at_raw", [date(2024, 5, 1), None], evaluated_at_raw=pa.date32())
    assert [row["evaluated_at"] for row in day] == [
        datetime(2024, 5, 1, tzinfo=UTC),
        None,
    ]
    plain = judge("evaluated_at_raw", [datetime(2024, 5, 1, 7)], evaluated_at_raw=pa.timestamp("us"))
    assert plain[0]["evaluated_at"] == datetime(2024, 5, 1, 7, tzinfo=UTC)
    compact = IngestConfig(date_formats=("yyyyMMdd",))
    number = judge("evaluated_at_raw", [20241029, 10132025], compact, evaluated_at_raw=pa.int32())
    assert [row["reason"] for row in number] == [None, "unreadable_date"]


def test_the_first_fault_is_named_and_all_reasons_are_listed() -> None:
    rows = [
        {"problem": "malformed_row", "model_id": None},
        {"model_id": " ", "item_id": " ", "score_raw": "x"},
        {"item_id": "i ", "score_raw": "x"},
        {"score_raw": "x", "evaluated_at_raw": "x"},
    ]
    reasons = [row["reason"] for row in explained(rows_of(rows), IngestConfig())]
    assert reasons == ["malformed_row", "missing_model", "space_around_item", "unreadable_score"]
    assert set(reasons) | set(REFUSED.values()) <= set(REASONS)


# ------------------------------------------------------------------------------------- statuses
def test_a_status_is_what_configuration_says() -> None:
    words = ["resolved", "Resolved ", "UNRESOLVED", "passed", "failed", "timeout", "empty", "error", "incomplete"]
    rows = judge("score_raw", words)
    assert [row["reason"] for row in rows] == [None] * len(words)
    assert [row["score"] for row in rows] == [1.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0, None, None]


def test_a_status_may_be_declared_otherwise() -> None:
    declared = IngestConfig(status={"C": 1.0, "P": 0.5, "I": 0.0, "N": "missing", "error": 0.0})
    rows = judge("score_raw", ["C", "p", "I", "N", "error", "resolved"], declared)
    assert [row["score"] for row in rows] == [1.0, 0.5, 0.0, None, 0.0, None]
    assert [row["reason"] for row in rows] == [None] * 5 + ["unreadable_score"]


# ------------------------------------------------------------------------------------- full scores
@pytest.mark.parametrize("declared", [{"b": 100.0}, {"*": 100.0, "other": 1.0}, {"b": 100.0, "*": 1.0}])
def test_a_declared_full_score_divides(declared: dict[str, float]) -> None:
    rows = judge("score_raw", ["100", "0", "50", "101", "1"], IngestConfig(full_score=declared))
    assert [row["score"] for row in rows] == [1.0, 0.0, 0.5, 1.01, 0.01]
    assert [row["reason"] for row in rows] == [None, None, None, "score_out_of_range", None]


def test_a_full_score_holds_for_every_version_unless_one_has_its_own() -> None:
    rules = IngestConfig(full_score={"b": 10.0, "b@2": 100.0})
    rows = [{"benchmark": name, "score_raw": "5"} for name in ["b", "b@1", "b@2", "c"]]
    judged = explained(rows_of(rows), rules)
    assert [row["score"] for row in judged] == [0.5, 0.5, 0.05, 5.0]
    assert judged[3]["reason"] == "score_out_of_range"


def test_without_a_declared_scale_a_percentage_is_refused() -> None:
    assert [row["reason"] for row in judge("score_raw", ["50", "100"])] == ["score_out_of_range"] * 2


def counted(values: list[Any], config: IngestConfig, **kinds: pa.DataType) -> dict[str, int]:
    """How many rows each default was applied to."""
    return dict(judge_rows(rows_of([{"score_raw": value} for value in values], **kinds), config).defaults)


def test_fractions_are_counted_as_what_they_were_taken() -> None:
    values = ["0.5", "1", "0", "1e-3", None, "maybe", "1.0", "7"]
    soft = "score between 0 and 1 kept as a fraction (ingest.fractions = soft)"
    assert counted(values, IngestConfig()) == {soft: 2}
    threshold = "score between 0 and 1 taken as 1 from 0.75 on, as 0 below (ingest.fractions = threshold)"
    assert counted(values, IngestConfig(fractions="threshold", threshold=0.75)) == {threshold: 2}
    assert counted(values, IngestConfig(fractions="reject")) == {}
    assert counted([1.0, 0.25, None], IngestConfig(), score_raw=pa.float64()) == {soft: 1}
    assert counted([1, 50], IngestConfig(full_score={"b": 100.0}), score_raw=pa.int32()) == {soft: 2}


def test_a_full_score_is_of_numbers_not_of_verdicts() -> None:
    config = IngestConfig(full_score={"b": 100.0}, status={"resolved": 1.0, "half": 0.5})
    values = ["100", "1", "true", "resolved", "half", "0"]
    assert [row["score"] for row in judge("score_raw", values, config)] == [1.0, 0.01, 1.0, 1.0, 0.5, 0.0]
    booleans = judge("score_raw", [True, False], config, score_raw=pa.bool_())
    assert [row["score"] for row in booleans] == [1.0, 0.0]
