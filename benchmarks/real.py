"""Real leaderboards through the whole job: ingested, rescored on Spark, published; objective against L-BFGS-B."""

from __future__ import annotations

import io
import tempfile
import time
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from benchmarks.common import SHARED_DATA, report
from benchmarks.exactness import REAL, matrices
from benchmarks.spark_common import session
from cbmm_spark.config.schema import Config, IngestConfig
from cbmm_spark.console.progress import Progress
from cbmm_spark.ingest.job import ingest
from cbmm_spark.kernels.model import Penalty
from cbmm_spark.rescoring.job import rescore
from cbmm_spark.tables import Warehouse
from tests.oracles import fit_lbfgsb

BY_SCORE = ("misguided_attention",)
"""Data with a rubric score beside the binary one: the score is taken."""


def run() -> None:
    """Print and write the figures."""
    rows = []
    with session(memory="4g") as spark:
        for name in REAL:
            path = SHARED_DATA / f"{name}.parquet"
            if path.exists():
                rows.append(_measure(spark, name, path))
            else:
                print(f"{name}: left out, {path.name} is not in ../shared/data")
    report("real", "real leaderboards through ingest and rescore on Spark, against L-BFGS-B", rows)


def _measure(spark: SparkSession, name: str, path: Path) -> dict[str, Any]:
    config = Config()
    if name in BY_SCORE:
        columns = config.ingest.columns.__class__(score=("score",))
        config = Config(ingest=IngestConfig(columns=columns))
    with tempfile.TemporaryDirectory(prefix="cbmm-real-") as folder:
        warehouse = Warehouse(spark, str(Path(folder) / "warehouse"))
        began = time.perf_counter()
        taken = ingest(spark, warehouse, config, str(path))
        ingested = time.perf_counter()
        done = rescore(spark, warehouse, config, None, Progress("json", io.StringIO()))
        rescored = time.perf_counter()
        scale = done.scales["overall"]
    attempts, successes = matrices(path)
    ridge = Penalty().of_scale(scale["items"], scale["models"])
    oracle = fit_lbfgsb(attempts, successes, 1.0, (ridge.ability, ridge.discrimination, ridge.easiness))
    return {
        "data": name,
        "models": scale["models"],
        "items": scale["items"],
        "responses": scale["responses"],
        "rows": taken.read,
        "iterations": scale["iterations"],
        "converged": scale["converged"],
        "objective": scale["objective"],
        "vs L-BFGS-B": scale["objective"] / oracle.objective - 1.0,
        "kkt": scale["kkt_residual"],
        "node error": scale["node_error"],
        "ingest s": ingested - began,
        "rescore s": rescored - ingested,
        "warnings": len(done.warnings),
    }
