"""The alternating stages on Spark: the only module where kernels and Spark meet.

Tiles of one item block are brought together once and cached. An iteration is one Spark job of two stages that starts
from the cached blocks, never from the last iteration's frame:

    item partitions  -- add_block -->  sums per model, cut into chunks  -- shuffle -->  model partitions  --
    model_stage -->  theta

Only theta (and a few totals) passes through the driver. Sums are reduced in block order within a partition and in
partition order across them, in float64, so that the same input and layout give the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import astuple
from typing import Any, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

from cbmm_spark.fit.chunks import (
    ITEMS,
    LABELS,
    SUMS_SCHEMA,
    TOTALS,
    Summed,
    check_whole,
    chunk_rows,
    models_of,
    read_summed,
    sums_row,
)
from cbmm_spark.kernels.aggregate import (
    ModelResult,
    ScaleSums,
    ScaleTask,
    Totals,
    add_block,
    add_fixed_block,
    model_stage,
)
from cbmm_spark.kernels.alternation import ScalePass
from cbmm_spark.kernels.cells import Block, ItemKey
from cbmm_spark.kernels.components import merge_labels
from cbmm_spark.kernels.counts import Counts, count_block
from cbmm_spark.kernels.dated_columns import Moment, seen_by
from cbmm_spark.kernels.model import F64, Items
from cbmm_spark.kernels.paper import PaperSums, PaperTask, add_paper_block
from cbmm_spark.packing.tile_codec import ITEM_BLOCK_SCHEMA, join_tiles, read_block
from cbmm_spark.spark.scoped import job_description, persisted, session_settings

ROWS_A_BATCH = "spark.sql.execution.arrow.maxRecordsPerBatch"

FEW_ROWS_A_BATCH = {"spark.sql.adaptive.enabled": "false", ROWS_A_BATCH: "4"}
"""Settings while blocks go to Python: a few at once, for one of 1,024 items x 10,000 models is 2.5 MB."""

TILE_COLUMNS = (
    "benchmark", "item_block", "item_start", "n_items", "model_start", "n_models", "encoding", "attempted", "solved",
)  # fmt: skip

ITEM_BLOCK_DDL = (
    "benchmark string, item_block int, item_start int, n_items int, models binary, encoding string, "
    "attempted binary, solved binary"
)

Batches = Iterator[pa.RecordBatch]
Combine = Callable[[str, int, list[F64]], F64]
"""What becomes of a scale and chunk, from the payloads of all partitions in order."""

BlockFunction = Callable[[Block, Mapping[str, Any]], pa.RecordBatch]


class SparkBlocks:
    """The item blocks of a fit, cached on the executors.

    Use as a context manager: blocks are unpersisted on the way out, whatever happens. Settings for few rows a batch
    hold while a job on the blocks runs and no longer.

    Parameters
    ----------
    spark
        Session.
    tiles
        Rows of `response_blocks`, of one version.
    partitions
        Item partitions; 0 for the cluster's default parallelism.
    moments
        By scale the date at which it sees the blocks, where they hold a history (`kernels.dated_columns`).
    """

    def __init__(
        self, spark: SparkSession, tiles: DataFrame, partitions: int = 0, moments: Mapping[str, Moment] | None = None
    ) -> None:
        self.spark = spark
        self.tiles = tiles
        self.partitions = partitions or default_parallelism(spark)
        self.moments = dict(moments or {})
        self.benchmarks: list[str] = []
        self._blocks: DataFrame | None = None
        self._held = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as held:  # which lets go of all if blocks cannot be brought together
            self._blocks = held.enter_context(persisted(self._bring_together()))
            self._held = held.pop_all()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._blocks = None
        self._held.close()

    @property
    def blocks(self) -> DataFrame:
        """Return the cached item blocks (`tile_codec.ITEM_BLOCK_SCHEMA`)."""
        if self._blocks is None:
            raise RuntimeError("blocks are only there inside the with statement")
        return self._blocks

    def count(self, scales: Mapping[str, frozenset[str]], n_models: int) -> dict[str, Counts]:
        """Count responses per model of every scale; each array of shape (n_models,)."""
        scales, moments = dict(scales), self._moments_of(scales)

        def partition(batches: Batches) -> Batches:
            counts: dict[str, Counts] = {}
            for block, _ in _blocks(batches):
                mine = [name for name, benchmarks in scales.items() if block.benchmark in benchmarks]
                for seen, names in seen_by(block, mine, moments):
                    for name in names:
                        count_block(seen.cells, seen.models, counts.setdefault(name, Counts.zeros(n_models)))
            for name, count in counts.items():
                totals = np.array([count.n_items, count.cells], dtype=np.float64)
                yield from chunk_rows(name, count.sums, totals, _partition())
                yield sums_row(name, LABELS, _partition(), count.labels.astype(np.float64))

        def add(_scale: str, chunk: int, payloads: list[F64]) -> F64:
            if chunk == LABELS:
                return merge_labels([payload.astype(np.int64) for payload in payloads]).astype(np.float64)
            return _ordered_sum(payloads)

        rows = self._job(partition, add, "count responses")
        # A scale may have no row: where none of its benchmarks has a block, or no block that its date sees.
        needed = {name for name in scales if name not in moments and not scales[name].isdisjoint(self.benchmarks)}
        here = needed | {row.scale for row in rows}
        check_whole(rows, dict.fromkeys(here, n_models), len(Counts.zeros(0).sums), (TOTALS, LABELS))
        result = {name: Counts.zeros(n_models) for name in scales}
        for name, chunk, _, values in rows:
            if chunk == TOTALS:
                result[name].n_items, result[name].cells = int(values[0]), int(values[1])
                continue
            if chunk == LABELS:
                result[name].labels = values.astype(np.int64)
                continue
            sums = result[name].sums
            for target, source in zip(sums, values.reshape(len(sums), -1), strict=True):
                target[models_of(chunk)] = source
        return result

    def run_pass(self, tasks: Sequence[ScaleTask]) -> dict[str, ScalePass]:
        """Compute one iteration of some scales: the `RunPass` of `kernels.alternation`."""
        by_name = {task.name: task for task in tasks}
        moments = self._moments_of(by_name)

        def partition(batches: Batches) -> Batches:
            sums: dict[str, ScaleSums] = {}  # only of the scales that have a block here
            for block, _ in _blocks(batches):
                mine = [task.name for task in by_name.values() if block.benchmark in task.benchmarks]
                for seen, names in seen_by(block, mine, moments):
                    _add_seen(seen, [by_name[name] for name in names], sums)
            for name, part in sums.items():
                arrays = [part.score, part.gradient, part.information]
                if part.table is not None:
                    arrays.extend(part.table.T)
                yield from chunk_rows(name, arrays, np.array(astuple(part.totals), dtype=np.float64), _partition())

        def update(name: str, chunk: int, payloads: list[F64]) -> F64:
            if chunk == TOTALS:
                totals = Totals()
                for payload in payloads:
                    totals.add(Totals(*payload))
                return np.array(astuple(totals), dtype=np.float64)
            task = by_name[name]
            theta = task.theta[models_of(chunk)]
            values = _ordered_sum(payloads).reshape(-1, theta.size)
            table = np.ascontiguousarray(values[3:].T) if task.has_table else None
            result = model_stage(task, theta, ScaleSums(table, values[0], values[1], values[2]))
            return np.concatenate([result.theta, result.information, result.residual])

        label = ", ".join(f"{task.name} ({task.mode})" for task in tasks[:4])
        rows = self._job(partition, update, f"iterate {len(tasks)} scale(s): {label}")
        check_whole(rows, {name: task.theta.size for name, task in by_name.items()}, 3, (TOTALS,))
        models = {n: ModelResult(*(np.empty(t.theta.size) for _ in range(3))) for n, t in by_name.items()}
        totals = {name: Totals() for name in by_name}
        for name, chunk, _, values in rows:
            if chunk == TOTALS:
                totals[name] = Totals(*values.tolist())
                continue
            part, where = values.reshape(3, -1), models_of(chunk)
            models[name].theta[where], models[name].information[where], models[name].residual[where] = part
        return {name: ScalePass(models[name], totals[name]) for name in by_name}

    def run_sweep(self, tasks: Sequence[PaperTask]) -> dict[str, PaperSums]:
        """Compute one sweep of the paper's recurrence: the `RunSweep` of `kernels.paper`."""
        by_name = {task.name: task for task in tasks}
        numbers = {benchmark: number for number, benchmark in enumerate(self.benchmarks)}
        moments = self._moments_of(by_name)

        def partition(batches: Batches) -> Batches:
            sums: dict[str, PaperSums] = {}
            for block, _ in _blocks(batches):
                mine = [name for name, task in by_name.items() if block.benchmark in task.benchmarks]
                for seen, names in seen_by(block, mine, moments):
                    for name in names:
                        task = by_name[name]
                        add_paper_block(seen, task, sums.setdefault(name, PaperSums.zeros(task.theta.size)))
            for name, part in sums.items():
                totals = np.array([part.loss, part.penalty])
                yield from chunk_rows(name, [part.numerator, part.denominator], totals, _partition())
                packed = [[numbers[key[0]], key[1], a.size, *a, *b] for key, (a, b) in part.items.items()]
                yield sums_row(
                    name, ITEMS, _partition(), np.array([x for row in packed for x in row], dtype=np.float64)
                )

        def add(_name: str, chunk: int, payloads: list[F64]) -> F64:
            return np.concatenate(payloads) if chunk == ITEMS else _ordered_sum(payloads)

        rows = self._job(partition, add, f"sweep {len(tasks)} scale(s)")
        check_whole(rows, {name: task.theta.size for name, task in by_name.items()}, 2, (TOTALS, ITEMS))
        sums = {name: PaperSums.zeros(task.theta.size) for name, task in by_name.items()}
        for name, chunk, _, values in rows:
            out = sums[name]
            if chunk == TOTALS:
                out.loss, out.penalty = float(values[0]), float(values[1])
            elif chunk == ITEMS:
                out.items = self._unpack_items(values)
            else:
                out.numerator[models_of(chunk)], out.denominator[models_of(chunk)] = values.reshape(2, -1)
        return sums

    def _unpack_items(self, values: F64) -> dict[ItemKey, Items]:
        items: dict[ItemKey, Items] = {}
        at = 0
        while at < values.size:
            benchmark, start, size = (int(value) for value in values[at : at + 3])
            a, b = values[at + 3 : at + 3 + 2 * size].reshape(2, size)
            items[(self.benchmarks[benchmark], start)] = (a, b)
            at += 3 + 2 * size
        return items

    def map_blocks(self, function: BlockFunction, schema: str) -> DataFrame:
        """Return a frame with what a function makes of every item block (it gets the block and its row's metadata)."""

        def partition(batches: Batches) -> Batches:
            for block, row in _blocks(batches):
                yield function(block, row)

        return self.blocks.mapInArrow(partition, schema)

    @contextmanager
    def computed(self, frame: DataFrame, description: str) -> Iterator[DataFrame]:
        """Compute a frame of `map_blocks` now and keep it for a block: whoever reads it reads ordinary batches."""
        with persisted(frame):
            with session_settings(self.spark, FEW_ROWS_A_BATCH), job_description(self.spark, description):
                frame.count()
            yield frame

    # -------------------------------------------------------------------------------------------- inside
    def _moments_of(self, scales: Iterable[str]) -> dict[str, Moment]:
        """Return the dates of some scales: what travels to the workers is what they need."""
        return {name: self.moments[name] for name in scales if name in self.moments}

    def _bring_together(self) -> DataFrame:
        """Give every item block to one partition, the costliest first to the least loaded."""
        sizes = (
            self.tiles.groupBy("benchmark", "item_block")
            .agg(F.sum(F.col("n_items").cast("double") * F.col("n_models")).alias("cells"))
            .orderBy(F.desc("cells"), "benchmark", "item_block")
            .collect()
        )
        self.benchmarks = sorted({row["benchmark"] for row in sizes})
        self.partitions = max(1, min(self.partitions, len(sizes)))
        load = np.zeros(self.partitions)
        place = []
        for row in sizes:
            lightest = int(load.argmin())
            load[lightest] += row["cells"]
            place.append((row["benchmark"], row["item_block"], lightest))
        places = self.spark.createDataFrame(place, "benchmark string, item_block int, place int")
        tiles = self.tiles.select(*TILE_COLUMNS).join(F.broadcast(places), ["benchmark", "item_block"])
        together = tiles.repartitionById(self.partitions, "place").sortWithinPartitions(
            "benchmark", "item_block", "model_start"
        )
        return together.select(*TILE_COLUMNS).mapInArrow(_join, ITEM_BLOCK_DDL)

    def _job(
        self,
        partition: Callable[[Batches], Batches],
        combine: Combine,
        description: str,
    ) -> list[Summed]:
        """Run item stage and model stage; return the combined rows, ordered."""
        with session_settings(self.spark, FEW_ROWS_A_BATCH), job_description(self.spark, description):
            sums = self.blocks.mapInArrow(partition, SUMS_SCHEMA)
            shuffled = sums.repartition(self.partitions, "scale", "chunk")
            table = shuffled.mapInArrow(lambda batches: combined(batches, combine), SUMS_SCHEMA).toArrow()
        return read_summed(table)


