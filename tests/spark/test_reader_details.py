"""Details of the Open LLM Leaderboard: files whose columns and types differ, items named by their content."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import Row

from cbmm_spark.errors import InputError
from cbmm_spark.readers.base import RAW_COLUMNS, RawFrame
from tests.spark.reader_samples import Read, defaults_of, rows_with

STAMP = "2023-09-17T10-21-46.123456"
TASK = "harness|arc:challenge|25"


def write(folder: Path, columns: dict[str, Any], task: str = TASK, stamp: str = STAMP) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"details_{task}_{stamp}.parquet"
    pq.write_table(pa.table(columns), path)
    return path


def examples(*texts: str) -> dict[str, Any]:
    return {"example": list(texts), "full_prompt": [f"shots {text}" * 9 for text in texts],
            "choices": [["a", "b"]] * len(texts), "predictions": [[0.5, 0.1]] * len(texts)}  # fmt: skip


def rows(raw: RawFrame, problem: str | None = None) -> list[Row]:
    return rows_with(raw, problem, "model_id", "benchmark", "position")


def test_files_of_different_shapes(read: Read, tmp_path: Path) -> None:
    hub = tmp_path / "räum a+b 100%25" / "details_Org__X 1" / STAMP
    metrics = [{"acc": 1, "acc_norm": 0.0}, {"acc": 0, "acc_norm": 1.0}]
    write(hub, {**examples("q one", "q zwei ü"), "metrics": metrics, "hashes": [{"example": "h1"}, {"example": "h2"}]})
    write(tmp_path / "details" / "org" / "Y" / STAMP, {**examples("q zwei ü", "q one"), "acc_norm": [True, False],
                                                       "predictions": ["B", "A"]})  # fmt: skip
    write(tmp_path / "plain__Z", {**examples("q one"), "metrics": [{"em": 1}]}, "gsm8k", "2023-09-17T10:21:46")
    raw, format, reason = read(tmp_path)
    assert format == "open-llm-details"
    assert "details_<task>_<time>.parquet" in reason
    assert raw.frame.columns[: len(RAW_COLUMNS)] == list(RAW_COLUMNS)
    found = rows(raw)
    assert [(row["model_id"], row["benchmark"], row["position"], row["score_raw"]) for row in found] == [
        ("Org/X 1", TASK, 0, "0"), ("Org/X 1", TASK, 1, "1"), ("org/Y", TASK, 0, "true"), ("org/Y", TASK, 1, "false"),
        ("plain/Z", "gsm8k", 0, "1"),
    ]  # fmt: skip
    assert found[0]["item_id"] == found[3]["item_id"] != found[1]["item_id"] == found[2]["item_id"]
    assert [row["content_hash"] for row in found] == ["h1", "h2", None, None, None]
    assert found[0]["evaluated_at_raw"].isoformat() == "2023-09-17T10:21:46.123456"
    assert found[4]["evaluated_at_raw"].isoformat() == "2023-09-17T10:21:46"
    assert "full_prompt" not in json.loads(found[0]["raw"])
    assert defaults_of(raw) == {
        'metric acc_norm taken by ingest.metrics."*"': 4, 'metric em taken by ingest.metrics."*"': 1,
        "item named by a hash of its example": 5, "model named after its folder": 5, "no version of the task known": 5,
    }  # fmt: skip


def test_scores_of_every_type(read: Read, tmp_path: Path) -> None:
    columns = {
        "null": [None, 1.0], "nan": [float("nan"), 0.5], "int": [50, 1], "bool": [True, False],
        "text": ["maybe", "1.0"], "list": [[1], [0]], "void": pa.nulls(2),
    }  # fmt: skip
    expected = {"null": ["", "1"], "nan": ["nan", "0.5"], "int": ["50", "1"], "bool": ["true", "false"],
                "text": ["maybe", "1.0"], "list": ["list<element: int64>"] * 2}  # fmt: skip
    for task, values in columns.items():
        write(tmp_path / "m", {**examples("a", "b"), "acc": values}, task)
    raw, _, _ = read(tmp_path)
    found: dict[str, list[str]] = {}
    for row in rows(raw):
        found.setdefault(row["benchmark"], []).append(row["score_raw"])
    assert found == expected
    assert [row["benchmark"] for row in rows(raw, "unknown_metric")] == ["void", "void"]


def test_declared_metrics_and_ids(read: Read, tmp_path: Path) -> None:
    write(tmp_path / "m", {**examples("a", "b"), "metrics": [{"mc1": 1, "acc": 0}] * 2, "id": ["007", "é 1"]})
    raw, _, _ = read(tmp_path, metrics={TASK: ("mc1",)})
    assert [(row["item_id"], row["score_raw"]) for row in rows(raw)] == [("007", "1"), ("é 1", "1")]
    assert not any(name.startswith(("metric", "item")) for name in defaults_of(raw))
    raw, _, _ = read(tmp_path, metrics={"*": ("bleu",)})
    assert len(rows(raw, "unknown_metric")) == 2


def test_a_model_given_and_what_is_refused(read: Read, tmp_path: Path) -> None:
    path = write(tmp_path / "m", {**examples("a"), "acc": [1]}, "t")
    raw, _, _ = read(path, given={"model": "Org/X@main"})
    assert rows(raw)[0]["model_id"] == "Org/X@main"
    assert "model named after its folder" not in defaults_of(raw)
    with pytest.raises(InputError, match="leave out --benchmark"):
        read(tmp_path, given={"benchmark": "b"})
    write(tmp_path / "n", {**examples("a"), "acc": [1]}, "t")
    with pytest.raises(InputError, match="details of 2 models"):
        read(tmp_path, given={"model": "m"})


@pytest.mark.parametrize(("doc", "metric"), [("doc", "metric"), ("__doc__", "__metric__")])
def test_the_columns_of_newer_lighteval(read: Read, tmp_path: Path, doc: str, metric: str) -> None:
    folder = tmp_path / "details" / "org" / "Y" / STAMP
    docs = [
        {"query": f"q {i}", "choices": ["a", "b"], "gold_index": [0], "id": i, "specific": {"x": [1]}} for i in "01"
    ]
    scored = [{"em": 1.0, "maj@8": 0.0}, {"em": None, "maj@8": 1.0}]
    write(folder, {doc: docs, metric: scored, "model_response": [{"text": ["t"]}] * 2}, "lighteval|gsm8k|0")
    nameless = [{**each, "id": ""} for each in docs]
    write(tmp_path / "details" / "org" / "Z" / STAMP, {doc: nameless, metric: scored}, "lighteval|gsm8k|0")
    # What fits no schema is written as the text of a Python dict.
    as_text = {doc: [str(each) for each in docs], metric: [str(each) for each in scored]}
    write(tmp_path / "details" / "org" / "text" / STAMP, as_text, "lighteval|gsm8k|0")
    raw, format, _ = read(tmp_path)
    assert format == "open-llm-details"
    found = rows(raw)
    assert [(row["model_id"], row["benchmark"], row["score_raw"]) for row in found] == [
        ("org/Y", "lighteval|gsm8k|0", "1"), ("org/Y", "lighteval|gsm8k|0", ""),
        ("org/Z", "lighteval|gsm8k|0", "1"), ("org/Z", "lighteval|gsm8k|0", ""),
    ]  # fmt: skip
    assert [row["item_id"] for row in found[:2]] == ["0", "1"]
    assert [row["content_hash"] for row in found[:2]] == [row["item_id"] for row in found[2:]]
    assert [row["model_id"] for row in rows(raw, "unknown_metric")] == ["org/text"] * 2


def test_a_file_that_is_no_parquet_is_one_bad_record(read: Read, tmp_path: Path) -> None:
    write(tmp_path / "a", {**examples("a"), "acc": [1]}, "t")
    bad = write(tmp_path / "z", {**examples("a"), "acc": [1]}, "u")
    bad.write_bytes(bad.read_bytes()[:-30])
    raw, _, _ = read(tmp_path, "open-llm-details")
    assert [row["benchmark"] for row in rows(raw)] == ["t"]
    assert [row["source"].rpartition("/")[2] for row in rows(raw, "malformed_row")] == [bad.name]


def test_other_parquet_stays_what_it_is(read: Read, tmp_path: Path) -> None:
    pq.write_table(pa.table({"model": ["m"], "item": ["i"], "correct": [1]}), tmp_path / f"details_t_{STAMP}.parquet")
    assert read(tmp_path)[1] == "parquet"


NAMES = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\x00"), min_size=1, max_size=150)


@settings(max_examples=3, suppress_health_check=list(HealthCheck))
@given(names=st.lists(NAMES, min_size=1, max_size=30, unique=True))
def test_other_examples_are_other_items(read: Read, tmp_path: Path, names: list[str]) -> None:
    write(tmp_path / "m", {**examples(*names), "acc": [1] * len(names)}, "t")
    write(tmp_path / "n", {**examples(*names[::-1]), "acc": [1] * len(names)}, "t")
    found = rows(read(tmp_path)[0])
    assert len({row["item_id"] for row in found}) == len(names)
    assert len({(row["model_id"], row["item_id"]) for row in found}) == 2 * len(names)
