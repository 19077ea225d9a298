"""SIGKILL of the driver at any point of a night: nothing half is visible, and running again repairs it (case N2)."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark import SparkContext
from pyspark.sql import SparkSession

from cbmm_spark.faultpoints import VARIABLE
from cbmm_spark.rescore import RunOptions, rescore
from cbmm_spark.tables import SPECS, Warehouse
from tests.conftest import ROOT
from tests.faults.leaderboard import CONFIG, ITEMS, MODELS, TONIGHT, last_night, tonight
from tests.spark.helpers import DAY, Heard, store

BEFORE = ("claimed", "iteration 3", "run_iterations", "item_parameters", "abilities", "run_scales")
AFTER = ("published", "latest_abilities", "latest_item_parameters", "latest")
SOON = ("iteration 3", "latest_abilities")  # in the ordinary suite; the others in `make test-faults`
POINTS = [p if p in SOON else pytest.param(p, marks=pytest.mark.faults) for p in (*BEFORE, *AFTER)]
NUMBERS = {"abilities": ("model_id", "ability"), "item_parameters": ("item_id", "discrimination")}


class Nights:
    """A warehouse before tonight, and what tonight gives where nobody is killed."""

    def __init__(self, root: Path, last_run: str, expected: dict[str, dict[str, float | None]]) -> None:
        self.root, self.last_run, self.expected = root, last_run, expected


@pytest.fixture(scope="module")
def nights(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Nights:
    root = tmp_path_factory.mktemp("nights") / "warehouse"
    warehouse = Warehouse(spark, str(root))
    warehouse.ensure(*(name for name in SPECS if name != "quarantine"))
    store(warehouse, last_night())
    last = rescore(spark, warehouse, CONFIG, DAY, Heard())
    store(warehouse, tonight())
    undisturbed = Warehouse(spark, str(shutil.copytree(root, root.with_name("undisturbed"))))
    report = rescore(spark, undisturbed, CONFIG, TONIGHT, Heard())
    return Nights(root, last.run_id, results(Path(undisturbed.root), report.run_id))


def rows(root: Path, name: str) -> list[dict[str, Any]]:
    """The live rows of a table as delta-rs finds its files, independent of the session; with partition values."""
    found = []
    for uri in DeltaTable(str(root / name)).file_uris():
        day = next((part.partition("=")[2] for part in uri.split("/") if part.startswith("scored_on=")), None)
        more = {} if day is None else {"scored_on": day}
        found += [row | more for row in pq.ParquetFile(uri.removeprefix("file://")).read().to_pylist()]
    return found


def results(root: Path, run_id: str) -> dict[str, dict[str, float | None]]:
    return {
        name: {row[key]: row[value] for row in rows(root, name) if row["run_id"] == run_id}
        for name, (key, value) in NUMBERS.items()
    }


def killed_at(point: str, warehouse: Path) -> None:
    """Run tonight in a process of its own until it dies."""
    gateway = SparkContext._gateway
    assert gateway is not None
    parameters = gateway.gateway_parameters
    given = {"PYSPARK_GATEWAY_PORT": str(parameters.port), "PYSPARK_GATEWAY_SECRET": parameters.auth_token}
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.driver", str(warehouse)],
        env={**os.environ, **given, "PYTHONPATH": str(ROOT), VARIABLE: point},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr


def check_visible(root: Path, nights: Nights, point: str) -> None:
    """What readers see between the kill and the rerun: the last night or the new one, whole."""
    seen = {row["run_id"]: str(row["scored_on"]) for row in rows(root, "runs") if row["status"] == "published"}
    fresh = [run_id for run_id, day in seen.items() if day == TONIGHT.isoformat()]
    assert seen[nights.last_run] == DAY.isoformat()
    assert len(fresh) == (point in AFTER)
    names = (*NUMBERS, *(f"latest_{name}" for name in NUMBERS))
    counted = {name: Counter(row["run_id"] for row in rows(root, name)) for name in names}
    for run_id in fresh:
        assert counted["abilities"][run_id] == MODELS
        assert counted["item_parameters"][run_id] == ITEMS
    reached = AFTER.index(point) if point in AFTER else 0
    for place, name in ((1, "latest_abilities"), (2, "latest_item_parameters")):
        (run_id,) = counted[name]
        assert run_id == (fresh[0] if reached >= place else nights.last_run), name
        assert counted[name][run_id] == counted[name.removeprefix("latest_")][run_id]


@pytest.mark.parametrize("point", POINTS)
def test_a_rerun_repairs_a_kill(nights: Nights, spark: SparkSession, tmp_path: Path, point: str) -> None:
    root = Path(shutil.copytree(nights.root, tmp_path / "warehouse"))
    killed_at(point, root)
    check_visible(root, nights, point)
    spark.catalog.clearCache()  # the dead driver's blocks
    heard = Heard()
    fresh = point == "abilities"
    report = rescore(spark, Warehouse(spark, str(root)), CONFIG, TONIGHT, heard, RunOptions(fresh=fresh))

    resumed = heard.of("resumed")
    if point in BEFORE[2:] and not fresh:
        assert [(event["scale"], event["models"]) for event in resumed] == [("overall", MODELS)]
        assert resumed[0]["iteration"] >= 1
        assert report.scales["overall"]["iterations"] <= 3
    elif point == "claimed" or fresh or point in AFTER:
        assert resumed == []
    # Killed in iteration 3, what was saved depends on how quick the commits beside the fit were.
    states = {row["run_id"]: (str(row["scored_on"]), row["status"]) for row in rows(root, "runs")}
    dead = [run_id for run_id in states if run_id not in (nights.last_run, report.run_id)]
    assert states.pop(nights.last_run) == (DAY.isoformat(), "published")
    assert states.pop(report.run_id) == (TONIGHT.isoformat(), "published")
    assert list(states.values()) == ([(TONIGHT.isoformat(), "failed")] if point in BEFORE else [])
    found = results(root, report.run_id)
    for name, expected in nights.expected.items():
        assert found[name].keys() == expected.keys()
        for key, value in expected.items():
            if resumed and value is not None:
                assert found[name][key] == pytest.approx(value, abs=1e-6), (name, key)
            else:
                assert found[name][key] == value, (name, key)
    for name in ("abilities", "item_parameters"):
        assert Counter(row["run_id"] for row in rows(root, name)).keys() == {nights.last_run, report.run_id}
        assert {row["run_id"] for row in rows(root, f"latest_{name}")} == {report.run_id}
    scales = {row["run_id"] for row in rows(root, "run_scales")}
    assert scales - set(dead) == {nights.last_run, report.run_id}
    assert np.isfinite([value for value in found["abilities"].values() if value is not None]).all()
