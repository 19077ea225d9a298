"""The job that scores a whole history: all its dates in the same passes over the same cached blocks."""

from __future__ import annotations

import contextlib
import datetime as dt
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

from cbmm_spark.config.schema import Config, RescoreConfig
from cbmm_spark.console.listener import Clock, Listener
from cbmm_spark.errors import CbmmError, GateError, InputError, NotConvergedError
from cbmm_spark.faultpoints import faultpoint
from cbmm_spark.fit.fit_scales import check_connected, fit_scales
from cbmm_spark.fit.scale_flags import scale_flags
from cbmm_spark.fit.scales import Scales
from cbmm_spark.fit.spark_blocks import default_parallelism
from cbmm_spark.fit.starts import config_hash
from cbmm_spark.history.blocks import HistoryBlocks
from cbmm_spark.history.dates import Every, dates_between
from cbmm_spark.history.fits import Ended, History, Voice
from cbmm_spark.history.link import LinkedHistory, link_history
from cbmm_spark.history.plan import plan_fits
from cbmm_spark.history.stale_days import stale_days
from cbmm_spark.history.states import (
    Evaluated,
    check_dates,
    evaluations,
    small_enough,
    states_of,
    steps_frame,
    with_step,
)
from cbmm_spark.kernels.alternation import ScaleFit
from cbmm_spark.packing.job import n_models
from cbmm_spark.results.results import RunFits, ability_rows, item_rows, iteration_rows, scale_rows, solve_fit_items
from cbmm_spark.runs.claims import Heartbeat, Terms, check_free, start_runs
from cbmm_spark.runs.gates import judge_alone
from cbmm_spark.runs.publish import finish_runs, publish_runs, write_all_results
from cbmm_spark.runs.table import RunKey, is_of_keys, published_days
from cbmm_spark.spark.scoped import describe_jobs, job_description
from cbmm_spark.tables import SPECS, Warehouse, add_provenance, recorded

_UNLINKED = (
    "none of the day's scales can be compared with the reference, not published; lower linking.min_anchors, or give "
    "--no-link"
)


@dataclass(frozen=True)
class Request:
    """Which dates are asked for.

    Attributes
    ----------
    first, last
        Ends of the history; by default the first and last day on which something was evaluated.
    every
        Distance of its dates.
    dates
        The dates themselves, instead of all that.
    stale
        Instead of all that the published days whose past has changed; they are replaced.
    replace
        Whether days that are published already are scored again.
    link
        Whether all dates are put on one reference scale.
    take_over
        Whether days are taken from other runs, even from ones that live.
    """

    first: dt.date | None = None
    last: dt.date | None = None
    every: Every = "week"
    dates: Sequence[dt.date] | None = None
    stale: bool = False
    replace: bool = False
    link: bool = True
    take_over: bool = False


@dataclass(frozen=True)
class BackfillReport:
    """What a backfill did.

    Attributes
    ----------
    dates
        Days asked for.
    published
        Days that were scored and published now.
    kept
        Days that were published already and left alone.
    empty
        Days by whose end nothing had been evaluated.
    failed
        By day why it was not published.
    fits
        Fits made; dates between which a scale did not change share one.
    left_out
        By day and scale why a scale of a published day is not among its results: it cannot be put on the reference
        scale.
    flags
        By reason how many scales of how many dates should be read with care.
    seconds
        Wall-clock time by step.
    """

    dates: tuple[dt.date, ...]
    published: tuple[dt.date, ...] = ()
    kept: tuple[dt.date, ...] = ()
    empty: tuple[dt.date, ...] = ()
    failed: Mapping[str, str] = field(default_factory=dict)
    fits: int = 0
    iterations: int = 0
    left_out: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    flags: Mapping[str, int] = field(default_factory=dict)
    tables: Mapping[str, str] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    exit_code: int = 0

    def lines(self) -> list[str]:
        """What a person wants to know."""
        span = f", {self.published[0]} to {self.published[-1]}" if self.published else ""
        found = [f"published {len(self.published)} of {len(self.dates)} days{span}: {self.fits} fits"]
        if self.kept:
            found.append(f"  {len(self.kept)} days were published already and left alone (--replace scores them again)")
        if self.empty:
            found.append(f"  {len(self.empty)} days come before the first response with a verdict")
        found += [f"  {reason}: {count} scales" for reason, count in sorted(self.flags.items())]
        found += [f"  {day} not published: {reason}" for day, reason in self.failed.items()]
        for day, scales in self.left_out.items():
            found += [f"  {day} without a scale: {reason}" for reason in scales.values()]
        return found

    def complaint(self) -> str:
        """What is not as asked for, in one line: how many days, and the first reason."""
        partly = [(day, reason) for day, scales in self.left_out.items() for reason in scales.values()]
        day, reason = next(iter((*self.failed.items(), *partly)))
        failed, partly_scored = len(self.failed), len(self.left_out)
        told = [f"{failed} {'was' if failed == 1 else 'were'} not published"] if failed else []
        told += [f"{partly_scored} {'lacks' if partly_scored == 1 else 'lack'} a scale"] if partly_scored else []
        return f"of {len(self.dates)} days {' and '.join(told)}; {day}: {reason}"


