"""Two runs of one day at once, where no table of results is there yet: one wins, the other is told."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cbmm_spark.tables import Warehouse
from tests.conftest import ROOT
from tests.faults.leaderboard import ITEMS, MODELS, SETTINGS, TONIGHT, tonight
from tests.faults.nights import NUMBERS, attached_environment, rows
from tests.spark.helpers import cells_of_parts, store, unpacked


@pytest.fixture(scope="module")
def responses(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A warehouse in which nothing was ever packed or scored."""
    root = tmp_path_factory.mktemp("responses") / "warehouse"
    store(Warehouse(spark, str(root)), tonight())
    return root


@pytest.mark.faults
@pytest.mark.parametrize("place", ["start", "claim"])
def test_of_two_commands_at_once_one_publishes_and_the_other_is_code_5(
    responses: Path, tmp_path: Path, place: str
) -> None:
    root = Path(shutil.copytree(responses, tmp_path / "warehouse"))
    (meeting := tmp_path / "meeting").mkdir()
    program = [sys.executable, "-m", "tests.faults.command", "--meet", place, str(meeting)]
    program += ["rescore", "--warehouse", str(root), "--as-of", TONIGHT.isoformat(), *SETTINGS]
    running = [
        subprocess.Popen(
            program, env=attached_environment(), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    told = [process.communicate(timeout=600)[1] for process in running]
    codes = [process.returncode for process in running]
    assert sorted(codes) == [0, 5], told
    assert len(list(meeting.iterdir())) == 2
    *noted, line = told[codes.index(5)].splitlines()
    print("two runs:", *told, sep="\n")
    assert all("commit tried again" in note for note in noted), noted
    winner = running[codes.index(0)].pid
    assert line.startswith(f"cbmm-spark: {TONIGHT} is being scored by run ")
    assert f"(process {winner} on " in line
    assert "run again" in line

    (run,) = rows(root, "runs")
    assert (run["status"], str(run["scored_on"])) == ("published", TONIGHT.isoformat())
    for name, size in (("abilities", MODELS), ("item_parameters", ITEMS)):
        for table in (name, f"latest_{name}"):
            found = rows(root, table)
            assert {row["run_id"] for row in found} == {run["run_id"]}
            assert set(Counter(row[NUMBERS[name][0]] for row in found).values()) == {1}
            assert len(found) == size
    assert unpacked(rows(root, "response_blocks")) == cells_of_parts(tonight())
