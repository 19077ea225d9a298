"""A whole night on a small warehouse: what it leaves, what a second one leaves alone, what can be seen of it."""

from __future__ import annotations

import dataclasses
import datetime as dt
import io
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from cbmm_spark.config.schema import Config, NightlyConfig, RescoreConfig, ScalesConfig, SourceConfig
from cbmm_spark.console.progress import Progress
from cbmm_spark.errors import InputError
from cbmm_spark.night.night import STEPS, Night, NightReport
from cbmm_spark.night.sources import look_for
from cbmm_spark.tables import SPECS, Warehouse
from cbmm_spark.upkeep.backup import COPIED, backup
from cbmm_spark.upkeep.maintain import STEPS as MAINTAIN_STEPS
from cbmm_spark.upkeep.maintain import maintain
from cbmm_spark.upkeep.status import as_text, status

MODELS, ITEMS = 12, 24
RUN_STEPS = (
    "runs",
    "abilities",
    "item_parameters",
    "run_scales",
    "run_iterations",
    "run_abilities",
    "latest_abilities",
)
INGEST_STEPS = ("responses", "models", "items", "quarantine", "ingests")


def answers(first: int, count: int) -> str:
    """Answers of models, the later ones better, every model with exceptions of its own; one unreadable row."""
    lines = ["model,item,correct"]
    for model in range(first, first + count):
        for item in range(ITEMS):
            right = (item * 7 + model * 5) % ITEMS < 2 * model % ITEMS or (item + model) % 5 == 0
            lines.append(f"m{model:02d},i{item:02d},{int(right)}")
    return "\n".join([*lines, f"m{first:02d},i00,perhaps"]) + "\n"


class Place:
    """A folder with sources and a warehouse."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self.spark, self.root = spark, root
        self.warehouse = Warehouse(spark, str(root / "warehouse"))
        self.said = io.StringIO()
        self.jobs: list[tuple[str, str | None]] = []
        sources = [SourceConfig("old", str(root / "old.csv")), SourceConfig("new", str(root / "new"), optional=True)]
        self.config = dataclasses.replace(
            Config(),
            scales=ScalesConfig(per_benchmark=False),
            rescore=RescoreConfig(min_items=5),
            nightly=NightlyConfig(sources=tuple(sources)),
        )

    def night(self, steps: Any = STEPS, plan: bool = False, **nightly: Any) -> NightReport:
        config = dataclasses.replace(self.config, nightly=dataclasses.replace(self.config.nightly, **nightly))
        night = Night(self.spark, self.warehouse, config, None, steps, Progress("json", self.said))
        return night.plan() if plan else night.run()

    def night_of_first(self) -> dt.date:
        """The day of the last published night."""
        row = self.warehouse.read("runs").where("status = 'published'").orderBy("scored_on").tail(1)[0]
        day = row["scored_on"]
        assert isinstance(day, dt.date)
        return day

    def versions(self) -> dict[str, int]:
        """By table, the number of its commits, from its files alone."""
        logs = (self.root / "warehouse").glob("*/_delta_log")
        return {log.parent.name: len(list(log.glob("*.json"))) for log in logs}


@pytest.fixture(scope="module")
def first(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A place after its first night."""
    place = Place(spark, tmp_path_factory.mktemp("night"))
    (place.root / "old.csv").write_text(answers(1, MODELS), encoding="utf-8")
    before = max((int(name.split()[0]) for name, _ in described(spark)), default=-1)
    report = place.night()
    place.jobs = described(spark, before)
    assert (report.exit_code, [step.outcome for step in report.steps]) == (0, ["done"] * 3), report
    return place


@pytest.fixture
def place(first: Place, spark: SparkSession, tmp_path: Path) -> Place:
    """The same place for one test alone, the file of the source included: it is the same file to the night."""
    copied = Place(spark, tmp_path)
    shutil.copytree(first.root / "warehouse", tmp_path / "warehouse")
    copied.config = first.config
    return copied


def described(spark: SparkSession, after: int = -1) -> list[tuple[str, str | None]]:
    """Name and description of every Spark job with a number above `after`."""
    jobs = spark.sparkContext._jsc.sc().statusStore().jobsList(None)
    listed = [jobs.apply(i) for i in range(jobs.size())]
    told = [(job.jobId(), job.name(), job.description()) for job in listed]
    return [(f"{i} {name}", text.get() if text.isDefined() else None) for i, name, text in told if i > after]


def notes(spark: SparkSession, location: str) -> list[dict[str, Any]]:
    rows = spark.sql(f"DESCRIBE HISTORY delta.`{location}`").collect()
    return [{"operation": row["operation"], **json.loads(row["userMetadata"] or "{}")} for row in rows]


