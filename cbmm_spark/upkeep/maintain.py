"""Upkeep of a warehouse: a copy, old nights, small files, files that nothing needs any more.

All of it is safe beside a running night. A fit reads pinned versions, whose files VACUUM keeps for seven days at least.
OPTIMIZE changes no row; where a night rewrites the same files, one of the two is told of a conflict and tries again
from the new state, a bounded number of times.
"""

from __future__ import annotations

import datetime as dt
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from pyspark.sql import SparkSession

from cbmm_spark.config.schema import Config
from cbmm_spark.console.progress import Progress
from cbmm_spark.console.text_table import duration, text_table
from cbmm_spark.errors import CbmmError
from cbmm_spark.spark.scoped import describe_jobs, session_settings
from cbmm_spark.tables import SPECS, Warehouse, recorded
from cbmm_spark.upkeep.backup import COPIED, backup
from cbmm_spark.upkeep.retention import apply_retention

STEPS = ("backup", "retention", "optimize", "vacuum")
"""In their order: a copy is made before anything goes."""

_RESPONSES_HOURS = SPECS["responses"].deleted_file_hours

VERSIONED = ("responses",)
"""Tables whose version says whether something is to be done: VACUUM writes no entries to their history."""

_MB = 1 << 20


@dataclass
class TableReport:
    """What became of the files of a table.

    Attributes
    ----------
    table
        Its name.
    files_before, files_after
        Of the current version.
    joined
        Files that were put together, or in a dry run could be.
    vacuumed
        In a dry run, files that nothing needs any more.
    error
        What kept it from being done.
    """

    table: str
    files_before: int
    files_after: int
    joined: int = 0
    vacuumed: int | None = None
    error: str | None = None


@dataclass
class MaintainReport:
    """What was done.

    Attributes
    ----------
    steps
        What became of each step, in words.
    seconds
        Wall-clock time of each.
    tables
        What became of each table's files.
    backup, retention
        Reports of these, as mappings.
    error
        The first error; the other tables were taken care of all the same.
    """

    dry_run: bool
    steps: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    tables: dict[str, TableReport] = field(default_factory=dict)
    backup: dict[str, Any] | None = None
    retention: dict[str, Any] | None = None
    error: CbmmError | None = None


@recorded("maintain")
def maintain(
    spark: SparkSession,
    warehouse: Warehouse,
    config: Config,
    steps: Collection[str],
    progress: Progress,
    target: Warehouse | None = None,
    tables: Collection[str] = COPIED,
    dry_run: bool = False,
) -> MaintainReport:
    """Take care of a warehouse.

    Parameters
    ----------
    spark
        Session with Delta.
    warehouse
        Which one.
    config
        `maintain` and `retention` are read.
    steps
        Which of `STEPS`.
    progress
        Told of every table.
    target
        Where a copy is made; none without it.
    tables
        Which tables are copied.
    dry_run
        Say what would be done, write nothing.

    Returns
    -------
    MaintainReport

    Raises
    ------
    InputError, ConflictError
        The copy could not be made; then nothing else is done.
    """
    report = MaintainReport(dry_run)
    actions: dict[str, Callable[[], str]] = {
        "backup": lambda: _backup(warehouse, target, tables, report),
        "retention": lambda: _retention(warehouse, config, report),
        "optimize": lambda: _optimize(warehouse, config, report, progress),
        "vacuum": lambda: _vacuum(warehouse, config, report, progress),
    }
    for step in STEPS:
        if step not in steps:
            report.steps[step] = "skipped as asked for"
            continue
        describe_jobs(spark, f"cbmm-spark maintain: {step}")
        began = time.perf_counter()
        report.steps[step] = actions[step]()
        report.seconds[step] = round(time.perf_counter() - began, 3)
    return report


def _backup(warehouse: Warehouse, target: Warehouse | None, tables: Collection[str], report: MaintainReport) -> str:
    if target is None:
        return "not asked for (--backup)"
    done = backup(warehouse, target, tables, report.dry_run)
    report.backup = asdict(done)
    rows = sum(done.rows.values())
    verb = "would be copied" if report.dry_run else "copied"
    return f"{len(done.versions)} tables, {rows:,} rows {verb} to {target.root}"


