"""The commands. What can be checked without Spark is checked before Spark starts."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import glob
import logging
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cbmm_spark import locations
from cbmm_spark.cli.arguments import MAINTAIN_STEPS, NIGHT_STEPS, build_parser
from cbmm_spark.config import load as configuration
from cbmm_spark.config.schema import Config, SimulateConfig
from cbmm_spark.console.progress import Progress, silence
from cbmm_spark.errors import CbmmError, ConfigError, InputError, is_disk_full
from cbmm_spark.history.dates import parse_dates

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cbmm_spark.ingest.quarantine_admin import Selection
    from cbmm_spark.rescoring.job import RescoreReport
    from cbmm_spark.simulation.truth import Truth
    from cbmm_spark.tables import Warehouse

INTERRUPTED = 130
"""Exit code after Ctrl-C: 128 plus the signal's number, as shells count."""

_DISK_FULL = (
    "the disk is full, that of the warehouse or of Spark's scratch files (spark.local.dir); what readers see is whole: "
    "make room (`cbmm-spark maintain` removes what nothing needs) and run again"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Parameters
    ----------
    arguments
        Without the program's name; by default those of the process.

    Returns
    -------
    int
        The exit code: 0 done, 2 bad configuration or command line, 3 input rejected, 4 not converged or stopped by a
        gate, 5 conflict, 130 interrupted, 1 anything else.
    """
    logging.getLogger().addFilter(_is_no_interrupt)
    try:
        given = build_parser().parse_args(arguments)
        code = _COMMANDS[given.command](given)
    except CbmmError as error:
        _complain(" ".join(str(error).split()))
        code = error.exit_code
    except KeyboardInterrupt:
        _complain("interrupted; nothing of this run was published")
        code = INTERRUPTED
    except BrokenPipeError:
        silence(sys.stdout)
        code = 0
    except Exception as error:
        if is_disk_full(error):
            _complain(_DISK_FULL)
        else:
            traceback.print_exc()
        code = 1
    return int(code)


def _is_no_interrupt(record: logging.LogRecord) -> bool:
    """Keep py4j from telling of a Ctrl-C: that is told in one line at the end."""
    return "KeyboardInterrupt" not in record.getMessage()


def _complain(message: str) -> None:
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in message)
    with contextlib.suppress(BrokenPipeError):
        print(f"cbmm-spark: {shown}", file=sys.stderr, flush=True)


def _config(given: argparse.Namespace) -> Config:
    config = configuration.load(given.config, given.set)
    if given.warehouse is not None:
        if not given.warehouse.strip():
            raise ConfigError("--warehouse is empty: give a folder, a URI or catalog.schema")
        config = dataclasses.replace(config, warehouse=given.warehouse)
    return config


def _simulate(given: argparse.Namespace) -> int:
    names = [each.name for each in dataclasses.fields(SimulateConfig)]
    chosen = {name: getattr(given, name) for name in names if getattr(given, name) is not None}
    config = configuration.replace_section(_config(given), "simulate", chosen, "on the command line")
    _check_out(given.out)
    from cbmm_spark.simulation.simulate import simulate

    with Progress(given.output) as progress:
        report = simulate(config, given.out)
        progress.event("simulated", **dataclasses.asdict(report))
    return 0


def _check_out(out: Path) -> None:
    if locations.is_there(out) and not out.is_dir():
        raise ConfigError(f"--out {out} is a file: give a folder")
    locations.check_writable(str(out))


def _ingest(given: argparse.Namespace) -> int:
    config = _config(given)
    check_input(given.input)
    _check_about_source(given, config)
    locations.check_writable(config.warehouse)
    with Progress(given.output) as progress, _spark(config, "cbmm-spark ingest") as spark:
        from cbmm_spark.ingest.job import ingest
        from cbmm_spark.ingest.report import complaint
        from cbmm_spark.tables import Warehouse

        warehouse = Warehouse(spark, _root(config.warehouse))
        report = ingest(
            spark,
            warehouse,
            config,
            given.input,
            format=given.format,
            benchmark=given.benchmark,
            model=given.model,
            items=given.items,
            mapping=given.mapping,
        )
        progress.result(
            "ingested",
            lambda: "\n".join([*report.lines(), f"  table {warehouse.location('responses')}"]),
            **dataclasses.asdict(report),
            table=warehouse.location("responses"),
        )
        failure = complaint(warehouse, report)
        if failure is not None:
            raise failure
    return 0


def _check_about_source(given: argparse.Namespace, config: Config) -> None:
    if given.items is not None:
        check_input(given.items, "list of items")
    if given.mapping is not None:
        configuration.load_mapping(config, given.mapping)


def _quarantine(given: argparse.Namespace) -> int:
    config = _config(given)
    if given.action == "drop" and given.all == bool(given.reason or given.source):
        raise ConfigError("say which rows to drop: --reason, --source, or --all alone (`quarantine list` shows them)")
    if given.action == "resubmit":
        _check_about_source(given, config)
    check_warehouse(config.warehouse)
    with Progress(given.output) as progress, _spark(config, f"cbmm-spark quarantine {given.action}") as spark:
        from cbmm_spark.ingest.quarantine_admin import Selection, drop_refused, list_refused
        from cbmm_spark.tables import Warehouse

        warehouse, selection = Warehouse(spark, _root(config.warehouse)), Selection(given.reason, given.source)
        if given.action == "list":
            listing = list_refused(warehouse, selection, given.limit)
            progress.result("quarantine", lambda: "\n".join(listing.lines()), **dataclasses.asdict(listing))
        elif given.action == "drop":
            count = drop_refused(warehouse, selection)
            text = f"{count:,} rows removed from {warehouse.location('quarantine')}"
            progress.result("dropped", text, rows=count, table=warehouse.location("quarantine"))
        else:
            _resubmit(given, config, warehouse, selection, progress)
    return 0


def _resubmit(
    given: argparse.Namespace, config: Config, warehouse: Warehouse, selection: Selection, progress: Progress
) -> None:
    from cbmm_spark.ingest.resubmit import resubmit

    names = ("format", "benchmark", "model", "items", "mapping")
    instead = {name: value for name in names if (value := getattr(given, name)) is not None}
    done = resubmit(warehouse.spark, warehouse, config, selection, instead)
    progress.result("resubmitted", lambda: "\n".join(done.lines()), **dataclasses.asdict(done))
    if not done.ingests:
        raise InputError(f"none of the {done.selected:,} rows could be read again; they stay in quarantine")


def _rescore(given: argparse.Namespace) -> int:
    config = _config(given)
    if given.only_new and given.items_from is None:
        raise ConfigError("--only-new needs --items-from RUN_ID: the run whose items the new models are scored against")
    locations.check_writable(config.warehouse)
    check_warehouse(config.warehouse)
    truth = _truth(given.truth)
    with Progress(given.output) as progress, _spark(config, "cbmm-spark rescore") as spark:
        from cbmm_spark.rescoring.job import RunOptions, rescore
        from cbmm_spark.tables import Warehouse

        warehouse = Warehouse(spark, _root(config.warehouse))
        options = RunOptions(given.fresh, given.take_over, given.accept_gates, given.items_from, given.only_new)
        report = rescore(spark, warehouse, config, given.as_of, progress, options)
        _show(progress, warehouse, config, report, truth)
    return report.exit_code


def _backfill(given: argparse.Namespace) -> int:
    config = _config(given)
    wanted = _wanted_dates(given)
    locations.check_writable(config.warehouse)
    check_warehouse(config.warehouse)
    with Progress(given.output) as progress, _spark(config, "cbmm-spark backfill") as spark:
        from cbmm_spark.history.job import Request, backfill
        from cbmm_spark.history.stale_days import stale_days
        from cbmm_spark.tables import Warehouse

        warehouse = Warehouse(spark, _root(config.warehouse))
        if given.list_stale:
            found = stale_days(warehouse)
            progress.result("stale", "\n".join(found.lines()), **dataclasses.asdict(found))
            return 0
        request = Request(
            given.first,
            given.last,
            given.every or "week",
            wanted,
            given.stale,
            given.replace,
            not given.no_link,
            given.take_over,
        )
        report = backfill(spark, warehouse, config, request, progress)
        progress.result("backfilled", lambda: "\n".join(report.lines()), **dataclasses.asdict(report))
    if report.exit_code:
        _complain(report.complaint())
    return report.exit_code


def _wanted_dates(given: argparse.Namespace) -> list[datetime.date] | None:
    """The dates listed one by one, if any; ways of naming dates that exclude each other are refused."""
    ranged = given.first is not None or given.last is not None or given.every is not None
    stale = given.stale or given.list_stale
    if (given.dates is not None) + ranged + stale > 1 or (given.stale and given.list_stale):
        raise ConfigError("--from/--to/--every, --dates, --stale and --list-stale exclude each other: give one of them")
    if given.first is not None and given.last is not None and given.first > given.last:
        raise ConfigError(f"--from {given.first} is after --to {given.last}: swap them")
    if given.dates is None:
        return None

    path = Path(given.dates)
    try:
        is_file = locations.is_there(path) and path.is_file()
        text = path.read_text(encoding="utf-8") if is_file else given.dates
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--dates {given.dates} cannot be read: {error}") from None
    return parse_dates(text, f"--dates {given.dates}" if is_file else "--dates")


def _nightly(given: argparse.Namespace) -> int:
    config = _config(given)
    steps = _steps(given, NIGHT_STEPS)
    if "ingest" in steps and not config.nightly.sources:
        raise ConfigError("there is nothing to ingest: add [[nightly.sources]] to the configuration, or --skip ingest")
    locations.check_writable(config.warehouse)
    if "ingest" not in steps:
        check_warehouse(config.warehouse)
    from cbmm_spark.cli.night_command import Figures, run_night

    with (
        Figures(None if given.dry_run else config.nightly.metrics_file) as figures,
        Progress(given.output) as progress,
        _spark(config, "cbmm-spark nightly") as spark,
    ):
        from cbmm_spark.tables import Warehouse

        warehouse = Warehouse(spark, _root(config.warehouse))

        def show(report: RescoreReport) -> None:
            _show(progress, warehouse, config, report, None)

        run_night(warehouse, config, given.as_of, steps, progress, show, figures, given.dry_run)
    return 0


def _status(given: argparse.Namespace) -> int:
    config = _config(given)
    path = locations.warehouse_path(config.warehouse)
    if path is not None and not (locations.is_there(path) and path.is_dir()):
        raise InputError(f"the warehouse {config.warehouse} does not exist: give its place with --warehouse")
    with Progress(given.output) as progress, _spark(config, "cbmm-spark status") as spark:
        from cbmm_spark.tables import Warehouse
        from cbmm_spark.upkeep.status import as_text, status

        told = status(Warehouse(spark, _root(config.warehouse)), given.nights)
        progress.result("status", lambda: as_text(told), **dataclasses.asdict(told))
    return 0


def _maintain(given: argparse.Namespace) -> int:
    config = _config(given)
    steps = _steps(given, MAINTAIN_STEPS)
    if given.backup is None and (given.tables is not None or given.only == ["backup"]):
        raise ConfigError("a copy needs a place: add --backup URI")
    if given.tables is not None:
        from cbmm_spark.upkeep.backup import check_tables

        check_tables(given.tables)
    path = locations.warehouse_path(config.warehouse)
    if path is not None and not (locations.is_there(path) and path.is_dir()):
        raise InputError(f"the warehouse {config.warehouse} does not exist: give its place with --warehouse")
    locations.check_writable(config.warehouse)
    if given.backup is not None:
        locations.check_writable(given.backup)
    with Progress(given.output) as progress, _spark(config, "cbmm-spark maintain") as spark:
        from cbmm_spark.tables import Warehouse
        from cbmm_spark.upkeep import maintain
        from cbmm_spark.upkeep.backup import COPIED

        tables = COPIED if given.tables is None else tuple(given.tables)
        target = None if given.backup is None else Warehouse(spark, _root(given.backup))
        report = maintain.maintain(
            spark, Warehouse(spark, _root(config.warehouse)), config, steps, progress, target, tables, given.dry_run
        )
        progress.result("maintained", lambda: maintain.as_text(report), **maintain.as_event(report))
        if report.error is not None:
            raise report.error
    return 0


def _steps(given: argparse.Namespace, known: Sequence[str]) -> tuple[str, ...]:
    """The steps asked for, in their order."""
    option, named = ("--only", given.only) if given.only is not None else ("--skip", given.skip or [])
    unknown = [name for name in named if name not in known]
    if unknown:
        raise ConfigError(f"{option}: there is no step {', '.join(unknown)}; the steps are {', '.join(known)}")
    steps = tuple(name for name in known if (name in named) == (given.only is not None))
    if not steps:
        raise ConfigError(f"{option} leaves no step to do; the steps are {', '.join(known)}")
    return steps


def _root(warehouse: str) -> str:
    """The warehouse with a local folder made absolute: Delta takes no table by a relative path."""
    path = locations.warehouse_path(warehouse)
    return warehouse if path is None else str(path.absolute())


def _truth(folder: Path | None) -> Truth | None:
    if folder is None:
        return None
    from cbmm_spark.simulation.truth import Truth

    return Truth.read(folder)


def _show(progress: Progress, warehouse: Warehouse, config: Config, report: RescoreReport, truth: Truth | None) -> None:
    """Tell of the published run: its ranking, how well the truth was found, where the tables are."""
    from cbmm_spark.cli import run_summary as summary

    scale = summary.shown_scale(list(report.scales))
    rows = summary.top_rows(warehouse, report.run_id, scale, config.rescore.top)
    found = None
    if truth is not None and summary.OVERALL in report.scales:
        found = summary.recovery(warehouse, report.run_id, truth, config.solver.sigma)
    progress.result(
        "rescored",
        lambda: summary.as_text(report, scale, rows, truth, found),
        **dataclasses.asdict(report),
        leaderboard={"scale": scale, "rows": rows},
        recovery=found,
    )


def check_input(location: str, noun: str = "input") -> None:
    """See that an input on a local disk exists and holds something.

    Parameters
    ----------
    location
        A path or URI, or the name of a catalog's table, which only Spark can look at.
    noun
        What it is, for the message.

    Raises
    ------
    InputError
        It does not.
    """
    path = None if locations.table_name(location) is not None else locations.local_path(location)
    if path is None:
        return
    text = str(path)
    found = [path] if locations.is_there(path) else [Path(each) for each in glob.iglob(text)]
    if not found:
        if "\\" in text or "{" in text:  # parts of a pattern that only Spark knows
            return
        raise InputError(f"the {noun} {location} does not exist{locations.hint_on_names(location)}")
    if found == [path] and path.is_dir():
        if next(path.iterdir(), None) is None:
            raise InputError(f"the {noun} folder {location} is empty")
    elif all(each.is_file() and each.stat().st_size == 0 for each in found):
        raise InputError(f"the {noun} {location} is empty")


def check_warehouse(warehouse: str) -> None:
    """See that a warehouse on a local disk has the table `responses`.

    Raises
    ------
    InputError
        It has not.
    """
    path = locations.warehouse_path(warehouse)
    if path is not None and not locations.is_there(path / "responses"):
        raise InputError(f"the warehouse {warehouse} has no table responses: run `cbmm-spark ingest --input …` first")


@contextlib.contextmanager
def _spark(config: Config, name: str) -> Iterator[SparkSession]:
    """A session for the length of a job; an error is told before the session is stopped, which takes a moment."""
    from cbmm_spark.spark.session import build_session, stop_session

    spark = build_session(config, name)
    try:
        yield spark
    finally:
        # A second Ctrl-C must not leave a stack trace of the tidying up.
        previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
        with contextlib.suppress(Exception):
            stop_session(spark)
        signal.signal(signal.SIGINT, previous)


_COMMANDS: Mapping[str, Callable[[argparse.Namespace], int]] = {
    "simulate": _simulate,
    "ingest": _ingest,
    "quarantine": _quarantine,
    "rescore": _rescore,
    "backfill": _backfill,
    "nightly": _nightly,
    "status": _status,
    "maintain": _maintain,
}


if __name__ == "__main__":
    sys.exit(main())
