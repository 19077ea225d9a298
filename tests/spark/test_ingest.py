"""Ingest as a whole: what becomes of rows, idempotence, corrections, numbers, rivals."""

from __future__ import annotations

import json
import os
import random
import re
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from cbmm_spark.config.schema import ChecksConfig, Config, IngestConfig
from cbmm_spark.errors import ConfigError, InputError
from cbmm_spark.ingest import commit, gather
from cbmm_spark.ingest import job as module
from cbmm_spark.ingest import numbering as dimensions
from cbmm_spark.ingest.job import IngestReport, ingest
from cbmm_spark.ingest.report import complaint
from cbmm_spark.readers.base import RAW_COLUMNS, RawFrame
from cbmm_spark.responses.batch import HashCollisionError
from cbmm_spark.tables import Warehouse

TABLES = ("responses", "models", "items", "quarantine")
Take = Callable[..., IngestReport]
Row = tuple[Any, ...]


@pytest.fixture
def take(spark: SparkSession, warehouse: Warehouse, tmp_path: Path) -> Take:
    """Write rows (model, item, score, date) as a file, ingest it, and check that the report's counts add up."""

    def call(rows: list[Row], name: str = "rows.jsonl", **rules: Any) -> IngestReport:
        path = tmp_path / name
        keys = ("model", "item", "score", "date")
        path.write_text("".join(json.dumps(dict(zip(keys, row, strict=False))) + "\n" for row in rows))
        report = ingest(spark, warehouse, Config(ingest=IngestConfig(**rules)), str(path))
        check(report)
        return report

    return call


def check(report: IngestReport) -> None:
    assert report.read == report.accepted + report.collapsed + report.refused + sum(report.left_out.values())
    became = report.new + report.unchanged + report.corrected + report.redated + report.superseded
    assert report.accepted == became
    assert json.loads(report.as_json())["read"] == report.read
    assert report.lines()


def versions(warehouse: Warehouse) -> dict[str, int]:
    return {name: warehouse.version(name) for name in TABLES}


def stored(warehouse: Warehouse, name: str = "responses") -> list[Row]:
    """The rows without what tells when and from which place they came."""
    left_out = ("ingested_at", "source", "position")
    frame = warehouse.read(name)
    kept = [column for column in frame.columns if column not in left_out]
    return sorted((tuple(row) for row in frame.select(*kept).collect()), key=repr)


def scores(warehouse: Warehouse) -> dict[tuple[str, str], float | None]:
    rows = warehouse.read("responses").select("model_id", "item_id", "score").collect()
    return {(row["model_id"], row["item_id"]): row["score"] for row in rows}


def dates(warehouse: Warehouse) -> dict[str, str]:
    rows = warehouse.read("responses").selectExpr("item_id", "cast(evaluated_at as string) as day").collect()
    return {row["item_id"]: row["day"] for row in rows}


def test_three_nights_unchanged_corrected_extended(warehouse: Warehouse, take: Take) -> None:
    night = [
        ("m1", "i1", 1, "2024-05-01"),
        ("m1", "i2", 0, "2024-05-01"),
        ("m2", "i1", None, None),
        ("m2", "i2", "maybe", None),
        ("m2", "i2", "maybe", None),
        ("m2", "i3", 50, None),
        ("m2 ", "i3", 1, None),
        ("m1", "i1", 1, "2024-05-02"),
    ]
    first = take(night)
    assert (first.read, first.accepted, first.new, first.collapsed, first.missing) == (8, 3, 3, 1, 1)
    assert first.quarantined == {"score_out_of_range": 1, "space_around_model": 1, "unreadable_score": 2}
    assert json.loads(first.examples["space_around_model"][0].raw)["model"] == "m2 "
    assert dates(warehouse)["i1"] in ("2024-05-01 00:00:00", None)
    before, rows = versions(warehouse), {name: stored(warehouse, name) for name in TABLES}
    assert len(rows["quarantine"]) == 3

    again = take(night)
    assert (again.unchanged, again.new, again.refused, again.changed) == (3, 0, 4, False)
    assert versions(warehouse) == before

    corrected = take([("m1", "i2", 1, "2024-05-01"), ("m1", "i1", 1, "2024-05-03")])
    assert (corrected.corrected, corrected.unchanged) == (1, 1)
    after = versions(warehouse)
    assert {name: after[name] - before[name] for name in TABLES} == {
        "responses": 1, "models": 0, "items": 0, "quarantine": 0,
    }  # fmt: skip
    assert scores(warehouse)["m1", "i2"] == 1.0
    assert stored(warehouse, "models") == rows["models"]

    files = set(warehouse.read("responses").inputFiles())
    extended = take([("m1", "i1", 1, "2024-05-01"), ("m0", "i1", 0, None), ("m1", "i0", 1, "2023-01-01")])
    assert (extended.new, extended.unchanged) == (2, 1)
    assert files < set(warehouse.read("responses").inputFiles()), "rows were added by rewriting files"
    numbers = {row["model_id"]: row["model_index"] for row in warehouse.read("models").collect()}
    assert numbers == {"m1": 1, "m2": 2, "m0": 3}
    items = {row["item_id"]: row["item_index"] for row in warehouse.read("items").collect()}
    assert items == {"i1": 1, "i2": 2, "i0": 3}
    first_date = (
        warehouse.read("models").where("model_id = 'm1'").selectExpr("cast(first_evaluated_at as string)").head()
    )
    assert first_date[0] == "2023-01-01 00:00:00"


