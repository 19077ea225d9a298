"""The rows that were refused: kept in `quarantine`, each once, and counted by reason with a few examples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from cbmm_spark.ingest.batch import Batch
from cbmm_spark.ingest.merge import merge_settings
from cbmm_spark.ingest.report import Example
from cbmm_spark.ingest.rules import KEY
from cbmm_spark.readers.base import LEFT_OUT
from cbmm_spark.spark.scoped import persisted
from cbmm_spark.tables import Warehouse, with_commit_retry

Refused = dict[str, tuple[int, tuple[Example, ...]]]
"""By reason: the number of rows, and examples."""

JudgedAgain = Callable[[Sequence[str]], DataFrame]
"""Gives the rows of some files as `Batch.judged` does, with positions where that has none."""

EXAMPLES = 3
"""Refused rows of each reason that are shown."""

_IDENTITY = ["raw", "reason", "source"]


@dataclass(frozen=True)
class Reread:
    """Rows of `quarantine` that an input decides about anew: those of them that it does not refuse again are removed.

    Attributes
    ----------
    sources
        Their files or tables.
    reasons
        Why they were refused; None: for whatever reason.
    by_text
        Whether a row has the same text under any mapping: then those whose text the input does not hold any more were
        not decided about, and stay.
    """

    sources: Sequence[str]
    reasons: Sequence[str] | None = None
    by_text: bool = False

    def condition(self, started: datetime, alias: str) -> Column:
        """Which rows of the table named `alias` are decided about. What was refused since `started` is not of them."""
        which = F.col(f"{alias}.source").isin(list(self.sources))
        if self.reasons is not None:
            which &= F.col(f"{alias}.reason").isin(list(self.reasons))
        return which & (F.col(f"{alias}.ingested_at") < F.lit(started).cast("timestamp"))


@dataclass(frozen=True)
class Kept:
    """What became of the refused rows of an input: counted by reason, and rows of `quarantine` that were removed, or
    that it holds no more and that stay, by file."""

    by_reason: Refused
    removed: int = 0
    lost: Mapping[str, int] = field(default_factory=dict)


def keep_refused(
    warehouse: Warehouse,
    batch: Batch,
    started: datetime,
    judged_again: JudgedAgain | None = None,
    reread: Reread | None = None,
) -> Kept:
    """Add the refused rows of a batch to `quarantine`.

    A row is known by its text, reason and source: the same input again adds nothing, and equal rows of one file are
    kept once (with the position of the first) but counted each.

    Parameters
    ----------
    warehouse, batch
        The responses of the batch are committed already: an ingest killed between loses no row.
    started
        The ingest's time, UTC.
    judged_again
        Reads files once more to tell positions, so it is asked only about files with refused rows.
    reread
        Rows of the table that are removed unless they are refused again, in the same commit.

    Raises
    ------
    ConflictError
        Other ingests kept committing first.
    """
    if batch.invalid == 0 and batch.undecidable is None and reread is None:
        return Kept({})
    with ExitStack() as held:
        refused = held.enter_context(persisted(_refused(batch, judged_again)))
        found = _count_with_examples(refused)
        warehouse.ensure("responses", "quarantine", "models", "items")
        once = refused.groupBy(*_IDENTITY).agg(F.min("position").alias("position"))
        rows = held.enter_context(persisted(once.withColumn("ingested_at", F.lit(started).cast("timestamp"))))
        decided = None if reread is None else reread.condition(started, "t")
        lost: DataFrame | None = None
        if reread is not None and reread.by_text:
            lost = held.enter_context(persisted(_lost(warehouse, batch, reread.condition(started, "t"))))
            rows = rows.unionByName(lost)
        place = warehouse.location("quarantine")
        removed = with_commit_retry(lambda: _commit(warehouse, rows, batch.path, decided), place)
        by_file = [] if lost is None else lost.groupBy("source").count().collect()
    return Kept(found, removed, {row["source"]: row["count"] for row in by_file})


def _lost(warehouse: Warehouse, batch: Batch, decided: Column) -> DataFrame:
    """Rows of `quarantine` whose text is not among the rows of the files that were read for them."""
    there = batch.judged.select("source", "raw")
    stored = warehouse.read("quarantine").alias("t").where(decided)
    return stored.join(there, ["source", "raw"], "left_anti").select(*_IDENTITY, "position", "ingested_at")


def _refused(batch: Batch, judged_again: JudgedAgain | None) -> DataFrame:
    refused = _refused_of(batch, batch.judged)
    if judged_again is None:
        return refused
    sources = [row["source"] for row in refused.select("source").distinct().collect()]
    return _refused_of(batch, judged_again(sources)) if sources else refused


def _refused_of(batch: Batch, judged: DataFrame) -> DataFrame:
    columns = ("raw", "reason", "source", "position")
    refused = judged.where(F.col("reason").isNotNull() & ~F.col("reason").isin(*LEFT_OUT)).select(*columns)
    if batch.undecidable is None:
        return refused
    rows = judged.where(F.col("reason").isNull()).join(batch.undecidable, list(KEY), "left_semi")
    return refused.unionByName(rows.withColumn("reason", F.lit("conflicting_duplicate")).select(*columns))


def _commit(warehouse: Warehouse, rows: DataFrame, path: str, decided: Column | None) -> int:
    """One commit, or none where it would change nothing. Returns the number of rows removed."""
    stored = warehouse.read("quarantine")
    adds = not rows.join(stored.select(*_IDENTITY), _IDENTITY, "left_anti").isEmpty()
    gone = None if decided is None else stored.alias("t").where(decided).join(rows, _IDENTITY, "left_anti")
    removes = gone is not None and not gone.isEmpty()
    if not (adds or removes):
        return 0
    same = " AND ".join(f"t.{name} = s.{name}" for name in _IDENTITY)
    merge = warehouse.delta("quarantine").alias("t").merge(rows.alias("s"), same).whenNotMatchedInsertAll()
    if removes:
        merge = merge.whenNotMatchedBySourceDelete(decided)
    with merge_settings(warehouse.spark, {"command": "ingest", "input": path}, insert_only=not removes):
        outcome = merge.execute().head()
    assert outcome is not None
    return int(outcome["num_deleted_rows"])


def _count_with_examples(refused: DataFrame) -> Refused:
    counts = {row["reason"]: row["count"] for row in refused.groupBy("reason").count().collect()}
    found = {}
    for reason in sorted(counts):
        rows = refused.where(F.col("reason") == reason).orderBy("source", "position", "raw").limit(EXAMPLES).collect()
        found[reason] = (counts[reason], tuple(Example.of(row["source"], row["position"], row["raw"]) for row in rows))
    return found
