"""The rows that were refused: kept in `quarantine`, each once, and counted by reason with a few examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from cbmm_spark.ingest.commit import merge_settings
from cbmm_spark.ingest.report import Example
from cbmm_spark.spark.scoped import persisted
from cbmm_spark.tables import Warehouse, with_commit_retry

Refused = dict[str, tuple[int, tuple[Example, ...]]]
"""By reason: the number of rows, and examples."""

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
    path: str,
    refused: DataFrame | None,
    started: datetime,
    reread: Reread | None = None,
    texts: DataFrame | None = None,
) -> Kept:
    """Add the refused rows of an input to `quarantine`.

    A row is known by its text, reason and source: the same input again adds nothing, and equal rows of one file are
    kept once (with the position of the first) but counted each.

    Parameters
    ----------
    warehouse
        The responses of the input are committed already: an ingest killed between loses no row.
    path
        The input.
    refused
        raw, reason, source, position; None: there are none.
    started
        The ingest's time, UTC.
    reread
        Rows of the table that are removed unless they are refused again, in the same commit.
    texts
        raw and source of every row of the input, where `reread` goes by text.

    Raises
    ------
    ConflictError
        Other ingests kept committing first.
    """
    if refused is None and reread is None:
        return Kept({})
    if refused is None:
        refused = warehouse.spark.createDataFrame([], "raw string, reason string, source string, position long")
    with ExitStack() as held:
        refused = held.enter_context(persisted(refused))
        found = _count_with_examples(refused)
        warehouse.ensure("responses", "quarantine", "models", "items")
        once = refused.groupBy(*_IDENTITY).agg(F.min("position").alias("position"))
        rows = held.enter_context(persisted(once.withColumn("ingested_at", F.lit(started).cast("timestamp"))))
        decided = None if reread is None else reread.condition(started, "t")
        lost: DataFrame | None = None
        if decided is not None and texts is not None:
            lost = held.enter_context(persisted(_lost(warehouse, texts, decided)))
            rows = rows.unionByName(lost)
        place = warehouse.location("quarantine")
        removed = with_commit_retry(lambda: _commit(warehouse, rows, path, decided), place)
        by_file = [] if lost is None else lost.groupBy("source").count().collect()
    return Kept(found, removed, {row["source"]: row["count"] for row in by_file})


def _lost(warehouse: Warehouse, texts: DataFrame, decided: Column) -> DataFrame:
    """Rows of `quarantine` whose text is not among the rows of the files that were read for them."""
    stored = warehouse.read("quarantine").alias("t").where(decided)
    return stored.join(texts, ["source", "raw"], "left_anti").select(*_IDENTITY, "position", "ingested_at")


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
    by_reason = Window.partitionBy("reason")
    order = by_reason.orderBy("source", "position", "raw")
    numbered = refused.withColumns({"rows": F.count("*").over(by_reason), "place": F.row_number().over(order)})
    found: dict[str, tuple[int, tuple[Example, ...]]] = {}
    for row in numbered.where(F.col("place") <= EXAMPLES).orderBy("reason", "place").collect():
        _, examples = found.get(row["reason"], (0, ()))
        example = Example.of(row["source"], row["position"], row["raw"])
        found[row["reason"]] = (row["rows"], (*examples, example))
    return found
