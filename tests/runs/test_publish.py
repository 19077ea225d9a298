"""Publishing: what a reader sees at every point, what a kill leaves, what a rerun repairs."""

from __future__ import annotations

import datetime as dt
import os
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from cbmm_spark.config.schema import RetentionConfig
from cbmm_spark.errors import ConflictError, InputError
from cbmm_spark.runs import publish as publishing
from cbmm_spark.runs.claims import Heartbeat, Terms, renew, start_runs
from cbmm_spark.runs.process_identity import Owner, this_process
from cbmm_spark.runs.publish import (
    finish_run,
    last_published,
    publish,
    published_abilities,
    refresh_latest,
    start_run,
    write_results,
)
from cbmm_spark.runs.table import RunKey
from cbmm_spark.tables import Warehouse
from cbmm_spark.upkeep.retention import apply_retention
from tests.spark.helpers import as_others_read
from tests.spark.table_copies import TableCopies
from tests.spark.table_samples import NOON, frame, full_row

MONDAY = dt.date(2026, 5, 11)
TUESDAY = dt.date(2026, 5, 12)
SUNDAY = dt.date(2026, 5, 10)
MODELS = 3
DEAD = str(Owner.parse(this_process())._replace(born="0"))  # type: ignore[union-attr]  # somebody else had this number


