"""A disk that is full in the middle of a night: last night stays whole, and a rerun with room repairs it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cbmm_spark.rescoring.job import rescore
from cbmm_spark.tables import Warehouse
from tests.conftest import ROOT
from tests.faults.leaderboard import CONFIG, SETTINGS, TONIGHT
from tests.faults.nights import AFTER, Nights, attached_environment, check_repaired, check_visible
from tests.spark.helpers import Heard

SIZE = "48m"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, which a test may fill."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a file system to be filled")
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={SIZE},nr_inodes=0", "tmpfs", str(place)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode != 0:
        pytest.skip(f"no file system to be filled can be mounted here: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.mark.faults
@pytest.mark.parametrize("point", ["iteration 1", "item_parameters", "published"])
def test_a_rerun_with_room_repairs_a_night_that_filled_the_disk(
    nights: Nights, spark: SparkSession, small_disk: Path, point: str
) -> None:
    root = Path(shutil.copytree(nights.root, small_disk / "warehouse"))
    ballast = small_disk / "ballast"
    program = [sys.executable, "-m", "tests.faults.command", "--fill", point, str(ballast)]
    program += ["rescore", "--warehouse", str(root), "--as-of", TONIGHT.isoformat(), *SETTINGS]
    done = subprocess.run(
        program, env=attached_environment(), cwd=ROOT, capture_output=True, text=True, check=False, timeout=900
    )
    assert done.returncode == 1, (done.returncode, done.stdout[-2000:], done.stderr[-6000:])
    assert ballast.stat().st_size > 1 << 20
    assert "Traceback" not in done.stderr
    line = done.stderr.splitlines()[-1]
    assert line.startswith("cbmm-spark: the disk is full, ")
    assert "run again" in line
    check_visible(root, nights, point)

    ballast.unlink()
    spark.catalog.clearCache()  # the ended driver's blocks
    heard = Heard()
    report = rescore(spark, Warehouse(spark, str(root)), CONFIG, TONIGHT, heard)
    check_repaired(root, nights, report.run_id, bool(heard.of("resumed")), [] if point in AFTER else ["failed"])
