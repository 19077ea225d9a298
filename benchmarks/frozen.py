"""Spark on two cores: 50 new models scored against the items of 2,000 models x 12,032 items, against a full refit."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

from benchmarks.common import ITEMS_PER_BLOCK, report
from benchmarks.spark_common import TILE, TILE_DDL, session
from cbmm_spark.config.schema import RescoreConfig
from cbmm_spark.fit.spark_blocks import SparkBlocks
from cbmm_spark.kernels.alternation import LoopOptions, ScaleFit, alternate, start_scale
from cbmm_spark.kernels.fixed_items import FrozenItems, FrozenTask
from cbmm_spark.kernels.linking import Bank, link_items, quantiles
from cbmm_spark.kernels.model import Penalty
from cbmm_spark.kernels.statistics import ability_errors
from cbmm_spark.packing.tile_codec import encode_bits
from cbmm_spark.rescoring.fixed_items import score_tiles
from cbmm_spark.results.results import solve_fit_items
from cbmm_spark.simulation.generator import World, draw_block, draw_world

OLD, NEW, ITEMS = 2_000, 50, 12_032
REPEATS = 3
NAME = "suite"
ONE = {NAME: frozenset([NAME])}


def run() -> None:
    """Print and write the figures."""
    world = draw_world(OLD + NEW, ITEMS, 1, missing=0.05, discrimination="uniform")
    with session() as spark, tempfile.TemporaryDirectory(prefix="cbmm-bench-") as folder:
        path = str(Path(folder) / "response_blocks")
        _tiles(spark, world).write.format("delta").save(path)
        tiles = spark.read.format("delta").load(path)
        before, bank, _ = _fit(spark, tiles.where(F.col("model_start") == 1), OLD)
        known = np.append(before.theta, np.full(NEW, np.nan))
        # In turn, and the shortest of each: the machines are shared and noisy.
        refits, warms, scored = [], [], []
        for _ in range(REPEATS):
            after, refit_bank, seconds = _fit(spark, tiles, OLD + NEW)
            refits.append(seconds)
            warms.append(_fit(spark, tiles, OLD + NEW, known)[2])
            theta, seconds = _score(spark, tiles, before, bank)
            scored.append(seconds)
    refit, warm, frozen = min(refits), min(warms), min(scored)
    link = link_items(bank, refit_bank)
    error = ability_errors(after.information, after.ridge.ability)[OLD:] / link.gauge.stretch
    away = np.abs(link.gauge.abilities(after.theta)[OLD:] - theta) / error
    rows = [
        {"what": "full refit, from accuracy", "seconds": refit, "share": 1.0},
        {"what": "full refit, warm", "seconds": warm, "share": warm / refit},
        {"what": f"frozen scoring of {NEW} new models", "seconds": frozen, "share": frozen / refit},
    ]
    notes = {
        "largest difference from the full refit, in standard errors": float(away.max()),
        "median difference, in standard errors": float(np.median(away)),
        "frozen scoring as a share of a warm refit": frozen / warm,
    }
    report("frozen", f"Spark, two cores: {OLD:,} + {NEW} models x {ITEMS:,} items; read, fit and items", rows, notes)


def _tiles(spark: SparkSession, world: World) -> DataFrame:
    """Tiles of the old and of the new models, as packing appends them."""

    def draw(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for block in batch.column(0).to_pylist():
                start = block * ITEMS_PER_BLOCK
                stop = min(start + ITEMS_PER_BLOCK, world.n_items)
                drawn = draw_block(world, slice(start, stop))
                for first, count, columns in ((1, OLD, slice(0, OLD // 8)), (OLD + 1, NEW, slice(OLD // 8, None))):
                    packed = encode_bits(drawn.attempted[:, columns], drawn.solved[:, columns], count, 1.0 / 64.0)
                    row = {
                        "benchmark": NAME, "item_block": block, "item_start": start + 1, "n_items": stop - start,
                        "model_start": first, "n_models": count, "encoding": packed.encoding,
                        "n_responses": packed.n_responses, "attempted": packed.attempted, "solved": packed.solved,
                    }  # fmt: skip
                    yield pa.RecordBatch.from_pylist([row], schema=TILE)

    count = -(-world.n_items // ITEMS_PER_BLOCK)
    numbers = spark.range(0, count, 1, min(count, 4)).select(F.col("id").cast("int").alias("block"))
    return numbers.mapInArrow(draw, TILE_DDL)


def _fit(spark: SparkSession, tiles: DataFrame, n_models: int, known: Any = None) -> tuple[ScaleFit, Bank, float]:
    """Fit, solve the items, and tell how long reading, fitting and the items took."""
    options = LoopOptions()
    began = time.perf_counter()
    with SparkBlocks(spark, tiles) as blocks:
        counts = blocks.count(ONE, n_models)[NAME]
        ridge = Penalty().of_scale(counts.n_items, int(np.count_nonzero(counts.attempts)))
        fit = start_scale(NAME, ONE[NAME], counts, ridge, options, known=known)
        alternate([fit], blocks.run_pass, options)
        solved = solve_fit_items(blocks, {NAME: fit}, RescoreConfig()).persist()
        solved.count()
        seconds = time.perf_counter() - began
        table = solved.toArrow().sort_by("item_index")
        solved.unpersist()
    a, b, n = (table[c].to_numpy().astype(float) for c in ("a", "b", "n_models"))
    return fit, Bank(a, b, n, quantiles(fit.theta)), seconds


def _score(spark: SparkSession, tiles: DataFrame, fit: ScaleFit, bank: Bank) -> tuple[Any, float]:
    """Score the new models against the items of a fit, in its gauge."""
    models = np.arange(OLD, OLD + NEW)
    items = {NAME: FrozenItems(bank.a, bank.b, bank.n, np.ones(bank.a.size, dtype=np.int64))}
    began = time.perf_counter()
    task = FrozenTask(NAME, items, models, np.ones(NEW, dtype=bool), fit.ridge, fit.theta)
    found = score_tiles(spark, tiles, [task])[NAME]
    return found.theta, time.perf_counter() - began
