"""A night as one command: ingest of the configured sources, packing, and the day scored, checked and published.

Every step looks at the tables for what is done already, so that a night which was killed is completed by starting it
again: a source whose last ingest is of the same files is left alone, packing goes by the version of `responses`, and a
day that is published from the same responses with the same configuration is not scored a second time.
`docs/decisions/0045-the-night-as-one-command.md` says why.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import logging
import secrets
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

from cbmm_spark import __version__
from cbmm_spark.config.schema import Config
from cbmm_spark.console.progress import Progress
from cbmm_spark.errors import CbmmError, InputError
from cbmm_spark.ingest.job import IngestReport, ingest
from cbmm_spark.ingest.report import complaint
from cbmm_spark.night.sources import Decision, decide_all, ingest_options
from cbmm_spark.packing.commit_notes import TABLES, differs, packed
from cbmm_spark.packing.job import PackReport, pack
from cbmm_spark.rescoring.job import RescoreReport, RunOptions, rescore
from cbmm_spark.runs.publish import last_published, refresh_latest
from cbmm_spark.spark.scoped import job_description
from cbmm_spark.tables import Warehouse, provenance

STEPS = ("ingest", "pack", "rescore")
"""In their order; checks and publishing belong to `rescore`."""

NOT_FITTED = ("warehouse", "ingest", "nightly", "maintain", "simulate", "spark")
"""Sections of the configuration that change no result of a run from given responses."""

_logger = logging.getLogger(__name__)


@dataclass
class StepReport:
    """What became of a step.

    Attributes
    ----------
    step
        Its name.
    outcome
        `done`, `skipped`, `failed`, `not reached` or, in a dry run, `planned`.
    seconds
        Wall-clock time.
    note
        Why, or what it did, for a person.
    """

    step: str
    outcome: str = "not reached"
    seconds: float = 0.0
    note: str = ""


@dataclass
class SourceReport:
    """What became of a source.

    Attributes
    ----------
    name, input
        The source.
    outcome
        `read`, `skipped`, `missing` (it is optional) or `failed`; in a dry run also `would read`.
    note
        Why.
    counts
        Rows of its ingest by what became of them.
    """

    name: str
    input: str
    outcome: str
    note: str = ""
    seconds: float = 0.0
    counts: dict[str, int] = field(default_factory=dict)


@dataclass
class NightReport:
    """What a night did.

    Attributes
    ----------
    night_id
        Identifier, in the provenance of every commit of the night.
    scored_on, run_id
        The day and its published run; None as far as the night did not come to them.
    steps, sources
        What became of each.
    warnings
        What a person should look at.
    run
        The report of the run this night made; None where it made none.
    error
        What it ended with.
    """

    night_id: str
    scored_on: dt.date | None = None
    run_id: str | None = None
    dry_run: bool = False
    steps: list[StepReport] = field(default_factory=list)
    sources: list[SourceReport] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    run: RescoreReport | None = None
    error: Exception | None = None

    @property
    def exit_code(self) -> int:
        """Of the command."""
        if self.error is None:
            return 0
        return self.error.exit_code if isinstance(self.error, CbmmError) else 1

    def total(self, count: str) -> int:
        """Rows of one kind over all sources."""
        return sum(source.counts.get(count, 0) for source in self.sources)


class Night:
    """One night of a warehouse.

    Parameters
    ----------
    spark
        Session with Delta, in UTC.
    warehouse
        The tables.
    config
        Everything else; `nightly` says what is read.
    as_of
        The day scored, from responses evaluated by then; today (UTC), from all responses, if not given.
    steps
        Names of the steps to do, out of `STEPS`.
    progress
        Told of everything.
    show
        Shows a person the run that was published.
    """

    def __init__(
        self,
        spark: SparkSession,
        warehouse: Warehouse,
        config: Config,
        as_of: dt.date | None,
        steps: Collection[str],
        progress: Progress,
        show: Callable[[RescoreReport], None] | None = None,
    ) -> None:
        self._spark, self._warehouse, self._config = spark, warehouse, config
        self._as_of, self._chosen, self._progress, self._show = as_of, steps, progress, show
        self._packed: PackReport | None = None
        started = dt.datetime.now(dt.UTC)
        self.report = NightReport(
            night_id=f"{started:%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}",
            scored_on=as_of,
            steps=[StepReport(name) for name in STEPS],
        )

    # ------------------------------------------------------------------------------------------------ for real
    def run(self) -> NightReport:
        """Do the steps; an error ends the night, and is in the report."""
        actions: dict[str, Callable[[], tuple[str, str]]] = {
            "ingest": self._ingest,
            "pack": self._pack,
            "rescore": self._rescore,
        }
        with provenance("nightly", self._config, night_id=self.report.night_id):
            for step in self.report.steps:
                if step.step not in self._chosen:
                    step.outcome, step.note = "skipped", "as asked for"
                    continue
                told = f"cbmm-spark nightly {self.report.night_id}: {step.step}"
                with self._timed(step), job_description(self._spark, told):
                    step.outcome, step.note = actions[step.step]()
                if step.outcome == "failed" and self._stops(step):
                    break
        return self.report

    def _stops(self, step: StepReport) -> bool:
        return step.step != "ingest" or self._config.nightly.on_source_error == "stop"

    @contextmanager
    def _timed(self, step: StepReport) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        except Exception as error:
            step.outcome, step.note = "failed", _one_line(error)
            self._end_with(step.step, error)
        finally:
            step.seconds = round(time.perf_counter() - began, 3)

    def _end_with(self, step: str, error: Exception) -> None:
        """Make an error the night's, and its code the exit code: now nothing is published. Sources that failed before
        stay named.
        """
        sources = self.report.error
        if sources is not None and isinstance(error, CbmmError):
            error = type(error)(f"{error} (step {step}; before it, {_one_line(sources)})")
        self.report.error = error

    def _ingest(self) -> tuple[str, str]:
        nightly = self._config.nightly
        rules = self._config.ingest
        for decision in decide_all(self._spark, self._warehouse, nightly.sources, rules, nightly.skip_unchanged):
            report = self._take(decision)
            self.report.sources.append(report)
            self._progress.event(
                "source", source=report.name, outcome=report.outcome, reason=report.note, seconds=report.seconds
            )
        return "failed" if self._refuse_failed() else "done", _counted(self.report.sources)

    def _refuse_failed(self) -> bool:
        """Make the failures of sources the night's error, with the exit code of the first one."""
        failed = [report for report in self.report.sources if report.outcome == "failed"]
        if not failed:
            return False
        first = self.report.error
        if first is None or isinstance(first, CbmmError):
            stops = self._config.nightly.on_source_error == "stop"
            ends = "nothing is scored" if stops else "the night goes on without them"
            names = "; ".join(f"{report.name}: {report.note}" for report in failed)
            kind = InputError if first is None else type(first)
            self.report.error = kind(f"{len(failed)} of {len(self.report.sources)} sources failed, {ends}: {names}")
        return True

    def _take(self, decision: Decision) -> SourceReport:
        """Ingest a source, if so decided; a failure is the source's and the first one becomes the night's."""
        source = decision.source
        report = SourceReport(source.name, source.input, decision.action, decision.reason)
        if decision.action == "skip":
            report.outcome = "skipped"
        elif decision.action == "missing":
            self._warn(f"source {source.name}: {decision.reason}")
        elif decision.action == "failed":
            self._fail(InputError(decision.reason))
        if decision.action != "read":
            return report
        began = time.perf_counter()
        try:
            done = ingest(
                self._spark,
                self._warehouse,
                self._config,
                source.input,
                **ingest_options(source),
                fingerprint=decision.fingerprint,
            )
            self._tell(done, report)
            failure = complaint(self._warehouse, done)
            if failure is not None:
                raise failure
        except Exception as error:
            report.outcome, report.note = "failed", _one_line(error)
            self._fail(error)
        report.seconds = round(time.perf_counter() - began, 3)
        return report

    def _tell(self, done: IngestReport, report: SourceReport) -> None:
        names = ("read", "accepted", "new", "unchanged", "corrected", "redated", "superseded", "collapsed", "missing")
        report.counts = {name: getattr(done, name) for name in names} | {"quarantined": done.refused}
        told = {**dataclasses.asdict(done), "source": report.name}
        self._progress.result("ingested", lambda: "\n".join(done.lines()), **told)
        for warning in done.warnings:
            self._warn(f"source {report.name}: {warning}")

    def _fail(self, error: Exception) -> None:
        if not isinstance(error, CbmmError):
            _logger.error("a source failed in a way that was not foreseen", exc_info=error)
        if self.report.error is None:
            self.report.error = error

    def _warn(self, message: str) -> None:
        self.report.warnings.append(message)
        self._progress.event("warning", message=message)

    def _pack(self) -> tuple[str, str]:
        if self._as_of is not None:
            return "skipped", "a day given by --as-of is packed by itself"
        done = self._packed = pack(self._spark, self._warehouse, self._config)
        self._progress.event("packed", **vars(done))
        version = f"responses version {done.responses_version}"
        return "done", f"{done.tiles:,} tiles, {version}" if done.repacked else f"current already, {version}"

    def _rescore(self) -> tuple[str, str]:
        self.report.scored_on = self._as_of or dt.datetime.now(dt.UTC).date()  # a failure is of this day
        done = self._scored_already()
        if done is not None:
            self.report.run_id, self.report.scored_on = done
            refresh_latest(self._warehouse)  # a kill may have come just before
            return "skipped", f"run {done[0]} of {done[1]} is published from the same responses and configuration"
        options = RunOptions(packed=self._packed)
        run = rescore(self._spark, self._warehouse, self._config, self._as_of, self._progress, options)
        self.report.run, self.report.run_id, self.report.scored_on = run, run.run_id, run.scored_on
        self.report.warnings += run.warnings
        if self._show is not None:
            self._show(run)
        return "done", f"run {run.run_id} published for {run.scored_on}"

    def _scored_already(self) -> tuple[str, dt.date] | None:
        """Return the published run of today (run_id, day) that a run made now could only repeat.

        Which responses a run of a day given by `--as-of` left out is not kept, so such a day is always scored.
        """
        runs = self._warehouse.look("runs")
        if runs is None or self._as_of is not None or self._warehouse.look("responses") is None:
            return None
        today = dt.datetime.now(dt.UTC).date()
        of_today = runs.where((F.col("scored_on") == F.lit(today)) & (F.col("status") == "published"))
        row = of_today.select("run_id", "responses_version", "config", "package_version").head()
        if row is None or row["package_version"] != __version__:
            return None
        if not same_fit(row["config"], self._config.as_json()):
            return None
        if row["responses_version"] != self._warehouse.version("responses"):
            return None
        scales = self._warehouse.look("run_scales")
        frozen = F.col("items_from_run_id").isNotNull()  # a scoring against the items of another run is no fit
        if scales is None or not scales.where((F.col("run_id") == row["run_id"]) & frozen).isEmpty():
            return None
        return row["run_id"], today

    # ------------------------------------------------------------------------------------------------ only told
    def plan(self) -> NightReport:
        """Find out what `run` would do; nothing is written."""
        self.report.dry_run = True
        with job_description(self._spark, "cbmm-spark nightly: dry run"):
            self._plan_steps()
        return self.report

    def _plan_steps(self) -> None:
        will_write = False
        for step in self.report.steps:
            if step.step not in self._chosen:
                step.outcome, step.note = "skipped", "as asked for"
            elif step.step == "ingest":
                will_write = self._plan_ingest()
                step.outcome, step.note = "planned", _counted(self.report.sources)
                if self._refuse_failed() and self._stops(step):
                    step.outcome = "failed"
                    break
            elif step.step == "pack":
                step.outcome, step.note = self._plan_pack(will_write)
            else:
                step.outcome, step.note = self._plan_rescore(will_write)

    def _plan_ingest(self) -> bool:
        nightly = self._config.nightly
        outcomes = {"read": "would read", "skip": "skipped"}
        for decision in decide_all(
            self._spark, self._warehouse, nightly.sources, self._config.ingest, nightly.skip_unchanged
        ):
            source, action = decision.source, outcomes.get(decision.action, decision.action)
            self.report.sources.append(SourceReport(source.name, source.input, action, decision.reason))
        return any(report.outcome == "would read" for report in self.report.sources)

    def _plan_pack(self, will_write: bool) -> tuple[str, str]:
        if self._as_of is not None:
            return "skipped", "a day given by --as-of is packed by itself"
        if self._warehouse.look("responses") is None:
            return "planned", "there are no responses yet"
        version = self._warehouse.version("responses")
        behind = blocks_behind(self._warehouse, self._config, version)
        if behind is not None:
            return "planned", f"{behind}, responses are at version {version}"
        hedge = ", unless a source brings something new" if will_write else ""
        return "planned", f"blocks are current (responses version {version}){hedge}"

    def _plan_rescore(self, will_write: bool) -> tuple[str, str]:
        day = self._as_of or dt.datetime.now(dt.UTC).date()
        self.report.scored_on = day
        done = self._scored_already()
        if done is not None and not will_write:
            self.report.run_id = done[0]
            return "skipped", f"run {done[0]} of {day} is published from the same responses and configuration"
        told = [f"{day} would be scored"]
        if self._warehouse.look("runs") is None:
            return "planned", f"{day} would be scored, the first day of this warehouse"
        replaced = self._warehouse.read("runs").where(f"scored_on = DATE'{day}' AND status = 'published'").head()
        if replaced is not None:
            told.append(f"replacing run {replaced['run_id']}")
        before = last_published(self._warehouse, day)
        told.append("no earlier day to compare with" if before is None else _compared(before.run_id, before.scored_on))
        return "planned", ", ".join(told)


