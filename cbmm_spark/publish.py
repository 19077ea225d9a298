"""From written results to a published night.

Delta has no transaction over several tables, so a night becomes visible by one commit to `runs`, after everything else
is written. `docs/decisions/0020-publishing-a-night.md` says in which order and why.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Iterable
from functools import reduce
from typing import NamedTuple

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

from cbmm_spark import __version__
from cbmm_spark.errors import ConflictError, InputError
from cbmm_spark.tables import SPECS, Warehouse, with_commit_retry
from cbmm_spark.tables.ddl import literal

LATEST = {"latest_abilities": "abilities", "latest_item_parameters": "item_parameters"}
"""Each table of the last published run, and where its rows come from."""

RUN_TABLES = ("run_scales", "run_iterations", "run_abilities")
"""What belongs to a run without being a result of its day."""

_TAKEN_OVER = "the day was taken over by a later run"
_DAY_AND_STATUS = ("run_id", "scored_on", "status")
_LATEST_ATTEMPTS = 4

_logger = logging.getLogger(__name__)


class Run(NamedTuple):
    """A row of `runs`, as far as publishing needs it."""

    run_id: str
    scored_on: dt.date
    status: str
    started_at: dt.datetime


def start_run(
    warehouse: Warehouse,
    run_id: str,
    scored_on: dt.date,
    config_json: str,
    responses_version: int | None,
    started_at: dt.datetime | None = None,
) -> list[str]:
    """Say in `runs` that a run works on a day; unfinished runs of that day are marked failed in the same commit.

    Parameters
    ----------
    warehouse
        Where; missing result tables are created.
    run_id
        Identifier of the run. The one of a run that did not publish may be used again: the run starts over.
    scored_on
        The day, UTC.
    config_json
        The configuration, for provenance.
    responses_version
        Version of `responses` the run reads.
    started_at
        With time zone; now, if not given.

    Returns
    -------
    list of str
        Runs of the same day found unfinished.

    Raises
    ------
    ConflictError
        `run_id` is published already, or others keep writing to `runs`.
    """
    warehouse.ensure("runs", *LATEST, *LATEST.values(), *RUN_TABLES)
    others = _runs_of(warehouse, scored_on)
    if any(run.run_id == run_id and run.status == "published" for run in others):
        raise ConflictError(f"run {run_id} is published already; choose another run_id to score {scored_on} again")
    row = (run_id, scored_on, "running", started_at or dt.datetime.now(dt.UTC), None, responses_version, config_json)
    versions = (__version__, warehouse.spark.version, None)
    new = warehouse.spark.createDataFrame([(*row, *versions)], SPECS["runs"].schema)
    source = new.withColumn("part", F.lit("start")).unionByName(new.withColumn("part", F.lit("stale")))
    columns = SPECS["runs"].column_names

    def commit() -> None:
        merge = (
            warehouse.delta("runs")
            .alias("t")
            .merge(
                source.alias("s"),
                "(s.part = 'start' AND t.run_id = s.run_id) OR (s.part = 'stale' AND t.scored_on = s.scored_on "
                "AND t.run_id <> s.run_id AND t.status = 'running')",
            )
        )
        merge.whenMatchedUpdate(
            condition="s.part = 'stale'",
            set={
                "status": "'failed'",
                "finished_at": "s.started_at",
                "error": "concat('had not finished when run ', s.run_id, ' of the same day started')",
            },
        ).whenMatchedUpdate(
            condition="t.status <> 'published'", set={column: f"s.{column}" for column in columns}
        ).whenNotMatchedInsert(
            condition="s.part = 'start'", values={column: f"s.{column}" for column in columns}
        ).execute()

    with warehouse.noted({"run_id": run_id, "step": "start"}):
        with_commit_retry(commit, warehouse.location("runs"))
    stale = [run.run_id for run in others if run.status == "running" and run.run_id != run_id]
    if stale:
        _logger.warning("%s: unfinished runs marked failed: %s", scored_on, ", ".join(stale))
    return stale


def write_results(warehouse: Warehouse, name: str, df: DataFrame, run_id: str, scored_on: dt.date) -> None:
    """Write a run's rows of one table; writing them again replaces them, a row of another run or day fails the write.

    Parameters
    ----------
    warehouse
        Where.
    name
        abilities, item_parameters, run_scales, run_iterations or run_abilities.
    df
        All rows of the run, as `Warehouse.append` wants them.
    run_id, scored_on
        The run and its day.

    Raises
    ------
    InputError
        A row is not of this run and day, or a column is not as it should be.
    ConflictError
        Others keep writing to the table.
    """
    where = _is_run(run_id)
    if "scored_on" in SPECS[name].column_names:
        where = f"{_is_day(scored_on)} AND {where}"
    warehouse.replace(df, name, where, {"run_id": run_id, "scored_on": scored_on, "step": "results"})


def finish_run(warehouse: Warehouse, run_id: str, status: str, error: str | None = None) -> None:
    """Say how a run ended that does not publish, and take its results away again.

    `run_scales` and `run_iterations` stay, to see what happened, and `run_abilities`, from which another run may go on.
    Of a run that is not running any more only the results go, unless it is published.

    Parameters
    ----------
    warehouse
        Where.
    run_id
        The run.
    status
        ``not_converged`` or ``failed``; publishing is `publish`.
    error
        Why, in one line.

    Raises
    ------
    ValueError
        Another status.
    ConflictError
        Others keep writing.
    """
    if status not in ("not_converged", "failed"):
        raise ValueError(f"a run ends as not_converged or failed here, not as {status!r}")

    def commit() -> None:
        warehouse.delta("runs").update(
            condition=(F.col("run_id") == run_id) & (F.col("status") == "running"),
            set={"status": F.lit(status), "finished_at": F.current_timestamp(), "error": F.lit(error).cast("string")},
        )

    with warehouse.noted({"run_id": run_id, "step": status}):
        with_commit_retry(commit, warehouse.location("runs"))
    days = warehouse.read("runs").where(F.col("run_id") == run_id).where("status <> 'published'").select("scored_on")
    for (scored_on,) in days.collect():
        _discard_results(warehouse, run_id, scored_on)


def publish(warehouse: Warehouse, run_id: str, scored_on: dt.date) -> None:
    """Make a run the published one of its day, once all its results are written.

    In this order: a commit to `runs` that publishes the run and removes the one it replaces; a commit to each of
    ``latest_*``; at last the rows of replaced and dead runs go. Killed anywhere, publishing again finishes the work,
    and so does the next run of the day.

    Parameters
    ----------
    warehouse
        Where.
    run_id, scored_on
        The run and its day.

    Raises
    ------
    InputError
        The run was not started, is of another day, or has no results.
    ConflictError
        A later run has taken over the day; the results of this one are removed. Or others keep writing.
    """
    own = next((run for run in _runs_of(warehouse, scored_on) if run.run_id == run_id), None)
    runs = warehouse.location("runs")
    if own is None:
        raise InputError(f"there is no run {run_id} of {scored_on} in {runs}; start_run comes first")
    if own.status not in ("running", "published"):
        _give_way(warehouse, run_id, scored_on)
    for name in LATEST.values():
        if warehouse.read(name).where(_is_day(scored_on)).where(_is_run(run_id)).isEmpty():
            raise InputError(f"run {run_id} has no rows in {warehouse.location(name)}; not published")
    try:
        _publish_in_runs(warehouse, run_id, scored_on)
    except (PySparkException, Py4JJavaError) as error:
        if _TAKEN_OVER not in str(error):
            raise
        _give_way(warehouse, run_id, scored_on)
    refresh_latest(warehouse, rewritten=run_id)
    _remove_replaced(warehouse, scored_on)


def refresh_latest(warehouse: Warehouse, rewritten: str | None = None) -> None:
    """Bring ``latest_*`` to the last published run: of the greatest day, then of the latest start.

    Each table is replaced in one commit, and left alone where it holds that run already.

    Parameters
    ----------
    warehouse
        Where.
    rewritten
        A run whose rows may have changed since: they are copied again.

    Raises
    ------
    ConflictError
        Others keep writing.
    """
    for _ in range(_LATEST_ATTEMPTS):
        last = last_published(warehouse)
        if last is None:
            return
        for latest, source in LATEST.items():
            if last.run_id == rewritten or not _holds(warehouse, latest, last.run_id):
                rows = warehouse.read(source).where(_is_day(last.scored_on)).where(_is_run(last.run_id))
                warehouse.overwrite(
                    rows, latest, {"run_id": last.run_id, "scored_on": last.scored_on, "step": "latest"}
                )
        # Another run may have published a newer day meanwhile, and its rows may just have been overwritten.
        if last_published(warehouse) == last:
            return
    raise ConflictError("other runs keep publishing; the latest_* tables may be one run behind, run again")


def last_published(warehouse: Warehouse, before: dt.date | None = None) -> Run | None:
    """The published run of the greatest day (earlier than `before`), then of the latest start; None without one."""
    newest = (F.desc("scored_on"), F.desc("started_at"), F.desc("run_id"))
    runs = warehouse.read("runs").where("status = 'published'")
    if before is not None:
        runs = runs.where(F.col("scored_on") < F.lit(before))
    row = runs.orderBy(*newest).select(*Run._fields).first()
    return None if row is None else Run(**row.asDict())


def published(warehouse: Warehouse, name: str) -> DataFrame:
    """The rows of a table that belong to published runs: what a reader is meant to see.

    Parameters
    ----------
    warehouse
        Where.
    name
        A table with a run_id.

    Raises
    ------
    InputError
        A table is missing.
    """
    keys: list[str] = [key for key in ("run_id", "scored_on") if key in SPECS[name].column_names]
    runs = warehouse.read("runs").where("status = 'published'").select(*keys)
    return warehouse.read(name).join(F.broadcast(runs), keys, "left_semi").select(*SPECS[name].column_names)


def published_abilities(warehouse: Warehouse) -> DataFrame:
    """`abilities` of published runs: one complete night for every published day."""
    return published(warehouse, "abilities")


def _runs_of(warehouse: Warehouse, scored_on: dt.date) -> list[Run]:
    rows = warehouse.read("runs").where(_is_day(scored_on)).select(*Run._fields).collect()
    return [Run(**row.asDict()) for row in rows]


def _publish_in_runs(warehouse: Warehouse, run_id: str, scored_on: dt.date) -> None:
    """The commit that makes the night visible: the run is published, and the one it replaces is gone."""
    source = warehouse.spark.createDataFrame([(run_id, scored_on)], "run_id string, scored_on date")
    # Whether the run still has its day is asked inside the transaction as well: a check before it could be overtaken.
    status = f"CASE WHEN t.status IN ('running', 'published') THEN 'published' ELSE raise_error('{_TAKEN_OVER}') END"

    def commit() -> None:
        merge = warehouse.delta("runs").alias("t").merge(source.alias("s"), "t.scored_on = s.scored_on")
        merge.whenMatchedUpdate(
            condition="t.run_id = s.run_id",
            set={"status": status, "finished_at": "coalesce(t.finished_at, current_timestamp())", "error": "NULL"},
        ).whenMatchedDelete(condition="t.status = 'published'").execute()

    with warehouse.noted({"run_id": run_id, "scored_on": scored_on, "step": "publish"}):
        with_commit_retry(commit, warehouse.location("runs"))


def _give_way(warehouse: Warehouse, run_id: str, scored_on: dt.date) -> None:
    _discard_results(warehouse, run_id, scored_on)
    raise ConflictError(
        f"run {run_id} is not published: {_TAKEN_OVER} of {scored_on}, or it was ended; run again if needed"
    )


def _discard_results(warehouse: Warehouse, run_id: str, scored_on: dt.date) -> None:
    for name in LATEST.values():
        _delete(warehouse, name, f"{_is_day(scored_on)} AND {_is_run(run_id)}")


def _remove_replaced(warehouse: Warehouse, scored_on: dt.date) -> None:
    """Remove rows of runs of the day that are neither published nor running, and of runs not in `runs` any more."""
    tables = (*LATEST.values(), *RUN_TABLES)
    found: dict[str, set[str]] = {name: set() for name in tables}
    listed = (_rows_to_clean(warehouse, name, scored_on).select(F.lit(name), "run_id").distinct() for name in tables)
    for name, run_id in reduce(DataFrame.union, listed).collect():  # as many as runs are kept, never as many as rows
        found[name].add(run_id)
    # The runs are read after the rows: a run is in `runs` before it writes its first row.
    runs = {run_id: (day, status) for run_id, day, status in warehouse.read("runs").select(*_DAY_AND_STATUS).collect()}
    alive = {run_id for run_id, (_, status) in runs.items() if status in ("published", "running")}
    ended = {run_id for run_id, (day, _) in runs.items() if day == scored_on} - alive
    for name in LATEST.values():
        _delete_runs(warehouse, name, found[name] - alive, _is_day(scored_on))
    for name in RUN_TABLES:
        dead = found[name] - runs.keys()
        _delete_runs(warehouse, name, dead | (found[name] & ended) if name == "run_abilities" else dead)


def _rows_to_clean(warehouse: Warehouse, name: str, scored_on: dt.date) -> DataFrame:
    rows = warehouse.read(name)
    return rows.where(_is_day(scored_on)) if name in LATEST.values() else rows


def _delete_runs(warehouse: Warehouse, name: str, run_ids: Iterable[str], day: str = "TRUE") -> None:
    listed = sorted(run_ids)
    if listed:
        _logger.info("%s: rows of replaced or unfinished runs removed: %s", name, ", ".join(listed))
        _delete(warehouse, name, f"{day} AND run_id IN ({', '.join(literal(run_id) for run_id in listed)})")


def _delete(warehouse: Warehouse, name: str, where: str) -> None:
    with warehouse.noted({"step": "remove"}):
        with_commit_retry(lambda: warehouse.delta(name).delete(where), warehouse.location(name))


def _run_ids(df: DataFrame) -> set[str]:
    """The distinct runs of a frame: as many as runs are kept, never as many as rows."""
    return {row["run_id"] for row in df.select("run_id").distinct().collect()}


def _holds(warehouse: Warehouse, latest: str, run_id: str) -> bool:
    return _run_ids(warehouse.read(latest)) == {run_id}


def _is_day(scored_on: dt.date) -> str:
    return f"scored_on = DATE'{scored_on.isoformat()}'"


def _is_run(run_id: str) -> str:
    return f"run_id = {literal(run_id)}"
