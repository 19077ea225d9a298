"""Which columns of which tiles changed: from the change data feed of `responses`, and as conditions that skip files."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import reduce

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

from cbmm_spark.config.schema import PackConfig
from cbmm_spark.errors import InputError
from cbmm_spark.packing.model_blocks import ModelBlock
from cbmm_spark.packing.tiles import COLUMN, Layout
from cbmm_spark.spark.scoped import persisted
from cbmm_spark.tables import Warehouse
from cbmm_spark.tables.warehouse import first_line, lacks_files

Tile = tuple[str, int, int, int]
"""Benchmark, bucket, item block, first model."""

_MODELS_BY_NUMBER = 500  # up to so many models a scan lists their numbers, above it gives a range


class FeedMissingError(Exception):
    """The change data feed cannot tell what changed; the message says why."""


@dataclass(frozen=True)
class Changes:
    """The columns of tiles that the feed names, and how far they reach.

    Attributes
    ----------
    columns
        `tiles.COLUMN`, distinct, persisted.
    buckets
        Partitions of `responses`.
    models
        The model numbers where they are few, else none; then `lowest` and `highest` count.
    lowest, highest
        The range of the model numbers; 0 and -1 where nothing changed.
    items
        First and last item number of the changed item blocks.
    """

    columns: DataFrame
    buckets: tuple[int, ...]
    models: tuple[int, ...]
    lowest: int
    highest: int
    items: tuple[int, int]

    def models_and_buckets(self) -> Column:
        """Rows of the changed models in the changed buckets: buckets are partitions, files are sorted by model."""
        number = F.col("model_index")
        models = number.isin(list(self.models)) if self.models else number.between(self.lowest, self.highest)
        return F.col("benchmark_bucket").isin(list(self.buckets)) & models

    def rows(self) -> Column:
        """Of these, rows from the first to the last changed item block."""
        return self.models_and_buckets() & F.col("item_index").between(*self.items)


@contextmanager
def changes_of(warehouse: Warehouse, first: int, last: int, config: PackConfig) -> Iterator[Changes]:
    """Read the feed of some versions of `responses`, once.

    Raises
    ------
    FeedMissingError
        The feed was off, or its versions or files are gone.
    """
    try:
        feed = warehouse.changes("responses", first, last)
    except InputError as error:
        raise FeedMissingError(str(error)) from error
    layout = Layout((), config)
    columns = feed.withColumn("item_block", layout.item_block()).select(*COLUMN).distinct()
    with ExitStack() as held:
        try:  # keeping the frame plans it already
            kept = held.enter_context(persisted(columns))
            extent = _extent(kept, config.items_per_block)
        except (PySparkException, Py4JJavaError) as error:
            why = _why_missing(error)
            if why is None:
                raise
            raise FeedMissingError(why) from error
        yield extent


def _why_missing(error: Exception) -> str | None:
    """Say why Delta could not compute the feed: it looks for versions and files only when rows are asked for."""
    if lacks_files(error):
        return "files of the change data feed of responses are gone (VACUUM)"
    by_condition = isinstance(error, PySparkException) and (error.getCondition() or "").startswith("DELTA_")
    by_class = isinstance(error, Py4JJavaError) and ".delta." in error.java_exception.getClass().getName()
    return f"responses has no change data feed: {first_line(error)}" if by_condition or by_class else None


def _extent(columns: DataFrame, size: int) -> Changes:
    row = columns.agg(
        F.sort_array(F.collect_set("benchmark_bucket")).alias("buckets"),  # at most 64
        F.coalesce(F.min("model_index"), F.lit(0)).alias("lowest"),
        F.coalesce(F.max("model_index"), F.lit(-1)).alias("highest"),
        F.coalesce(F.min("item_block"), F.lit(0)).alias("first"),
        F.coalesce(F.max("item_block"), F.lit(-1)).alias("last"),
        F.count_distinct("model_index").alias("models"),
    ).first()
    assert row is not None
    models: tuple[int, ...] = ()
    if 0 < row["models"] <= _MODELS_BY_NUMBER:
        numbers = columns.select("model_index").distinct().orderBy("model_index")
        models = tuple(number["model_index"] for number in numbers.collect())
    items = (row["first"] * size + 1, (row["last"] + 1) * size)
    return Changes(columns, tuple(row["buckets"]), models, row["lowest"], row["highest"], items)


def moved_starts(before: Sequence[ModelBlock], after: Sequence[ModelBlock]) -> frozenset[int]:
    """Return the first models of stored blocks that go into wider ones, and of these wider ones."""
    kept = set(after)
    gone = [block for block in before if block not in kept]
    wider = [block for block in after if any(block.start <= old.start <= block.end for old in gone)]
    return frozenset(block.start for block in (*gone, *wider))


def tiles_where(tiles: Iterable[Tile], moved: frozenset[int]) -> Column:
    """Return the condition that holds for some tiles and for all tiles of some model blocks, and for no other.

    Benchmarks, item blocks and model blocks that go together share one clause, so that a night of new models is one
    clause, however many benchmarks there are.
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
    return _any(clauses or [F.col("model_start") < 1])


def _any(clauses: Sequence[Column]) -> Column:
    """Return the disjunction as a flat tree: a deep one overflows the stack of Spark's optimizer."""
    if len(clauses) <= 2:
        return reduce(Column.__or__, clauses)
    half = len(clauses) // 2
    return _any(clauses[:half]) | _any(clauses[half:])


__all__ = ["Changes", "FeedMissingError", "changes_of", "moved_starts", "tiles_where"]
