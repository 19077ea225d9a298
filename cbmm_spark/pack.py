"""Packing: bring `response_blocks` and `model_benchmarks` up to the current version of `responses`.

A night costs what is new. Delta's change data feed of `responses` tells which columns of which tiles changed (one model
on the items of one block); these columns are read anew, the rest of their tiles is taken from the stored ones, and only
these tiles are written, in one commit. New models get a model block of their own, and small blocks are joined in the
same commit, from the stored tiles (`model_blocks`). Where the feed cannot tell, all is packed anew, and the report says
why.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Literal

from delta.exceptions.base import ConcurrentWriteException
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException, PythonException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

from cbmm_spark.batch import persisted
from cbmm_spark.config import Config, PackConfig
from cbmm_spark.errors import InputError
from cbmm_spark.model_blocks import ModelBlock, cut, extended, joined
from cbmm_spark.packed_state import APPLICATION, TABLES, Note, Packed, committed_version, differs, packed
from cbmm_spark.tables import Warehouse, with_commit_retry
from cbmm_spark.tables.warehouse import lacks_files
from cbmm_spark.tiles import TOO_MANY, Layout, patched_tiles, tiles_of

_logger = logging.getLogger(__name__)

Mode = Literal["current", "incremental", "anew"]

_MODELS_BY_NUMBER = 500  # up to so many models a scan lists their numbers, above it gives a range


@dataclass(frozen=True)
class PackReport:
    """What packing did.

    Attributes
    ----------
    responses_version
        Version of `responses` that is packed now.
    repacked
        False where the blocks were current already.
    tiles, responses
        Number of tiles and of observed cells in them (0 where nothing was repacked).
    mode
        `current`: nothing to do. `incremental`: only what changed. `anew`: everything.
    reason
        Why everything was packed anew; else empty.
    tiles_written
        Tiles written now.
    tiles_joined
        Stored tiles that went into wider ones.
    model_blocks
        Number of model blocks.
    blocks_version, benchmarks_version
        Versions of `response_blocks` and `model_benchmarks` that belong together.
    """

    responses_version: int
    repacked: bool
    tiles: int = 0
    responses: int = 0
    mode: Mode = "current"
    reason: str = ""
    tiles_written: int = 0
    tiles_joined: int = 0
    model_blocks: int = 0
    blocks_version: int = 0
    benchmarks_version: int = 0


class _FeedMissingError(Exception):
    """The change data feed cannot tell what changed; the message says why."""


def pack(spark: SparkSession, warehouse: Warehouse, config: Config) -> PackReport:
    """Bring `response_blocks` and `model_benchmarks` up to the current version of `responses`.

    Both tables say in their last commit what they hold. Killed between the two commits, the second is made up for by
    the next packing; until then no fit reads them, for it reads the two versions named in the report.

    Raises
    ------
    InputError
        There are no responses, or a model answered one item more often than a tile can count.
    ConflictError
        Others kept packing the same warehouse.
    """
    try:
        return with_commit_retry(lambda: _pack(spark, warehouse, config.pack), warehouse.location("response_blocks"))
    except PythonException as error:
        if TOO_MANY not in str(error):
            raise
        raise InputError(
            f"a model has {TOO_MANY} at one item; set another attempts policy or leave the source out"
        ) from error


def _pack(spark: SparkSession, warehouse: Warehouse, config: PackConfig) -> PackReport:
    version, identifier = warehouse.version("responses"), warehouse.identifier("responses")
    found = {name: packed(warehouse, name) for name in TABLES}
    reason = _why_anew(found, identifier, version, config)
    states = {name: state for name, state in found.items() if isinstance(state, Packed)}
    if reason is None and all(state.note.responses_version == version for state in states.values()):
        return PackReport(
            version,
            repacked=False,
            blocks_version=states["response_blocks"].version,
            benchmarks_version=states["model_benchmarks"].version,
        )
    if warehouse.read("responses", version).isEmpty():
        raise InputError(f"{warehouse.location('responses')} is empty; run `cbmm-spark ingest --input …` first")
    sequence = 1 + max((state.note.sequence for state in states.values()), default=0)
    night = partial(_Night, spark, warehouse, config, version)
    note = Note(identifier, version, config.items_per_block, config.sparse_below, sequence, secrets.token_hex(8))
    if reason is None:
        try:
            return night(note).incremental(states)
        except _FeedMissingError as error:
            reason = str(error)
    if states:
        _logger.warning("%s is packed anew: %s", warehouse.location("response_blocks"), reason)
    # Where a note is lost so is its number: the clock is ahead of all numbers, for they grow by one a packing.
    return night(replace(note, sequence=max(sequence, int(time.time())))).anew(reason)


def _why_anew(found: dict[str, Packed | str], identifier: str, version: int, config: PackConfig) -> str | None:
    for state in found.values():
        why = state if isinstance(state, str) else differs(state.note, identifier, version, config)
        if why is not None:
            return why
    return None


@dataclass(frozen=True)
class _Night:
    """One packing of one version of `responses`."""

    spark: SparkSession
    warehouse: Warehouse
    config: PackConfig
    version: int
    note: Note

    def anew(self, reason: str) -> PackReport:
        """Pack everything, into model blocks as wide as they may be."""
        responses = self.warehouse.read("responses", self.version)
        self.warehouse.ensure(*TABLES)
        blocks = cut(n_models(self.warehouse))
        tiles = tiles_of(responses, blocks[-1].end, self.config, self.version, blocks)
        benchmarks_version = self._overwrite(model_benchmarks(responses), "model_benchmarks")
        blocks_version = self._overwrite(_by_bucket(tiles), "response_blocks")
        return self._report("anew", blocks_version, benchmarks_version, reason=reason)

    def incremental(self, states: dict[str, Packed]) -> PackReport:
        """Pack what changed since the tables were packed.

        Raises
        ------
        _FeedMissingError
            The feed cannot tell.
        """
        behind = {name: s for name, s in states.items() if s.note.responses_version < self.version}
        first = 1 + min(state.note.responses_version for state in behind.values())
        blocks_version, benchmarks_version = (states[name].version for name in TABLES)
        joined_tiles = 0
        with self._changes(first) as changed:
            if "model_benchmarks" in behind:
                benchmarks_version = self._patch_benchmarks(changed, benchmarks_version)
            if "response_blocks" in behind:
                blocks_version, joined_tiles = self._patch_blocks(changed, blocks_version)
        return self._report("incremental", blocks_version, benchmarks_version, joined_tiles=joined_tiles)

    @contextmanager
    def _changes(self, first: int) -> Iterator[_Changes]:
        """Read the feed once: the columns of tiles that it names, persisted, and their extent."""
        layout = Layout((), self.config)
        try:
            feed = self.warehouse.changes("responses", first, self.version)
        except InputError as error:
            raise _FeedMissingError(str(error)) from error
        columns = feed.select(
            "benchmark", "benchmark_bucket", layout.item_block().alias("item_block"), "model_index"
        ).distinct()
        with persisted(columns) as kept:
            try:
                extent = kept.agg(
                    F.collect_set("benchmark_bucket").alias("buckets"),
                    F.min("model_index").alias("lowest"),
                    F.max("model_index").alias("highest"),
                    F.min("item_block").alias("first_block"),
                    F.max("item_block").alias("last_block"),
                    F.count_distinct("model_index").alias("models"),
                ).first()
            except (PySparkException, Py4JJavaError) as error:
                if not lacks_files(error):
                    raise
                raise _FeedMissingError("files of the change data feed are gone (VACUUM)") from error
            assert extent is not None
            numbers: tuple[int, ...] = ()
            if 0 < extent["models"] <= _MODELS_BY_NUMBER:
                rows = kept.select("model_index").distinct().collect()
                numbers = tuple(sorted(row["model_index"] for row in rows))
            yield _Changes(
                kept, tuple(sorted(extent["buckets"])), extent["lowest"], extent["highest"], numbers,
                extent["first_block"], extent["last_block"],
            )  # fmt: skip

    def _patch_benchmarks(self, changed: _Changes, base: int) -> int:
        """Count the changed models' rows in the changed benchmarks anew; keep all other counts."""
        pairs = changed.columns.select("model_index", "benchmark").distinct()
        responses = self.warehouse.read("responses", self.version).where(changed.models_and_buckets())
        anew = model_benchmarks(responses.join(pairs, ["model_index", "benchmark"], "left_semi"))
        stored = self.warehouse.read("model_benchmarks", base)
        kept = stored.join(pairs, ["model_index", "benchmark"], "left_anti").select(*anew.columns)
        return self._overwrite(kept.unionByName(anew).hint("rebalance"), "model_benchmarks")

    def _patch_blocks(self, changed: _Changes, base: int) -> tuple[int, int]:
        """Rewrite the tiles of changed columns and of joined model blocks; return the version and how many joined."""
        stored = self.warehouse.read("response_blocks", base)
        before = stored_blocks(stored)
        blocks = joined(extended(before, n_models(self.warehouse)))
        layout = Layout(blocks, self.config)
        tiles = changed.columns.withColumn("model_start", layout.model_start()).select(
            "benchmark", "benchmark_bucket", "item_block", "model_start"
        )
        touched = [(row[0], row[1], row[2], row[3]) for row in tiles.distinct().collect()]  # a row is a tile
        moved = _moved(before, blocks)
        where = _tiles_where(touched, moved)
        if where is None:  # nothing but a version: no row of any tile changed
            where = F.col("model_start") < 1
        responses = self.warehouse.read("responses", self.version).where(changed.rows(self.config.items_per_block))
        old = stored.where(where).withColumn("stored_start", F.col("model_start"))
        patched = patched_tiles(responses, changed.columns, old, layout, self.version)
        joined_tiles = stored.where(F.col("model_start").isin(sorted(moved))).count() if moved else 0
        number = (APPLICATION, self.note.sequence)
        self.warehouse.replace(_by_bucket(patched), "response_blocks", where, self.note.metadata(), number)
        return self._committed("response_blocks"), joined_tiles

    def _overwrite(self, rows: DataFrame, name: str) -> int:
        self.warehouse.overwrite(rows, name, self.note.metadata(), (APPLICATION, self.note.sequence))
        return self._committed(name)

    def _committed(self, name: str) -> int:
        """Return the version just written; Delta skipped the commit if another packing came first."""
        version = committed_version(self.warehouse, name, self.note.pack_id)
        if version is None:
            raise ConcurrentWriteException(f"{name} was packed by another job in the meantime")
        return version

    def _report(
        self, mode: Mode, blocks_version: int, benchmarks_version: int, reason: str = "", joined_tiles: int = 0
    ) -> PackReport:
        written_now = F.count_if(F.col("responses_version") == self.version)
        size = (
            self.warehouse.read("response_blocks", blocks_version)
            .agg(
                F.count("*"),
                F.coalesce(F.sum("n_responses"), F.lit(0)),
                written_now,
                F.count_distinct("model_start"),
            )
            .first()
        )
        assert size is not None
        return PackReport(
            self.version,
            repacked=True,
            tiles=int(size[0]),
            responses=int(size[1]),
            mode=mode,
            reason=reason,
            tiles_written=int(size[2]),
            tiles_joined=joined_tiles,
            model_blocks=int(size[3]),
            blocks_version=blocks_version,
            benchmarks_version=benchmarks_version,
        )


