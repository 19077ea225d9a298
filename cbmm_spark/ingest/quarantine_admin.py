"""Looking into `quarantine`, and removing rows of it: `cbmm-spark quarantine list` and `drop`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from cbmm_spark.errors import InputError
from cbmm_spark.ingest.quarantine import EXAMPLES
from cbmm_spark.ingest.report import Example
from cbmm_spark.tables import Warehouse, with_commit_retry


@dataclass(frozen=True)
class Selection:
    """Which rows of `quarantine` are meant.

    Attributes
    ----------
    reasons
        Any of these; none given: all.
    sources
        Any of these files or tables, as they are listed, or the end of their paths; `*` stands for any text. None
        given: all.
    """

    reasons: Sequence[str] = ()
    sources: Sequence[str] = ()

    def condition(self) -> Column:
        """Of a row of the table."""
        reasons = F.col("reason").isin(list(self.reasons)) if self.reasons else F.lit(True)
        return reasons & (F.col("source").rlike(self.pattern()) if self.sources else F.lit(True))

    def pattern(self) -> str:
        """The sources as a regular expression."""
        names = (".*".join(re.escape(part) for part in source.split("*")) for source in self.sources)
        return rf"(?s)^(.*/)?({'|'.join(names)})$"

    def text(self) -> str:
        """For a person."""
        parts = [f"reason {' or '.join(self.reasons)}"] * bool(self.reasons)
        parts += [f"source {' or '.join(self.sources)}"] * bool(self.sources)
        return " and ".join(parts) or "all rows"


@dataclass(frozen=True)
class Group:
    """Rows of one reason and source."""

    reason: str
    source: str | None
    rows: int


@dataclass(frozen=True)
class RefusedSummary:
    """What is in quarantine.

    Attributes
    ----------
    rows
        Rows selected.
    by_reason
        Their number by reason.
    groups
        The largest groups of one reason and source.
    groups_left_out, rows_left_out
        Groups that are not shown, and their rows.
    examples
        Up to three rows of each reason.
    """

    rows: int
    by_reason: Mapping[str, int]
    groups: Sequence[Group]
    groups_left_out: int
    rows_left_out: int
    examples: Mapping[str, Sequence[Example]]

    def lines(self) -> list[str]:
        """For a person."""
        told = [f"{self.rows:,} rows in quarantine"]
        for reason, count in self.by_reason.items():
            told.append(f"  {count:>12,} {reason}")
            told += [f"               {example.text()}" for example in self.examples.get(reason, ())]
        told += [f"  {each.rows:>12,} {each.reason} of {each.source}" for each in self.groups]
        if self.groups_left_out:
            told.append(
                f"  {self.rows_left_out:>12,} of {self.groups_left_out:,} more reasons and sources: --limit shows more"
            )
        return told


def list_refused(warehouse: Warehouse, selection: Selection, limit: int) -> RefusedSummary:
    """Count the rows of `quarantine` by reason and source.

    Parameters
    ----------
    warehouse
        Its table; without one nothing is in quarantine.
    selection
        Which rows.
    limit
        The number of groups to name; the others are counted.
    """
    if not warehouse.exists("quarantine"):
        return RefusedSummary(0, {}, (), 0, 0, {})
    rows = warehouse.read("quarantine").where(selection.condition())
    groups = rows.groupBy("reason", "source").agg(F.count("*").alias("rows"))
    by_reason = {row["reason"]: row["rows"] for row in _summed(groups).collect()}
    shown = groups.orderBy(F.desc("rows"), "reason", "source").limit(limit).collect()
    total, named = sum(by_reason.values()), sum(row["rows"] for row in shown)
    count = groups.count()
    return RefusedSummary(
        rows=total,
        by_reason=by_reason,
        groups=tuple(Group(row["reason"], row["source"], row["rows"]) for row in shown),
        groups_left_out=count - len(shown),
        rows_left_out=total - named,
        examples=_examples(rows),
    )


def _summed(groups: DataFrame) -> DataFrame:
    return groups.groupBy("reason").agg(F.sum("rows").alias("rows")).orderBy(F.desc("rows"), "reason")


def _examples(rows: DataFrame) -> dict[str, tuple[Example, ...]]:
    order = Window.partitionBy("reason").orderBy("source", "position", "raw")
    first = rows.withColumn("_number", F.row_number().over(order)).where(F.col("_number") <= EXAMPLES)
    found: dict[str, tuple[Example, ...]] = {}
    for row in first.orderBy("reason", "_number").collect():
        found[row["reason"]] = (*found.get(row["reason"], ()), Example.of(row["source"], row["position"], row["raw"]))
    return found


def drop_refused(warehouse: Warehouse, selection: Selection) -> int:
    """Remove rows of `quarantine` for good.

    Returns
    -------
    int
        How many there were.

    Raises
    ------
    InputError
        No row is selected.
    ConflictError
        Ingests kept committing first.
    """
    if not warehouse.exists("quarantine") or warehouse.read("quarantine").where(selection.condition()).isEmpty():
        raise InputError(f"nothing in quarantine fits: {selection.text()} (`cbmm-spark quarantine list` shows it)")
    return with_commit_retry(lambda: _delete(warehouse, selection), warehouse.location("quarantine"))


def _delete(warehouse: Warehouse, selection: Selection) -> int:
    # A MERGE and not a DELETE, which tells the number of rows to nobody but the table's history.
    nothing = warehouse.read("quarantine").limit(0)
    merge = warehouse.delta("quarantine").alias("t").merge(nothing.alias("s"), F.lit(False))
    with warehouse.noted({"command": "quarantine drop", "rows": selection.text()}):
        outcome = merge.whenNotMatchedBySourceDelete(selection.condition()).execute().head()
    assert outcome is not None
    return int(outcome["num_deleted_rows"])
