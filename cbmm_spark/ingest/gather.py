"""Where an input meets Spark: it is read, judged and encoded by tasks, each row once, and summed up for the driver.

The functions that Spark runs are here; what they do with a batch of rows is in `rules` and `encode`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import reduce
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from cbmm_spark.config.schema import IngestConfig
from cbmm_spark.errors import InputError
from cbmm_spark.ingest.buckets import bucket_of_benchmark
from cbmm_spark.readers.base import RawFrame
from cbmm_spark.readers.rows import Part, Rows, Scan
from cbmm_spark.responses.batch import Batch, HashCollisionError, batch_of
from cbmm_spark.responses.encode import ANSWERS, ENCODED, MEMBERS, REFUSED, SPARK_SCHEMA, Encoder, refused_rows
from cbmm_spark.responses.rules import Judged, judge
from cbmm_spark.spark.scoped import persisted

Source = RawFrame | Scan
"""What a reader gives: rows in Spark, or parts that a task reads."""

Undecided = Mapping[str, Mapping[str, frozenset[tuple[str, int]]]]
"""Keys that contradict each other and cannot be decided: by benchmark and model, item and attempt."""

BYTES_A_TASK = 32 << 20
"""About how much of an input one task reads."""

_COLUMNS = ("model_id", "benchmark", "item_id", "attempt", "score_raw", "evaluated_at_raw", "content_hash", "source",
            "problem")  # fmt: skip
_SALTS = 8


@dataclass(frozen=True)
class Gathered:
    """An input after its one reading.

    Attributes
    ----------
    batch
        What the driver knows.
    encoded
        `encode.ENCODED`, persisted.
    """

    batch: Batch
    encoded: DataFrame


def gather(spark: SparkSession, source: Source, rules: IngestConfig, path: str, held: ExitStack) -> Gathered:
    """Read an input, in one job.

    Parameters
    ----------
    spark
        The session.
    source
        What a reader gave.
    rules
        `config.ingest`.
    path
        For messages.
    held
        What is persisted is released with it.

    Raises
    ------
    InputError
        There is no row.
    """
    for salt in range(_SALTS):
        encoded = held.enter_context(persisted(_encoded(spark, source, rules, salt)))
        try:
            batch = batch_of(path, _summed_up(encoded), salt)
        except HashCollisionError:
            continue
        if not batch.read:
            raise InputError(f"{path} holds no rows")
        return Gathered(batch, encoded)
    raise AssertionError(f"names of {path} collide under {_SALTS} hash functions")


def _encoded(spark: SparkSession, source: Source, rules: IngestConfig, salt: int) -> DataFrame:
    if isinstance(source, Scan):
        return _of_parts(spark, source.parts, _EncodeParts(source.read, rules, salt), SPARK_SCHEMA)
    conditions = [condition.alias(f"_default_{at}") for at, condition in enumerate(source.defaults.values())]
    narrow = source.frame.select(*_COLUMNS, *conditions)
    return narrow.mapInArrow(_EncodeFrame(tuple(source.defaults), rules, salt), SPARK_SCHEMA)


def _summed_up(encoded: DataFrame) -> pa.Table:
    """What `batch_of` wants: names and counts, never answers. This is the job that reads the input."""
    is_answers, is_refused = F.col("kind") == ANSWERS, F.col("kind") == REFUSED
    rows = encoded.where(F.col("kind") != MEMBERS).select(
        "kind",
        "benchmark",
        F.when(~is_refused, F.col("name")).alias("name"),
        F.when(~is_refused & ~is_answers, F.col("hash")).alias("hash"),
        "reason",
        F.when(is_refused, F.lit(1)).otherwise(F.col("n")).alias("n"),
        "low",
        "high",
    )
    sums = (F.sum("n").alias("n"), F.min("low").alias("low"), F.max("high").alias("high"))
    together = rows.groupBy("kind", "benchmark", "name", "hash", "reason").agg(*sums)
    together = together.withColumn("bucket", bucket_of_benchmark())
    members = encoded.where(F.col("kind") == MEMBERS).select("kind", "benchmark", "name", "items", "sources")
    return together.unionByName(members, allowMissingColumns=True).toArrow()


# --- parts ---------------------------------------------------------------------------------------------------------
Work = Callable[[Iterable[Part]], Iterator[pa.RecordBatch]]
"""What one task does with its parts."""


def _of_parts(spark: SparkSession, parts: Sequence[Part], work: Work, schema: str) -> DataFrame:
    """Let tasks work on parts, about equal shares each."""
    remote = [part for part in parts if "://" in part.path]
    if remote:
        # Only Spark can open these files: a task gets each whole.
        files = spark.read.format("binaryFile").load(sorted({part.path for part in remote}))
        return files.select("path", "content").mapInArrow(_OnContents(tuple(remote), work), schema)
    shares = _shares(parts, spark.sparkContext.defaultParallelism)
    tasks = spark.range(0, len(shares), 1, max(1, len(shares)))
    return tasks.mapInArrow(_OnParts(tuple(parts), shares, work), schema)


def _shares(parts: Sequence[Part], cores: int) -> list[tuple[int, ...]]:
    """Which parts each task reads: those that follow one another, of about equal size."""
    total = sum(max(1, part.n_bytes) for part in parts)
    tasks = min(len(parts), max(cores, -(-total // BYTES_A_TASK)))
    shares: list[list[int]] = [[] for _ in range(tasks)]
    reached = 0
    for number, part in enumerate(parts):
        size = max(1, part.n_bytes)
        shares[min(tasks - 1, (reached + size // 2) * tasks // total)].append(number)
        reached += size
    return [tuple(share) for share in shares if share]


@dataclass(frozen=True)
class _OnParts:
    """Runs on a machine: takes numbers of tasks."""

    parts: tuple[Part, ...]
    shares: Sequence[tuple[int, ...]]
    work: Work

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for task in batch.column(0).to_pylist():
                yield from self.work(self.parts[number] for number in self.shares[task])


@dataclass(frozen=True)
class _OnContents:
    """Runs on a machine: takes paths of files and their bytes."""

    parts: tuple[Part, ...]
    work: Work

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        by_path: dict[str, list[Part]] = {}
        for part in self.parts:
            by_path.setdefault(part.path, []).append(part)
        for batch in batches:
            for path, content in zip(batch.column(0).to_pylist(), batch.column(1), strict=True):
                yield from self.work(replace(part, content=content.as_py()) for part in by_path[path])


@dataclass(frozen=True)
class _EncodeParts:
    read: Callable[[Part], Iterator[Rows]]
    rules: IngestConfig
    salt: int

    def __call__(self, parts: Iterable[Part]) -> Iterator[pa.RecordBatch]:
        encoder = Encoder(self.salt)
        for part in parts:
            n = 0
            for rows in self.read(part):
                yield from encoder.add(rows, judge(rows, self.rules), part.number)
                n = n + len(rows) if rows.next_position is None else rows.next_position
            yield encoder.part_done(part.source, part.number, n)
        yield from encoder.finish()


# --- rows in Spark -------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class _EncodeFrame:
    """Runs on a machine: takes batches of `_COLUMNS` and of flags, one a default."""

    defaults: tuple[str, ...]
    rules: IngestConfig
    salt: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        encoder = Encoder(self.salt)
        for batch in batches:
            if batch.num_rows:
                rows = rows_of(batch, self.defaults)
                yield from encoder.add(rows, judge(rows, self.rules))
        yield from encoder.finish()


def rows_of(batch: pa.RecordBatch, defaults: Sequence[str] = ()) -> Rows:
    """Take a batch of `_COLUMNS`, of flags of defaults, and maybe of position and raw, as rows of a reader."""
    column = {name: batch.column(at) for at, name in enumerate(batch.schema.names)}
    flags = {
        name: np.asarray(column[f"_default_{at}"].fill_null(False).to_numpy(zero_copy_only=False), dtype=np.bool_)
        for at, name in enumerate(defaults)
    }
    position = column.get("position")
    raw = column.get("raw")
    return Rows(
        model_id=column["model_id"],
        benchmark=column["benchmark"],
        item_id=column["item_id"],
        attempt=column["attempt"],
        score=column["score_raw"],
        evaluated_at=column["evaluated_at_raw"],
        source=column["source"],
        content_hash=column["content_hash"],
        position=None if position is None else position.fill_null(-1).to_numpy(zero_copy_only=False),
        problem=column["problem"],
        raw=None if raw is None else lambda numbers: raw.take(pa.array(numbers)).to_pylist(),
        defaults=flags,
    )


# --- a second reading, for quarantine ------------------------------------------------------------------------------
Which = Literal["refused", "undecided", "all"]
"""Rows that are refused or cannot be decided; only the latter; every row, with the reason "any"."""

_AGAIN = "raw string, reason string, source string, position long, part long"
_AGAIN_ARROW = pa.schema(
    [("raw", pa.string()), ("reason", pa.string()), ("source", pa.string()), ("position", pa.int64()),
     ("part", pa.int64())]
)  # fmt: skip


def refused_of(
    spark: SparkSession, gathered: Gathered, source: Source, rules: IngestConfig, undecided: Undecided
) -> DataFrame | None:
    """The refused rows of an input, None where there are none: raw, reason, source, position.

    Parts tell theirs as they are read, so the input is read once more only for keys that nobody can decide. Rows in
    Spark are read once more: only then are they written out as text, and given positions where that is dear.
    """
    frames: list[DataFrame] = []
    if isinstance(source, Scan):
        if gathered.batch.refused:
            frames.append(_placed(_told(gathered.encoded), gathered.batch))
        if undecided:
            again = _of_parts(spark, source.parts, _AgainParts(source.read, rules, undecided), _AGAIN)
            frames.append(_placed(again, gathered.batch))
    elif gathered.batch.refused or undecided:
        frame = source.frame
        if source.numbered is not None:
            frame = source.numbered(_files_with(source, rules, undecided))
        frames.append(_again(frame, rules, undecided, "refused"))
    return reduce(DataFrame.unionByName, frames) if frames else None


def texts_of(spark: SparkSession, source: Source, rules: IngestConfig) -> DataFrame:
    """The text of every row of an input, with its file: raw, source."""
    if isinstance(source, Scan):
        rows = _of_parts(spark, source.parts, _AgainParts(source.read, rules, {}, "all"), _AGAIN)
    else:
        rows = _again(source.frame, rules, {}, "all")
    return rows.select("raw", "source")


def _told(encoded: DataFrame) -> DataFrame:
    refused = encoded.where(F.col("kind") == REFUSED)
    return refused.select(
        "raw", "reason", F.col("name").alias("source"), F.col("n").alias("position"), F.col("hash").alias("part")
    )


def _placed(refused: DataFrame, batch: Batch) -> DataFrame:
    """Positions within parts as positions within files."""
    later = {key: rows for key, rows in batch.rows_before.items() if rows}
    if later:
        known = [(source, part, rows) for (source, part), rows in later.items()]
        before = refused.sparkSession.createDataFrame(known, "source string, part long, before long")
        refused = refused.join(F.broadcast(before), ["source", "part"], "left")
        refused = refused.withColumn("position", F.col("position") + F.coalesce("before", F.lit(0)))
    return refused.select("raw", "reason", "source", "position")


def _files_with(source: RawFrame, rules: IngestConfig, undecided: Undecided) -> list[str]:
    """The files that have refused rows."""
    refused = _again(source.frame, rules, undecided, "refused")
    return [row["source"] for row in refused.select("source").distinct().collect()]


def _again(frame: DataFrame, rules: IngestConfig, undecided: Undecided, which: Which) -> DataFrame:
    columns = [*_COLUMNS, "position", "raw"]
    again = frame.select(*columns).mapInArrow(_AgainFrame(rules, undecided, which), _AGAIN)
    return again.select("raw", "reason", "source", "position")


@dataclass(frozen=True)
class _AgainFrame:
    rules: IngestConfig
    undecided: Undecided
    which: Which

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.num_rows:
                yield from _texts(rows_of(batch), self.rules, self.undecided, self.which)


@dataclass(frozen=True)
class _AgainParts:
    """Refused rows were told when the parts were read first: here those that nobody can decide, or all."""

    read: Callable[[Part], Iterator[Rows]]
    rules: IngestConfig
    undecided: Undecided
    which: Which = "undecided"

    def __call__(self, parts: Iterable[Part]) -> Iterator[pa.RecordBatch]:
        for part in parts:
            for rows in self.read(part):
                yield from _texts(rows, self.rules, self.undecided, self.which, part.number)


def _texts(
    rows: Rows, rules: IngestConfig, undecided: Undecided, which: Which, part: int = 0
) -> Iterator[pa.RecordBatch]:
    judged = judge(rows, rules)
    if which == "all":
        told: list[tuple[npt.NDArray[np.int64], str | None]] = [(np.arange(len(rows)), "any")]
    else:
        told = [(_of_undecided(judged, undecided), "conflicting_duplicate")]
        if which == "refused":
            told.append((judged.refused(), None))
    for numbers, reason in told:
        if numbers.size:
            batch = refused_rows(rows, judged, numbers, part, reason)
            columns = [batch.column(name) for name in ("raw", "reason", "name", "n", "hash")]
            yield pa.RecordBatch.from_arrays(columns, schema=_AGAIN_ARROW)


def _of_undecided(judged: Judged, undecided: Undecided) -> npt.NDArray[np.int64]:
    """The numbers of the rows of keys that nobody can decide."""
    found = []
    for benchmark in set(judged.benchmark.values) & undecided.keys():
        models = undecided[benchmark]
        for at, model in enumerate(judged.model.values):
            keys = models.get(model)
            if keys is None:
                continue
            mine = judged.is_accepted & (judged.model.codes == at)
            mine &= judged.benchmark.codes == judged.benchmark.values.index(benchmark)
            for row in np.flatnonzero(mine).tolist():
                if (judged.item.values[judged.item.codes[row]], int(judged.attempt[row])) in keys:
                    found.append(row)
    return np.array(sorted(found), dtype=np.int64)


__all__ = ["ENCODED", "Gathered", "Source", "Undecided", "gather", "refused_of", "rows_of", "texts_of"]