def blocks_behind(warehouse: Warehouse, config: Config, version: int) -> str | None:
    """Return in words why stored blocks are not those of a version of `responses`, None where they are."""
    identifier = warehouse.identifier("responses")
    for name in TABLES:
        state = packed(warehouse, name)
        if isinstance(state, str):
            return state
        why = differs(state.note, identifier, version, config.pack)
        if why is not None:
            return why
        if state.note.responses_version != version:
            return f"{name} is of version {state.note.responses_version}"
    return None


def same_fit(one: str, other: str) -> bool:
    """Whether two configurations, each as JSON, make the same results of the same responses."""
    first, second = (json.loads(text) for text in (one, other))
    names = (first.keys() | second.keys()) - set(NOT_FITTED)
    return all(first.get(name) == second.get(name) for name in names)


def _compared(run_id: str, scored_on: dt.date) -> str:
    return f"compared with run {run_id} of {scored_on}"


def _counted(sources: list[SourceReport]) -> str:
    outcomes = [source.outcome for source in sources]
    told = [f"{outcomes.count(outcome)} {outcome}" for outcome in dict.fromkeys(outcomes)]
    return f"{len(sources)} source{'s' * (len(sources) != 1)}: {', '.join(told)}" if sources else "no source"


def _one_line(error: Exception) -> str:
    text = str(error) if isinstance(error, CbmmError) else f"{type(error).__name__}: {error}"
    return " ".join(text.split())[:1000]


