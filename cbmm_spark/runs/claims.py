"""The claim of a run on its day: taken in one commit to `runs`, renewed while the run works, expiring when it dies.

`docs/decisions/0043-claims-and-resume.md` says why it is made like this.
"""

from __future__ import annotations

import contextvars
import datetime as dt
import logging
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from types import TracebackType

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

from cbmm_spark import __version__
from cbmm_spark.errors import ConflictError, InputError
from cbmm_spark.runs.process_identity import Owner, is_gone, this_process
from cbmm_spark.runs.table import LATEST, RUN_TABLES, Run, RunKey, check_keys, is_of_runs, runs_of
from cbmm_spark.spark.scoped import describe_jobs
from cbmm_spark.tables import SPECS, Warehouse, with_commit_retry
from cbmm_spark.tables.ddl import literal
from cbmm_spark.tables.warehouse import first_line

CLAIM_MINUTES = 30.0
"""After so many minutes without a sign of life a claim expires, unless configured otherwise."""

BEATS = 6
"""Signs of life within that time: all but one of them may be late or lost, or clocks differ by as much."""

_HELD = "the day is held by another run"

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Terms:
    """On which terms a day is claimed.

    Attributes
    ----------
    minutes
        Age of the last sign of life at which another run's claim has expired.
    take_over
        Take the day even from a run that lives.
    owner
        Who claims, as `process_identity.this_process` names it.
    """

    minutes: float = CLAIM_MINUTES
    take_over: bool = False
    owner: str = field(default_factory=this_process)

    def is_alive(self, run: Run, now: dt.datetime) -> bool:
        """Whether an unfinished run still holds its day."""
        return run.seen_at > now - dt.timedelta(minutes=self.minutes) and not is_gone(run.owner)


def check_free(warehouse: Warehouse, days: Iterable[dt.date], terms: Terms) -> None:
    """See that no living run holds a day, before any work for it; `start_runs` asks again when it takes the day.

    Raises
    ------
    ConflictError
        One does.
    """
    if not terms.take_over and warehouse.exists("runs"):
        _refuse_held(runs_of(warehouse, days), (), terms)


def start_run(
    warehouse: Warehouse,
    run_id: str,
    scored_on: dt.date,
    config_json: str,
    responses_version: int | None,
    started_at: dt.datetime | None = None,
    *,
    config_hash: str | None = None,
    terms: Terms | None = None,
) -> list[str]:
    """Claim a day for one run: `start_runs` of one."""
    return start_runs(
        warehouse,
        [RunKey(run_id, scored_on)],
        config_json,
        responses_version,
        started_at,
        config_hash=config_hash,
        terms=terms,
    )


def start_runs(
    warehouse: Warehouse,
    keys: Sequence[RunKey],
    config_json: str,
    responses_version: int | None,
    started_at: dt.datetime | None = None,
    *,
    config_hash: str | None = None,
    terms: Terms | None = None,
) -> list[str]:
    """Claim days in `runs`, all in one commit that also marks dead runs of these days failed.

    Parameters
    ----------
    warehouse
        Where; missing result tables are created.
    keys
        Runs and their days, UTC, no day twice. The identifier of a run that did not publish may be used again: the run
        starts over.
    config_json
        The configuration, for provenance.
    responses_version
        Version of `responses` the runs read.
    started_at
        With time zone; now, if not given.
    config_hash
        Of what decides abilities, see `resume`.
    terms
        When another run's claim has expired.

    Returns
    -------
    list of str
        Runs of these days found unfinished and marked failed.

    Raises
    ------
    InputError
        A table that published runs are in is gone.
    ConflictError
        A run that lives holds one of the days (none is taken then), a run is published already, or others keep writing
        to `runs`.
    """
    check_keys(keys)
    terms = terms or Terms()
    _check_none_lost(warehouse)
    warehouse.ensure("runs", *LATEST, *LATEST.values(), *RUN_TABLES)
    others = _look(warehouse, keys, terms)
    mine = {key.run_id for key in keys}
    started = started_at or dt.datetime.now(dt.UTC)
    values = {
        "status": "running",
        "started_at": started,
        "responses_version": responses_version,
        "config": config_json,
        "package_version": __version__,
        "spark_version": warehouse.spark.version,
        "heartbeat_at": dt.datetime.now(dt.UTC),
        "owner": terms.owner,
        "config_hash": config_hash,
    }
    rows = [{"run_id": key.run_id, "scored_on": key.scored_on, **values} for key in keys]
    attempts = 0

    def commit() -> None:
        nonlocal attempts, others
        attempts += 1
        if attempts > 1:  # somebody committed first, most likely to take the same day
            others = _look(warehouse, keys, terms)
        _claim(warehouse, rows, _lives(others, terms))

    try:
        with warehouse.noted({"run_id": ", ".join(sorted(mine)), "step": "start"}):
            with_commit_retry(commit, warehouse.location("runs"))
    except (PySparkException, Py4JJavaError) as error:
        if _HELD not in str(error):
            raise
        _look(warehouse, keys, terms)
        raise ConflictError(f"{_HELD}; run again when it has ended") from error
    stale = [run.run_id for run in others if run.status == "running" and run.run_id not in mine]
    if stale:
        how = "taken over from" if terms.take_over else "unfinished runs marked failed:"
        _logger.warning("%s: %s %s", _days(keys), how, ", ".join(stale))
    return stale