def test_attempts_are_kept_or_one_counts_by_the_rule(spark: SparkSession, warehouse: Warehouse, tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text("model,item,run,correct\nm,i,3,0\nm,i,1,1\nm,i,2,0\nm,j,2,1\nn,i,1,1\nm,i,3,0\n", encoding="utf-8")

    def result(rule: Any, root: str) -> tuple[list[Row], IngestReport]:
        place = Warehouse(spark, str(tmp_path / root))
        report = ingest(spark, place, Config(ingest=IngestConfig(attempts=rule)), str(path))
        check(report)
        rows = place.read("responses").select("model_id", "item_id", "attempt", "score").collect()
        return sorted(tuple(row) for row in rows), report

    rows, report = result("all", "all")
    assert rows == [("m", "i", 1, 1.0), ("m", "i", 2, 0.0), ("m", "i", 3, 0.0), ("m", "j", 2, 1.0), ("n", "i", 1, 1.0)]
    assert (report.collapsed, report.left_out) == (1, {})
    rows, report = result("latest", "latest")
    assert rows == [("m", "i", 1, 0.0), ("m", "j", 1, 1.0), ("n", "i", 1, 1.0)]
    assert (report.collapsed, report.left_out) == (1, {"other_attempt": 2})
    rows, report = result("first", "first")
    assert rows == [("m", "i", 1, 1.0), ("m", "j", 1, 1.0), ("n", "i", 1, 1.0)]
    assert report.left_out == {"other_attempt": 3}
    with pytest.raises(InputError, match=r"several attempts up to model 'm', item 'i' of 'default', attempt 3"):
        result("error", "error")
    assert not (tmp_path / "error").exists()


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet", "delta"])
def test_an_input_without_an_acceptable_row(
    spark: SparkSession, warehouse: Warehouse, tmp_path: Path, suffix: str
) -> None:
    path = tmp_path / f"bad.{suffix}"
    rows = pd.DataFrame({"model": ["m", "m", ""], "item": ["i", "j", "k"], "score": ["maybe", "?", "resolved"]})
    if suffix == "csv":
        rows.to_csv(path, index=False)
    elif suffix == "jsonl":
        rows.to_json(path, orient="records", lines=True)
    elif suffix == "parquet":
        rows.to_parquet(path)
    else:
        spark.createDataFrame(rows).write.format("delta").save(str(path))
    report = ingest(spark, warehouse, Config(), str(path))
    check(report)
    assert (report.read, report.accepted) == (3, 0)
    assert report.quarantined == {"missing_model": 1, "unreadable_score": 2}
    assert report.defaults["status 'resolved' taken as score 1 (ingest.status)"] == 1
    assert warehouse.read("quarantine").count() == 3
    assert warehouse.read("responses").isEmpty()


def test_names_of_one_hash_are_told_apart(take: Take, warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """With another salt: as if items or files had the bad luck of one hash."""
    salts = []
    made = gather.batch_of

    def unlucky(path: str, told: pa.Table, salt: int) -> Any:
        salts.append(salt)
        if salt == 0:
            raise HashCollisionError
        return made(path, told, salt)

    monkeypatch.setattr(gather, "batch_of", unlucky)
    rows = [(f"m{m}", f"i{i}", (m * i) % 2) for m in range(5) for i in range(5)]
    assert take(rows).new == 25
    assert salts == [0, 1]
    assert scores(warehouse) == {(m, i): score for m, i, score in rows}
    changed = take([("m1", "i1", 0), *rows[:3]])
    assert (changed.corrected, changed.unchanged) == (1, 3)
    assert changed.corrections == ("model 'm1', item 'i1' of 'default', attempt 1: 1 became 0",)


def test_permuted_input_gives_identical_tables(spark: SparkSession, tmp_path: Path) -> None:
    dice = random.Random(7)
    rows = [
        {"model": f"m{m}", "item": f"i{i}", "benchmark": f"b{i % 3}",
         "score": dice.choice(["1", "0", "0.5", "", "x", "9"]),
         "date": dice.choice(["2024-01-01", "2024-02-02", ""]), "run": dice.choice(["1", "2", "y"])}
        for m in range(12) for i in range(12) for _ in range(dice.choice([1, 1, 2, 3]))
    ]  # fmt: skip
    results = []
    for turn in range(2):
        warehouse = Warehouse(spark, str(tmp_path / f"warehouse{turn}"))
        path = tmp_path / "rows.csv"
        pd.DataFrame(rows).to_csv(path, index=False)
        report = ingest(spark, warehouse, Config(), str(path))
        check(report)
        assert report.examples["conflicting_duplicate"]
        told = replace(report, ingest_id="", examples={}).as_json()  # the examples name rows of the file
        results.append((told, {name: stored(warehouse, name) for name in TABLES}))
        dice.shuffle(rows)
    assert results[0] == results[1]
    assert "conflicting_duplicate" in results[0][0]
    numbers = [
        row[-2] for row in warehouse.read("items").select("benchmark", "item_id", "item_index", "benchmark").collect()
    ]
    assert sorted(numbers) == sorted([1, 2, 3, 4] * 3)


@pytest.mark.parametrize(
    ("rule", "expected", "collapsed", "refused"),
    [
        ("latest", {"dated": 0.0, "undated": 1.0, "same": 1.0}, 3, 2),
        ("first", {"dated": 1.0, "undated": 1.0, "same": 1.0}, 3, 2),
    ],
)
def test_duplicates_in_one_input(
    warehouse: Warehouse, take: Take, rule: str, expected: dict[str, float], collapsed: int, refused: int
) -> None:
    report = take(
        [
            ("m", "dated", 1, "2024-01-01"), ("m", "dated", 0, "2024-02-01"),
            ("m", "undated", 0, None), ("m", "undated", 1, "2020-01-01"),
            ("m", "same", 1, "2024-01-01"), ("m", "same", "1.0", "2024-01-01"),
            ("m", "tie", 1, "2024-01-01"), ("m", "tie", 0, "2024-01-01"),
        ],
        duplicates=rule,
    )  # fmt: skip
    assert {item: score for (_, item), score in scores(warehouse).items()} == expected
    assert (report.collapsed, report.quarantined) == (collapsed, {"conflicting_duplicate": refused})
    assert {row["item_id"] for row in warehouse.read("items").collect()} == set(expected)


def test_duplicates_may_be_an_error(warehouse: Warehouse, take: Take) -> None:
    with pytest.raises(InputError, match="model 'm', item 'i' of 'default', attempt 1"):
        take([("m", "i", 1), ("m", "i", 0)], duplicates="error")
    assert not any(warehouse.exists(name) for name in TABLES)
    take([("m", "i", 1)], duplicates="error")
    before = versions(warehouse)
    with pytest.raises(InputError, match="another score than the stored one for model 'm'"):
        take([("m", "i", 0), ("m", "j", 1)], duplicates="error")
    assert versions(warehouse) == before


def test_what_upkeep_would_remove_are_files_that_it_removes(take: Take, warehouse: Warehouse) -> None:
    """A correction leaves folders of the change feed, which Delta lists and which stay."""
    take([("m1", "i1", 1, "2026-01-01")])
    take([("m1", "i1", 0, "2026-01-02")])
    folder = Path(warehouse.location("responses"))
    assert list((folder / "_change_data").rglob("*.parquet"))
    assert warehouse.vacuum("responses", 168, dry_run=True) == 0
    old = next(folder.glob("benchmark_bucket=*")) / "part-00000-left.c000.snappy.parquet"
    old.write_bytes(b"left by a job that was killed")
    os.utime(old, (0, 0))
    assert warehouse.vacuum("responses", 168, dry_run=True) == 1
    assert old.exists()
    warehouse.vacuum("responses", 168)
    assert not old.exists()


def test_dates_decide_between_inputs(warehouse: Warehouse, take: Take) -> None:
    take([("m", "a", 1, "2024-02-01"), ("m", "b", 1, None), ("m", "c", 1, "2024-02-01"), ("m", "d", 1, "2024-02-01")])
    report = take(
        [("m", "a", 0, "2024-01-01"), ("m", "b", 1, "2024-01-01"), ("m", "c", 1, "2024-01-01"), ("m", "d", 0, None)]
    )
    assert (report.superseded, report.redated, report.corrected) == (1, 2, 1)
    assert scores(warehouse) == {("m", "a"): 1.0, ("m", "b"): 1.0, ("m", "c"): 1.0, ("m", "d"): 0.0}
    assert dates(warehouse) == {
        "a": "2024-02-01 00:00:00", "b": "2024-01-01 00:00:00", "c": "2024-01-01 00:00:00", "d": "2024-02-01 00:00:00",
    }  # fmt: skip


def test_bad_input_writes_nothing(spark: SparkSession, warehouse: Warehouse, tmp_path: Path) -> None:
    header_only = tmp_path / "header.csv"
    header_only.write_text("model,item,correct\n")
    no_rows = tmp_path / "none.parquet"
    pd.DataFrame({"model": [], "item": [], "correct": []}).astype(str).to_parquet(no_rows)
    cut = tmp_path / "cut.parquet"
    pd.DataFrame({"model": ["m"] * 999, "item": range(999), "correct": 1}).to_parquet(cut)
    cut.write_bytes(cut.read_bytes()[:4000])
    for path in (header_only, no_rows, cut, tmp_path / "nowhere"):
        with pytest.raises(InputError, match=path.name) as raised:
            ingest(spark, warehouse, Config(), str(path))
        assert "\n" not in str(raised.value)
    with pytest.raises(ConfigError, match="unknown format"):
        ingest(spark, warehouse, Config(), str(header_only), format="xls")
    assert not (tmp_path / "warehouse").exists()


def test_what_is_not_the_warehouses_table_is_refused(spark: SparkSession, warehouse: Warehouse, take: Take) -> None:
    spark.range(1).write.format("delta").save(warehouse.location("models"))
    spark.range(1).write.format("delta").save(warehouse.location("responses"))
    with pytest.raises(InputError, match="models lacks the column"):
        take([("m", "i", 1)])


def test_any_name_reaches_the_table_unchanged(spark: SparkSession, warehouse: Warehouse, tmp_path: Path) -> None:
    names = ["007", "1.0", "Org/X:1 (beta)#2+3@4%", 'say "hi"', "two\nlines", "cr\r\nlf", "😀", "x" * 300,
             "A. sentence?",
             "../..", "a=b", "é", "e\u0301", "null", "`;--"]  # fmt: skip
    path = tmp_path / "names.parquet"
    pd.DataFrame({"model": names, "item": names[::-1], "benchmark": names, "correct": True}).to_parquet(path)
    report = ingest(spark, warehouse, Config(), str(path))
    assert report.new == len(names)
    files = [name.removeprefix("file:") for name in warehouse.read("responses").inputFiles()]
    assert all(Path(name).parent.name.startswith("benchmark_bucket=") for name in files)
    read = [
        row for name in files for row in pq.ParquetFile(name).read(["model_id", "item_id", "benchmark"]).to_pylist()
    ]
    assert {tuple(row.values()) for row in read} == set(zip(names, names[::-1], names, strict=True))


@pytest.mark.parametrize("shared", [True, False], ids=["same rows", "other rows of shared keys"])
def test_two_ingests_at_once_give_each_key_one_number(
    spark: SparkSession, warehouse: Warehouse, tmp_path: Path, shared: bool
) -> None:
    warehouse.ensure(*TABLES)

    def run(turn: int) -> IngestReport:
        own = 0 if shared else turn
        rows = [
            {"model": f"m{m + own * 3}", "item": f"i{i + own * 5}", "correct": (m + i) % 2}
            for m in range(6)
            for i in range(9)
        ]
        path = tmp_path / f"{turn}.parquet"
        pd.DataFrame(rows).to_parquet(path)
        session = spark.newSession()
        session.conf.set("spark.sql.session.timeZone", "UTC")
        return ingest(session, Warehouse(session, warehouse.root), Config(), str(path))

    with ThreadPoolExecutor(2) as pool:
        reports = list(pool.map(run, range(2)))
    keys = ["model_id", "benchmark", "item_id", "attempt"]
    responses = warehouse.read("responses")
    assert responses.count() == responses.select(*keys).distinct().count() == sum(report.new for report in reports)
    assert sum(report.accepted for report in reports) == 108
    for name, key, number in (("models", "model_id", "model_index"), ("items", "item_id", "item_index")):
        rows = warehouse.read(name).select(key, number).collect()
        assert len({row[0] for row in rows}) == len(rows)
        assert sorted(row[1] for row in rows) == list(range(1, len(rows) + 1))
    mapped = responses.select("model_id", "model_index").distinct().count()
    assert mapped == warehouse.read("models").count()


@pytest.mark.parametrize("rival", [("m1", "i1", 0), ("m1", "i8", 1)], ids=["rival corrects", "rival adds"])
@pytest.mark.parametrize("mine", [("m1", "i2", 0), ("m1", "i7", 1)], ids=["corrects", "adds"])
def test_a_rival_that_commits_after_the_comparison_doubles_no_row(
    take: Take, warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch, mine: Row, rival: Row
) -> None:
    """Both bring the same new key; each appends, or merges because it also corrects something."""
    take([("m1", "i1", 1), ("m1", "i2", 1)])
    both = ("m1", "i9", 1)
    registered = commit._Commit._registered
    reports = []

    def rival_first(self: Any, *arguments: Any) -> Any:
        monkeypatch.setattr(commit._Commit, "_registered", registered)
        reports.append(take([rival, both], "rival.jsonl"))
        return registered(self, *arguments)

    monkeypatch.setattr(commit._Commit, "_registered", rival_first)
    reports.append(take([mine, both]))
    found = scores(warehouse)
    assert warehouse.read("responses").count() == len(found)
    assert all(found[model, item] == score for model, item, score in (mine, rival, both))
    assert len(reports) == 2
    assert sum(report.new for report in reports) == len(found) - 2


def test_a_rival_between_the_frame_and_its_writing_is_seen(
    spark: SparkSession, warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers are computed on the snapshot of the append's own transaction, not on that of the frame."""
    warehouse.ensure("models")
    append = warehouse.append

    def keys(*names: str) -> DataFrame:
        return spark.createDataFrame(
            [(name, None, None) for name in names], "model_id string, first_date timestamp, last_date timestamp"
        )

    def rival_first(*arguments: Any) -> None:
        monkeypatch.setattr(warehouse, "append", append)
        dimensions.number_new(warehouse, dimensions.MODELS, keys("z", "b"), {})
        append(*arguments)

    monkeypatch.setattr(warehouse, "append", rival_first)
    dimensions.number_new(warehouse, dimensions.MODELS, keys("c", "b", "a"), {})
    numbers = {row["model_id"]: row["model_index"] for row in warehouse.read("models").collect()}
    assert numbers == {"b": 1, "z": 2, "a": 3, "c": 4}
    commits = warehouse.delta("models").history().where("operation = 'WRITE'").select("isBlindAppend").collect()
    assert [row["isBlindAppend"] for row in commits] == [False, False]


REAL = {
    "swebench_verified_history.parquet": (76_000, 152, 500, {}),
    "bridge_multi_benchmark.parquet": (86_441, 176, 1_019, {}),
    "mmlu_pro.parquet": (347_215, 29, 12_032, {}),
    "chembench.parquet": (62_788, 22, 2_854, {}),
    "misguided_attention.parquet": (9_104, 59, 52, {}),
    "swebench_pro.parquet": (6_606, 9, 970, {}),
    "lsat6.parquet": (5_000, 1_000, 5, {}),
    "lsat7.parquet": (5_000, 1_000, 5, {}),
}


def test_an_input_without_rows_is_refused_and_nothing_written(
    spark: SparkSession, warehouse: Warehouse, tmp_path: Path
) -> None:
    path = tmp_path / "no_rows.parquet"
    pq.write_table(pa.schema({"model": pa.string(), "item": pa.string(), "correct": pa.int8()}).empty_table(), path)
    with pytest.raises(InputError, match="holds no rows"):
        ingest(spark, warehouse, Config(), str(path))
    assert not Path(warehouse.root).exists()


def test_what_was_assumed_is_counted(take: Take, warehouse: Warehouse) -> None:
    report = take(
        [("m1", "i1", "resolved", "2024-05-01 12:00"), ("m1", "i2", "error", "2024-05-01T12:00:00+02:00"),
         ("m2", "i1", "error", None), ("m2", "i2", "0", "2024-05-01")]
    )  # fmt: skip
    assert report.accepted == 4
    counted = {what.split(" (")[0].split(":")[0]: count for what, count in report.defaults.items()}
    assert counted == {
        "status 'resolved' taken as score 1": 1,
        "status 'error' taken as no verdict": 2,
        "time without an offset taken as UTC": 1,
        "no benchmark named": 4,
        "no column for the attempt": 4,
    }
    assert scores(warehouse)["m1", "i2"] is None
    assert "rows by default" in "\n".join(report.lines())


# ------------------------------------------------------------------------------------- looked for before writing
def test_names_alike_are_told_and_kept_apart(take: Take, warehouse: Warehouse) -> None:
    """Case R8, within an input and against what is stored."""
    first = take([("Org/X", "i1", 1), ("org/x", "i1", 0), ("Y", "i1", 1)])
    assert [w for w in first.warnings if "'Org/X' and 'org/x'" in w]
    assert {m for m, _ in scores(warehouse)} == {"Org/X", "org/x", "Y"}
    later = take([("y", "i1", 1)], "later.jsonl")
    assert [w for w in later.warnings if "'Y' and 'y'" in w]
    assert not [w for w in later.warnings if "Org/X" in w], "what is stored alone is no news"
    assert not take([("Z", "i1", 1)], "other.jsonl").warnings
    with pytest.raises(InputError, match=r"differ only by case or spaces.*ingest\.checks\.names"):
        take([("z", "i1", 1)], "strict.jsonl", checks=ChecksConfig(names="fail"))
    assert "z" not in {m for m, _ in scores(warehouse)}


def test_what_vanished_from_the_same_files_is_told_and_stays(take: Take, warehouse: Warehouse) -> None:
    """Case R14."""
    take([("m1", "i1", 1), ("m2", "i1", 0), ("m1", "i2", 1)])
    take([("m9", "i9", 1)], "other.jsonl")
    report = take([("m1", "i1", 1)])
    assert [w.split(" that these")[0] for w in report.warnings] == ["models", "items"]
    assert "such as 'm2'" in report.warnings[0]
    assert "such as 'i2'" in report.warnings[1]
    assert len(scores(warehouse)) == 4
    with pytest.raises(InputError, match="not in them any more"):
        take([("m1", "i1", 1)], checks=ChecksConfig(vanished="fail"))
    assert not take([("m1", "i1", 1)], checks=ChecksConfig(vanished="ignore")).warnings


def test_coverage_is_reported(take: Take) -> None:
    rows = [("m1", f"i{i}", 1) for i in range(4)] + [("m2", "i0", 1), ("m2", "i1", 0), ("m3", "i0", 0)]
    (covered,) = take(rows).coverage
    assert (covered.models, covered.items, covered.lowest, covered.lowest_model) == (3, 4, 0.25, "m3")
    assert covered.mean == pytest.approx((1 + 0.5 + 0.25) / 3)


@pytest.mark.parametrize("repeated", [[], [("m1", "i0", 1)]], ids=["plain", "with a row that repeats another"])
def test_what_has_no_verdict_is_not_covered(take: Take, repeated: list[Any]) -> None:
    """Case R7: an error is missing, and coverage shows it; for a model without any verdict too."""
    rows = [("m1", f"i{i}", 1) for i in range(4)] + [("m2", f"i{i}", None if i else 0) for i in range(4)]
    nothing = [("m3", f"i{i}", None) for i in range(4)]
    (covered,) = take(rows + nothing + repeated).coverage
    assert (covered.models, covered.items, covered.lowest, covered.lowest_model) == (3, 4, 0.0, "m3")
    assert covered.mean == pytest.approx((1 + 0.25 + 0) / 3)
    assert "answered on average" in covered.line()


def test_every_ingest_has_its_row(take: Take, warehouse: Warehouse) -> None:
    reports = [take([("m1", "i1", 1), ("m1", "i2", "maybe")]), take([("m1", "i1", 0, "2024-01-01")])]
    rows = sorted(warehouse.read("ingests").collect(), key=lambda row: row["started_at"])
    assert [row["ingest_id"] for row in rows] == [report.ingest_id for report in reports]
    for row, report in zip(rows, reports, strict=True):
        assert (row["rows_read"], row["new"], row["corrected"], row["quarantined"]) == (
            report.read, report.new, report.corrected, report.refused,
        )  # fmt: skip
        assert json.loads(row["report"]) == json.loads(report.as_json())
        assert row["started_at"] <= row["finished_at"]


def with_contents(spark: SparkSession, rows: Sequence[tuple[str | None, ...]], benchmark: str = "b") -> RawFrame:
    """A reader's frame of (model, item, score, content_hash), each of one benchmark."""
    frame = spark.createDataFrame(rows, "model_id string, item_id string, score_raw string, content_hash string")
    given = {"benchmark": benchmark, "attempt": "1", "source": "f", "raw": "{}"}
    others = {name: F.lit(given.get(name)).cast("string") for name in RAW_COLUMNS if name not in frame.columns}
    return RawFrame(frame.withColumns(others).withColumn("position", F.lit(0).cast("long")).select(*RAW_COLUMNS))


@pytest.mark.parametrize("nights", [1, 2])
def test_one_id_with_two_contents_stops_the_input(
    spark: SparkSession, warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch, nights: int
) -> None:
    """Within an input, and between nights; rows without a hash say nothing."""
    rows = [("m1", "i1", "1", "h1"), ("m1", "i2", "1", "h2"), ("m2", "i1", "0", "other"), ("m2", "i3", "1", None)]
    parts = [rows] if nights == 1 else [rows[:2], rows[2:]]
    waiting = [with_contents(spark, part) for part in parts]
    monkeypatch.setattr(module, "open_source", lambda *_: (waiting.pop(0), "test", "given"))
    for _ in range(nights - 1):
        ingest(spark, warehouse, Config(), "x")
    with pytest.raises(InputError, match=r"another content .*1 of 'b' \(such as 'i1'\).*nothing was written"):
        ingest(spark, warehouse, Config(), "x")
    assert warehouse.exists("responses") == (nights == 2)
    waiting.append(with_contents(spark, parts[-1]))
    warned = ingest(spark, warehouse, Config(ingest=IngestConfig(checks=ChecksConfig(content="warn"))), "x")
    assert "another content" in warned.warnings[0]
    assert warned.new == len(parts[-1])
    hashes = {row["item_id"]: row["content_hash"] for row in warehouse.read("items").collect()}
    assert (hashes["i3"], hashes["i2"] is None) == (None, False)


@pytest.mark.parametrize("nights", [1, 2])
def test_a_benchmark_with_two_contents_is_stopped_and_the_others_are_taken_in(
    spark: SparkSession, warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch, nights: int
) -> None:
    """Within an input, and between nights; the input fails, and a night reads it again."""
    good = [("m1", "i1", "1", "h1"), ("m2", "i1", "0", "h1"), ("m2", "i1", "0", "h1"), ("m2", "i2", None, None)]
    bad = [("m1", "i1", "1", "h1"), ("m1", "i2", "1", "h2"), ("m2", "i1", "0", "other"), ("m2", "i3", "maybe", None)]
    earlier, last = ([], bad) if nights == 1 else (bad[:2], bad[2:])
    waiting = [with_contents(spark, earlier, "torn")] if earlier else []
    whole = with_contents(spark, good, "whole").frame
    waiting.append(RawFrame(with_contents(spark, last, "torn").frame.unionByName(whole)))
    monkeypatch.setattr(module, "open_source", lambda *_: (waiting.pop(0), "test", "given"))
    for _ in range(nights - 1):
        ingest(spark, warehouse, Config(), "x")
    before = Counter(row["benchmark"] for row in warehouse.read("responses").collect()) if nights == 2 else Counter()
    report = ingest(spark, warehouse, Config(), "x", fingerprint="print")
    check(report)
    assert report.left_out == {"stopped_benchmark": len(last) - 1}  # the refused row is in quarantine
    assert report.quarantined == {"unreadable_score": 1}
    assert (report.new, report.collapsed, report.missing) == (3, 1, 1)
    assert [each.benchmark for each in report.coverage] == ["whole"]
    after = Counter(row["benchmark"] for row in warehouse.read("responses").collect())
    assert after == before + Counter(whole=3)
    failure = complaint(warehouse, report)
    assert failure is not None
    assert failure.exit_code == 3
    assert re.search(r"1 of 'torn' \(such as 'i1'\).*nothing of these benchmarks was written", str(failure))
    kept = warehouse.read("ingests").where(F.col("ingest_id") == report.ingest_id).first()
    assert kept is not None
    assert kept["input_fingerprint"] is None
    items = {row["benchmark"] for row in warehouse.read("items").collect()}
    assert items == ({"whole", "torn"} if nights == 2 else {"whole"})


def test_other_names_are_stored_under_one(spark: SparkSession, warehouse: Warehouse, tmp_path: Path) -> None:
    path = tmp_path / "names.jsonl"
    rows = [("X", "t@2", "i1"), ("Org/X", "t@3", "i2"), ("x", "t@3", "i1")]
    lines = [json.dumps({"model": m, "benchmark": b, "item": i, "score": 1}) for m, b, i in rows]
    path.write_text("\n".join(lines))
    rules = IngestConfig(models={"X": "Org/X"}, benchmarks={"t@2": "t@3"})
    report = ingest(spark, warehouse, Config(ingest=rules), str(path))
    check(report)
    found = warehouse.read("responses").select("model_id", "benchmark", "item_id").collect()
    assert sorted(map(tuple, found)) == [("Org/X", "t@3", "i1"), ("Org/X", "t@3", "i2"), ("x", "t@3", "i1")]
    assert report.defaults["model renamed by ingest.models"] == 1
    assert report.defaults["benchmark renamed by ingest.benchmarks"] == 1


@pytest.mark.slow
def test_real_leaderboards_by_one_call_each(
    spark: SparkSession, warehouse: Warehouse, shared_data: Callable[[str], Path]
) -> None:
    for name, (rows, models, items, quarantined) in REAL.items():
        report = ingest(spark, warehouse, Config(), str(shared_data(name)), benchmark=name)
        check(report)
        assert (report.read, report.new, report.quarantined) == (rows, rows, quarantined), name
        taken = warehouse.read("responses").where(f"benchmark = '{name}'")
        assert taken.select("model_id").distinct().count() == models, name
        assert warehouse.read("items").where(f"benchmark = '{name}'").count() == items, name
    with pytest.raises(InputError, match="task_id"):
        ingest(spark, warehouse, Config(), str(shared_data("human_minutes_by_task.jsonl")))


@pytest.mark.slow
def test_three_runs_of_a_real_benchmark_are_k_of_n(
    spark: SparkSession, warehouse: Warehouse, shared_data: Callable[[str], Path]
) -> None:
    """Case R5: every run stays an attempt, with its fraction; none is taken for another item."""
    path = shared_data("misguided_attention.parquet")
    columns = replace(IngestConfig().columns, score=("score",))
    report = ingest(spark, warehouse, Config(ingest=IngestConfig(columns=columns)), str(path), benchmark="traps")
    check(report)
    real = pd.read_parquet(path)
    fractions = int(real["score"].between(0, 1, inclusive="neither").sum())
    assert report.defaults["score between 0 and 1 kept as a fraction (ingest.fractions = soft)"] == fractions > 0
    assert (report.new, report.collapsed, report.refused) == (len(real), 0, 0)
    cells = warehouse.read("responses").groupBy("model_id", "item_id").agg(F.count("*"), F.sum("score")).collect()
    expected = real.groupby(["model", "item"])["score"].agg(["count", "sum"])
    assert {(row[0], row[1]): row[2] for row in cells} == expected["count"].to_dict()
    assert {(row[0], row[1]): row[3] for row in cells} == pytest.approx(expected["sum"].to_dict())
    assert (expected["count"] == 3).mean() > 0.9


@pytest.mark.slow
def test_no_answer_is_wrong_or_missing_as_configured(
    spark: SparkSession, warehouse: Warehouse, shared_data: Callable[[str], Path], tmp_path: Path
) -> None:
    real = pd.read_parquet(shared_data("mmlu_pro.parquet"))
    some = real[real["model"].isin(["Qwen1.5-7B-Chat", "DeepSeek-Coder-V2"])]
    some.to_parquet(tmp_path / "some.parquet")
    silent = int(some["no_answer"].sum())
    assert silent > 1000
    for meaning, missing in (("wrong", 0), ("missing", silent)):
        config = Config(ingest=IngestConfig(flags={"no_answer": meaning}))
        report = ingest(spark, warehouse, config, str(tmp_path / "some.parquet"), benchmark=meaning)
        check(report)
        assert (report.new, report.missing) == (len(some), missing)
        words = {"wrong": "wrong", "missing": "no verdict"}[meaning]
        assert report.defaults[f"no_answer counted as {words} (ingest.flags)"] == silent
        stored = warehouse.read("responses").where(f"benchmark = '{meaning}'").agg(F.sum("score"), F.count("score"))
        assert tuple(stored.head()) == (some["correct"].sum(), len(some) - missing)


def test_times_of_any_year_are_read_by_delta_rs(spark: SparkSession, warehouse: Warehouse, tmp_path: Path) -> None:
    """Spark's own default for times is INT96, nanoseconds to other readers, which end in 1677 and 2262."""
    rows = [("m1", "i1", 1, "0001-01-01"), ("m1", "i2", 0, "9999-12-31"), ("m2", "i1", 5, "2026-01-01")]
    lines = [",".join(map(str, row)) for row in (("model", "item", "score", "date"), *rows)]
    (tmp_path / "a.csv").write_text("\n".join(lines) + "\n")
    ingest(spark, warehouse, Config(), str(tmp_path / "a.csv"))
    for name in ("responses", "models", "items", "quarantine", "ingests"):
        files = [path for path in Path(warehouse.location(name)).rglob("*.parquet") if "_delta_log" not in path.parts]
        assert files
        for path in files:
            schema = pq.ParquetFile(path).schema
            kinds = {schema.column(number).physical_type for number in range(len(schema))}
            assert "INT96" not in kinds, (name, kinds)
    seen = DeltaTable(warehouse.location("models")).to_pyarrow_table().to_pylist()
    years = {row["model_id"]: (row["first_evaluated_at"].year, row["last_evaluated_at"].year) for row in seen}
    assert years == {"m1": (1, 9999)}