def _retention(warehouse: Warehouse, config: Config, report: MaintainReport) -> str:
    """Let go of old nights."""
    if warehouse.look("runs") is None:
        return "there is no night yet"
    if report.dry_run:
        return "old nights would go as [retention] says"
    done = apply_retention(warehouse, config.retention, dt.datetime.now(dt.UTC).date())
    report.retention = asdict(done)
    told = [f"{name.replace('_', ' ')} {_number(value)}" for name, value in report.retention.items()]
    return ", ".join(told)


def _number(value: Any) -> Any:
    return value if isinstance(value, int) else len(value)


def _optimize(warehouse: Warehouse, config: Config, report: MaintainReport, progress: Progress) -> str:
    rules = config.maintain
    settings = {
        "spark.databricks.delta.optimize.minFileSize": str(rules.small_file_mb * _MB),
        "spark.databricks.delta.optimize.maxFileSize": str(rules.large_file_mb * _MB),
    }
    with session_settings(warehouse.spark, settings):
        for table in _present(warehouse, report):
            with _one_by_one(table, report):
                if report.dry_run:
                    table.joined = _together(warehouse, table.table)
                elif table.files_before > 1:
                    table.joined, added = warehouse.compact(table.table, {"step": "optimize"})
                    table.files_after = table.files_before - table.joined + added
            progress.event("optimize", dry_run=report.dry_run, **asdict(table))
    joined, verb = sum(table.joined for table in report.tables.values()), "may be" if report.dry_run else "were"
    return f"{joined:,} files {verb} put together"


def _vacuum(warehouse: Warehouse, config: Config, report: MaintainReport, progress: Progress) -> str:
    hours = config.maintain.vacuum_hours
    for table in _present(warehouse, report):
        logged = str(table.table not in VERSIONED).lower()
        settings = {"spark.databricks.delta.vacuum.logging.enabled": logged}
        with (
            _one_by_one(table, report),
            session_settings(warehouse.spark, settings),
            warehouse.noted({"step": "vacuum"}),
        ):
            table.vacuumed = warehouse.vacuum(table.table, hours, report.dry_run)
        progress.event("vacuum", dry_run=report.dry_run, **asdict(table))
    kept = f"files of versions older than {hours:,} hours (responses: {max(hours, _RESPONSES_HOURS):,})"
    if not report.dry_run:
        return f"{kept} removed"
    return f"{sum(table.vacuumed or 0 for table in report.tables.values()):,} {kept} would be removed"


def _present(warehouse: Warehouse, report: MaintainReport) -> list[TableReport]:
    """The tables that are there, with their files; asked once."""
    if not report.tables:
        for name in SPECS:
            size = warehouse.size(name)
            if size is not None:
                report.tables[name] = TableReport(name, size["files"], size["files"])
    return list(report.tables.values())


@contextmanager
def _one_by_one(table: TableReport, report: MaintainReport) -> Iterator[None]:
    """An expected error at one table does not keep the others waiting; the first one is the command's."""
    try:
        yield
    except CbmmError as error:
        table.error = str(error)
        report.error = report.error or error


def _together(warehouse: Warehouse, name: str) -> int:
    """How many files lie beside another one in their partition: at most so many could be put together."""
    folders = Counter(path.rpartition("/")[0] for path in warehouse.read(name).inputFiles())
    return sum(files for files in folders.values() if files > 1)


def as_event(report: MaintainReport) -> dict[str, Any]:
    """What was done, for a program: the fields of one JSON line."""
    told = {name: value for name, value in vars(report).items() if name not in ("tables", "error")}
    error = None if report.error is None else str(report.error)
    return {**told, "tables": [vars(table) for table in report.tables.values()], "error": error}


def as_text(report: MaintainReport) -> str:
    """What was done, for a person."""
    parts = ["dry run: nothing was written"] if report.dry_run else []
    steps = [(step, duration(report.seconds.get(step)), told) for step, told in report.steps.items()]
    parts.append(text_table(("step", "took", "what"), steps))
    if report.tables:
        heads = ("table", "files before", "put together", "files now", *(["unneeded"] * report.dry_run), "error")
        rows = [
            (t.table, t.files_before, t.joined, t.files_after, *([t.vacuumed] * report.dry_run), t.error)
            for t in report.tables.values()
        ]
        parts.append(text_table(heads, rows))
    return "\n\n".join(parts)