def test_every_commit_says_which_command_made_it_from_what(first: Place) -> None:
    seen = set()
    for name in first.versions():
        for note in notes(first.spark, first.warehouse.location(name)):
            assert {"command", "package_version", "config_hash", "night_id"} <= note.keys(), (name, note)
            seen.add(note["command"])
            if name in RUN_STEPS:
                assert note["run_id"], (name, note)
            if name in INGEST_STEPS and note["command"] == "ingest":
                assert note["ingest_id"], (name, note)
        written = [note for note in notes(first.spark, first.warehouse.location(name)) if note["operation"] == "WRITE"]
        if name in ("abilities", "item_parameters", "run_scales"):
            versions = written[0]["input_versions"]
            assert versions.keys() >= {"responses", "items", "response_blocks"}
    assert seen == {"ingest", "pack", "rescore"}


def test_every_spark_job_of_a_night_says_what_it_is_for(first: Place) -> None:
    assert [name for name, text in first.jobs if text is None] == []
    joined = "\n".join(str(text) for _, text in first.jobs)
    for part in (
        "read ",
        "compare and commit",
        "cbmm-spark pack",
        "count responses",
        "iterate ",
        "write item",
        "publish",
    ):
        assert part in joined, part


def test_a_second_night_reads_packs_and_scores_nothing_that_is_done(first: Place) -> None:
    before = first.versions()
    planned = first.night(plan=True)
    assert [source.outcome for source in planned.sources] == ["skipped", "missing"]
    assert "blocks are current" in planned.steps[1].note
    if planned.scored_on == first.night_of_first():
        assert planned.steps[2].outcome == "skipped"
    again = first.night(steps=("ingest", "pack"))
    assert [source.outcome for source in again.sources] == ["skipped", "missing"]
    assert first.versions() == before  # nothing was written, not even by the second night


def test_what_is_published_from_the_same_is_not_scored_again(first: Place) -> None:
    before = first.versions()
    report = first.night(steps=("rescore",))
    if report.scored_on != first.night_of_first():
        pytest.skip("midnight (UTC) passed between two nights of this test")
    assert report.steps[2].outcome == "skipped"
    assert first.versions() == before


def test_a_scoring_against_the_items_of_another_run_is_no_night(place: Place) -> None:
    where = "scale = 'overall'"
    place.warehouse.delta("run_scales").update(where, {"items_from_run_id": "'another'"})
    assert place.night(plan=True, steps=("rescore",)).steps[2].outcome == "planned"


def test_a_changed_file_is_read_again_and_only_it(first: Place, place: Place) -> None:
    old, new = first.root / "old.csv", first.root / "new"
    new.mkdir()
    (new / "more.csv").write_text(answers(20, 1), encoding="utf-8")
    report = place.night(steps=("ingest",))
    assert [source.outcome for source in report.sources] == ["skipped", "read"]
    assert report.total("new") == ITEMS
    assert report.total("quarantined") == 1
    os.utime(old, (1, 1))  # the same bytes, written anew
    planned = place.night(plan=True)
    assert [source.outcome for source in planned.sources] == ["would read", "skipped"]
    assert "changed" in planned.sources[0].note
    assert "unless" not in planned.steps[1].note  # blocks are behind in any case
    assert place.night(plan=True, skip_unchanged=False).sources[1].note.startswith("unchanged; ")


def test_a_broken_source_stops_the_night_before_the_score(first: Place, place: Place) -> None:
    broken = SourceConfig("broken", str(place.root / "nothing.csv"))
    (place.root / "odd.csv").write_text("a,b\n1,2\n", encoding="utf-8")
    odd = SourceConfig("odd", str(place.root / "odd.csv"))
    before = place.versions()
    report = place.night(sources=(broken, odd))
    assert report.exit_code == 3
    assert [step.outcome for step in report.steps] == ["failed", "not reached", "not reached"]
    assert "2 of 2 sources failed" in str(report.error)
    assert place.versions() == before