# ------------------------------------------------------------------------------------------------ the job
@recorded("backfill")
def backfill(
    spark: SparkSession, warehouse: Warehouse, config: Config, request: Request, listener: Listener
) -> BackfillReport:
    """Score the leaderboard as it stood at every date asked for, and publish a run for each.

    Parameters
    ----------
    spark
        Session with Delta.
    warehouse
        Where `responses` is and results go.
    config
        Everything else. Every fit starts from accuracy: ``solver.warm_start`` plays no part.
    request
        Which dates.
    listener
        Told of every iteration and step.

    Returns
    -------
    BackfillReport
        Its exit code is that of the worst day: 4 where one did not converge, failed a gate or lacks a scale that cannot
        be linked, 3 where one was refused.

    Raises
    ------
    ConfigError
        The dates or scales cannot be.
    InputError
        There is nothing to fit by any of the dates.
    NotConvergedError
        No date converged.
    GateError
        No date can be put on the reference scale, or abilities are missing.
    ConflictError
        A living run holds one of the days, or others hold the tables.
    """
    started_at = dt.datetime.now(dt.UTC)
    stamp = f"{started_at:%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"
    job = _Job(spark, warehouse, config, request, listener, stamp, Clock())
    with job_description(spark, f"cbmm-spark {stamp}: look through the history"):
        version = warehouse.version("responses")
        add_provenance(input_versions={"responses": version})
        responses = warehouse.read("responses", version)
        found = evaluations(responses).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        wanted, dates, kept, empty = job.choose(found)
        if not dates:
            return BackfillReport(tuple(wanted), kept=tuple(kept), empty=tuple(empty))
        return job.run(responses, version, found, _Dates(wanted, dates, kept, empty), started_at)
    finally:
        found.unpersist()


@dataclass(frozen=True)
class _Dates:
    """Days asked for, to be fitted, left alone, and before anything was evaluated."""

    wanted: list[dt.date]
    to_fit: list[dt.date]
    kept: list[dt.date]
    empty: list[dt.date]