@pytest.fixture(scope="module")
def empty_tables(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tables, created once: a copy of the folder is the same tables in another place."""
    root = tmp_path_factory.mktemp("template") / "warehouse"
    Warehouse(spark, str(root)).ensure("runs", *publishing.LATEST, *publishing.LATEST.values(), *publishing.RUN_TABLES)
    return root


@pytest.fixture(scope="module")
def tables_after_a_night(spark: SparkSession, empty_tables: Path) -> Path:
    root = empty_tables.parent / "after"
    night(Warehouse(spark, str(shutil.copytree(empty_tables, root))), "old")
    return root


@pytest.fixture
def empty(spark: SparkSession, empty_tables: Path, tmp_path: Path) -> Warehouse:
    return Warehouse(spark, str(shutil.copytree(empty_tables, tmp_path / "warehouse")))


@pytest.fixture
def warehouse(spark: SparkSession, tables_after_a_night: Path, tmp_path: Path) -> Warehouse:
    """A warehouse in which the run "old" is published for Monday."""
    return Warehouse(spark, str(shutil.copytree(tables_after_a_night, tmp_path / "warehouse")))


def begin(warehouse: Warehouse, run_id: str, day: dt.date = MONDAY) -> list[str]:
    """Start a run whose process is gone at once, so that it keeps nobody from the day."""
    return start_run(warehouse, run_id, day, "{}", 7, terms=Terms(owner=DEAD))


def write_all(warehouse: Warehouse, run_id: str, day: dt.date = MONDAY) -> None:
    for name in ("abilities", "item_parameters"):
        key = "model_id" if name == "abilities" else "item_id"
        rows = [full_row(name, run_id=run_id, scored_on=day, **{key: str(i)}) for i in range(MODELS)]
        write_results(warehouse, name, frame(warehouse.spark, name, *rows), run_id, day)


def write_more(warehouse: Warehouse, run_id: str, day: dt.date = MONDAY) -> None:
    for name in ("run_scales", "run_abilities"):
        write_results(warehouse, name, frame(warehouse.spark, name, full_row(name, run_id=run_id)), run_id, day)


def night(warehouse: Warehouse, run_id: str, day: dt.date = MONDAY) -> None:
    begin(warehouse, run_id, day)
    write_all(warehouse, run_id, day)
    publish(warehouse, run_id, day)


def tidy(warehouse: Warehouse) -> None:
    """What `maintain` does about rows that nobody reads."""
    apply_retention(warehouse, RetentionConfig(), MONDAY)


def counts(warehouse: Warehouse, name: str) -> dict[str, int]:
    """Rows by run."""
    return dict(Counter(row["run_id"] for row in as_others_read(warehouse, name, "run_id")))


def visible(warehouse: Warehouse) -> dict[str, int]:
    """Rows by run as a reader joins them."""
    return {row["run_id"]: row["count"] for row in published_abilities(warehouse).groupBy("run_id").count().collect()}


def statuses(warehouse: Warehouse) -> dict[str, str]:
    return {row["run_id"]: row["status"] for row in as_others_read(warehouse, "runs", "run_id", "status")}


def test_a_night_and_its_replacement(empty: Warehouse) -> None:
    warehouse = empty
    assert begin(warehouse, "first") == []
    row = warehouse.read("runs").first()
    assert row is not None
    assert (row["status"], row["scored_on"], row["responses_version"], row["finished_at"]) == (
        "running",
        MONDAY,
        7,
        None,
    )
    assert row["spark_version"] == warehouse.spark.version
    assert last_published(warehouse) is None
    write_all(warehouse, "first")
    write_more(warehouse, "first")
    assert visible(warehouse) == {}
    publish(warehouse, "first", MONDAY)
    assert visible(warehouse) == {"first": MODELS}
    assert counts(warehouse, "latest_abilities") == counts(warehouse, "latest_item_parameters") == {"first": MODELS}
    finished = warehouse.read("runs").first()
    assert finished is not None
    assert (finished["status"], finished["error"]) == ("published", None)
    assert finished["finished_at"] >= finished["started_at"]

    begin(warehouse, "second")
    write_all(warehouse, "second")
    write_all(warehouse, "second")
    write_more(warehouse, "second")
    assert visible(warehouse) == {"first": MODELS}
    assert counts(warehouse, "latest_abilities") == {"first": MODELS}
    publish(warehouse, "second", MONDAY)
    assert visible(warehouse) == {"second": MODELS}
    assert statuses(warehouse) == {"second": "published"}
    tidy(warehouse)
    for name in ("abilities", "item_parameters", "latest_abilities", "latest_item_parameters"):
        assert counts(warehouse, name) == {"second": MODELS}
    for name in ("run_scales", "run_abilities"):
        assert counts(warehouse, name) == {"second": 1}
    with pytest.raises(ConflictError, match="second is published already"):
        begin(warehouse, "second")


def test_a_late_night_leaves_the_latest_tables(warehouse: Warehouse) -> None:
    versions = [warehouse.version(name) for name in publishing.LATEST]
    night(warehouse, "late", SUNDAY)
    assert visible(warehouse) == {"old": MODELS, "late": MODELS}
    assert counts(warehouse, "latest_abilities") == {"old": MODELS}
    assert [warehouse.version(name) for name in publishing.LATEST] == versions
    night(warehouse, "newer", TUESDAY)
    assert visible(warehouse) == {"old": MODELS, "late": MODELS, "newer": MODELS}
    assert counts(warehouse, "latest_abilities") == counts(warehouse, "latest_item_parameters") == {"newer": MODELS}


class Killed(BaseException):
    """Stands for the end of the process."""


def test_a_kill_at_any_point_of_publishing_is_repaired_by_the_next_run(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_more(warehouse, "old")
    before = "old"
    for number, step in enumerate(("_publish_in_runs", "refresh_latest", "_copy_to_latest"), start=1):
        run_id = f"run {number}"
        assert begin(warehouse, run_id) == (["run 1"] if number == 2 else [])
        write_all(warehouse, run_id)
        write_more(warehouse, run_id)

        def die(*_: object, **__: object) -> None:
            raise Killed

        with monkeypatch.context() as patched:
            patched.setattr(publishing, step, die)
            with pytest.raises(Killed):
                publish(warehouse, run_id, MONDAY)
        shown = before if step == "_publish_in_runs" else run_id
        assert visible(warehouse) == {shown: MODELS}
        assert counts(warehouse, "latest_abilities") == counts(warehouse, "latest_item_parameters") == {"old": MODELS}
    assert statuses(warehouse) == {"run 1": "failed", "run 3": "published"}
    assert counts(warehouse, "abilities") == dict.fromkeys(["old", "run 1", "run 2", "run 3"], MODELS)

    publish(warehouse, "run 3", MONDAY)
    assert visible(warehouse) == {"run 3": MODELS}
    tidy(warehouse)
    for name in ("abilities", "item_parameters", "latest_abilities", "latest_item_parameters"):
        assert counts(warehouse, name) == {"run 3": MODELS}
    assert counts(warehouse, "run_abilities") == {"run 3": 1}
    assert counts(warehouse, "run_scales") == {"run 1": 1, "run 3": 1}


def test_a_kill_between_the_two_latest_tables(warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(warehouse, "new")
    write_all(warehouse, "new")
    overwrite = Warehouse.overwrite

    def die_at_items(self: Warehouse, df: DataFrame, name: str, metadata: Mapping[str, Any] | None = None) -> None:
        if name == "latest_item_parameters":
            raise Killed
        overwrite(self, df, name, metadata)

    with monkeypatch.context() as patched:
        patched.setattr(Warehouse, "overwrite", die_at_items)
        with pytest.raises(Killed):
            publish(warehouse, "new", MONDAY)
    assert counts(warehouse, "latest_abilities") == {"new": MODELS}
    assert counts(warehouse, "latest_item_parameters") == {"old": MODELS}
    refresh_latest(warehouse)
    assert counts(warehouse, "latest_item_parameters") == {"new": MODELS}


def test_the_run_that_started_last_has_the_day(warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(warehouse, "slow")
    write_all(warehouse, "slow")
    assert begin(warehouse, "quick") == ["slow"]
    expected = {"old": "published", "slow": "failed", "quick": "running"}
    assert statuses(warehouse) == expected
    write_all(warehouse, "quick")
    runs_of = publishing.runs_of
    overtaken = [publishing.Run("slow", MONDAY, "running", NOON)]  # what the check saw a moment ago
    looks = iter([overtaken])
    with monkeypatch.context() as patched:
        patched.setattr(publishing, "runs_of", lambda *given: next(looks, None) or runs_of(*given))
        with pytest.raises(ConflictError, match="slow is not published: the day was taken over"):
            publish(warehouse, "slow", MONDAY)
    assert counts(warehouse, "abilities") == {"old": MODELS, "quick": MODELS}
    with pytest.raises(ConflictError, match="slow is not published: the day was taken over"):
        publish(warehouse, "slow", MONDAY)
    assert statuses(warehouse) == expected
    assert visible(warehouse) == {"old": MODELS}
    assert counts(warehouse, "abilities") == {"old": MODELS, "quick": MODELS}


def test_publishing_leaves_the_rows_of_a_run_that_still_works(warehouse: Warehouse, spark: SparkSession) -> None:
    begin(warehouse, "one")
    write_all(warehouse, "one")
    other = full_row("runs", run_id="two", scored_on=MONDAY, status="running")
    warehouse.append(frame(spark, "runs", other), "runs")
    write_all(warehouse, "two")
    publish(warehouse, "one", MONDAY)
    assert visible(warehouse) == {"one": MODELS}
    tidy(warehouse)
    assert counts(warehouse, "abilities") == {"one": MODELS, "two": MODELS}


def test_of_two_runs_at_once_at_the_first_creation_of_the_tables_one_has_the_day(
    spark: SparkSession, table_copies: TableCopies, tmp_path: Path
) -> None:
    """Case N4."""
    gate = threading.Barrier(2)
    refused: list[tuple[str, BaseException]] = []

    def start(run_id: str) -> None:
        own = Warehouse(spark.newSession(), str(tmp_path / "warehouse"))
        gate.wait()
        try:
            start_run(own, run_id, MONDAY, "{}", 7)
        except BaseException as error:
            refused.append((run_id, error))

    threads = [threading.Thread(target=start, args=(run_id,)) for run_id in ("a", "b")]
    with table_copies.set_aside():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    ((loser, error),) = refused
    winner = "b" if loser == "a" else "a"
    assert isinstance(error, ConflictError)
    assert f"by run {winner} (process {os.getpid()} on " in str(error)
    assert statuses(Warehouse(spark, str(tmp_path / "warehouse"))) == {winner: "running"}


def test_a_day_is_held_by_the_run_that_works_on_it(warehouse: Warehouse) -> None:
    start_run(warehouse, "first", MONDAY, "{}", 7)
    version = warehouse.version("runs")
    with pytest.raises(ConflictError, match=r"by run first .*--take-over") as caught:
        start_run(warehouse, "second", MONDAY, "{}", 7)
    assert "\n" not in str(caught.value)
    assert warehouse.version("runs") == version
    keys = [RunKey("tuesday", TUESDAY), RunKey("second", MONDAY)]
    with pytest.raises(ConflictError, match="by run first"):
        start_runs(warehouse, keys, "{}", 7)
    assert statuses(warehouse) == {"old": "published", "first": "running"}
    elsewhere = str(Owner.parse(this_process())._replace(place="elsewhere"))  # type: ignore[union-attr]
    warehouse.spark.sql(
        f"UPDATE {warehouse.sql_name('runs')} SET owner = '{elsewhere}', heartbeat_at = now() - INTERVAL 20 MINUTES "
        "WHERE run_id = 'first'"
    )
    with pytest.raises(ConflictError, match="by run first"):  # another machine: only its silence tells
        start_run(warehouse, "second", MONDAY, "{}", 7)
    assert start_run(warehouse, "second", MONDAY, "{}", 7, terms=Terms(minutes=19)) == ["first"]
    assert renew(warehouse, ["first", "second"]) == 1
    assert start_run(warehouse, "third", MONDAY, "{}", 7, terms=Terms(take_over=True)) == ["second"]
    assert renew(warehouse, ["second"]) == 0
    write_all(warehouse, "second")
    with pytest.raises(ConflictError, match="second is not published: the day was taken over"):
        publish(warehouse, "second", MONDAY)
    assert visible(warehouse) == {"old": MODELS}


def test_a_claim_is_renewed_until_the_day_is_taken_over(warehouse: Warehouse) -> None:
    start_run(warehouse, "slow", MONDAY, "{}", 7)
    (before,) = (run for run in publishing.runs_of(warehouse, [MONDAY]) if run.run_id == "slow")
    with Heartbeat(warehouse, ["slow"], minutes=0.6) as claim:
        wait_for(lambda: claim.beats > 0)
        claim.check()
        (after,) = (run for run in publishing.runs_of(warehouse, [MONDAY]) if run.run_id == "slow")
        assert after.seen_at > before.seen_at
        assert after.started_at == before.started_at
        start_run(warehouse, "quick", MONDAY, "{}", 7, terms=Terms(take_over=True))
        wait_for(lambda: ended(claim))
    assert claim.error is None


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


def ended(claim: Heartbeat) -> bool:
    try:
        claim.check()
    except ConflictError as error:
        return "taken over" in str(error)
    return False


def test_several_days_are_published_in_one_commit_a_table(warehouse: Warehouse) -> None:
    days = {"sunday": SUNDAY, "monday": MONDAY, "tuesday": TUESDAY}
    keys = [RunKey(run_id, day) for run_id, day in days.items()]
    tables = ("runs", "abilities", "item_parameters", "latest_abilities", "latest_item_parameters")
    before = {name: warehouse.version(name) for name in tables}
    start_runs(warehouse, keys, "{}", 7)
    for name in ("abilities", "item_parameters"):
        rows = [full_row(name, run_id=run_id, scored_on=day) for run_id, day in days.items()]
        crossed = frame(warehouse.spark, name, *rows[:2], full_row(name, run_id="tuesday", scored_on=SUNDAY))
        with pytest.raises(InputError, match="nothing written"):
            publishing.write_all_results(warehouse, name, crossed, keys)
        publishing.write_all_results(warehouse, name, frame(warehouse.spark, name, *rows), keys)
    assert visible(warehouse) == {"old": MODELS}
    start_run(warehouse, "other", SUNDAY, "{}", 7, terms=Terms(take_over=True))
    with pytest.raises(ConflictError, match="run sunday is not published: the day was taken over"):
        publishing.publish_runs(warehouse, keys, {"monday": '{"x": 1}'})
    assert visible(warehouse) == {"monday": 1, "tuesday": 1}
    assert counts(warehouse, "abilities") == {"old": MODELS, "monday": 1, "tuesday": 1}
    assert counts(warehouse, "latest_abilities") == counts(warehouse, "latest_item_parameters") == {"tuesday": 1}
    gates = {row["run_id"]: row["gates"] for row in warehouse.read("runs").collect()}
    assert gates == {"monday": '{"x": 1}', "tuesday": None, "sunday": None, "other": None}
    commits = {name: warehouse.version(name) - version for name, version in before.items()}
    # start, take over, publish; write, remove the run that gave way; refresh
    assert commits == dict(zip(tables, (3, 2, 2, 1, 1), strict=True))
    tidy(warehouse)
    assert counts(warehouse, "abilities") == {"monday": 1, "tuesday": 1}
    with pytest.raises(ValueError, match="days of their own"):
        start_runs(warehouse, [RunKey("a", MONDAY), RunKey("b", MONDAY)], "{}", 7)


def test_a_run_that_does_not_converge_leaves_the_published_one(warehouse: Warehouse) -> None:
    begin(warehouse, "bad")
    write_all(warehouse, "bad")
    write_more(warehouse, "bad")
    finish_run(warehouse, "bad", "not_converged", "scale overall: 200 iterations")
    assert visible(warehouse) == counts(warehouse, "abilities") == {"old": MODELS}
    assert counts(warehouse, "run_scales") == {"bad": 1}
    row = warehouse.read("runs").where("run_id = 'bad'").first()
    assert row is not None
    assert (row["status"], row["error"]) == ("not_converged", "scale overall: 200 iterations")
    assert row["finished_at"] >= row["started_at"]
    finish_run(warehouse, "old", "failed", "must not happen")
    assert statuses(warehouse)["old"] == "published"
    assert visible(warehouse) == {"old": MODELS}
    with pytest.raises(ValueError, match="published"):
        finish_run(warehouse, "bad", "published")
    begin(warehouse, "bad")
    assert statuses(warehouse) == {"old": "published", "bad": "running"}


def test_what_cannot_be_published(warehouse: Warehouse, spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no table"):
        published_abilities(Warehouse(spark, str(tmp_path / "nothing")))
    begin(warehouse, "run")
    with pytest.raises(InputError, match="no run nobody of 2026-05-11"):
        publish(warehouse, "nobody", MONDAY)
    with pytest.raises(InputError, match="no run run of 2026-05-12"):
        publish(warehouse, "run", TUESDAY)
    with pytest.raises(InputError, match=r"no rows in .*abilities; not published"):
        publish(warehouse, "run", MONDAY)
    for stray in ({"run_id": "other"}, {"scored_on": TUESDAY}):
        rows = frame(spark, "abilities", full_row("abilities", **{"run_id": "run", "scored_on": MONDAY, **stray}))
        with pytest.raises(InputError, match="nothing written"):
            write_results(warehouse, "abilities", rows, "run", MONDAY)
    assert counts(warehouse, "abilities") == {"old": MODELS}
    assert statuses(warehouse) == {"old": "published", "run": "running"}


@pytest.mark.parametrize("name", ["abilities", "item_parameters"])
def test_a_lost_table_is_named_and_not_made_anew(warehouse: Warehouse, name: str) -> None:
    place = Path(warehouse.location(name))
    shutil.rmtree(place)
    warehouse.spark.catalog.clearCache()
    with pytest.raises(InputError, match=f"{name} is gone.*restore it"):
        begin(warehouse, "next", TUESDAY)
    assert not place.exists()
    assert statuses(warehouse) == {"old": "published"}


def test_a_reader_polling_through_publishes_sees_whole_nights(warehouse: Warehouse) -> None:
    seen: list[dict[str, int]] = []
    done = threading.Event()

    def poll() -> None:
        while not done.is_set():
            seen.append(visible(warehouse))
            seen.append(counts(warehouse, "latest_abilities"))

    reader = threading.Thread(target=poll)
    reader.start()
    try:
        night(warehouse, "new")
    finally:
        done.set()
        reader.join()
    assert {"old": MODELS} in seen
    assert {"new": MODELS} in seen
    assert all(list(state.values()) == [MODELS] for state in seen), seen