def test_what_is_behind_a_location(first: Place, spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for gone in ("empty", "gone", "*.csv"):
        assert look_for(spark, str(tmp_path / gone)) is None
    (tmp_path / "a: b").mkdir()
    file = tmp_path / "a: b" / "c:d.csv"
    file.write_text("x", encoding="utf-8")
    assert look_for(spark, "table:no_such_table") is None
    found = look_for(spark, str(tmp_path / "a: b"))
    assert found is not None
    assert found == look_for(spark, str(tmp_path / "a: b"))
    file.write_text("xy", encoding="utf-8")
    longer = look_for(spark, str(tmp_path / "a: b"))
    assert longer is not None
    assert (longer.files, longer.state != found.state) == (1, True)
    table = look_for(spark, first.warehouse.location("responses"))
    assert table is not None
    assert str(first.warehouse.version("responses")) in str(table.state)


def test_status_is_one_screen_of_it(first: Place) -> None:
    before = first.versions()
    (day,) = [row["scored_on"] for row in first.warehouse.read("runs").collect()]
    later = dt.datetime.combine(day + dt.timedelta(days=2), dt.time(3), dt.UTC)
    told = status(first.warehouse, 3, now=later)
    assert first.versions() == before
    (night,) = told.nights
    assert told.published == {"scored_on": day, "run_id": night["run_id"], "days_ago": 2}
    assert (night["status"], night["models"], night["items"], night["scales"]) == ("published", MODELS, ITEMS, 1)
    assert night["seconds"] > 0
    assert told.claims == []
    assert told.ingests[0]["quarantined"] == 1
    assert {each["table"] for each in told.tables} == set(before) == SPECS.keys() - set(told.missing)
    sizes = {each["table"]: each for each in told.tables}
    live = DeltaTable(first.warehouse.location("abilities"))
    assert sizes["abilities"]["version"] == live.version()
    assert sizes["abilities"]["files"] == len(live.file_uris())
    text = as_text(told)
    assert night["run_id"] in text
    assert "no run holds a day" in text
    assert f"last published: {day}, 2 days ago, by run {night['run_id']}" in text


def test_status_looks_at_what_is_not_whole(spark: SparkSession, place: Place) -> None:
    """A missing table, one of an earlier version, one that is no Delta table, a run that died, times ahead of UTC."""
    shutil.rmtree(place.root / "warehouse" / "ingests")
    shutil.rmtree(place.root / "warehouse" / "items")
    (place.root / "warehouse" / "items").mkdir()
    (place.root / "warehouse" / "items" / "notes.txt").write_text("not Delta")
    location = place.warehouse.location("runs")
    started = dt.datetime(2026, 5, 11, 2, tzinfo=dt.UTC)
    rows = spark.createDataFrame(
        [("dead", dt.date(2026, 5, 11), "running", started)], "r string, d date, s string, t timestamp"
    )
    earlier = rows.selectExpr("r run_id", "d scored_on", "s status", "t started_at", "string(null) error")
    shutil.rmtree(location)
    earlier.coalesce(1).write.format("delta").save(location)
    told = status(place.warehouse, 5, now=started + dt.timedelta(minutes=90))
    assert "ingests" in told.missing
    (night,) = told.nights
    assert (night["status"], night["seconds"], night["started_at"]) == ("running", 5400, started)
    assert told.claims[0]["seconds_since_sign_of_life"] == 5400
    (problem,) = [each for each in told.tables if "problem" in each]
    assert problem["table"] == "items"
    assert told.published is None
    text = as_text(told)
    assert "nothing is published" in text
    assert "2026-05-11 is held by run dead, last sign of life 1 h 30 min ago" in text
    assert "no ingest yet" in text
    assert "not a Delta table" in text


def test_a_copy_is_a_warehouse_and_one_table_can_be_restored_from_it(first: Place, place: Place) -> None:
    copy = Warehouse(place.spark, str(place.root / "copy"))
    planned = backup(place.warehouse, copy, dry_run=True)
    assert not (place.root / "copy").exists()
    done = backup(place.warehouse, copy)
    assert done == planned
    assert done.versions.keys() == place.versions().keys() & set(COPIED)
    assert done.rows["responses"] == MODELS * ITEMS
    assert status(copy, 1).nights[0]["run_id"] == status(place.warehouse, 1).nights[0]["run_id"]
    with pytest.raises(InputError, match="already"):
        backup(place.warehouse, copy)
    # A table is lost.
    before = sorted(map(str, place.warehouse.read("abilities").collect()))
    shutil.rmtree(place.root / "warehouse" / "abilities")
    backup(copy, place.warehouse, ["abilities"])
    assert sorted(map(str, place.warehouse.read("abilities").collect())) == before
    # Blocks that were packed from other responses must not outlive them.
    shutil.rmtree(place.root / "warehouse" / "responses")
    with pytest.raises(InputError, match="response_blocks"):
        backup(copy, place.warehouse, ["responses"])


def most_tasks(spark: SparkSession, after: int) -> int:
    """Of any Spark job with a number above `after`."""
    jobs = spark.sparkContext._jsc.sc().statusStore().jobsList(None)
    listed = [jobs.apply(i) for i in range(jobs.size())]
    return max(job.numTasks() for job in listed if job.jobId() > after)


def test_upkeep_that_is_only_planned_writes_nothing(first: Place) -> None:
    before, last = first.versions(), max(int(name.split()[0]) for name, _ in described(first.spark))
    report = maintain(
        first.spark, first.warehouse, first.config, MAINTAIN_STEPS, Progress("json", first.said), dry_run=True
    )
    assert first.versions() == before
    assert report.tables.keys() == before.keys()
    assert report.error is None
    assert most_tasks(first.spark, last) <= 100  # VACUUM lists folders in 10,000 tasks if it is let