def combined(batches: Batches, combine: Combine) -> Batches:
    """Make one row of all rows of a scale and chunk, in the order of the partitions they come from."""
    payloads: dict[tuple[str, int], list[tuple[int, bytes]]] = {}
    for batch in batches:
        for row in batch.to_pylist():  # a row is a chunk of models
            payloads.setdefault((row["scale"], row["chunk"]), []).append((row["source"], row["payload"]))
    for (scale, chunk), parts in sorted(payloads.items()):
        ordered = [np.frombuffer(payload, dtype="<f8") for _, payload in sorted(parts, key=lambda part: part[0])]
        yield sums_row(scale, chunk, len(ordered), combine(scale, chunk, ordered))


def _add_seen(block: Block, tasks: Sequence[ScaleTask], sums: dict[str, ScaleSums]) -> None:
    """Add a block to the sums of the scales that see it alike."""
    for task in tasks:
        if task.name not in sums:
            sums[task.name] = ScaleSums.zeros(task)
    solved = [task for task in tasks if task.mode != "fixed"]
    if solved:
        add_block(block.cells, block.models, solved, sums)
    for task in tasks:
        if task.mode == "fixed":
            add_fixed_block(block, task, sums[task.name])


def default_parallelism(spark: SparkSession) -> int:
    """Return how many tasks the cluster runs at once."""
    return max(1, spark.sparkContext.defaultParallelism)


