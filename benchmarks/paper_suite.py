"""Spark on two cores: the paper's largest suite, 2,211 models x 12,032 items, from stored blocks."""

from __future__ import annotations

from benchmarks.common import report
from benchmarks.spark_common import facts, fit_stored, session, stored_blocks
from cbmm_spark.simulation.generator import draw_world

N_MODELS, N_ITEMS = 2_211, 12_032
ONE = {"suite": frozenset(["suite"])}


def run() -> None:
    """Print and write the figures: the first fit starts the Python workers, the others find them warm."""
    rows = []
    with session() as spark:
        for missing in (0.0, 0.05):
            world = draw_world(N_MODELS, N_ITEMS, 1, missing=missing, discrimination="uniform")
            with stored_blocks(spark, {"suite": world}) as tiles:
                for attempt in ("first", "second", "third"):
                    fits, seconds = fit_stored(spark, tiles, ONE, N_MODELS)
                    rows.append({"missing": missing, "fit": attempt, **seconds, **facts(fits["suite"])})
    report("paper_suite", f"Spark, two cores: {N_MODELS:,} x {N_ITEMS:,}, seconds", rows)
