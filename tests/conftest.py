"""Fixtures shared by all tests: one Spark session, fresh warehouses, real data where it is at hand."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cbmm_spark.tables import Warehouse
    from tests.spark.table_copies import TableCopies

# On a busy machine a test case takes as long as it takes; a slow one is no defect.
hypothesis.settings.register_profile("cbmm-spark", deadline=None)
hypothesis.settings.load_profile("cbmm-spark")

ROOT = Path(__file__).resolve().parent.parent
SHARED_DATA = ROOT.parent / "shared" / "data"

# Compiling a query costs more than running it on a few rows; what users run is compiled, and so are the tests that go
# through spark-submit or start a cluster.
NO_CODEGEN = {"spark.sql.codegen.factoryMode": "NO_CODEGEN", "spark.sql.codegen.wholeStage": "false"}

# Two sessions on two cores: a collector that marks beside the program takes a sixth of their processor time, and in a
# session of many minutes the optimising compiler is worth its own.
SERIAL_JVM = "-XX:+UseSerialGC"

# A session grows to this in any case: beginning with it spares collections on the way there.
ROOMY_JVM = f"{SERIAL_JVM} -Xms1g -Xmn600m -XX:MetaspaceSize=320m"

# For a JVM of a minute: the optimising compiler never earns its time back. Without it the JVM sets 48 MB aside for
# compiled code instead of 240; a full one stops compiling and says so on standard error.
QUICK_JVM = f"{SERIAL_JVM} -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"

# What Spark keeps for its pages: after thousands of small jobs that is 170,000 tasks that nobody looks at. Tests of
# plans and jobs look back at fewer than these.
SHORT_MEMORY = {
    "spark.ui.retainedJobs": "500",
    "spark.ui.retainedStages": "500",
    "spark.ui.retainedTasks": "5000",
    "spark.sql.ui.retainedExecutions": "500",
    "spark.ui.liveUpdate.period": "-1",
}

TEST_SPARK = {
    "spark.sql.shuffle.partitions": "3",
    "spark.default.parallelism": "2",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.driver.maxResultSize": "512m",
    **SHORT_MEMORY,
    "spark.driver.extraJavaOptions": ROOMY_JVM,
    **NO_CODEGEN,
}


@pytest.fixture(scope="session")
def table_copies(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TableCopies]:
    """Tables of a kind are created once in a process and copied afterwards."""
    from tests.spark.table_copies import TableCopies

    with TableCopies(tmp_path_factory.mktemp("tables")).in_use() as copies:
        yield copies


@pytest.fixture(scope="session")
def spark(table_copies: TableCopies) -> Iterator[SparkSession]:
    """The one session of this process: two local cores, Delta, UTC, few partitions."""
    from cbmm_spark.config.schema import Config, SparkConfig
    from cbmm_spark.spark.session import build_session, stop_session

    config = Config(spark=SparkConfig(master="local[2]", driver_memory="2g", conf=TEST_SPARK))
    session = build_session(config, "cbmm-spark tests")
    yield session
    stop_session(session)


@pytest.fixture
def warehouse(spark: SparkSession, tmp_path: Path) -> Warehouse:
    """A warehouse of its own for each test, empty."""
    from cbmm_spark.tables import Warehouse

    return Warehouse(spark, str(tmp_path / "warehouse"))


@pytest.fixture(scope="session")
def shared_data() -> Callable[[str], Path]:
    """`shared_data(name)`: the path of a real data set, or a skip with the reason where it is absent."""

    def find(name: str) -> Path:
        path = SHARED_DATA / name
        if not path.exists():
            pytest.skip(f"real data {name} is not at hand (looked in ../shared/data)")
        return path

    return find


@pytest.fixture(scope="session")
def run_cluster() -> Callable[..., subprocess.CompletedProcess[str]]:
    """`run_cluster(code, *arguments)`: run Python in a process of its own on `local-cluster[2,1,1024]`.

    Only one SparkContext lives in a process, and the shared `spark` fixture has it. The code finds `spark`, a session
    on two workers in JVMs of their own, and its arguments in `sys.argv[1:]`.
    """

    def run(code: str, *arguments: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
        program = _CLUSTER_PREAMBLE + code
        return subprocess.run(
            [sys.executable, "-c", program, *arguments],
            env=cluster_environment(),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            cwd=ROOT,
        )

    return run


_CLUSTER_PREAMBLE = """
import sys
from cbmm_spark.config.schema import Config, SparkConfig
from cbmm_spark.spark.session import build_session
spark = build_session(
    Config(spark=SparkConfig(
        master="local-cluster[2,1,1024]",
        driver_memory="1g",
        conf={"spark.executor.memory": "1g", "spark.sql.shuffle.partitions": "3"},
    )),
    "cbmm-spark cluster tests",
)
"""


def cluster_environment() -> dict[str, str]:
    """Environment for workers in processes of their own: they look for Spark and for this checkout."""
    import pyspark

    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "SPARK_HOME": str(Path(pyspark.__file__).parent), "PYTHONPATH": path}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that need Spark come first: the short ones after them are what two workers end together with."""
    dear = {item.path for item in items if {"spark", "console", "submit"} & set(getattr(item, "fixturenames", ()))}
    items.sort(key=lambda item: item.path not in dear)


def pytest_unconfigure() -> None:
    """Give delta-rs's threads the moment they need: an interpreter that ends at once after using it may abort."""
    if "deltalake" in sys.modules:
        gc.collect()
        time.sleep(1)
