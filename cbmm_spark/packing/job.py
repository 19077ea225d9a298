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
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from delta.exceptions.base import ConcurrentWriteException
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

from cbmm_spark.config.schema import Config, PackConfig
from cbmm_spark.errors import InputError
from cbmm_spark.packing.changes import Changes, FeedMissingError, changes_of, moved_starts, tiles_where
from cbmm_spark.packing.commit_notes import APPLICATION, TABLES, Note, PackedVersion, committed_version, differs, packed
from cbmm_spark.packing.model_blocks import ModelBlock, cut, extended, joined
from cbmm_spark.packing.tiles import TOO_MANY, Layout, benchmark_kinds, kind_columns, patched_tiles, tiles_of
from cbmm_spark.spark.scoped import persisted
from cbmm_spark.tables import SPECS, Warehouse, recorded, with_commit_retry

_logger = logging.getLogger(__name__)

Mode = Literal["current", "incremental", "anew"]


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
        Number of tiles and of observed cells in them.
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


@recorded("pack")
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
    responses = warehouse.snapshot("responses")
    version, identifier = responses.version, responses.identifier
    found = {name: packed(warehouse, name) for name in TABLES}
    reason = _why_anew(found, identifier, version, config)
    states = {name: state for name, state in found.items() if isinstance(state, PackedVersion)}
    if reason is None and all(state.note.responses_version == version for state in states.values()):
        versions = [states[name].version for name in TABLES]
        return _report(warehouse, version, "current", versions[0], versions[1])
    if warehouse.read("responses", version).isEmpty():
        raise InputError(f"{warehouse.location('responses')} is empty; run `cbmm-spark ingest --input …` first")
    sequence = 1 + max((state.note.sequence for state in states.values()), default=0)
    night = partial(_Night, spark, warehouse, config, version)
    note = Note(identifier, version, config.items_per_block, config.sparse_below, sequence, secrets.token_hex(8))
    if reason is None:
        try:
            return night(note).incremental(states)
        except FeedMissingError as error:
            reason = str(error)
    if states:
        _logger.warning("%s is packed anew: %s", warehouse.location("response_blocks"), reason)
    # Where a note is lost so is its number: the clock is ahead of all numbers, for they grow by one a packing.
    return night(replace(note, sequence=max(sequence, int(time.time())))).anew(reason)


def _why_anew(found: dict[str, PackedVersion | str], identifier: str, version: int, config: PackConfig) -> str | None:
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
        with persisted(_counted(responses)) as counted:
            tiles = tiles_of(
                responses, blocks[-1].end, self.config, self.version, blocks, kinds=benchmark_kinds(counted)
            )
            benchmarks_version = self._overwrite(_model_benchmarks(counted), "model_benchmarks")
        blocks_version = self._overwrite(_by_bucket(tiles), "response_blocks")
        return self._report("anew", blocks_version, benchmarks_version, reason=reason)

    def incremental(self, states: dict[str, PackedVersion]) -> PackReport:
        """Pack what changed since the tables were packed.

        Raises
        ------
        FeedMissingError
            The feed cannot tell.
        """
        behind = {name: s for name, s in states.items() if s.note.responses_version < self.version}
        first = 1 + min(state.note.responses_version for state in behind.values())
        blocks_version, benchmarks_version = (states[name].version for name in TABLES)
        joined_tiles = 0
        with changes_of(self.warehouse, first, self.version, self.config) as changed:
            if "model_benchmarks" in behind:
                benchmarks_version = self._patch_benchmarks(changed, benchmarks_version)
            if "response_blocks" in behind:
                blocks_version, joined_tiles = self._patch_blocks(changed, blocks_version)
        return self._report("incremental", blocks_version, benchmarks_version, joined_tiles=joined_tiles)

    def _patch_benchmarks(self, changed: Changes, base: int) -> int:
        """Count the changed models' rows in the changed benchmarks anew; keep all other counts."""
        pairs = changed.columns.select("model_index", "benchmark").distinct()
        responses = self.warehouse.read("responses", self.version).where(changed.models_and_buckets())
        anew = model_benchmarks(responses.join(pairs, ["model_index", "benchmark"], "left_semi"))
        stored = self.warehouse.read("model_benchmarks", base)
        kept = stored.join(pairs, ["model_index", "benchmark"], "left_anti").select(*anew.columns)
        return self._overwrite(kept.unionByName(anew).hint("rebalance"), "model_benchmarks")

    def _patch_blocks(self, changed: Changes, base: int) -> tuple[int, int]:
        """Rewrite the tiles of changed columns and of joined model blocks; return the version and how many joined."""
        stored = self.warehouse.read("response_blocks", base)
        before = stored_blocks(stored)
        blocks = joined(extended(before, n_models(self.warehouse)))
        layout = Layout(blocks, self.config)
        tiles = changed.columns.withColumn("model_start", layout.model_start()).select(
            "benchmark", "benchmark_bucket", "item_block", "model_start"
        )
        touched = [(row[0], row[1], row[2], row[3]) for row in tiles.distinct().collect()]  # a row is a tile
        moved = moved_starts(before, blocks)
        where = tiles_where(touched, moved)
        responses = self.warehouse.read("responses", self.version).where(changed.rows())
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
        report = _report(self.warehouse, self.version, mode, blocks_version, benchmarks_version)
        return replace(report, reason=reason, tiles_joined=joined_tiles)


