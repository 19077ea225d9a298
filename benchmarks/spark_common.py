"""A Spark session for benchmarks, and simulated blocks stored as `response_blocks` without ever being long rows."""

from __future__ import annotations

import contextlib
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

from benchmarks.common import ITEMS_PER_BLOCK
from cbmm_spark.config.schema import Config, SparkConfig
from cbmm_spark.fit.spark_blocks import SparkBlocks
from cbmm_spark.kernels.alternation import LoopOptions, ScaleFit, alternate, start_scale
from cbmm_spark.kernels.model import Penalty
from cbmm_spark.packing.tile_codec import encode_bits
from cbmm_spark.simulation.generator import World, draw_block
from cbmm_spark.spark.session import build_session, stop_session

TILE_DDL = (
    "benchmark string, item_block int, item_start int, n_items int, model_start int, n_models int, encoding string, "
    "n_responses long, attempted binary, solved binary"
)

TILE = pa.schema(
    [
        ("benchmark", pa.string()), ("item_block", pa.int32()), ("item_start", pa.int32()), ("n_items", pa.int32()),
        ("model_start", pa.int32()), ("n_models", pa.int32()), ("encoding", pa.string()), ("n_responses", pa.int64()),
        ("attempted", pa.binary()), ("solved", pa.binary()),
    ]
)  # fmt: skip


@contextlib.contextmanager
def session(cores: int = 2, memory: str = "2g") -> Iterator[SparkSession]:
    """A local session with so many cores and so large a driver."""
    conf = {"spark.ui.enabled": "false", "spark.default.parallelism": str(cores)}
    spark = build_session(Config(spark=SparkConfig(f"local[{cores}]", memory, conf)), "cbmm-spark benchmarks")
    try:
        yield spark
    finally:
        stop_session(spark)


@contextlib.contextmanager
def stored_blocks(spark: SparkSession, worlds: Mapping[str, World]) -> Iterator[DataFrame]:
    """Draw the responses of some benchmarks on the executors and store them as a Delta table of tiles."""
    parts = [_drawn(spark, name, world) for name, world in worlds.items()]
    with tempfile.TemporaryDirectory(prefix="cbmm-bench-") as folder:
        path = str(Path(folder) / "response_blocks")
        for part in parts:
            part.write.format("delta").mode("append").save(path)
        yield spark.read.format("delta").load(path)


def _drawn(spark: SparkSession, name: str, world: World) -> DataFrame:
    n_models, n_items = world.n_models, world.n_items

    def draw(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for block in batch.column(0).to_pylist():
                start = block * ITEMS_PER_BLOCK
                stop = min(start + ITEMS_PER_BLOCK, n_items)
                drawn = draw_block(world, slice(start, stop))
                packed = encode_bits(drawn.attempted, drawn.solved, n_models, 1.0 / 64.0)
                row = {
                    "benchmark": name, "item_block": block, "item_start": start + 1, "n_items": stop - start,
                    "model_start": 1, "n_models": n_models, "encoding": packed.encoding,
                    "n_responses": packed.n_responses, "attempted": packed.attempted, "solved": packed.solved,
                }  # fmt: skip
                yield pa.RecordBatch.from_pylist([row], schema=TILE)

    count = -(-n_items // ITEMS_PER_BLOCK)
    numbers = spark.range(0, count, 1, min(count, 8)).select(F.col("id").cast("int").alias("block"))
    return numbers.mapInArrow(draw, TILE_DDL)


def fit_stored(
    spark: SparkSession,
    tiles: DataFrame,
    scales: Mapping[str, frozenset[str]],
    n_models: int,
    options: LoopOptions | None = None,
    partitions: int = 0,
) -> tuple[dict[str, ScaleFit], dict[str, float]]:
    """Fit scales to stored tiles; return the fits and the seconds of reading and caching, counting, and iterating."""
    options = options or LoopOptions()
    began = time.perf_counter()
    with SparkBlocks(spark, tiles, partitions) as blocks:
        blocks.blocks.count()
        cached = time.perf_counter()
        counts = blocks.count(scales, n_models)
        counted = time.perf_counter()
        fits = [
            start_scale(
                name,
                group,
                counts[name],
                Penalty().of_scale(counts[name].n_items, int(np.count_nonzero(counts[name].attempts))),
                options,
            )
            for name, group in scales.items()
        ]
        alternate(fits, blocks.run_pass, options)
        done = time.perf_counter()
    seconds = {"cache": cached - began, "count": counted - cached, "iterate": done - counted, "all": done - began}
    return {fit.name: fit for fit in fits}, seconds


def _queries(spark: SparkSession, after: int = -1) -> list[Any]:
    """What Spark tells of each query after one, in order, as far as it still remembers them."""
    listed = spark._jsparkSession.sharedState().statusStore().executionsList()
    found = [listed.apply(number) for number in range(listed.size())]
    return [query for query in found if query.executionId() > after]


def last_query(spark: SparkSession) -> int:
    """Return the number of the last query so far."""
    return max((query.executionId() for query in _queries(spark)), default=-1)


def spent(spark: SparkSession, after: int, steps: Sequence[str]) -> dict[str, tuple[int, float]]:
    """Return the queries that came after one and the seconds of their jobs, by the step their description names."""
    store = spark.sparkContext._jsc.sc().statusStore()
    found = dict.fromkeys((*steps, "other"), (0, 0.0))
    for query in _queries(spark, after):
        step = next((step for step in steps if f": {step}" in str(query.description())), "other")
        seconds = 0.0
        for number in str(query.jobs().keys().mkString(" ")).split():
            job = store.job(int(number))
            seconds += (job.completionTime().get().getTime() - job.submissionTime().get().getTime()) / 1000
        count, total = found[step]
        found[step] = (count + 1, total + seconds)
    return found


def plan_sizes(spark: SparkSession, text: str, after: int = -1) -> list[int]:
    """Return the lines of the physical plan of each query after one whose description begins with a text, in order."""
    found = [query for query in _queries(spark, after) if str(query.description()).startswith(text)]
    return [len(str(query.physicalPlanDescription()).splitlines()) for query in found]


class WorkerMemory:
    """The largest resident memory that any Python worker reached while this was entered, in megabytes."""

    def __init__(self) -> None:
        self.largest = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> WorkerMemory:
        self._thread.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(0.1):
            for folder in Path("/proc").iterdir():
                if folder.name.isdigit():
                    self.largest = max(self.largest, _worker_memory(folder))


def _worker_memory(folder: Path) -> float:
    try:
        if b"pyspark.daemon" not in (folder / "cmdline").read_bytes():
            return 0.0
        status = (folder / "status").read_text()
    except OSError:  # it ended while it was looked at
        return 0.0
    peak = [line for line in status.splitlines() if line.startswith("VmRSS:")]
    return int(peak[0].split()[1]) / 1024.0 if peak else 0.0


def facts(fit: ScaleFit) -> dict[str, Any]:
    """Return what every Spark benchmark says of a fit."""
    return {"iterations": fit.iteration, "converged": fit.converged, "kkt": fit.kkt_residual}
