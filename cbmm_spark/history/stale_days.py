"""Which published days would be scored otherwise today, because responses of their past have changed since."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

from cbmm_spark.history.states import date_of, day_number
from cbmm_spark.tables import Warehouse

_FEED_GONE = (
    "DELTA_VERSION_NOT_FOUND",
    "DELTA_VERSIONS_NOT_CONTIGUOUS",
    "DELTA_LOG_FILE_NOT_FOUND",
    "DELTA_CHANGE_DATA_FILE_NOT_FOUND",
    "DELTA_MISSING_CHANGE_DATA",
    "DELTA_TRUNCATED_TRANSACTION_LOG",
    "FAILED_READ_FILE.FILE_NOT_EXIST",
    "FileNotFoundException",
    "Cannot time travel",
)
"""What an error says when the log or the files of the change feed have been cleaned up."""


@dataclass(frozen=True)
class StaleDays:
    """Days to score again.

    Attributes
    ----------
    days
        Published days, oldest first, on or after the earliest evaluation that changed since they were scored.
    unknown
        Those of them of which that cannot be told: the change feed does not reach back to what they were scored from.
    published
        How many days are published.
    """

    days: tuple[dt.date, ...]
    unknown: tuple[dt.date, ...]
    published: int

    def lines(self) -> list[str]:
        """What a person wants to know."""
        found = [f"{len(self.days)} of {self.published} published days would be scored otherwise today"]
        if self.unknown:
            found.append(
                f"  of {len(self.unknown)} of them that is assumed: the change feed does not reach back so far"
            )
        found += [f"  {day}" for day in self.days]
        return found + (["  `cbmm-spark backfill --stale` scores them again"] if self.days else [])


@dataclass(frozen=True)
class Change:
    """The earliest evaluation that a version of `responses` changed; None where a row without a date changed."""

    version: int
    earliest: dt.date | None


def stale_days(warehouse: Warehouse) -> StaleDays:
    """Return the published days whose responses have changed since they were scored.

    A day is stale if a row that counts for it was added, corrected, redated or removed: one evaluated by its end (then
    or now), or one without a date.

    Raises
    ------
    InputError
        There are no responses.
    """
    current = warehouse.version("responses")
    scored = _published(warehouse)
    known = {day: version for day, version in scored.items() if version is not None and version <= current}
    reach, changes = _changes(warehouse, sorted(set(known.values())), current)
    return find_stale(scored, changes, reach)


def find_stale(scored: Mapping[dt.date, int | None], changes: Sequence[Change], reach: int | None) -> StaleDays:
    """Return the stale days.

    Parameters
    ----------
    scored
        By published day the version of `responses` it was scored from, where known.
    changes
        Of the versions after `reach`.
    reach
        The earliest version from which on changes are known; None where none are.
    """
    stale, unknown = [], []
    for day in sorted(scored):
        version = scored[day]
        if version is None or reach is None or version < reach:
            unknown.append(day)
            stale.append(day)
        elif any(c.version > version and (c.earliest is None or c.earliest <= day) for c in changes):
            stale.append(day)
    return StaleDays(tuple(stale), tuple(unknown), len(scored))


def _published(warehouse: Warehouse) -> dict[dt.date, int | None]:
    if not warehouse.exists("runs"):
        return {}
    rows = warehouse.read("runs").where("status = 'published'").select("scored_on", "responses_version").collect()
    return {row["scored_on"]: row["responses_version"] for row in rows}


def _changes(warehouse: Warehouse, versions: Sequence[int], current: int) -> tuple[int | None, list[Change]]:
    """Return the earliest of some versions after which every change is known, and the changes after it.

    Halving finds it: a feed that is known from one version on is known from every later one on.
    """
    usable = [version for version in versions if version <= current]
    low, high = 0, len(usable)
    found: tuple[int | None, list[Change]] = (None, [])
    while low < high:
        middle = 0 if low == 0 and high == len(usable) else (low + high) // 2  # mostly all of it is there
        changes = _changes_after(warehouse, usable[middle], current)
        if changes is None:
            low = middle + 1
        else:
            found, high = (usable[middle], changes), middle
    return found


def _changes_after(warehouse: Warehouse, version: int, current: int) -> list[Change] | None:
    """Return the changes of the versions after one, None where the feed does not reach back so far."""
    if version >= current:
        return []
    try:
        rows = _feed(warehouse, version + 1, current).collect()  # one row a version
    except (PySparkException, Py4JJavaError) as error:
        if not any(sign in str(error) for sign in _FEED_GONE):
            raise
        return None
    return [
        Change(row["version"], None if row["undated"] or row["day"] is None else date_of(row["day"])) for row in rows
    ]


def _feed(warehouse: Warehouse, first: int, last: int) -> DataFrame:
    reader = warehouse.spark.read.format("delta").option("readChangeFeed", "true")
    reader = reader.option("startingVersion", first).option("endingVersion", last)
    name = "responses"
    feed = reader.table(warehouse.sql_name(name))
    return feed.groupBy(F.col("_commit_version").alias("version")).agg(
        F.min(day_number(F.col("evaluated_at"))).alias("day"),
        F.bool_or(F.col("evaluated_at").isNull()).alias("undated"),
    )
