"""`cbmm-spark quarantine`: what is listed, read again and removed; and where refused rows are found."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import SparkSession

from cbmm_spark.config.schema import Config, IngestConfig
from cbmm_spark.errors import InputError
from cbmm_spark.ingest import resubmit as module
from cbmm_spark.ingest.job import IngestReport, ingest
from cbmm_spark.ingest.quarantine_admin import Selection, drop_refused, list_refused
from cbmm_spark.ingest.resubmit import Resubmitted, resubmit
from cbmm_spark.readers.files import files_of, lines_of
from cbmm_spark.tables import Warehouse

Again = Callable[..., Resubmitted]


@pytest.fixture
def again(spark: SparkSession, warehouse: Warehouse) -> Again:
    """`again(reasons, sources, **rules)`: resubmit under other rules."""

    def call(reasons: tuple[str, ...] = (), sources: tuple[str, ...] = (), **rules: Any) -> Resubmitted:
        instead = {name: rules.pop(name) for name in ("format", "mapping", "benchmark") if name in rules}
        config = Config(ingest=IngestConfig(**rules))
        return resubmit(spark, warehouse, config, Selection(reasons, sources), instead)

    return call


def refused(warehouse: Warehouse) -> dict[tuple[str, str], int]:
    """Rows of quarantine by the name of their file and their reason."""
    rows = warehouse.read("quarantine").groupBy("source", "reason").count().collect()
    return {(row["source"].rpartition("/")[2], row["reason"]): row["count"] for row in rows}


def scores(warehouse: Warehouse) -> dict[tuple[str, str], float | None]:
    rows = warehouse.read("responses").select("model_id", "item_id", "score").collect()
    return {(row["model_id"], row["item_id"]): row["score"] for row in rows}


def write_lines(path: Path, rows: list[tuple[str, str, Any]]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(dict(zip(("model", "item", "score"), row, strict=True))) + "\n" for row in rows))


def test_rows_accepted_under_another_mapping_leave_quarantine_and_the_others_stay(
    spark: SparkSession, warehouse: Warehouse, tmp_path: Path, again: Again
) -> None:
    folder = tmp_path / "night"
    write_lines(folder / "a b.jsonl", [("m1", "i1", "won"), ("m1", "i2", "lost"), ("m1", "i3", 7), ("m1", "i4", 1)])
    write_lines(folder / "c.jsonl", [("m2", "i1", "won"), ("m2", "i2", 0)])
    write_lines(folder / "d.jsonl", [("m3", "i1", 8), ("m3", "i2", 0)])
    report = ingest(spark, warehouse, Config(), str(folder), benchmark="quiz")
    assert report.quarantined == {"score_out_of_range": 2, "unreadable_score": 3}

    mapping = tmp_path / "source.toml"
    mapping.write_text("[status]\nwon = 1.0\n")
    done = again(("unreadable_score",), mapping=str(mapping))
    assert (done.selected, done.removed, done.left) == (3, 2, ())
    (read,) = done.ingests
    assert (read.read, read.new, read.unchanged, read.removed) == (6, 2, 2, 2)  # d.jsonl was not read again
    assert any(note == f"mapping {mapping} was laid over [ingest]" for note in read.notes)
    assert read.coverage[0].benchmark == "quiz"  # what was given then is given again
    assert refused(warehouse) == {
        ("a%20b.jsonl", "unreadable_score"): 1,
        ("a%20b.jsonl", "score_out_of_range"): 1,
        ("d.jsonl", "score_out_of_range"): 1,
    }
    assert (scores(warehouse)["m1", "i1"], scores(warehouse)["m2", "i1"]) == (1.0, 1.0)
    assert ("m1", "i2") not in scores(warehouse)

    version = warehouse.version("quarantine")
    same = again(("unreadable_score",), mapping=str(mapping))
    assert (same.selected, same.removed) == (1, 0)
    assert warehouse.version("quarantine") == version, "nothing changed, and yet it was written"


def test_killed_between_the_two_commits_repeating_ends_the_same(
    spark: SparkSession, warehouse: Warehouse, tmp_path: Path, again: Again
) -> None:
    write_lines(tmp_path / "n" / "a.jsonl", [("m1", "i1", "won"), ("m1", "i2", "maybe"), ("m1", "i3", 0)])
    ingest(spark, warehouse, Config(), str(tmp_path / "n"))
    rules = {"status": {"won": 1.0}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cbmm_spark.ingest.job.keep_refused", _killed)
        with pytest.raises(KeyboardInterrupt):
            again(**rules)
    assert scores(warehouse) == {("m1", "i1"): 1.0, ("m1", "i3"): 0.0}
    assert sum(refused(warehouse).values()) == 2  # committed first, and nothing lost
    assert again(**rules).removed == 1
    assert refused(warehouse) == {("a.jsonl", "unreadable_score"): 1}


def test_how_to_read_the_files_of_an_ingest_that_did_not_end_is_asked(
    spark: SparkSession, warehouse: Warehouse, tmp_path: Path, again: Again
) -> None:
    """It may have been given a benchmark, which nobody knows any more: nothing is guessed."""
    write_lines(tmp_path / "n" / "a [1] {é}.jsonl", [("m1", "i1", "won"), ("m1", "i3", 0)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cbmm_spark.ingest.job.keep_report", _killed)
        with pytest.raises(KeyboardInterrupt):
            ingest(spark, warehouse, Config(), str(tmp_path / "n"), benchmark="quiz")
    done = again(status={"won": 1.0})
    assert (done.ingests, done.removed) == ((), 0)
    assert "--format NAME" in done.left[0].why
    done = again(status={"won": 1.0}, format="jsonl", benchmark="quiz")
    assert (done.removed, done.left) == (1, ())
    assert {row["benchmark"] for row in warehouse.read("responses").collect()} == {"quiz"}


@pytest.mark.parametrize("ending", ["jsonl", "csv", "parquet"])
def test_rows_that_their_file_does_not_hold_any_more_stay_and_are_named(
    spark: SparkSession, warehouse: Warehouse, tmp_path: Path, again: Again, ending: str
) -> None:
    rows = [("m1", "i1", "1"), ("m1", "i2", "won"), ("m1", "i3", "won"), ("m1", "i4", "?")]
    path = tmp_path / f"a.{ending}"

    def write(kept: list[tuple[str, str, str]]) -> None:
        frame = pd.DataFrame(kept, columns=["model", "item", "score"])
        if ending == "parquet":
            frame.to_parquet(path)
        elif ending == "csv":
            frame.to_csv(path, index=False)
        else:
            frame.to_json(path, orient="records", lines=True)

    write(rows)
    ingest(spark, warehouse, Config(), str(path))
    write([row for row in rows if row[1] != "i3"])
    spark.catalog.clearCache()
    done = again(status={"won": 1.0})
    assert (done.selected, done.removed) == (3, 1)
    assert [(each.rows, "does not hold these rows" in each.why) for each in done.left] == [(1, True)]
    assert scores(warehouse) == {("m1", "i1"): 1.0, ("m1", "i2"): 1.0}
    kept = {row["raw"] for row in warehouse.read("quarantine").collect()}
    assert len(kept) == 2
    assert any("i3" in raw for raw in kept)


def test_a_file_of_any_name_is_found_by_what_it_is_called_in_quarantine(spark: SparkSession, tmp_path: Path) -> None:
    """Every character that a pattern or a URI takes otherwise: the file itself is found, and no other."""
    folder = tmp_path / "n"
    folder.mkdir()
    for sign in "[]{}*?%#+,;&=@!$'()~^|<>\"` \u00e9\u4e2d:":
        (folder / f"a{sign}b.jsonl").write_text("{}\n", encoding="utf-8")
    for name in ("a%20b", "a[1]b", "a{x,y}b", "axb", "ayb", "a1b"):
        (folder / f"{name}.jsonl").write_text("{}\n", encoding="utf-8")
    sources = [row["source"] for row in lines_of(spark, str(folder)).select("source").collect()]
    assert len(set(sources)) == len(list(folder.iterdir()))
    for source in sources:
        found = files_of(spark, module.by_itself(source))
        assert source in found
        assert len(found) <= 2, f"{source} stands for more than one file: {sorted(found)}"


def _killed(*_arguments: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.faults
def test_what_is_gone_is_read_from_quarantine_where_that_keeps_whole_rows(
    spark: SparkSession, warehouse: Warehouse, tmp_path: Path, again: Again
) -> None:
    when = pd.Timestamp("2025-03-04 05:06:07")
    rows = {"who": ["m1", "m1", "m2"], "item": ["i1", "i2", "i1"], "score": ["won", "?", "0"], "date": [when] * 3}
    pd.DataFrame(rows).astype({"date": "datetime64[us]"}).to_parquet(tmp_path / "a.parquet")
    (tmp_path / "b.csv").write_text("model,item,score,date\nm3,i1,won,2025-01-01\nm3,i2\nm3,i3,0,2025-01-01\n")
    subject = {"subject_id": "m4", "responses": {"i1": "won", "i2": 1}}
    (tmp_path / "c.jsonlines").write_text(json.dumps(subject) + "\n")
    answers = [{"instance_id": f"i{at}", "model": "m5", "status": each} for at, each in enumerate(["won", "resolved"])]
    (tmp_path / "d.json").write_text(json.dumps(answers))
    columns = IngestConfig().columns
    config = Config(ingest=IngestConfig(columns=type(columns)(model=("who", "model"))))
    for name, format in (("a.parquet", "auto"), ("b.csv", "auto"), ("c.jsonlines", "auto"), ("d.json", "swe-bench")):
        ingest(spark, warehouse, config, str(tmp_path / name), format=format)
        (tmp_path / name).unlink()
    assert sum(refused(warehouse).values()) == 6

    done = again(status={"won": 1.0}, columns=config.ingest.columns, date_formats=("yyyy-MM-dd",))
    left = {(str(each.source).rpartition("/")[2], each.rows, each.why) for each in done.left}
    assert left == {
        ("b.csv", 1, "it is gone, and these are no rows but text"),
        ("d.json", 1, "it is gone, and quarantine keeps no whole rows of swe-bench"),
    }
    assert (done.selected, done.removed) == (6, 3)
    assert refused(warehouse) == {
        ("a.parquet", "unreadable_score"): 1, ("b.csv", "malformed_row"): 1, ("d.json", "unreadable_score"): 1,
    }  # fmt: skip
    stored = warehouse.read("responses").where("score = 1 AND item_id = 'i1'")
    dates = {row["model_id"]: row["evaluated_at"] for row in stored.collect()}
    assert set(dates) == {"m1", "m3", "m4", "m5"}  # the last one was accepted before
    assert dates["m1"].isoformat(" ") == "2025-03-04 05:06:07"


def test_nothing_selected_is_said(warehouse: Warehouse, again: Again) -> None:
    assert list_refused(warehouse, Selection(), 5).lines() == ["0 rows in quarantine"]
    for act in (lambda: again(("no_reason",)), lambda: drop_refused(warehouse, Selection(("no_reason",)))):
        with pytest.raises(InputError, match="nothing in quarantine fits: reason no_reason"):
            act()


def test_listed_and_dropped_by_reason_and_source(
    spark: SparkSession, warehouse: Warehouse, tmp_path: Path, read_all: Callable[[], IngestReport]
) -> None:
    read_all()
    listing = list_refused(warehouse, Selection(), 2)
    assert (listing.rows, listing.by_reason) == (9, {"score_out_of_range": 6, "unreadable_score": 3})
    assert [(group.reason, group.rows) for group in listing.groups] == [
        ("score_out_of_range", 4), ("score_out_of_range", 2),
    ]  # fmt: skip
    assert (listing.groups_left_out, listing.rows_left_out) == (2, 3)
    assert "3 of 2 more reasons and sources: --limit shows more" in listing.lines()[-1]
    first = listing.examples["score_out_of_range"]
    assert [(each.source.rpartition("/")[2], each.position) for each in first] == [("a.jsonl", i) for i in range(3)]
    assert list_refused(warehouse, Selection(("unreadable_score",), ("b.jsonl",)), 9).rows == 2
    assert list_refused(warehouse, Selection((), ("*/n/*.jsonl",)), 9).rows == 9
    assert list_refused(warehouse, Selection((), (".jsonl",)), 9).rows == 0, "a file's name is matched whole"

    assert drop_refused(warehouse, Selection((), ("b.jsonl",))) == 4
    assert {source for source, _ in refused(warehouse)} == {"a.jsonl"}
    assert drop_refused(warehouse, Selection(("score_out_of_range",))) == 4
    assert refused(warehouse) == {("a.jsonl", "unreadable_score"): 1}


@pytest.fixture
def read_all(spark: SparkSession, warehouse: Warehouse, tmp_path: Path) -> Callable[[], IngestReport]:
    def call() -> IngestReport:
        five = [("m", f"i{i}", 5) for i in range(4)]
        write_lines(tmp_path / "n" / "a.jsonl", [*five, ("m", "x", "?"), ("m", "y", 1)])
        write_lines(tmp_path / "n" / "b.jsonl", [*five[:2], ("m", "x", "!"), ("m", "z", "?")])
        return ingest(spark, warehouse, Config(), str(tmp_path / "n"))

    return call


def test_every_long_format_is_known_to_the_registry() -> None:
    from cbmm_spark.readers.registry import READERS

    assert set(module.LONG) <= set(READERS)