def _report(warehouse: Warehouse, version: int, mode: Mode, blocks_version: int, benchmarks_version: int) -> PackReport:
    """Count what is stored; a table without a tile is not for fitting."""
    written = F.count_if(F.col("responses_version") == version)
    responses = F.coalesce(F.sum("n_responses"), F.lit(0))
    size = (
        warehouse.read("response_blocks", blocks_version)
        .agg(F.count("*"), responses, written, F.count_distinct("model_start"))
        .first()
    )
    assert size is not None
    if not size[0]:
        raise InputError("no response has a verdict: every score is null, so there is nothing to fit")
    return PackReport(
        version,
        repacked=mode != "current",
        tiles=int(size[0]),
        responses=int(size[1]),
        mode=mode,
        tiles_written=0 if mode == "current" else int(size[2]),
        model_blocks=int(size[3]),
        blocks_version=blocks_version,
        benchmarks_version=benchmarks_version,
    )


def stored_blocks(tiles: DataFrame) -> tuple[ModelBlock, ...]:
    """Return the model blocks of stored tiles, ordered; few."""
    rows = tiles.select("model_start", "n_models").distinct().collect()
    return tuple(sorted(ModelBlock(row["model_start"], row["n_models"]) for row in rows))


def _by_bucket(tiles: DataFrame) -> DataFrame:
    """Lay out tiles so that each bucket gets as few files as its bytes need, not one a task."""
    return tiles.hint("rebalance", "benchmark_bucket")


def n_models(warehouse: Warehouse) -> int:
    """Return the largest model number given so far."""
    (largest,) = warehouse.rows("models", "max(model_index) AS largest")["largest"].to_pylist()
    if largest is None:
        raise InputError(f"{warehouse.location('models')} is empty; run `cbmm-spark ingest --input …` first")
    return int(largest)


@contextmanager
def packed_in_memory(
    responses: DataFrame, models: int, config: PackConfig, version: int
) -> Iterator[tuple[DataFrame | None, DataFrame]]:
    """Pack responses for one fit, stored nowhere: tiles and `model_benchmarks`, computed once and kept for the block.

    Parameters
    ----------
    responses
        Rows of `responses`.
    models
        Largest model number.
    config
        Items per block, threshold of sparse encodings.
    version
        Of `responses`.

    Returns
    -------
    tuple
        The tiles, None where there is no response, and the benchmarks of each model.

    Raises
    ------
    InputError
        No response has a verdict.
    """
    with persisted(_counted(responses)) as counted:
        members = _model_benchmarks(counted)
        if counted.isEmpty():
            yield None, members
            return
        with persisted(tiles_of(responses, models, config, version, kinds=benchmark_kinds(counted))) as tiles:
            tiles.count()
            yield tiles, members


def model_benchmarks(responses: DataFrame) -> DataFrame:
    """Return one row per model and benchmark: rows, rows without a verdict, first and last evaluation."""
    return _model_benchmarks(_counted(responses))


def _counted(responses: DataFrame) -> DataFrame:
    """`model_benchmarks`, and what decides how a benchmark is packed; one reading of all rows for both."""
    return responses.groupBy("model_index", "model_id", "benchmark").agg(
        F.count("*").alias("n_rows"),
        F.count_if(F.col("score").isNull()).alias("n_null"),
        F.min("evaluated_at").alias("first_evaluated_at"),
        F.max("evaluated_at").alias("last_evaluated_at"),
        *kind_columns(),
    )


def _model_benchmarks(counted: DataFrame) -> DataFrame:
    return counted.select(*SPECS["model_benchmarks"].column_names)


__all__ = ["PackReport", "model_benchmarks", "n_models", "pack", "packed_in_memory", "stored_blocks", "tiles_of"]
