"""Where refused rows are: every line format tells the row of each record, also of files that several tasks read."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cbmm_spark.config.schema import Config
from cbmm_spark.ingest.job import ingest
from cbmm_spark.tables import Warehouse
from tests.spark.reader_samples import Read

ROWS = 60
STAMP = "2025-01-01T00-00-00"


def csv_line(at: int) -> str:
    return f"m,item {at},1"


def json_line(at: int) -> str:
    return json.dumps({"model": "m", "item": f"item {at}", "score": 1})


def subject(at: int) -> str:
    return json.dumps({"subject_id": f"m{at}", "responses": {f"item {at}": 1}})


def sample(at: int) -> str:
    return json.dumps({"doc_id": f"item {at}", "acc": 1, "filter": "none", "metrics": ["acc"]})


def event(at: int) -> str:
    data = {"run_id": "r", "sample_id": f"item {at}", "type": "match", "data": {"correct": True}}
    return json.dumps(data if at else {"spec": {"completion_fns": ["m"], "eval_name": "e"}})


FORMATS: dict[str, tuple[str, str, Callable[[int], str]]] = {
    "csv": ("a.csv", "model,item,score\n", csv_line),
    "jsonl": ("a.jsonl", "", json_line),
    "py-irt": ("a.jsonlines", "", subject),
    "lm-eval": (f"samples_t_{STAMP}.jsonl", "", sample),
    "openai-evals": ("log.jsonl", "", event),
}


@pytest.fixture
def small_parts(spark: SparkSession) -> Iterator[None]:
    """Files are read by several tasks."""
    spark.conf.set("spark.sql.files.maxPartitionBytes", "500")
    yield
    spark.conf.unset("spark.sql.files.maxPartitionBytes")


@pytest.mark.parametrize("format", FORMATS)
def test_rows_of_a_file_read_in_parts_have_their_positions(
    read: Read, tmp_path: Path, small_parts: None, format: str
) -> None:
    name, header, line = FORMATS[format]
    for folder in ("one", "two", "left out"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).write_text(header + "".join(line(at) + "\n" for at in range(ROWS)))
    raw, found, _ = read(tmp_path, format)
    assert found == format
    assert raw.numbered is not None
    assert raw.first_line == (2 if header else 1)
    sources = [row["source"] for row in raw.frame.select("source").distinct().collect()]
    wanted = [source for source in sources if "left" not in source]
    rows = raw.numbered(wanted).select("source", "position", "item_id").collect()
    expected = {(source, at, f"item {at}" if format != "openai-evals" or at else None)
                for source in wanted for at in range(ROWS)}  # fmt: skip
    assert {tuple(row) for row in rows} == expected
    assert len(rows) == len(expected)
    assert raw.frame.where("position IS NOT NULL").isEmpty(), "the usual way to read pays for positions"


def test_the_report_and_quarantine_tell_file_and_line(
    spark: SparkSession, warehouse: Warehouse, tmp_path: Path
) -> None:
    lines = [json_line(0), "", json_line(1).replace("1}", '"?"}'), "{broken", json_line(3)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    report = ingest(spark, warehouse, Config(), str(tmp_path / "a.jsonl"))
    assert report.quarantined == {"malformed_row": 1, "unreadable_score": 1}
    for reason, line in (("unreadable_score", 3), ("malformed_row", 4)):
        (example,) = report.examples[reason]
        assert (example.position, example.line) == (line - 1, line)
        assert f"a.jsonl line {line})" in example.text()
    stored = warehouse.read("quarantine").select("reason", "position").collect()
    assert {tuple(row) for row in stored} == {("malformed_row", 3), ("unreadable_score", 2)}
