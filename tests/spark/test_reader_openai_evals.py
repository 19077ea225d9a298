"""Event logs of OpenAI evals: the specification joined to its events, one kind of result a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import Row

from cbmm_spark.errors import InputError
from cbmm_spark.readers.base import RAW_COLUMNS, RawFrame
from tests.spark.reader_samples import Read, defaults_of, rows_with


def spec(*models: str, name: str = "test-match.s1.simple-v0", **more: Any) -> dict[str, Any]:
    told = {"completion_fns": list(models), "eval_name": name, "base_eval": "test-match", "split": "s1",
            "run_config": {"seed": 1}, "run_id": "r", "created_at": "2023-04-17 22:08:21.368521"}  # fmt: skip
    return {"spec": {**told, **more}}


def event(sample: str | None, kind: str = "match", **data: Any) -> dict[str, Any]:
    return {"run_id": "r", "event_id": 1, "sample_id": sample, "type": kind, "data": data, "created_by": "",
            "created_at": "2023-04-17 22:08:31.418712+00:00"}  # fmt: skip


def write(path: Path, lines: list[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = (each if isinstance(each, str) else json.dumps(each, ensure_ascii=False) for each in lines)
    path.write_text("".join(f"{each}\n" for each in text), encoding="utf-8", newline="")
    return path


def rows(raw: RawFrame, problem: str | None = None) -> list[Row]:
    return rows_with(raw, problem, "model_id", "item_id")


def test_a_folder_of_logs(read: Read, tmp_path: Path) -> None:
    folder = tmp_path / "räum a+b 100%25 [x]"
    sampling = event("s.0", "sampling", prompt='{"type": "match", "correct": true}' * 9, sampled=["x"])
    write(folder / "a:1.jsonl", [spec("Org/X 😀"), sampling, event("s.0", correct=True, expected="a"),
                               event("s.ü 1", correct=False), event("s.2", "error", message="x"),
                               event(None, "raw_sample"), {"final_report": {"accuracy": 0.5}}])  # fmt: skip
    write(
        folder / "b.jsonl", [spec("gpt", "grader", name="graded.v1"), event("s.0", "metrics", score=0.25, choice="B")]
    )
    raw, format, reason = read(tmp_path)
    assert format == "openai-evals"
    assert "specification" in reason
    assert raw.frame.columns[: len(RAW_COLUMNS)] == list(RAW_COLUMNS)
    assert [(row["model_id"], row["benchmark"], row["item_id"], row["score_raw"]) for row in rows(raw)] == [
        ("Org/X 😀", "test-match.s1.simple-v0", "s.0", "true"),
        ("Org/X 😀", "test-match.s1.simple-v0", "s.ü 1", "false"),
        ("gpt", "graded.v1", "s.0", "0.25"),
    ]
    assert rows(raw)[0]["evaluated_at_raw"].isoformat() == "2023-04-17T22:08:31.418712"
    assert len(rows(raw, "no_result")) == 6
    assert defaults_of(raw) == {
        'metric correct taken by ingest.metrics."*"': 2, 'metric score taken by ingest.metrics."*"': 1,
        "first of several completion functions taken as the model": 1,
    }  # fmt: skip


def test_one_result_a_sample(read: Read, tmp_path: Path) -> None:
    lines = [spec("m"), event("s", correct=True), event("s", "metrics", score=0.3), event("t", "metrics", accuracy=1)]
    write(tmp_path / "a.jsonl", lines)
    raw, _, _ = read(tmp_path)
    assert [(row["item_id"], row["score_raw"]) for row in rows(raw)] == [("s", "true")]
    assert len(rows(raw, "other_metric")) == 2
    write(tmp_path / "a.jsonl", [spec("m"), event("t", "metrics", accuracy=1)])
    raw, _, _ = read(tmp_path)
    assert [row["item_id"] for row in rows(raw, "unknown_metric")] == ["t"]
    raw, _, _ = read(tmp_path, metrics={"*": ("accuracy",)})
    assert [row["score_raw"] for row in rows(raw)] == ["1"]


def test_older_specifications_and_missing_ones(read: Read, tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", [spec(model_name="old"), event("s", correct=True)])
    assert rows(read(tmp_path)[0])[0]["model_id"] == "old"
    for told in ({"model": "x"}, {"benchmark": "x"}):
        with pytest.raises(InputError, match="leave out --"):
            read(tmp_path, given=told)
    write(tmp_path / "a.jsonl", [event("s", correct=True)])
    raw, _, _ = read(tmp_path, "openai-evals", {"model": "m", "benchmark": "b"})
    assert [(row["model_id"], row["benchmark"]) for row in rows(raw)] == [("m", "b")]
    raw, _, _ = read(tmp_path, "openai-evals")
    assert [(row["model_id"], row["benchmark"]) for row in rows(raw)] == [(None, None)]


def test_bad_lines_and_dates(read: Read, tmp_path: Path) -> None:
    bad = ['{"type": "match"', '"text"', "17", "no JSON", '{"a": 1}', "[1]"]
    dated = {**event("s", correct=True), "created_at": "10132025"}
    write(tmp_path / "a.jsonl", [spec("m"), event("t", correct=True), *bad, dated, ""])
    raw, _, _ = read(tmp_path)
    assert [row["item_id"] for row in rows(raw)] == ["t"]
    assert len(rows(raw, "malformed_row")) == len(bad)
    assert [row["item_id"] for row in rows(raw, "unreadable_date")] == ["s"]
    raw, _, _ = read(tmp_path, date_formats=("MMddyyyy",))
    assert {row["item_id"]: row["evaluated_at_raw"].isoformat() for row in rows(raw)}["s"] == "2025-10-13T00:00:00"


NAMES = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\x00"), min_size=1, max_size=150)


@settings(max_examples=3, suppress_health_check=list(HealthCheck))
@given(names=st.lists(NAMES, min_size=1, max_size=30, unique=True), model=NAMES)
def test_any_name_is_read_back_unchanged(read: Read, tmp_path: Path, names: list[str], model: str) -> None:
    ids = list(dict.fromkeys(["007", "1.0", "null", "two\nlines", " padded ", *names]))
    write(tmp_path / "a.jsonl", [spec(model), *(event(name, correct=True) for name in ids)])
    found = rows(read(tmp_path)[0])
    assert {row["item_id"] for row in found} == set(ids)
    assert {row["model_id"] for row in found} == {model}