@dataclass(frozen=True)
class _Changes:
    """What the feed names, and how far it reaches: for conditions by which files are skipped."""

    columns: DataFrame
    buckets: tuple[int, ...]
    lowest: int | None
    highest: int | None
    numbers: tuple[int, ...]
    first_block: int | None
    last_block: int | None

    def models_and_buckets(self) -> Column:
        """Rows of the changed models in the changed buckets: buckets are partitions, files are sorted by model."""
        if self.lowest is None or self.highest is None:
            return F.lit(False)
        models = F.col("model_index")
        numbers = models.isin(list(self.numbers)) if self.numbers else models.between(self.lowest, self.highest)
        return F.col("benchmark_bucket").isin(list(self.buckets)) & numbers

    def rows(self, items_per_block: int) -> Column:
        """Of these, rows from the first to the last changed item block."""
        if self.first_block is None or self.last_block is None:
            return F.lit(False)
        first, last = self.first_block * items_per_block + 1, (self.last_block + 1) * items_per_block
        return self.models_and_buckets() & F.col("item_index").between(first, last)


def stored_blocks(tiles: DataFrame) -> tuple[ModelBlock, ...]:
    """Return the model blocks of stored tiles, ordered; few."""
    rows = tiles.select("model_start", "n_models").distinct().collect()
    return tuple(sorted(ModelBlock(row["model_start"], row["n_models"]) for row in rows))


