"""Starting, writing and publishing the runs of several days, in one commit a table.

The order of commits is that of `publish`, and so is what a kill leaves behind.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

from cbmm_spark import __version__
from cbmm_spark.errors import ConflictError
from cbmm_spark.publish import LATEST, RUN_TABLES, refresh_latest
from cbmm_spark.results import RunKey
from cbmm_spark.tables import SPECS, Warehouse, with_commit_retry
from cbmm_spark.tables.ddl import literal

_KEYS = "run_id string, scored_on date"
_TAKEN_OVER = "a day was taken over by a later run"


def published_days(warehouse: Warehouse) -> set[dt.date]:
    """Return the days that have a published run; none where there are no runs."""
    if not warehouse.exists("runs"):
        return set()
    rows = warehouse.read("runs").where("status = 'published'").select("scored_on").collect()
    return {row["scored_on"] for row in rows}


def start_runs(
    warehouse: Warehouse, keys: Sequence[RunKey], config_json: str, responses_version: int, started_at: dt.datetime
) -> None:
    """Say in `runs` which days are worked on; unfinished runs of these days are marked failed in the same commit."""
    warehouse.ensure("runs", *LATEST, *LATEST.values(), *RUN_TABLES)
    versions = (__version__, warehouse.spark.version, None)
    rows = [
        (key.run_id, key.scored_on, "running", started_at, None, responses_version, config_json, *versions)
        for key in keys
    ]
    new = warehouse.spark.createDataFrame(rows, SPECS["runs"].schema)
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
        ).whenNotMatchedInsert(
            condition="s.part = 'start'", values={column: f"s.{column}" for column in columns}
        ).execute()

    with warehouse.noted({"runs": len(keys), "step": "start"}):
        with_commit_retry(commit, warehouse.location("runs"))


def write_all_results(warehouse: Warehouse, name: str, df: DataFrame, keys: Sequence[RunKey]) -> None:
    """Write the rows of several runs to one table in one commit; writing them again replaces them."""
    where = _of_runs(keys)
    if "scored_on" in SPECS[name].column_names:
        where = f"{_of_days(keys)} AND {where}"
    warehouse.replace(df, name, where, {"runs": len(keys), "step": "results"})


def finish_runs(warehouse: Warehouse, ended: Mapping[str, tuple[str, str]]) -> None:
    """Say how runs ended that do not publish: by run its status (not_converged or failed) and why.

    Only of runs that still run; they have written no results of a day.
    """
    if not ended:
        return
    rows = [(run_id, status, error) for run_id, (status, error) in ended.items()]
    source = warehouse.spark.createDataFrame(rows, "run_id string, status string, error string")

    def commit() -> None:
        merge = warehouse.delta("runs").alias("t").merge(source.alias("s"), "t.run_id = s.run_id")
        merge.whenMatchedUpdate(
            condition="t.status = 'running'",
            set={"status": "s.status", "finished_at": "current_timestamp()", "error": "s.error"},
        ).execute()

    with warehouse.noted({"runs": len(ended), "step": "finish"}):
        with_commit_retry(commit, warehouse.location("runs"))


def discard_results(warehouse: Warehouse, keys: Sequence[RunKey]) -> None:
    """Take back the results of runs that failed after writing some."""
    for name in LATEST.values():
        _delete(warehouse, name, f"{_of_days(keys)} AND {_of_runs(keys)}")


def publish_runs(warehouse: Warehouse, keys: Sequence[RunKey]) -> None:
    """Make runs the published ones of their days, all in one commit to `runs`; see `publish.publish`.

    ``latest_*`` moves only if one of them is the last published run now.

    Raises
    ------
    ConflictError
        A later run has taken over one of the days: none of the runs is published.
    """
    source = warehouse.spark.createDataFrame([(key.run_id, key.scored_on) for key in keys], _KEYS)
    status = "CASE WHEN t.status IN ('running', 'published') THEN 'published' ELSE " + (
        f"raise_error('{_TAKEN_OVER}') END"
    )

    def commit() -> None:
        merge = warehouse.delta("runs").alias("t").merge(source.alias("s"), "t.scored_on = s.scored_on")
        merge.whenMatchedUpdate(
            condition="t.run_id = s.run_id",
            set={"status": status, "finished_at": "coalesce(t.finished_at, current_timestamp())", "error": "NULL"},
        ).whenMatchedDelete(condition="t.status = 'published'").execute()

    with warehouse.noted({"runs": len(keys), "step": "publish"}):
        try:
            with_commit_retry(commit, warehouse.location("runs"))
        except Exception as error:
            if _TAKEN_OVER not in str(error):
                raise
            raise ConflictError(f"{_TAKEN_OVER} while they were fitted; nothing published, run again") from error
    refresh_latest(warehouse)
    _remove_replaced(warehouse, keys)


def _remove_replaced(warehouse: Warehouse, keys: Sequence[RunKey]) -> None:
    """Remove rows of these days that belong to runs neither published nor running, and of runs that are gone."""
    runs = {row["run_id"]: row["status"] for row in warehouse.read("runs").select("run_id", "status").collect()}
    alive = {run_id for run_id, status in runs.items() if status in ("published", "running")}
    for name in (*LATEST.values(), *RUN_TABLES):
        rows = warehouse.read(name)
        by_day = "scored_on" in SPECS[name].column_names
        found = rows.where(_of_days(keys)) if by_day else rows
        listed = {row["run_id"] for row in found.select("run_id").distinct().collect()}  # as many as runs are kept
        dead = sorted(listed - (alive if by_day else set(runs)))
        if dead:
            ids = f"run_id IN ({', '.join(literal(run_id) for run_id in dead)})"
            _delete(warehouse, name, f"{_of_days(keys)} AND {ids}" if by_day else ids)


def _delete(warehouse: Warehouse, name: str, where: str) -> None:
    with warehouse.noted({"step": "remove"}):
        with_commit_retry(lambda: warehouse.delta(name).delete(where), warehouse.location(name))


def _of_runs(keys: Sequence[RunKey]) -> str:
    return f"run_id IN ({', '.join(literal(key.run_id) for key in keys)})"


def _of_days(keys: Sequence[RunKey]) -> str:
    days = ", ".join(f"DATE'{key.scored_on.isoformat()}'" for key in keys)
    return f"scored_on IN ({days})"