def as_text(report: NightReport) -> str:
    """Return the summary of a night for a person."""
    from cbmm_spark.console.text_table import text_table

    title = f"night {report.night_id}" + (" (dry run: nothing was written)" if report.dry_run else "")
    parts = [title]
    if report.sources:
        heads = ("source", "outcome", "rows", "new", "corrected", "quarantined", "seconds", "why")
        rows = [
            (
                s.name,
                s.outcome,
                *(s.counts.get(n) for n in ("read", "new", "corrected", "quarantined")),
                s.seconds,
                s.note,
            )
            for s in report.sources
        ]
        parts.append(text_table(heads, rows))
    steps = [(step.step, step.outcome, step.seconds, step.note) for step in report.steps]
    parts.append(text_table(("step", "outcome", "seconds", "what"), steps))
    parts += [f"warning: {warning}" for warning in report.warnings]
    return "\n\n".join(parts)


def as_event(report: NightReport) -> dict[str, Any]:
    """Return the summary of a night for a program: the fields of one JSON line."""
    return {
        "night_id": report.night_id,
        "dry_run": report.dry_run,
        "scored_on": report.scored_on,
        "run_id": report.run_id,
        "exit_code": report.exit_code,
        "error": None if report.error is None else _one_line(report.error),
        "seconds": round(sum(step.seconds for step in report.steps), 3),
        "steps": [vars(step) for step in report.steps],
        "sources": [vars(source) for source in report.sources],
        "warnings": report.warnings,
    }
