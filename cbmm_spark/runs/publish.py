"""From written results to a published night.

Delta has no transaction over several tables, so a night becomes visible by one commit to `runs`, after everything else
is written. `docs/decisions/0020-publishing-a-night.md` says in which order and why. Several nights (of different days)
are published together in as many commits as one.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial, reduce

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

from cbmm_spark.errors import ConflictError, InputError
from cbmm_spark.faultpoints import faultpoint
from cbmm_spark.runs.claims import start_run as start_run
from cbmm_spark.runs.claims import start_runs as start_runs
from cbmm_spark.runs.table import LATEST, RunKey, all_runs, check_keys, is_of_keys, is_of_runs, runs_of
from cbmm_spark.runs.table import RUN_TABLES as RUN_TABLES
from cbmm_spark.runs.table import Run as Run
from cbmm_spark.runs.table import last_published as last_published
from cbmm_spark.runs.table import published as published
from cbmm_spark.runs.table import published_abilities as published_abilities
from cbmm_spark.spark.scoped import side_by_side
from cbmm_spark.tables import SPECS, Warehouse, with_commit_retry

_TAKEN_OVER = "the day was taken over by a later run"
HOLDING = ("running", "published")
"""Statuses of runs whose results stay."""

_LATEST_ATTEMPTS = 4

_logger = logging.getLogger(__name__)


def write_results(warehouse: Warehouse, name: str, df: DataFrame, run_id: str, scored_on: dt.date) -> None:
    """Write the rows of one run: `write_all_results` of one."""
    write_all_results(warehouse, name, df, [RunKey(run_id, scored_on)])


def write_all_results(warehouse: Warehouse, name: str, df: DataFrame, keys: Sequence[RunKey]) -> None:
    """Write rows of one table in one commit; again replaces them, a row of another run or day fails the write.

    Parameters
    ----------
    warehouse
        Where.
    name
        abilities, item_parameters, run_scales, run_iterations or run_abilities.
    df
        All rows of the runs, as `Warehouse.append` wants them.
    keys
        The runs and their days.

    Raises
    ------
    InputError
        A row is not of one of these runs and its day, or a column is not as it should be.
    ConflictError
        Others keep writing to the table.
    """
    check_keys(keys)
    dated = "scored_on" in SPECS[name].column_names
    where = is_of_keys(keys) if dated else is_of_runs(key.run_id for key in keys)
    warehouse.replace(df, name, where, {**_named(keys), "step": "results"})


def finish_run(warehouse: Warehouse, run_id: str, status: str, error: str | None = None) -> None:
    """Say how one run ended: `finish_runs` of one."""
    finish_runs(warehouse, [run_id], status, error)


def finish_runs(
    warehouse: Warehouse,
    run_ids: Sequence[str],
    status: str,
    error: str | Mapping[str, str] | None = None,
    gates: Mapping[str, str] | None = None,
) -> None:
    """Say how runs ended that do not publish, and take their results away again.

    `run_scales` and `run_iterations` stay, to see what happened, and `run_abilities`, from which another run may go on.
    Of a run that is not running any more only the results go, unless it is published.

    Parameters
    ----------
    warehouse
        Where.
    run_ids
        The runs.
    status
        ``not_converged`` or ``failed``; publishing is `publish`.
    error
        Why, in one line; of all runs, or by run.
    gates
        By run, what the gates said, as JSON.

    Raises
    ------
    ValueError
        Another status.
    ConflictError
        Others keep writing.
    """
    if status not in ("not_converged", "failed"):
        raise ValueError(f"a run ends as not_converged or failed here, not as {status!r}")

    why = _by_run(error, F.col("run_id")) if isinstance(error, Mapping) else F.lit(error).cast("string")

    def commit() -> None:
        warehouse.delta("runs").update(
            condition=F.expr(f"status = 'running' AND {is_of_runs(run_ids)}"),
            set={
                "status": F.lit(status),
                "finished_at": F.current_timestamp(),
                "error": why,
                "gates": F.coalesce(_by_run(gates or {}, F.col("run_id")), F.col("gates")),
            },
        )

    with warehouse.noted({"run_id": ", ".join(run_ids), "step": status}):
        with_commit_retry(commit, warehouse.location("runs"))
    ended = [run for run in all_runs(warehouse) if run.run_id in run_ids and run.status != "published"]
    keys = [RunKey(run.run_id, run.scored_on) for run in ended]
    if keys:
        _discard_results(warehouse, keys)


def publish(warehouse: Warehouse, run_id: str, scored_on: dt.date, gates: str | None = None) -> None:
    """Make one run the published one of its day: `publish_runs` of one."""
    publish_runs(warehouse, [RunKey(run_id, scored_on)], {} if gates is None else {run_id: gates})


def publish_runs(warehouse: Warehouse, keys: Sequence[RunKey], gates: Mapping[str, str] | None = None) -> None:
    """Make runs the published ones of their days, once all their results are written.

    In this order: a commit to `runs` that publishes the runs and removes those they replace; a commit to each of
    ``latest_*``, side by side. Killed anywhere, publishing again finishes the work, and so does the next run of each
    day. The rows of replaced and dead runs stay where no reader sees them, until upkeep takes them
    (`retention.apply_retention`).

    Parameters
    ----------
    warehouse
        Where.
    keys
        Runs and their days, no day twice.
    gates
        By run, what the gates said, as JSON.

    Raises
    ------
    InputError
        A run was not started, is of another day, or has no results; nothing is published then.
    ConflictError
        Later runs have taken over some days; the others are published, the results of these are removed. Or others
        keep writing.
    """
    check_keys(keys)
    kept, lost = _still_held(warehouse, keys)
    _require_results(warehouse, kept)
    while kept:
        try:
            _publish_in_runs(warehouse, kept, gates or {})
            break
        except (PySparkException, Py4JJavaError) as error:
            if _TAKEN_OVER not in str(error):
                raise
            kept, more = _still_held(warehouse, kept)
            if not more:  # it was ended and started again in between: whose it is cannot be told
                kept, more = [], kept
            lost += more
    if kept:
        faultpoint("published")
        refresh_latest(warehouse, rewritten={key.run_id for key in kept})
        faultpoint("latest")
    if lost:
        _give_way(warehouse, lost)


def refresh_latest(warehouse: Warehouse, rewritten: Collection[str] = frozenset()) -> None:
    """Bring ``latest_*`` to the last published run: of the greatest day, then of the latest start.

    Each table is replaced in one commit, and left alone where it holds that run already.

    Parameters
    ----------
    warehouse
        Where.
    rewritten
        Runs whose rows may have changed since: they are copied again.

    Raises
    ------
    ConflictError
        Others keep writing.
    """
    for _ in range(_LATEST_ATTEMPTS):
        last = last_published(warehouse)
        if last is None:
            return
        side_by_side(
            warehouse.spark,
            *(
                partial(_copy_to_latest, warehouse, latest, last)
                for latest in LATEST
                if last.run_id in rewritten or not _holds(warehouse, latest, last.run_id)
            ),
        )
        # Another run may have published a newer day meanwhile, and its rows may just have been overwritten.
        if _same_run(last_published(warehouse), last):
            return
    raise ConflictError("other runs keep publishing; the latest_* tables may be one run behind, run again")


def _copy_to_latest(warehouse: Warehouse, latest: str, run: Run) -> None:
    rows = warehouse.read(LATEST[latest]).where(is_of_keys([RunKey(run.run_id, run.scored_on)]))
    warehouse.overwrite(rows, latest, {"run_id": run.run_id, "scored_on": run.scored_on, "step": "latest"})
    faultpoint(latest)


def _same_run(one: Run | None, other: Run) -> bool:
    return one is not None and one.run_id == other.run_id


def _still_held(warehouse: Warehouse, keys: Sequence[RunKey]) -> tuple[list[RunKey], list[RunKey]]:
    """Return the runs that still have their day, and those that have not.

    Raises
    ------
    InputError
        A run is not there, or of another day.
    """
    statuses = {(r.run_id, r.scored_on): r.status for r in runs_of(warehouse, [key.scored_on for key in keys])}
    for key in keys:
        if (key.run_id, key.scored_on) not in statuses:
            place = warehouse.location("runs")
            raise InputError(f"there is no run {key.run_id} of {key.scored_on} in {place}; start_run comes first")
    kept = [key for key in keys if statuses[key.run_id, key.scored_on] in HOLDING]
    return kept, [key for key in keys if key not in kept]


def _require_results(warehouse: Warehouse, keys: Sequence[RunKey]) -> None:
    if not keys:
        return
    parts = (warehouse.read(name).where(is_of_keys(keys)) for name in LATEST.values())
    listed = (part.select(F.lit(name), "run_id").distinct() for name, part in zip(LATEST.values(), parts, strict=True))
    written = {tuple(row) for row in reduce(DataFrame.union, listed).collect()}  # as many as runs
    for name in LATEST.values():
        without = [key.run_id for key in keys if (name, key.run_id) not in written]
        if without:
            raise InputError(f"run {without[0]} has no rows in {warehouse.location(name)}; not published")


def _publish_in_runs(warehouse: Warehouse, keys: Sequence[RunKey], gates: Mapping[str, str]) -> None:
    """The commit that makes nights visible: the runs are published, and those they replace are gone."""
    rows = [(key.run_id, key.scored_on, gates.get(key.run_id)) for key in keys]
    source = warehouse.spark.createDataFrame(rows, "run_id string, scored_on date, gates string")
    # Whether a run still has its day is asked inside the transaction as well: a check before it could be overtaken.
    status = f"CASE WHEN t.status IN {HOLDING} THEN 'published' ELSE raise_error('{_TAKEN_OVER}') END"

    def commit() -> None:
        merge = warehouse.delta("runs").alias("t").merge(source.alias("s"), "t.scored_on = s.scored_on")
        merge.whenMatchedUpdate(
            condition="t.run_id = s.run_id",
            set={
                "status": status,
                "finished_at": "coalesce(t.finished_at, current_timestamp())",
                "error": "NULL",
                "gates": "coalesce(s.gates, t.gates)",
            },
        ).whenMatchedDelete(condition="t.status = 'published'").execute()

    with warehouse.noted({**_named(keys), "step": "publish"}):
        with_commit_retry(commit, warehouse.location("runs"))


def _give_way(warehouse: Warehouse, keys: Sequence[RunKey]) -> None:
    _discard_results(warehouse, keys)
    ids = ", ".join(key.run_id for key in keys)
    days = ", ".join(str(key.scored_on) for key in keys)
    raise ConflictError(f"run {ids} is not published: {_TAKEN_OVER} of {days}, or it was ended; run again if needed")


def _discard_results(warehouse: Warehouse, keys: Sequence[RunKey]) -> None:
    for name in LATEST.values():
        _delete(warehouse, name, is_of_keys(keys))


def delete_runs(warehouse: Warehouse, name: str, run_ids: Iterable[str], where: str = "TRUE") -> None:
    """Delete the rows of some runs from one table, in one commit, or none where no run is given."""
    listed = sorted(run_ids)
    if listed:
        _logger.info("%s: rows of replaced or unfinished runs removed: %s", name, ", ".join(listed))
        _delete(warehouse, name, f"{where} AND {is_of_runs(listed)}")


def _delete(warehouse: Warehouse, name: str, where: str) -> None:
    with warehouse.noted({"step": "remove"}):
        with_commit_retry(lambda: warehouse.delta(name).delete(where), warehouse.location(name))


def _run_ids(df: DataFrame) -> set[str]:
    """The distinct runs of a frame: as many as runs are kept, never as many as rows."""
    return {row["run_id"] for row in df.select("run_id").distinct().collect()}


def _holds(warehouse: Warehouse, latest: str, run_id: str) -> bool:
    return _run_ids(warehouse.read(latest)) == {run_id}


def _by_run(texts: Mapping[str, str], run_id: Column) -> Column:
    """The text of the row's run, null where it has none."""
    found = F.lit(None).cast("string")
    for key, text in texts.items():
        found = F.when(run_id == key, F.lit(text)).otherwise(found)
    return found


def _named(keys: Sequence[RunKey]) -> dict[str, str]:
    """What the note of a commit says of its runs."""
    return {
        "run_id": ", ".join(key.run_id for key in keys),
        "scored_on": ", ".join(str(key.scored_on) for key in keys),
    }
