"""Which nights are kept, and how the others go without a reader seeing half of one."""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any, NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

from cbmm_spark.config.schema import RetentionConfig
from cbmm_spark.runs.publish import HOLDING, delete_runs
from cbmm_spark.runs.table import LATEST, RUN_TABLES, all_runs, is_of_days, is_of_runs
from cbmm_spark.tables import Warehouse, with_commit_retry

_REFERENCES = ("reference_run_id", "items_from_run_id")
"""Columns of `run_scales` that name another run; tables made before there were links lack them."""

_SEEN_AT = "coalesce(heartbeat_at, started_at)"

_logger = logging.getLogger(__name__)


class StoredRun(NamedTuple):
    """A run as retention sees it."""

    run_id: str
    scored_on: dt.date
    status: str
    seen_on: dt.date


@dataclass(frozen=True)
class RetentionReport:
    """What retention did.

    Attributes
    ----------
    kept_nights, removed_nights
        Published nights.
    removed_failed
        Runs that were never published.
    pinned
        Nights kept only because a scale is linked to them.
    freed_saved
        Runs whose saved abilities went, though the run stays.
    orphans
        Runs of which rows were left that nobody reads: of runs that `runs` has no more (replaced ones, and what a
        killed run of retention leaves), and results of runs that did not publish.
    """

    kept_nights: int
    removed_nights: tuple[str, ...] = ()
    removed_failed: tuple[str, ...] = ()
    pinned: tuple[str, ...] = ()
    freed_saved: tuple[str, ...] = ()
    orphans: tuple[str, ...] = ()


@dataclass(frozen=True)
class Removals:
    """Runs that go, those kept because they are linked to, and those that keep no saved abilities."""

    nights: tuple[str, ...]
    failed: tuple[str, ...]
    pinned: tuple[str, ...]
    unsaved: tuple[str, ...]


def plan(
    runs: Iterable[StoredRun], references: Mapping[str, set[str]], policy: RetentionConfig, today: dt.date
) -> Removals:
    """Decide which runs go.

    Parameters
    ----------
    runs
        All rows of `runs`.
    references
        By run, the runs that its scales are linked to or scored from.
    policy
        How long nights are kept.
    today
        The day that ages count from.

    Returns
    -------
    Removals
        Never with the newest night, a run that works, or a run that a kept one is linked to.
    """
    runs = list(runs)
    nights = sorted((r for r in runs if r.status == "published"), key=lambda r: (r.scored_on, r.run_id), reverse=True)
    chosen = {run.run_id for run in nights[: policy.keep_nights or len(nights)]} | {r.run_id for r in nights[:1]}
    chosen |= _last_of_each(nights, lambda day: day.isocalendar()[:2], policy.keep_weekly)
    chosen |= _last_of_each(nights, lambda day: (day.year, day.month), policy.keep_monthly)
    needed = set(chosen)
    waiting = [*chosen, *(run.run_id for run in runs if run.status == "running")]
    while waiting:
        more = references.get(waiting.pop(), set()) - needed
        needed |= more
        waiting += more
    oldest = today - dt.timedelta(days=policy.keep_failed_days)
    # A run without a sign of life for a day is dead, whatever its row still says.
    ended = [run for run in runs if run.status != "published" and run.seen_on < oldest]
    saved = {run.run_id for run in nights[: policy.keep_saved_nights]}
    published = [run.run_id for run in nights]
    return Removals(
        tuple(sorted(run_id for run_id in published if run_id not in needed)),
        tuple(sorted(run.run_id for run in ended if run.run_id not in needed)),
        tuple(sorted(run_id for run_id in published if run_id in needed - chosen)),
        tuple(sorted(run_id for run_id in published if run_id in needed and run_id not in saved)),
    )


def _last_of_each(nights: Iterable[StoredRun], period: Callable[[dt.date], Any], count: int) -> set[str]:
    """Return the last night of each of the newest `count` periods that have one; nights come newest first."""
    last: dict[Any, str] = {}
    for night in nights:
        last.setdefault(period(night.scored_on), night.run_id)
    return set(list(last.values())[:count])