def _moved(before: Sequence[ModelBlock], after: Sequence[ModelBlock]) -> frozenset[int]:
    """Return the first models of stored blocks that went into wider ones, and of these wider ones."""
    kept = set(after)
    gone = [block for block in before if block not in kept]
    wider = [block for block in after if any(block.start <= old.start <= block.end for old in gone)]
    return frozenset(block.start for block in (*gone, *wider))


Tile = tuple[str, int, int, int]


def _tiles_where(tiles: Iterable[Tile], moved: frozenset[int]) -> Column | None:
    """Return the condition that holds for some tiles and for all tiles of some model blocks, and for no other.

    Tiles are (benchmark, bucket, item block, first model). Benchmarks, item blocks and model blocks that go together
    share one clause, so that a night of new models is one clause, however many benchmarks there are.
    """
    rows: dict[tuple[str, int, int], set[int]] = defaultdict(set)  # item blocks of a benchmark and model block
    for benchmark, bucket, item_block, start in tiles:
        if start not in moved:
            rows[(benchmark, bucket, start)].add(item_block)
    starts: dict[tuple[str, int, frozenset[int]], set[int]] = defaultdict(set)
    for (benchmark, bucket, start), found in rows.items():
        starts[(benchmark, bucket, frozenset(found))].add(start)
    benchmarks: dict[tuple[frozenset[int], frozenset[int]], list[tuple[str, int]]] = defaultdict(list)
    for (benchmark, bucket, item_blocks), firsts in starts.items():
        benchmarks[(item_blocks, frozenset(firsts))].append((benchmark, bucket))
    clauses = [
        F.col("benchmark_bucket").isin(sorted({bucket for _, bucket in names}))
        & F.col("benchmark").isin(sorted(name for name, _ in names))
        & F.col("item_block").isin(sorted(item_blocks))
        & F.col("model_start").isin(sorted(numbers))
        for (item_blocks, numbers), names in sorted(benchmarks.items(), key=lambda entry: sorted(entry[1]))
    ]
    if moved:
        clauses.append(F.col("model_start").isin(sorted(moved)))
    return _any(clauses) if clauses else None