@dataclass
class _Job:
    spark: SparkSession
    warehouse: Warehouse
    config: Config
    request: Request
    listener: Listener
    stamp: str
    clock: Clock

    @property
    def terms(self) -> Terms:
        """On which terms days are claimed."""
        return Terms(self.config.rescore.claim_minutes, self.request.take_over)

    # -------------------------------------------------------------------------------------------- dates
    def choose(self, found: DataFrame) -> tuple[list[dt.date], list[dt.date], list[dt.date], list[dt.date]]:
        """Return the days asked for, those to fit, those left alone, and those before anything was evaluated."""
        self.evaluated = Evaluated.of(found)
        if not self.evaluated.days and not self.evaluated.undated:
            location = self.warehouse.location("responses")
            raise InputError(f"{location} is empty; run `cbmm-spark ingest --input …` first")
        wanted = self._wanted()
        if not wanted:
            return [], [], [], []
        begun, empty = check_dates(wanted, self.evaluated)
        published = published_days(self.warehouse)
        again = self.request.replace or self.request.stale
        kept = [] if again else [date for date in begun if date in published]
        dates = [date for date in begun if date not in set(kept)]
        if dates:
            check_free(self.warehouse, dates, self.terms)
        self.listener.event(
            "dates", asked=len(wanted), to_fit=len(dates), published_already=len(kept), empty=len(empty)
        )
        return wanted, dates, kept, empty

    def _wanted(self) -> list[dt.date]:
        request, days = self.request, self.evaluated.days
        if request.stale:
            stale = stale_days(self.warehouse)
            if stale.unknown:
                reason = "the change feed of responses does not reach back to what these days were scored from"
                self.listener.event("stale_unknown", days=len(stale.unknown), reason=reason)
            return list(stale.days)
        if request.dates is not None:
            return sorted(set(request.dates))
        if not days and (request.first is None or request.last is None):
            raise InputError("no response has a date of evaluation: a history needs --from and --to, or --dates")
        first, last = request.first or days[0], request.last or days[-1]
        wanted = dates_between(first, last, request.every, days)
        if not wanted:
            raise InputError(f"nothing was evaluated from {first} to {last}: choose another --from and --to")
        return wanted

    # -------------------------------------------------------------------------------------------- fit
    def run(
        self, responses: DataFrame, version: int, found: DataFrame, dates: _Dates, started_at: dt.datetime
    ) -> BackfillReport:
        """Fit the dates, write and publish."""
        last = dates.to_fit[-1]
        if late := self.evaluated.after(last):
            self.listener.event("left_out", responses=late, reason=f"evaluated after {last}")
        steps = steps_frame(self.spark, self.evaluated, dates.to_fit)
        stepped = with_step(found, steps)
        states = states_of(stepped, len(dates.to_fit))
        if not states.model.size:
            raise InputError(f"no response by {last} has a verdict: every score is null, so there is nothing to fit")
        plan = plan_fits(dates.to_fit, states.changes(), self.config.scales)
        if not plan.dates:
            raise InputError(f"no scale has a response by {last}; see [scales] in the configuration")
        ready = {planned.date for planned in plan.dates}
        empty = sorted([*dates.empty, *(date for date in dates.to_fit if date not in ready)])
        models = len({*zip(states.benchmark.tolist(), states.model.tolist(), strict=True)})
        self.listener.event("history", dates=len(ready), fits=len(plan.fits), columns=states.model.size, models=models)
        keys = [RunKey(f"{self.stamp}-{planned.date:%Y%m%d}", planned.date) for planned in plan.dates]
        add_provenance(runs=[key.run_id for key in keys])
        self._claim(keys, version, started_at)
        self.clock.lap("plan")
        run_ids = [key.run_id for key in keys]
        try:
            history = History(responses, version, stepped, steps, states, plan, keys)
            with Heartbeat(self.warehouse, run_ids, self.config.rescore.claim_minutes) as claim:
                report = self._fit_and_write(history, claim)
        except BaseException as error:
            self._fail(keys, error)
            raise
        return replace(report, dates=tuple(dates.wanted), kept=tuple(dates.kept), empty=tuple(empty))

    def _claim(self, keys: Sequence[RunKey], version: int, started_at: dt.datetime) -> None:
        """Take all days in one commit."""
        describe_jobs(self.spark, f"cbmm-spark {self.stamp}: start")
        config = self.config
        stale = start_runs(
            self.warehouse,
            keys,
            config.as_json(),
            version,
            started_at,
            config_hash=config_hash(config),
            terms=self.terms,
        )
        if stale:
            self.listener.event("taken_over", from_runs=stale)
        faultpoint("claimed")

    def _fail(self, keys: Sequence[RunKey], error: BaseException) -> None:
        """Say of all runs that they failed, unless they ended otherwise, and take back what they wrote."""
        message = str(error) if isinstance(error, CbmmError) else f"{type(error).__name__}: {error}"
        message = " ".join(message.split())[:1000]
        status = "not_converged" if isinstance(error, NotConvergedError) else "failed"
        with contextlib.suppress(Exception):  # a lost session cannot be told; the next run of the days tidies up
            finish_runs(self.warehouse, [key.run_id for key in keys], status, message)

    def _fit_and_write(self, history: History, claim: Heartbeat) -> BackfillReport:
        config, solver = self.config, self.config.solver
        total = n_models(self.warehouse)
        items = self.warehouse.read("items", self.warehouse.version("items"))
        partitions = solver.partitions or default_parallelism(self.spark)
        with job_description(self.spark, f"cbmm-spark {self.stamp}: pack responses"):
            tiles = history.tiles(small_enough(config.pack, _n_items(items), partitions))
        try:
            with HistoryBlocks(self.spark, tiles, partitions, history.moments()) as blocks:
                self.clock.lap("pack")
                with job_description(self.spark, f"cbmm-spark {self.stamp}: fit"):
                    fits, refused = self._fit(blocks, history, total, claim)
                self.clock.lap("fit")
                runs, ended = history.runs(fits, refused, solver.max_iterations)
                self._write_fits(runs)
                linked = self._link_and_write_items(blocks, runs, ended, items)
        finally:
            tiles.unpersist()
        keys = [run.key for run in linked.runs]
        with job_description(self.spark, f"cbmm-spark {self.stamp}: write abilities"):
            abilities = ability_rows(self.spark, linked.runs, history.evaluations(), config.rescore)
            self._write("abilities", _by_day(abilities, len(keys)), keys)
        unconverged = [run for run in runs if not all(fit.converged for fit in run.fits.values())]
        written = self.warehouse.read("item_parameters").where(is_of_keys(keys))
        self._write_scales([*linked.runs, *unconverged], written)
        self.clock.lap("write")
        self._publish(keys, ended)
        return self._report(history, linked, ended, fits)

    def _publish(self, keys: Sequence[RunKey], ended: dict[str, Ended]) -> None:
        """Publish the runs whose abilities are all there, and say of the others how they ended."""
        describe_jobs(self.spark, f"cbmm-spark {self.stamp}: publish")
        verdicts = judge_alone(self.warehouse, keys, self.config.gates)
        for run_id, verdict in verdicts.items():
            try:
                verdict.enforce()
            except GateError as error:
                ended[run_id] = ("gate", str(error))
        self._finish(ended)
        good = [key for key in keys if key.run_id not in ended]
        if not good:
            raise _nothing(ended)
        faultpoint("gated")
        publish_runs(self.warehouse, good, {key.run_id: verdicts[key.run_id].as_json() for key in good})
        self.clock.lap("publish")

    def _finish(self, ended: Mapping[str, Ended]) -> None:
        """Say in `runs` of those that do not publish how they ended: at most one commit a status."""
        by_status: dict[str, dict[str, str]] = {"not_converged": {}, "failed": {}}
        for run_id, (kind, why) in ended.items():
            by_status["not_converged" if kind == "not_converged" else "failed"][run_id] = " ".join(why.split())[:1000]
        for status, errors in by_status.items():
            if errors:
                finish_runs(self.warehouse, sorted(errors), status, errors)

    def _report(
        self, history: History, linked: LinkedHistory, ended: Mapping[str, Ended], fits: Mapping[str, ScaleFit]
    ) -> BackfillReport:
        days = {key.run_id: str(key.scored_on) for key in history.keys}
        published = [run for run in linked.runs if run.key.run_id not in ended]
        left_out = {days[run_id]: why for run_id, why in linked.left_out.items() if run_id not in ended}
        kinds = {kind for kind, _ in ended.values()}
        return BackfillReport(
            (),
            published=tuple(run.key.scored_on for run in published),
            failed={days[run_id]: reason for run_id, (_, reason) in ended.items()},
            fits=len(fits),
            iterations=max(fit.iteration for fit in fits.values()),
            left_out=left_out,
            flags=_count_flags(published, self.config.rescore),
            tables={name: self.warehouse.location(name) for name in RESULTS},
            seconds=self.clock.laps,
            exit_code=4 if left_out or kinds - {"failed"} else 3 if kinds else 0,
        )

    def _fit(
        self, blocks: HistoryBlocks, history: History, total: int, claim: Heartbeat
    ) -> tuple[dict[str, ScaleFit], dict[str, str]]:
        """Fit all dates; return the fits by name, and why some were refused."""
        wanted = {name: benchmarks for name, (benchmarks, _) in history.plan.fits.items()}
        counts = blocks.count(wanted, total)
        refused: dict[str, str] = {}
        if self.config.rescore.disconnected == "refuse":
            for name, count in counts.items():
                try:
                    check_connected({name: count})
                except InputError as error:
                    refused[name] = str(error)
        wanted = {name: benchmarks for name, benchmarks in wanted.items() if name not in refused}
        if not wanted:
            return {}, refused
        scales = Scales(wanted, {name: name for name in wanted})
        voice = Voice(self.listener, history.voices())
        key = RunKey(self.stamp, history.keys[-1].scored_on)
        fits = fit_scales(blocks, scales, self.config.solver, total, None, key, voice, check=claim.check, counts=counts)
        return fits, refused

    # -------------------------------------------------------------------------------------------- link
    def _link_and_write_items(
        self, blocks: HistoryBlocks, runs: Sequence[RunFits], ended: dict[str, Ended], items: DataFrame
    ) -> LinkedHistory:
        """Put the runs that converged on one scale and write their items; add to `ended` those that have no scale left.

        Raises
        ------
        CbmmError
            No run is left.
        """
        config = self.config
        good = [run for run in runs if run.key.run_id not in ended]
        if not good:
            self._write_scales(runs, None)
            self._finish(ended)
            raise _nothing(ended)
        linking = config.linking if self.request.link else replace(config.linking, method="off")
        fits = {fit.name: fit for run in good for fit in run.fits.values()}
        described = f"cbmm-spark {self.stamp}: solve the items at the final abilities"
        with blocks.computed(solve_fit_items(blocks, fits, config.rescore), described) as solved:
            with job_description(self.spark, f"cbmm-spark {self.stamp}: link the dates"):
                linked = link_history(
                    self.warehouse, good, solved, items, linking, config.rescore, config.solver.sigma,
                    self.listener.event,
                )  # fmt: skip
            self.clock.lap("link")
            kept = [run for run in linked.runs if run.scales.fitted]
            for run in linked.runs:
                if not run.scales.fitted:
                    reasons = "; ".join(linked.left_out[run.key.run_id].values())
                    ended[run.key.run_id] = ("gate", f"{reasons}: {_UNLINKED}")
            if not kept:
                self._finish(ended)
                raise _nothing(ended)
            for run in kept:
                for scale, reason in linked.left_out.get(run.key.run_id, {}).items():
                    self.listener.event("unlinked", scored_on=run.key.scored_on, scale=scale, reason=reason)
            rows = item_rows(kept, items, config.rescore, config.solver.sigma, solved)
            self._write("item_parameters", _by_day(rows, len(kept)), [run.key for run in kept])
        return replace(linked, runs=kept)

    # -------------------------------------------------------------------------------------------- write
    def _write(self, name: str, rows: DataFrame, keys: Sequence[RunKey]) -> None:
        with job_description(self.spark, f"cbmm-spark {self.stamp}: write {name}"):
            write_all_results(self.warehouse, name, rows, keys)
            faultpoint(name)

    def _write_fits(self, runs: Sequence[RunFits]) -> None:
        """Write how the fits went, and the abilities a later night may start from."""
        if not runs:
            return
        keys = [run.key for run in runs]
        self._write("run_iterations", iteration_rows(self.spark, runs).coalesce(1), keys)
        saved = [
            (run.key.run_id, scale, fit.iteration, *_saved(fit)) for run in runs for scale, fit in run.fits.items()
        ]
        frame = self.spark.createDataFrame(saved, SPECS["run_abilities"].schema)
        self._write("run_abilities", frame.coalesce(1), keys)

    def _write_scales(self, runs: Sequence[RunFits], item_parameters: DataFrame | None) -> None:
        if runs:
            rows = scale_rows(self.spark, runs, self.config.rescore, item_parameters)
            self._write("run_scales", rows.coalesce(1), [run.key for run in runs])