def _blocks(batches: Batches) -> Iterator[tuple[Block, dict[str, Any]]]:
    """Decode the item blocks of a partition, one at a time, without copying their planes."""
    for batch in batches:
        columns = {name: batch.column(name) for name in batch.schema.names}
        for i in range(batch.num_rows):
            row: dict[str, Any] = {
                name: column[i].as_buffer() if name in _BINARY else column[i].as_py()
                for name, column in columns.items()
            }
            yield read_block(row), row


_BINARY = frozenset(field.name for field in ITEM_BLOCK_SCHEMA if pa.types.is_binary(field.type))


def _join(batches: Batches) -> Batches:
    """Join the tiles of each item block; rows come ordered by benchmark, item block and first model."""
    waiting: list[dict[str, Any]] = []
    for batch in batches:
        for row in batch.to_pylist():  # a row is a tile
            if waiting and (row["benchmark"], row["item_block"]) != (waiting[0]["benchmark"], waiting[0]["item_block"]):
                yield pa.RecordBatch.from_pylist([join_tiles(waiting)], schema=ITEM_BLOCK_SCHEMA)
                waiting = []
            waiting.append(row)
    if waiting:
        yield pa.RecordBatch.from_pylist([join_tiles(waiting)], schema=ITEM_BLOCK_SCHEMA)


def _partition() -> int:
    context = TaskContext.get()
    return 0 if context is None else context.partitionId()


def _ordered_sum(payloads: Sequence[NDArray[np.float64]]) -> F64:
    """Add in the order given: the same partitions give the same bits."""
    total = payloads[0].copy()
    for payload in payloads[1:]:
        total += payload
    return total
