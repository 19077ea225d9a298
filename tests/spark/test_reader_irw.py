"""Tables of the Item Response Warehouse."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from cbmm_spark.config.schema import IngestConfig
from cbmm_spark.errors import InputError
from tests.spark.reader_samples import HARD_NAMES, defaults_of, read_with, rows_of, validate

NAMES = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=60)


def table(**columns: object) -> pd.DataFrame:
    return pd.DataFrame({"id": ["007", "007", "p 2"], "item": ["i,1", "é/2", "i,1"], "resp": [1, 0, 1], **columns})


@pytest.mark.parametrize("suffix", ["csv", "csv.gz", "parquet"])
def test_a_table(spark: SparkSession, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"my table é.{suffix}"
    data = table(rt=[1.5, 2.0, 3.0], cov_age=[30, 30, 40])
    if suffix == "parquet":
        data.to_parquet(path)
    else:
        data.to_csv(path, index=False)
    for format in ("auto", "long", "irw"):
        raw, name, reason = read_with(spark, path, format, benchmark="lsat")
        assert name == "irw"
        assert reason == "given" or "id, item and resp" in reason
    rows = rows_of(raw.frame, "benchmark", "model_id", "item_id", F.col("score_raw").cast("string"), "problem")
    assert rows == [
        ("lsat", "007", "i,1", "1", None),
        ("lsat", "007", "é/2", "0", None),
        ("lsat", "p 2", "i,1", "1", None),
    ]
    assert defaults_of(raw) == {}


def test_missing_responses_as_r_writes_them(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "na.csv"
    path.write_text("id,item,resp\np,a,NA\np,b,\np,c,NaN\np,d,maybe\np,e,1\n")
    raw, _, _ = read_with(spark, path)
    judged = {row["item_id"]: (row["score"], row["reason"]) for row in validate(raw.frame, IngestConfig()).collect()}
    missing = dict.fromkeys("abc", (None, None))
    assert judged == {**missing, "d": (None, "unreadable_score"), "e": (1.0, None)}
    assert defaults_of(raw) == {"NA, as R writes a missing response: no verdict": 1}


@pytest.mark.parametrize("parquet", [False, True])
def test_seconds_are_no_date(spark: SparkSession, tmp_path: Path, parquet: bool) -> None:
    path = tmp_path / ("t.parquet" if parquet else "t.csv")
    data = table(date=[1204637400, 86400, 0.5])
    if parquet:
        data.to_parquet(path)
    else:
        data.to_csv(path, index=False)
    raw, _, _ = read_with(spark, path)
    assert rows_of(raw.frame, "evaluated_at_raw") == [(None,)] * 3
    assert list(defaults_of(raw).values()) == [3]


def test_dates_as_text_are_read(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    table(date=["2024-11-04", "10132025", "NA"]).to_csv(path, index=False)
    raw, _, _ = read_with(spark, path)
    judged = validate(raw.frame, IngestConfig())
    assert sorted(str(row["evaluated_at"]) for row in judged.collect()) == ["2024-11-04 00:00:00", "None", "None"]
    assert judged.where("reason IS NOT NULL").count() == 0  # digits alone are seconds here, and those were left out


def test_graded_responses_need_a_full_score(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    data = table()
    data["resp"] = [4, 0, 2]
    data.to_csv(path, index=False)
    raw, _, _ = read_with(spark, path)
    assert rows_of(raw.frame, "score_raw") == [("0",), ("2",), ("4",)]
    assert rows_of(validate(raw.frame, IngestConfig()), "reason") == [
        ("score_out_of_range",), ("score_out_of_range",), (None,)
    ]  # fmt: skip
    rules = IngestConfig(full_score={"default": 4})
    assert rows_of(validate(raw.frame, rules), "score", "reason") == [(0.0, None), (0.5, None), (1.0, None)]


def test_waves_are_attempts(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "panel.csv"
    path.write_text("id,item,resp,wave\np,a,0,1\np,a,1,2\n")
    raw, _, _ = read_with(spark, path)
    assert rows_of(raw.frame, "attempt", "score_raw") == [("1", "0"), ("2", "1")]


def test_several_tables_are_told(spark: SparkSession, tmp_path: Path) -> None:
    table().to_csv(tmp_path / "a.csv", index=False)
    table().to_csv(tmp_path / "b.csv", index=False)
    raw, _, _ = read_with(spark, tmp_path)
    assert any("2 files are read as one table" in note for note in raw.notes)
    assert raw.frame.count() == 6


def test_ragged_lines_and_other_tables(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("id,item,resp\np,a,1\np,b\n")
    raw, _, _ = read_with(spark, path)
    assert rows_of(raw.frame, "item_id", "problem") == [("a", None), ("b", "malformed_row")]
    path.write_text("id,model,item,resp,score\n1,m,a,x,1\n")
    assert read_with(spark, path)[1] == "csv"
    path.write_text("id,item,response\np,a,1\n")
    with pytest.raises(InputError, match="score \\(resp\\)"):
        read_with(spark, path, "irw")


@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
@given(names=st.lists(NAMES, min_size=1, max_size=30, unique=True))
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_any_name_is_read_back_unchanged(spark: SparkSession, tmp_path: Path, suffix: str, names: list[str]) -> None:
    ids = list(dict.fromkeys([*HARD_NAMES, *names]))
    data = pd.DataFrame({"id": ids, "item": ids[::-1], "resp": 1})
    path = tmp_path / f"names.{suffix}"
    if suffix == "parquet":
        data.to_parquet(path)
    else:
        data.to_csv(path, index=False)
    raw, _, _ = read_with(spark, path, "irw")
    assert set(rows_of(raw.frame, "model_id", "item_id")) == set(zip(ids, ids[::-1], strict=True))