def _any(clauses: Sequence[Column]) -> Column:
    """Return the disjunction as a flat tree: a deep one overflows the stack of Spark's optimizer."""
    if len(clauses) <= 2:
        return reduce(Column.__or__, clauses)
    half = len(clauses) // 2
    return _any(clauses[:half]) | _any(clauses[half:])


def _by_bucket(tiles: DataFrame) -> DataFrame:
    """Lay out tiles so that each bucket gets as few files as its bytes need, not one a task."""
    return tiles.hint("rebalance", "benchmark_bucket")


def n_models(warehouse: Warehouse) -> int:
    """Return the largest model number given so far."""
    row = warehouse.read("models").agg(F.max("model_index")).first()
    if row is None or row[0] is None:
        raise InputError(f"{warehouse.location('models')} is empty; run `cbmm-spark ingest --input …` first")
    return int(row[0])


def model_benchmarks(responses: DataFrame) -> DataFrame:
    """Return one row per model and benchmark: rows, rows without a verdict, first and last evaluation."""
    return responses.groupBy("model_index", "model_id", "benchmark").agg(
        F.count("*").alias("n_rows"),
        F.count_if(F.col("score").isNull()).alias("n_null"),
        F.min("evaluated_at").alias("first_evaluated_at"),
        F.max("evaluated_at").alias("last_evaluated_at"),
    )


__all__ = ["PackReport", "model_benchmarks", "n_models", "pack", "stored_blocks", "tiles_of"]
