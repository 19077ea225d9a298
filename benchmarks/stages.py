"""Spark: what an iteration costs beside an empty mapInArrow job, and whether 200 iterations cost 200 times one."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from benchmarks.common import best_of, report
from benchmarks.spark_common import fit_stored, plan_sizes, session, stored_blocks
from cbmm_spark.fit.spark_blocks import SparkBlocks
from cbmm_spark.kernels.alternation import LoopOptions
from cbmm_spark.simulation.generator import draw_world

ONE = {"suite": frozenset(["suite"])}
TINY = (200, 1_500)


def run() -> None:
    """Print and write the figures."""
    with session() as spark:
        world = draw_world(*TINY, 1, missing=0.05, discrimination="uniform")
        with stored_blocks(spark, {"suite": world}) as tiles:
            before = spark.sparkContext._jsc.getPersistentRDDs().size()
            with SparkBlocks(spark, tiles) as blocks:
                blocks.blocks.count()

                def empty(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
                    for batch in batches:
                        yield batch.select([0])

                floor = best_of(lambda: blocks.blocks.mapInArrow(empty, "benchmark string").toArrow(), 10)
            forced = LoopOptions(tolerance=1e-300, objective_tolerance=0.0, max_iterations=200, anderson_depth=0)
            fits, _ = fit_stored(spark, tiles, ONE, TINY[0], forced)
            cached = spark.sparkContext._jsc.getPersistentRDDs().size() - before
            plans = plan_sizes(spark, "iterate")
    seconds = np.array([record.seconds for record in fits["suite"].history])
    rows = [
        {
            "empty mapInArrow": floor,
            "iteration (median)": float(np.median(seconds)),
            "ratio": float(np.median(seconds)) / floor,
            "first 50": float(np.median(seconds[:50])),
            "last 50": float(np.median(seconds[-50:])),
            "iterations": seconds.size,
            "plan lines, first": plans[0],
            "plan lines, last": plans[-1],
            "frames left cached": cached,
        }
    ]
    report("stages", f"Spark, two cores: seconds per iteration of {TINY[0]} x {TINY[1]}, 200 iterations forced", rows)