def _check_none_lost(warehouse: Warehouse) -> None:
    """See that no table of results is gone that published runs are in: made anew it would hide what is lost."""
    if not warehouse.exists("runs"):
        return
    lost = [name for name in LATEST.values() if not warehouse.exists(name)]
    if lost and not warehouse.read("runs").where("status = 'published'").isEmpty():
        places = ", ".join(warehouse.location(name) for name in lost)
        raise InputError(
            f"{places} is gone, but `runs` has published runs: restore it from a copy "
            "(`cbmm-spark maintain --only backup --warehouse COPY --backup WAREHOUSE --tables "
            f"{','.join(lost)}`), or move `runs` away to begin anew"
        )


def _lives(others: Iterable[Run], terms: Terms) -> str:
    """SQL: the unfinished run `t` still holds its day. Whether a process lives is only known here, so by name."""
    if terms.take_over:
        return "FALSE"
    oldest = dt.datetime.now(dt.UTC) - dt.timedelta(minutes=terms.minutes)
    young = f"coalesce(t.heartbeat_at, t.started_at) > TIMESTAMP'{oldest.isoformat()}'"
    gone = {run.run_id for run in others if is_gone(run.owner)}
    listed = ", ".join(literal(run_id) for run_id in sorted(gone))
    return f"({young} AND t.run_id NOT IN ({listed}))" if gone else f"({young})"


def _claim(warehouse: Warehouse, rows: Sequence[dict[str, object]], lives: str) -> None:
    columns = SPECS["runs"].column_names
    new = warehouse.spark.createDataFrame(
        [tuple(row.get(column) for column in columns) for row in rows], SPECS["runs"].schema
    )
    source = new.withColumn("part", F.lit("start")).unionByName(new.withColumn("part", F.lit("stale")))
    # That nobody holds the day is asked inside the transaction: of two runs at once the second to commit finds a
    # conflict, looks again, and sees the first.
    ends = f"CASE WHEN {lives} THEN raise_error('{_HELD}') ELSE 'failed' END"
    again = (
        f"CASE WHEN t.status = 'running' AND NOT t.owner <=> s.owner AND {lives} "
        f"THEN raise_error('{_HELD}') ELSE s.status END"
    )
    same_day = "t.scored_on = s.scored_on AND t.status = 'running'"
    others = f"NOT ({is_of_runs(str(row['run_id']) for row in rows).replace('run_id', 't.run_id', 1)})"

    merge = (
        warehouse.delta("runs")
        .alias("t")
        .merge(
            source.alias("s"),
            f"(s.part = 'start' AND t.run_id = s.run_id) OR (s.part = 'stale' AND {same_day} AND {others})",
        )
    )
    merge.whenMatchedUpdate(
        condition="s.part = 'stale'",
        set={
            "status": ends,
            "finished_at": "s.started_at",
            "error": "concat('had not finished when run ', s.run_id, ' of the same day started')",
        },
    ).whenMatchedUpdate(
        condition="t.status <> 'published'",
        set={column: again if column == "status" else f"s.{column}" for column in columns},
    ).whenNotMatchedInsert(condition="s.part = 'start'", values={column: f"s.{column}" for column in columns}).execute()


def _look(warehouse: Warehouse, keys: Sequence[RunKey], terms: Terms) -> list[Run]:
    """Return the runs of the days, unless one of them is in the way."""
    others = runs_of(warehouse, [key.scored_on for key in keys])
    mine = {key.run_id for key in keys}
    for run in others:
        if run.run_id in mine and run.status == "published":
            raise ConflictError(
                f"run {run.run_id} is published already; choose another run_id to score {run.scored_on} again"
            )
    if not terms.take_over:
        _refuse_held(others, mine, terms)
    return others


