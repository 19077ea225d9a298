"""SIGKILL of the driver at any point of a night: nothing half is visible, and running again repairs it."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cbmm_spark.faultpoints import VARIABLE
from cbmm_spark.rescoring.job import RunOptions, rescore
from cbmm_spark.tables import Warehouse
from tests.conftest import ROOT
from tests.faults.leaderboard import CONFIG, MODELS, TONIGHT
from tests.faults.nights import AFTER, BEFORE, Nights, attached_environment, check_repaired, check_visible
from tests.spark.helpers import Heard

SOON = ("iteration 3", "latest_abilities")  # in the ordinary suite; the others in `make test-faults`
POINTS = [p if p in SOON else pytest.param(p, marks=pytest.mark.faults) for p in (*BEFORE, *AFTER)]


def killed_at(point: str, warehouse: Path) -> None:
    """Run tonight in a process of its own until it dies."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.driver", str(warehouse)],
        env=attached_environment(**{VARIABLE: point}),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr


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
    check_repaired(root, nights, report.run_id, bool(resumed), ["failed"] if point in BEFORE else [])
