"""simulate, ingest, rescore as a user runs them, and the tables they leave."""

from __future__ import annotations

import math
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from scipy.stats import spearmanr

from tests.jobs.commands import Done, Run

RESULTS = ("abilities", "item_parameters", "runs", "run_scales", "run_iterations")
LATEST = ("latest_abilities", "latest_item_parameters")


def rows(warehouse: Path, table: str) -> list[dict[str, object]]:
    """The live rows of a table, its files found by delta-rs and read by PyArrow's own reader."""
    found: list[dict[str, object]] = []
    for uri in DeltaTable(str(warehouse / table)).file_uris():
        found += pq.ParquetFile(uri.removeprefix("file://")).read().to_pylist()
    return found


class Nights:
    """A warehouse and what the commands said while it was made."""

    def __init__(self, warehouse: Path, ingested: Done, rescored: Done) -> None:
        self.warehouse, self.ingested, self.rescored = warehouse, ingested, rescored


@pytest.fixture(scope="module")
def night(console: Run, history: Path) -> Nights:
    """A night in a warehouse named from where the commands are run."""
    at = ("--warehouse", "relative/warehouse")
    ingested = console("ingest", *at, "--input", str(history / "history.parquet"))
    rescored = console("rescore", *at, "--as-of", "2026-11-29")
    assert (ingested.code, ingested.err) == (0, "")
    (report,) = ingested.events("ingested")
    return Nights(Path(report["table"]).parent, ingested, rescored)


def test_both_commands_end_well_and_say_nothing_on_standard_error(night: Nights) -> None:
    assert (night.ingested.code, night.ingested.err) == (0, "")
    assert (night.rescored.code, night.rescored.err) == (0, "")


def test_a_relative_warehouse_counts_from_where_the_command_is_run(night: Nights) -> None:
    assert night.warehouse.is_absolute()
    assert night.warehouse.parts[-2:] == ("relative", "warehouse")
    assert DeltaTable(str(night.warehouse / "responses")).file_uris()


def test_ingest_reports_every_row_of_the_input(night: Nights, history: Path) -> None:
    (report,) = night.ingested.events("ingested")
    assert report["read"] == report["accepted"] == pq.read_metadata(history / "history.parquet").num_rows
    assert len(rows(night.warehouse, "responses")) == report["accepted"]


def test_each_iteration_is_one_json_line_and_one_row(night: Nights) -> None:
    told = night.rescored.events("iteration")
    kept = rows(night.warehouse, "run_iterations")
    assert {(line["run_id"], line["scale"], line["iteration"]) for line in told} == {
        (row["run_id"], row["scale"], row["iteration"]) for row in kept
    }
    assert len(told) == len(kept) > 0


def test_the_run_is_published_for_the_day_asked_for(night: Nights) -> None:
    (run,) = rows(night.warehouse, "runs")
    assert run["status"] == "published"
    assert str(run["scored_on"]) == "2026-11-29"
    assert all(row["converged"] for row in rows(night.warehouse, "run_scales"))


def test_every_model_and_item_has_its_row_on_every_scale(night: Nights) -> None:
    abilities, items = rows(night.warehouse, "abilities"), rows(night.warehouse, "item_parameters")
    scales = {row["scale"] for row in rows(night.warehouse, "run_scales")}
    assert "overall" in scales
    assert len(scales) == 3
    assert len(abilities) == 3 * 60
    assert len(items) == 2 * 200  # each item on its benchmark's scale and on `overall`
    assert all(row["discrimination"] >= 0 for row in items)


def test_no_number_of_any_table_is_nan_or_infinite(night: Nights) -> None:
    for table in (*RESULTS, *LATEST):
        for row in rows(night.warehouse, table):
            for name, value in row.items():
                assert not isinstance(value, float) or math.isfinite(value), f"{table}.{name}"


def test_the_truth_is_recovered(night: Nights, history: Path) -> None:
    truth = {row["model"]: row for row in pq.read_table(history / "truth_abilities.parquet").to_pylist()}
    estimates = {
        row["model_id"]: row["ability"]
        for row in rows(night.warehouse, "latest_abilities")
        if row["scale"] == "overall"
    }
    assert set(estimates) == set(truth)
    names = sorted(estimates)
    found = spearmanr([truth[name]["ability"] for name in names], [estimates[name] for name in names])
    assert found.statistic > 0.95


def test_latest_tables_hold_the_run(night: Nights) -> None:
    for table in LATEST:
        everything = {tuple(sorted(map(str, row.items()))) for row in rows(night.warehouse, table)}
        assert everything
        assert len(everything) == len(rows(night.warehouse, table.removeprefix("latest_")))


def test_duckdb_reads_what_was_published(night: Nights) -> None:
    files = DeltaTable(str(night.warehouse / "latest_abilities")).file_uris()
    ranked = duckdb.sql(
        f"select model_id, rank from read_parquet({files!r}) where scale = 'overall' and rank is not null order by rank"
    ).fetchall()
    assert [rank for _, rank in ranked][:3] == [1, 2, 3]


def test_readers_of_protocol_version_1_are_enough(night: Nights) -> None:
    for table in ("responses", *RESULTS, *LATEST):
        assert DeltaTable(str(night.warehouse / table)).protocol().min_reader_version == 1, table


def check_text(done: Done, warehouse: Path) -> None:
    """Text ends with the ranking and where the tables are."""
    assert (done.code, done.err) == (0, "")
    assert "rank" in done.out
    assert "ability" in done.out
    assert str(warehouse / "latest_abilities") in done.out
    assert "{" not in done.out


def test_the_same_night_again_changes_nothing_and_replaces_the_day(night: Nights, here: Run, history: Path) -> None:
    at = ("--warehouse", str(night.warehouse))
    before = {
        row["model_id"]: row["ability"]
        for row in rows(night.warehouse, "latest_abilities")
        if row["scale"] == "overall"
    }
    version = DeltaTable(str(night.warehouse / "responses")).version()
    again = here("ingest", *at, "--input", str(history / "history.parquet"))
    (report,) = again.events("ingested")
    assert (again.code, report["unchanged"], report["new"]) == (0, report["accepted"], 0)
    assert DeltaTable(str(night.warehouse / "responses")).version() == version
    done = here("rescore", *at, "--as-of", "2026-11-29", "--output", "text", "--set", "rescore.top=5")
    check_text(done, night.warehouse)
    after = {
        row["model_id"]: row["ability"]
        for row in rows(night.warehouse, "latest_abilities")
        if row["scale"] == "overall"
    }
    assert after == before
    assert len(rows(night.warehouse, "latest_abilities")) == 3 * 60


def test_a_fit_that_does_not_converge_is_code_4_and_publishes_nothing(night: Nights, here: Run) -> None:
    before = rows(night.warehouse, "latest_abilities")
    done = here("rescore", "--warehouse", str(night.warehouse), "--set", "solver.max_iterations=1")
    assert "did not converge" in done.refused(4)
    assert sorted(map(str, rows(night.warehouse, "latest_abilities"))) == sorted(map(str, before))
    assert sorted(str(row["status"]) for row in rows(night.warehouse, "runs"))[0] == "not_converged"