def _refuse_held(runs: Iterable[Run], mine: Iterable[str], terms: Terms) -> None:
    now = dt.datetime.now(dt.UTC)
    held = [
        run
        for run in runs
        if run.status == "running"
        and terms.is_alive(run, now)
        and not (run.run_id in mine and run.owner == terms.owner)
    ]
    if held:
        raise ConflictError(_who_holds(held[0], terms.minutes))


def _who_holds(run: Run, minutes: float) -> str:
    """Return who has a day, since when, and what to do."""
    owner = Owner.parse(run.owner)
    who = f"process {owner.pid} on {owner.host}" if owner else "an unnamed process"
    expires = run.seen_at + dt.timedelta(minutes=minutes)
    return (
        f"{run.scored_on} is being scored by run {run.run_id} ({who}) since {run.started_at:%Y-%m-%d %H:%M} UTC, last "
        f"sign of life {run.seen_at:%H:%M:%S}; run again when it has ended, or after {expires:%Y-%m-%d %H:%M} UTC if "
        "it has died (rescore.claim_minutes), or take the day from it with --take-over"
    )


def _days(keys: Sequence[RunKey]) -> str:
    days = sorted(key.scored_on for key in keys)
    return str(days[0]) if len(days) == 1 else f"{days[0]} to {days[-1]}"


class Heartbeat:
    """Renews the claim of running runs from a thread of its own; use as a context manager.

    It works in a session of its own, so that neither settings nor job descriptions of the fit and of these commits mix.
    A renewal that fails is said once and tried again at the next beat: a claim outlives `BEATS` - 1 of them.

    Parameters
    ----------
    warehouse
        Where.
    run_ids
        The runs.
    minutes
        How long a claim lasts.
    """

    def __init__(self, warehouse: Warehouse, run_ids: Iterable[str], minutes: float = CLAIM_MINUTES) -> None:
        self._root, self._spark = warehouse.root, warehouse.spark
        self._run_ids = sorted(run_ids)
        self._pause = minutes * 60.0 / BEATS
        self._ended = threading.Event()
        self._lost = False
        self.beats = 0
        self.error: Exception | None = None
        context = contextvars.copy_context()  # commits of the thread say which command they belong to
        self._thread = threading.Thread(target=context.run, args=(self._work,), name="renew claim", daemon=True)

    def __enter__(self) -> Heartbeat:
        self._thread.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def check(self) -> None:
        """See that the day has not been taken over; costs nothing.

        Raises
        ------
        ConflictError
            None of the runs is running any more: further work would be lost.
        """
        if self._lost:
            shown = ", ".join(self._run_ids[:3])
            raise ConflictError(f"run {shown} stops: the day was taken over by a later run, or the run was ended")

    def _work(self) -> None:
        describe_jobs(self._spark, f"cbmm-spark {', '.join(self._run_ids[:3])}: renew the claim")
        warehouse: Warehouse | None = None
        while not self._ended.wait(self._pause):
            try:
                warehouse = warehouse or Warehouse(self._spark.newSession(), self._root)
                self._lost = not renew(warehouse, self._run_ids)
                self.beats += 1
            except Exception as error:  # the claim holds for some more beats, and publishing asks again
                if self.error is None:
                    told = ", ".join(self._run_ids)
                    _logger.warning("the claim of run %s could not be renewed: %s", told, first_line(error))
                self.error = error
            if self._lost:
                return


def renew(warehouse: Warehouse, run_ids: Sequence[str]) -> int:
    """Give runs a sign of life; return how many of them are still running.

    Raises
    ------
    ConflictError
        Others keep writing to `runs`.
    """
    now = dt.datetime.now(dt.UTC).isoformat()
    statement = (
        f"UPDATE {warehouse.sql_name('runs')} SET heartbeat_at = TIMESTAMP'{now}' "
        f"WHERE status = 'running' AND {is_of_runs(run_ids)}"
    )

    def commit() -> int:
        changed = warehouse.spark.sql(statement).first()
        return 0 if changed is None else int(changed[0])

    with warehouse.noted({"run_id": ", ".join(run_ids), "step": "heartbeat"}):
        return with_commit_retry(commit, warehouse.location("runs"))