RESULTS = ("abilities", "item_parameters", "runs", "run_scales", "run_iterations", "latest_abilities",
           "latest_item_parameters")  # fmt: skip


def _saved(fit: ScaleFit) -> tuple[bytes, bytes]:
    return (fit.models + 1).astype("<i4").tobytes(), fit.theta.astype("<f8").tobytes()


def _n_items(items: DataFrame) -> int:
    return sum(row["n"] for row in items.groupBy("benchmark").agg(F.max("item_index").alias("n")).collect())


def _by_day(rows: DataFrame, days: int) -> DataFrame:
    """Bring the rows of a day together: each day is a partition of its table, and gets one file."""
    return rows.repartition(min(days, 64), "scored_on")


def _nothing(failed: Mapping[str, Ended]) -> CbmmError:
    """Return the error for a history without a single day to publish."""
    _, reason = next(iter(failed.values()))
    kinds = {kind for kind, _ in failed.values()}
    error = NotConvergedError if "not_converged" in kinds else GateError if "gate" in kinds else InputError
    return error(f"none of {len(failed)} days can be published; the first one: {reason}")


def _count_flags(runs: Sequence[RunFits], config: RescoreConfig) -> dict[str, int]:
    counted: dict[str, int] = {}
    for run in runs:
        for scale, source in run.scales.fitted.items():
            for flag in scale_flags(scale, run.fits[source], config):
                counted[flag.reason] = counted.get(flag.reason, 0) + 1
    return counted
