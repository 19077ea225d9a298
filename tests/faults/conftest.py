"""The night of the fault, made once and copied by each test."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cbmm_spark.rescoring.job import rescore
from cbmm_spark.tables import SPECS, Warehouse
from tests.faults.leaderboard import CONFIG, TONIGHT, last_night, tonight
from tests.faults.nights import Nights, results
from tests.spark.helpers import DAY, Heard, store


@pytest.fixture(scope="session")
def nights(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Nights:
    """A warehouse with last night published and tonight's responses in."""
    root = tmp_path_factory.mktemp("nights") / "warehouse"
    warehouse = Warehouse(spark, str(root))
    warehouse.ensure(*(name for name in SPECS if name != "quarantine"))
    store(warehouse, last_night())
    last = rescore(spark, warehouse, CONFIG, DAY, Heard())
    store(warehouse, tonight())
    undisturbed = Warehouse(spark, str(shutil.copytree(root, root.with_name("undisturbed"))))
    report = rescore(spark, undisturbed, CONFIG, TONIGHT, Heard())
    return Nights(root, last.run_id, results(Path(undisturbed.root), report.run_id))
