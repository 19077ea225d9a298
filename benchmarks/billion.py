"""Spark on two cores with a 2 GB driver: 10,000 models x 100,000 items from stored blocks, and a tenth of it."""

from __future__ import annotations

from benchmarks.common import report
from benchmarks.spark_common import WorkerMemory, facts, fit_stored, session, stored_blocks
from cbmm_spark.simulation.generator import draw_world

ONE = {"suite": frozenset(["suite"])}


def run() -> None:
    """Print and write the figures."""
    rows = []
    with session(memory="2g") as spark:
        small = draw_world(500, 1_000, 1, missing=0.05, discrimination="uniform")
        with stored_blocks(spark, {"suite": small}) as tiles:
            fit_stored(spark, tiles, ONE, 500)  # starts the Python workers
        for n_items in (10_000, 100_000):
            world = draw_world(10_000, n_items, 1, missing=0.05, discrimination="uniform")
            with stored_blocks(spark, {"suite": world}) as tiles:
                with WorkerMemory() as memory:
                    fits, seconds = fit_stored(spark, tiles, ONE, 10_000)
                rows.append(
                    {
                        "models x items": f"10,000 x {n_items:,}",
                        **seconds,
                        "largest worker MB": memory.largest,
                        **facts(fits["suite"]),
                    }
                )
    report("billion", "Spark, two cores, 2 GB driver, 5 % missing: seconds", rows)
