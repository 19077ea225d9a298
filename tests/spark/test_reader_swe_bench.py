"""Lists of solved and unsolved ids."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from cbmm_spark.config.schema import Config, IngestConfig
from cbmm_spark.errors import InputError
from cbmm_spark.ingest.job import ingest
from cbmm_spark.tables import Warehouse
from tests.spark.reader_samples import HARD_NAMES, defaults_of, read_with, rows_of

REPORT = {
    "total_instances": 6,
    "resolved_instances": 1,
    "completed_ids": ["a", "b"],
    "incomplete_ids": ["e"],
    "empty_patch_ids": ["d"],
    "submitted_ids": ["a", "b", "c", "d", "f"],
    "resolved_ids": ["a"],
    "unresolved_ids": ["b"],
    "error_ids": ["c"],
    "schema_version": 2,
}
SOLVED_ONLY = {"no_generation": ["i4"], "no_logs": [], "resolved": ["i 1", "i/2"]}
ALL = ["i 1", "i/2", "i3", "i4"]


def write(path: Path, content: object, indent: int | None = 4) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content, indent=indent))
    return path


@pytest.mark.parametrize("indent", [4, None])
def test_a_report_of_the_harness(spark: SparkSession, tmp_path: Path, indent: int | None) -> None:
    path = write(tmp_path / "org__my model é.run 1.json", REPORT, indent)
    raw, name, reason = read_with(spark, path, benchmark="lite")
    assert name == "swe-bench"
    assert "list" in reason
    rows = rows_of(raw.frame, "item_id", "score_raw", "problem")
    statuses = {"a": "resolved", "b": "unresolved", "c": "error", "d": "empty", "e": "incomplete", "f": "unresolved"}
    assert rows == [(item, status, None) for item, status in statuses.items()]
    assert rows_of(raw.frame.distinct(), "model_id", "benchmark")[0] == ("org__my model é.run 1", "lite")
    assert defaults_of(raw) == {"submitted, and in no other list: unresolved": 1}
    assert read_with(spark, path, model="org/my model")[0].frame.head()["model_id"] == "org/my model"


def test_submissions_of_the_leaderboard(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "evaluation" / "verified"
    write(folder / "20250805_open é+x%20" / "results" / "results.json", SOLVED_ONLY)
    write(folder / "99999999_other" / "results.json", {**SOLVED_ONLY, "resolved": []})
    write(folder / "99999999_other" / "README.md", "{")
    items = write(tmp_path / "all ids.txt", "\n".join(ALL) + "\n")
    raw, name, _ = read_with(spark, folder, items=str(items), benchmark="verified")
    assert name == "swe-bench"
    assert rows_of(raw.frame, "model_id", "item_id", "score_raw", "evaluated_at_raw") == [
        *[
            ("20250805_open é+x%20", item, status, dt.datetime(2025, 8, 5))
            for item, status in zip(ALL, ["resolved", "resolved", "unresolved", "empty"], strict=True)
        ],
        *[
            ("99999999_other", item, status, None)
            for item, status in zip(ALL, ["unresolved"] * 3 + ["empty"], strict=True)
        ],
    ]
    assert sorted(defaults_of(raw).values()) == [4, 4]
    assert any("1 files whose names do not end in .json" in note for note in raw.notes)


def test_solved_items_alone_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "a" / "results.json", REPORT)
    write(tmp_path / "b" / "results.json", SOLVED_ONLY)
    with pytest.raises(InputError, match=r"b/results\.json.*--items FILE") as raised:
        read_with(spark, tmp_path)
    assert "\n" not in str(raised.value)


ITEMS: dict[str, Callable[[Path], object]] = {
    "ids.txt": lambda path: path.write_bytes(("\ufeff" + "\r\n".join(ALL) + "\r\n").encode()),
    "ids.json": lambda path: path.write_text(json.dumps(ALL, indent=1)),
    "objects.json": lambda path: path.write_text(json.dumps([{"instance_id": item, "repo": "r"} for item in ALL])),
    "ids.jsonl": lambda path: path.write_text("".join(json.dumps({"item_id": item}) + "\n" for item in ALL)),
    "texts.jsonl": lambda path: path.write_text("".join(json.dumps(item) + "\n" for item in ALL)),
    "ids.csv": lambda path: pd.DataFrame({"repo": "r", "item": ALL}).to_csv(path, index=False),
    "ids.parquet": lambda path: pd.DataFrame({"instance_id": ALL}).to_parquet(path),
}


@pytest.mark.parametrize("name", ITEMS)
def test_lists_of_all_items(spark: SparkSession, tmp_path: Path, name: str) -> None:
    path = write(tmp_path / "results" / "m.json", {"resolved": ["i/2"]})
    items = tmp_path / "items of it" / name
    items.parent.mkdir()
    ITEMS[name](items)
    raw, _, _ = read_with(spark, path, items=str(items))
    assert rows_of(raw.frame, "item_id", "score_raw") == [
        (item, "resolved" if item == "i/2" else "unresolved") for item in ALL
    ]


def test_lists_of_items_that_cannot_be_used(spark: SparkSession, tmp_path: Path) -> None:
    path = write(tmp_path / "m.json", {"resolved": ["a"]})
    for name, content, message in (
        ("none.csv", "x,y\n1,2\n", "has no column item or item_id or instance_id"),
        ("empty.json", "[]", "holds no ids"),
    ):
        with pytest.raises(InputError, match=message):
            read_with(spark, path, items=str(write(tmp_path / "lists" / name, content)))
    with pytest.raises(InputError, match="does not exist"):
        read_with(spark, path, items=str(tmp_path / "nowhere.txt"))


def test_statuses_and_items_outside_of_the_universe(spark: SparkSession, tmp_path: Path) -> None:
    told = {"resolved": ["a", "x"], "submitted": ["a", "b", "y"], "test_timeout": ["c"], "error": ["z"]}
    write(tmp_path / "m.json", told)
    items = write(tmp_path / "lists" / "ids.txt", "a\nb\nc\nd\n")
    raw, _, _ = read_with(spark, tmp_path / "m.json", items=str(items))
    assert rows_of(raw.frame, "item_id", "score_raw", "problem") == [
        ("a", "resolved", None),
        ("b", "unresolved", None),
        ("c", "timeout", None),
        ("d", None, None),
        ("x", "resolved", "unknown_item"),
        ("y", None, "unknown_item"),
        ("z", "error", "unknown_item"),
    ]
    assert defaults_of(raw) == {
        "submitted, and in no other list: unresolved": 1,
        "in no list of a file that tells what was submitted or unresolved: no verdict": 1,
    }


def test_statuses_are_worth_what_configuration_says(spark: SparkSession, warehouse: Warehouse, tmp_path: Path) -> None:
    path = write(tmp_path / "20250805_m.json", {**REPORT, "resolved_ids": ["a", "x"]})
    items = write(tmp_path / "lists" / "ids.txt", "\n".join("abcdef"))
    report = ingest(spark, warehouse, Config(), str(path), items=str(items))
    assert (report.read, report.accepted, report.missing, dict(report.quarantined)) == (7, 6, 2, {"unknown_item": 1})
    assert report.defaults["status 'error' taken as no verdict (ingest.status)"] == 1
    assert report.defaults["submitted, and in no other list: unresolved"] == 1
    assert report.defaults["evaluated_at by the date that the name of the file or folder begins with"] == 7
    strict = Config(ingest=IngestConfig(status={**IngestConfig().status, "error": 0.0, "incomplete": 0.0}))
    again = ingest(spark, warehouse, strict, str(path), items=str(items))
    assert (again.missing, again.unchanged, again.corrected) == (0, 4, 2)


def test_a_list_of_many_objects_is_read_once(spark: SparkSession, tmp_path: Path) -> None:
    answers = [{"model": f"m{at % 7}", "instance_id": f"i{at}", "resolved": at % 2 == 0, "log": "x" * 900}
               for at in range(5000)]  # fmt: skip
    raw, _, _ = read_with(spark, write(tmp_path / "answers.json", answers), "swe-bench")
    assert rows_of(raw.frame.groupBy("score_raw", "problem").count(), "score_raw", "problem", "count") == [
        ("resolved", None, 2500),
        ("unresolved", None, 2500),
    ]


def test_an_item_of_two_statuses_is_two_rows(spark: SparkSession, tmp_path: Path) -> None:
    path = write(tmp_path / "m.json", {"resolved_ids": ["a", "a"], "unresolved_ids": ["a"]})
    raw, _, _ = read_with(spark, path)
    assert rows_of(raw.frame, "item_id", "score_raw") == [("a", "resolved"), ("a", "unresolved")]


def test_mixed_lists_and_summaries(spark: SparkSession, tmp_path: Path) -> None:
    write(
        tmp_path / "all.json",
        [
            {"model": "Org/X", "resolved": ["a"], "unresolved": ["b"]},
            "text",
            {"model_name_or_path": "y", "instance_id": "a", "resolved": True},
            {"model": "y", "instance_id": "b", "status": "timeout"},
            {"model": "y", "instance_id": "c"},
            7,
            None,
            '{"resolved": ["z"]}',
            {"model": "z", "resolved": ["a", {"id": "b"}, 7, None, True], "unresolved": []},
        ],
    )
    write(tmp_path / "summary.json", {"total_instances": 3, "resolved_instances": 1, "resolved": 1})
    write(tmp_path / "broken.json", '{"resolved": ["a"')
    raw, name, _ = read_with(spark, tmp_path, "swe-bench")
    assert name == "swe-bench"
    rows = [(Path(source).name, *rest) for source, *rest in
            rows_of(raw.frame, "source", "position", "model_id", "item_id", "score_raw", "problem")]  # fmt: skip
    bad = "malformed_row"
    assert sorted(rows, key=repr) == sorted(
        [
            ("all.json", 0, "Org/X", "a", "resolved", None),
            ("all.json", 0, "Org/X", "b", "unresolved", None),
            ("all.json", 1, "all", None, None, bad),
            ("all.json", 2, "y", "a", "resolved", None),
            ("all.json", 3, "y", "b", "timeout", None),
            ("all.json", 4, "y", "c", None, bad),
            *[("all.json", at, "all", None, None, bad) for at in (5, 6, 7)],
            ("all.json", 8, "z", "a", "resolved", None),
            ("all.json", 8, "z", '{"id":"b"}', None, bad),
            ("all.json", 8, "z", "7", "resolved", None),
            ("all.json", 8, "z", None, None, bad),
            ("all.json", 8, "z", "true", None, bad),
            ("summary.json", None, "summary", None, None, "no_result"),
            ("broken.json", None, "broken", None, None, bad),
        ],
        key=repr,
    )


def test_one_model_for_many_files_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    for name in "ab":
        write(tmp_path / f"{name}.json", REPORT)
    with pytest.raises(InputError, match="2 files, one for each model: leave out --model"):
        read_with(spark, tmp_path, model="m")


@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))
@given(names=st.lists(st.text(st.characters(exclude_categories=("Cs",)), min_size=1), max_size=20), data=st.data())
def test_every_item_of_the_universe_has_one_row(
    spark: SparkSession, tmp_path: Path, names: list[str], data: Any
) -> None:
    ids = list(dict.fromkeys([*HARD_NAMES, *names]))
    status = {item: data.draw(st.sampled_from(["resolved", "empty", "timeout", None])) for item in ids}
    lists: dict[str, list[str]] = {"resolved": [], "empty": [], "timeout": []}
    for item, each in status.items():
        if each is not None:
            lists[each].append(item)
    path = write(tmp_path / "m.json", lists)
    items = write(tmp_path / "lists" / "ids.json", ids)
    raw, _, _ = read_with(spark, path, "swe-bench", items=str(items))
    rows = raw.frame.collect()
    assert {row["item_id"]: row["score_raw"] for row in rows} == {i: s or "unresolved" for i, s in status.items()}
    assert len(rows) == len(ids)


@pytest.mark.parametrize("indent", [4, None])
def test_a_map_of_ids_to_true_and_false(spark: SparkSession, tmp_path: Path, indent: int | None) -> None:
    told = {"model": "org/X", "i 1": True, "i/2": False, "i3": None, "resolved-4": True}
    told |= {} if indent else {"i5": "timeout"}  # what else is in it takes the format to be given
    write(tmp_path / "one" / "eval_results.json", told, indent)
    write(tmp_path / "Agent 2" / "eval_results.json", {"i 1": False, "gone": True, "i/2": True}, indent)
    raw, name, _ = read_with(spark, tmp_path, "swe-bench" if indent is None else "auto")
    assert name == "swe-bench"
    status = [] if indent else [("org/X", "i5", "timeout", None)]
    assert rows_of(raw.frame, "model_id", "item_id", "score_raw", "problem") == sorted([
        *status, ("org/X", "i 1", "resolved", None), ("org/X", "i/2", "unresolved", None), ("org/X", "i3", None, None),
        ("org/X", "resolved-4", "resolved", None),
        ("Agent 2", "i 1", "unresolved", None), ("Agent 2", "gone", "resolved", None),
        ("Agent 2", "i/2", "resolved", None),
    ], key=repr)  # fmt: skip


def test_a_map_within_all_items(spark: SparkSession, tmp_path: Path) -> None:
    path = write(tmp_path / "m.json", {"i 1": False, "gone": True})
    universe = write(tmp_path / "all.txt", "\n".join(ALL[:2]))
    raw, name, reason = read_with(spark, path, items=str(universe))
    assert (name, reason) == ("swe-bench", "it tells of each id true or false")
    rows = [("gone", "resolved", "unknown_item"), ("i 1", "unresolved", None), ("i/2", None, None)]
    assert rows_of(raw.frame, "item_id", "score_raw", "problem") == rows
    assert defaults_of(raw) == {"in no list of a file that tells what was submitted or unresolved: no verdict": 1}


@pytest.mark.parametrize("content", [{"resolved": True, "patch_exists": False}, {"a": 1, "b": 2},
                                     {"i1": {"resolved": True}}])  # fmt: skip
def test_other_objects_are_no_maps(spark: SparkSession, tmp_path: Path, content: dict[str, Any]) -> None:
    raw, _, _ = read_with(spark, write(tmp_path / "m.json", content), "swe-bench")
    assert rows_of(raw.frame, "item_id", "problem") == [(None, "no_result")]