def apply_retention(warehouse: Warehouse, policy: RetentionConfig, today: dt.date) -> RetentionReport:
    """Delete what the policy does not keep.

    The rows in `runs` go first, in one commit: from then on no reader that joins sees the nights. Then the rows of each
    other table go, as those of every run that `runs` does not hold or that did not publish; killed in between, the next
    time does the rest. Files stay until VACUUM, so a reader of a pinned version finds them as long as after any other
    commit. The tables ``latest_*`` are not touched: the newest night always stays.

    Parameters
    ----------
    warehouse
        Where.
    policy
        `[retention]`.
    today
        The day that ages count from.

    Returns
    -------
    RetentionReport

    Raises
    ------
    InputError
        There is no table `runs`.
    ConflictError
        Others keep writing.
    """
    tables = (*LATEST.values(), *RUN_TABLES)
    # The rows are read before the runs: a run is in `runs` before it writes its first row.
    stored = _stored(warehouse, tables)
    runs = [
        StoredRun(*row)
        for row in warehouse.read("runs").select("run_id", "scored_on", "status", F.to_date(F.expr(_SEEN_AT))).collect()
    ]
    decided = plan(runs, _references(warehouse), policy, today)
    going = {*decided.nights, *decided.failed}
    if going:
        with warehouse.noted({"step": "retention", "removed": len(going)}):
            # A failed run may have been started again under its name in the meantime: it stays then.
            oldest = today - dt.timedelta(days=policy.keep_failed_days)
            still = f"(status = 'published' OR {_SEEN_AT} < DATE'{oldest.isoformat()}')"
            where = f"{still} AND {is_of_runs(going)}"
            with_commit_retry(lambda: warehouse.delta("runs").delete(where), warehouse.location("runs"))
    known = {run.run_id: run for run in all_runs(warehouse)}
    # What publishing leaves behind: no reader that joins sees results of a run that did not publish.
    unread = {run_id for run_id, run in known.items() if run.status not in HOLDING}
    days_done = {run.scored_on for run in known.values() if run.status == "published"}
    over = {run_id for run_id in unread if known[run_id].scored_on in days_done}  # nothing will go on from these
    orphans: set[str] = set()
    for name in tables:
        gone = stored[name].keys() - known.keys()
        if name in LATEST.values():
            gone |= stored[name].keys() & unread
        orphans |= gone - going
        unsaved = (set(decided.unsaved) | over) & stored[name].keys() if name == "run_abilities" else set()
        days = {day for run_id in gone for day in stored[name][run_id] if day is not None}
        delete_runs(warehouse, name, gone | unsaved, is_of_days(days) if days else "TRUE")
    report = RetentionReport(
        sum(run.status == "published" for run in runs) - len(decided.nights),
        decided.nights,
        decided.failed,
        decided.pinned,
        tuple(sorted(set(decided.unsaved) & stored["run_abilities"].keys())),
        tuple(sorted(orphans)),
    )
    _logger.info("retention: %s", report)
    return report


def _stored(warehouse: Warehouse, tables: Iterable[str]) -> dict[str, dict[str, set[dt.date | None]]]:
    """Return by table and run the days of its rows, None where the table has none: as many as runs, never as rows."""
    found: dict[str, dict[str, set[dt.date | None]]] = {name: {} for name in tables}
    parts = []
    for name in found:
        day = F.col("scored_on") if name in LATEST.values() else F.lit(None).cast("date")
        parts.append(warehouse.read(name).select(F.lit(name).alias("name"), "run_id", day.alias("day")).distinct())
    for name, run_id, day in reduce(DataFrame.union, parts).collect():
        found[name].setdefault(run_id, set()).add(day)
    return found


def _references(warehouse: Warehouse) -> dict[str, set[str]]:
    """Return by run the runs that its scales are linked to or scored from; empty for tables without these columns."""
    rows = warehouse.read("run_scales")
    found: dict[str, set[str]] = {}
    columns = [F.col(name) for name in _REFERENCES if name in rows.columns]
    if columns:
        pairs = rows.select("run_id", F.explode(F.array_compact(F.array(*columns))).alias("reference")).distinct()
        for run_id, reference in pairs.collect():  # some a run
            found.setdefault(run_id, set()).add(reference)
    return found
