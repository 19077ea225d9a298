"""JSON lines of py-irt."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from cbmm_spark.config.schema import IngestConfig
from cbmm_spark.errors import InputError
from tests.spark.reader_samples import HARD_NAMES, read_with, rows_of, validate

NAMES = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\x00"), min_size=1, max_size=80)


def write(path: Path, *lines: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def test_a_subject_a_line(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "my runs é"
    write(folder / "a.jsonlines", {"subject_id": "Org/X", "responses": {"q 1": 1, "q/2": 0}})
    write(folder / "b.jsonlines", {"responses": {"q 1": 0.5}, "subject_id": "m2"})
    raw, name, reason = read_with(spark, folder)
    assert name == "py-irt"
    assert "subject_id" in reason
    assert rows_of(raw.frame, "model_id", "item_id", "score_raw", "problem") == [
        ("Org/X", "q 1", "1", None),
        ("Org/X", "q/2", "0", None),
        ("m2", "q 1", "0.5", None),
    ]
    assert {row["benchmark"] for row in raw.frame.collect()} == {"default"}
    assert read_with(spark, folder, benchmark="b")[0].frame.head()["benchmark"] == "b"


def test_every_kind_of_score_is_judged_and_none_is_lost(spark: SparkSession, tmp_path: Path) -> None:
    line = (
        '{"subject_id": "m", "responses": {"nan": NaN, "null": null, "empty": "", "maybe": "maybe", "half": 0.5, '
        '"fifty": 50, "one": 1, "true": true, "text": "1.0", "nine": 9, "infinite": Infinity, "object": {"a": 1}}}'
    )
    raw, _, _ = read_with(spark, write(tmp_path / "a.jsonl", line))
    judged = {row["item_id"]: (row["score"], row["reason"]) for row in validate(raw.frame, IngestConfig()).collect()}
    missing = dict.fromkeys(("nan", "null", "empty"), (None, None))
    solved = dict.fromkeys(("one", "true", "text"), (1.0, None))
    refused = {name: judged[name][1] for name in ("maybe", "fifty", "nine", "infinite", "object")}
    assert {name: judged[name] for name in (*missing, *solved, "half")} == {**missing, **solved, "half": (0.5, None)}
    assert refused == {
        "maybe": "unreadable_score",
        "fifty": "score_out_of_range",
        "nine": "score_out_of_range",
        "infinite": "score_out_of_range",
        "object": "unreadable_score",
    }


def test_malformed_lines_are_kept_with_their_file(spark: SparkSession, tmp_path: Path) -> None:
    bad = ['{"subject_id": "m", "responses": [1]}', '"text"', '{"subject_id": "m"', '{"responses": {"a": 1}}', "[1]"]
    path = write(tmp_path / "a.jsonl", {"subject_id": "m", "responses": {"a": 1}}, *bad)
    raw, _, _ = read_with(spark, path)
    malformed = raw.frame.where(F.col("problem") == "malformed_row").collect()
    assert sorted(json.loads(row["raw"])["row"] for row in malformed) == sorted(bad)
    assert all(row["source"].endswith("a.jsonl") and row["position"] is None for row in malformed)
    assert raw.frame.where("problem IS NULL").count() == 1


def test_an_item_answered_twice_in_a_line_is_two_rows(spark: SparkSession, tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"subject_id": "m", "responses": {"a": 1, "b": 1, "a": 0}}')
    raw, _, _ = read_with(spark, path)
    assert rows_of(raw.frame, "item_id", "score_raw") == [("a", "0"), ("a", "1"), ("b", "1")]


def test_a_subject_without_responses_is_seen(spark: SparkSession, tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", {"subject_id": "n", "responses": {"a": 1}}, {"subject_id": "m", "responses": {}})
    raw, _, _ = read_with(spark, path)
    assert rows_of(raw.frame, "model_id", "problem") == [("m", "no_result"), ("n", None)]


def test_model_is_not_given_twice(spark: SparkSession, tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", {"subject_id": "m", "responses": {"a": 1}})
    with pytest.raises(InputError, match="leave out --model"):
        read_with(spark, path, model="x")


@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
@given(names=st.lists(NAMES, min_size=1, max_size=30, unique=True), ascii_only=st.booleans())
def test_any_name_is_read_back_unchanged(
    spark: SparkSession, tmp_path: Path, names: list[str], ascii_only: bool
) -> None:
    ids = list(dict.fromkeys([*HARD_NAMES, *names]))
    path = tmp_path / "names.jsonl"
    lines = [json.dumps({"subject_id": i, "responses": dict.fromkeys(ids, 1)}, ensure_ascii=ascii_only) for i in ids]
    path.write_text("\n".join(lines), newline="")
    raw, _, _ = read_with(spark, path, "py-irt")
    found = {(row["model_id"], row["item_id"]) for row in raw.frame.select("model_id", "item_id").collect()}
    assert found == {(model, item) for model in ids for item in ids}
