"""A late night, the same night twice and a deliberate re-score, as whole runs."""

from __future__ import annotations

import datetime as dt
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cbmm_spark.config.schema import Config
from cbmm_spark.rescoring.job import RunOptions, rescore
from cbmm_spark.tables import Warehouse
from tests.faults.leaderboard import CONFIG, ITEMS, MODELS, TONIGHT
from tests.faults.nights import NUMBERS, Nights, results, rows
from tests.spark.helpers import DAY, Heard

TOMORROW = TONIGHT + dt.timedelta(days=1)
OTHER = replace(CONFIG, solver=replace(CONFIG.solver, lambda_discrimination=4.0))


def check_days(root: Path, days: dict[dt.date, str], latest: str) -> None:
    """Each day has its one run, whole and once, and nothing of any other run is there."""
    found = {str(row["scored_on"]): (row["run_id"], row["status"]) for row in rows(root, "runs")}
    assert len(rows(root, "runs")) == len(days)
    assert found == {day.isoformat(): (run_id, "published") for day, run_id in days.items()}
    for name, size in (("abilities", MODELS), ("item_parameters", ITEMS)):
        key = NUMBERS[name][0]
        written = Counter((row["scored_on"], row["run_id"], row[key]) for row in rows(root, name))
        assert set(written.values()) == {1}
        assert {(day, run_id) for day, run_id, _ in written} == {(d.isoformat(), r) for d, r in days.items()}
        assert {row["run_id"] for row in rows(root, f"latest_{name}")} == {latest}
        assert len(rows(root, f"latest_{name}")) == size


@pytest.mark.faults
def test_a_late_night_the_same_night_twice_and_another_score_of_it(
    nights: Nights, spark: SparkSession, tmp_path: Path
) -> None:
    root = Path(shutil.copytree(nights.root, tmp_path / "warehouse"))

    def run(day: dt.date, config: Config = CONFIG) -> str:
        options = RunOptions(accept_gates=config is not CONFIG)  # other settings move abilities: that is asked for
        return rescore(spark, Warehouse(spark, str(root)), config, day, Heard(), options).run_id

    newer = run(TOMORROW)
    late = run(TONIGHT)
    check_days(root, {DAY: nights.last_run, TONIGHT: late, TOMORROW: newer}, latest=newer)
    first = results(root, late)
    assert first == nights.expected  # the night that was late is the night that it would have been

    again = run(TONIGHT)
    assert again != late
    check_days(root, {DAY: nights.last_run, TONIGHT: again, TOMORROW: newer}, latest=newer)
    assert results(root, again) == first

    other = run(TOMORROW, OTHER)
    check_days(root, {DAY: nights.last_run, TONIGHT: again, TOMORROW: other}, latest=other)
    assert results(root, again) == first
    assert results(root, other) != first
