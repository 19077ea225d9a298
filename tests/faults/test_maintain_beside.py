"""OPTIMIZE and VACUUM in the middle of a fit: it reads the versions it pinned to its end."""

from __future__ import annotations

import io
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from cbmm_spark.console.progress import Progress
from cbmm_spark.rescoring.job import rescore
from cbmm_spark.tables import Warehouse
from cbmm_spark.upkeep.maintain import MaintainReport, maintain
from tests.faults.leaderboard import CONFIG, TONIGHT
from tests.faults.nights import Nights, check_repaired
from tests.spark.helpers import Heard

READ = ("response_blocks", "items", "model_benchmarks")
"""What a fit pins and reads, the first of them again in every iteration where its cache is lost."""

ROWS_PER_FILE = "spark.sql.files.maxRecordsPerFile"
MONTHS = 100 * 24 * 3600


class Upkeep(Heard):
    """Does upkeep after iteration 3, and takes the cached blocks away, so that they are read from the files again."""

    def __init__(self, warehouse: Warehouse) -> None:
        super().__init__()
        self.warehouse, self.report = warehouse, MaintainReport(False)
        self.versions: list[dict[str, int]] = []

    def iteration(self, *values: Any) -> None:
        """Do it."""
        super().iteration(*values)
        if values[2] == 3:
            spark = self.warehouse.spark
            spark.conf.unset(ROWS_PER_FILE)
            self.look()
            progress = Progress("json", io.StringIO())
            # A fit's session has adaptive execution off: VACUUM would list each table in hundreds of tasks.
            other = Warehouse(spark.newSession(), self.warehouse.root)
            self.report = maintain(other.spark, other, CONFIG, ("optimize", "vacuum"), progress)
            self.look()
            spark.catalog.clearCache()

    def look(self) -> None:
        """Note the versions of what is read."""
        self.versions.append({name: self.warehouse.version(name) for name in READ})


@pytest.mark.faults
def test_a_fit_ends_as_it_would_have_beside_upkeep(nights: Nights, spark: SparkSession, tmp_path: Path) -> None:
    warehouse = Warehouse(spark, str(shutil.copytree(nights.root, tmp_path / "warehouse")))
    litter = [tmp_path / "warehouse" / name / "part-00000-of-a-killed-run.parquet" for name in READ]
    for file in litter:
        file.write_bytes(b"of no version")
        os.utime(file, (time.time() - MONTHS, time.time() - MONTHS))
    upkeep = Upkeep(warehouse)
    spark.conf.set(ROWS_PER_FILE, "1")  # tonight's blocks become small files, which OPTIMIZE puts together
    try:
        report = rescore(spark, warehouse, CONFIG, TONIGHT, upkeep)
    finally:
        spark.conf.unset(ROWS_PER_FILE)

    assert len(upkeep.iterations) > 4
    assert upkeep.report.error is None
    before, after = upkeep.versions
    assert not any(file.exists() for file in litter)  # VACUUM took what it may take
    assert upkeep.report.tables["response_blocks"].joined > 1
    assert after["response_blocks"] > before["response_blocks"]
    check_repaired(Path(warehouse.root), nights, report.run_id, resumed=False, ended=[])
