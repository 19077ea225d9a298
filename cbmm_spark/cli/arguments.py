"""The command line: which commands and options there are. `main` does what they say."""

from __future__ import annotations

import argparse
import dataclasses
import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from cbmm_spark import __version__
from cbmm_spark.config.schema import SimulateConfig
from cbmm_spark.errors import ConfigError

NIGHT_STEPS = ("ingest", "pack", "rescore")
MAINTAIN_STEPS = ("backup", "retention", "optimize", "vacuum")
"""Known here because Spark is not to be loaded for a wrong name; a test compares them with what is done."""


class _Parser(argparse.ArgumentParser):
    """An argument parser whose complaints are one line."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message} (see {self.prog} --help)")


def build_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = _Parser(
        prog="cbmm-spark",
        description="Re-score a whole leaderboard history with the cBMM on Spark and Delta Lake.",
        epilog="exit codes: 0 done, 2 bad configuration, 3 input rejected, 4 not converged or stopped by a gate, "
        "5 another run holds the tables (try again), 130 interrupted, 1 anything else",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"cbmm-spark {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND", parser_class=_Parser)
    _add_simulate(commands)
    _add_ingest(commands)
    _add_quarantine(commands)
    _add_rescore(commands)
    _add_backfill(commands)
    _add_nightly(commands)
    _add_status(commands)
    _add_maintain(commands)
    return parser


def _add_command(commands: Any, name: str, text: str, command: str | None = None) -> _Parser:
    parser: _Parser = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
    parser.set_defaults(command=command or name)
    parser.add_argument("--config", metavar="FILE", help="TOML file, for example conf/local.toml (default: built in)")
    parser.add_argument("--warehouse", metavar="URI", help="folder, URI or catalog.schema of the Delta tables")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="set one configuration key; repeatable"
    )
    parser.add_argument(
        "--output", choices=("auto", "json", "text"), default="auto", help="auto: text on a terminal, else JSON lines"
    )
    return parser


def _add_simulate(commands: Any) -> None:
    parser = _add_command(commands, "simulate", "Draw a leaderboard history from known parameters, kept beside it.")
    parser.add_argument("--out", required=True, type=Path, metavar="FOLDER", help="where to write the Parquet files")
    for each in dataclasses.fields(SimulateConfig):
        kind = type(each.default)
        parser.add_argument(
            f"--{each.name.replace('_', '-')}",
            type=kind,
            metavar=kind.__name__.upper(),
            help=f"simulate.{each.name} ({each.default})",
        )


def _add_ingest(commands: Any) -> None:
    parser = _add_command(
        commands, "ingest", "Read evaluation results, check them and merge them into the table `responses`."
    )
    parser.add_argument("--input", required=True, metavar="PATH", help="file, folder, pattern, URI or table:NAME")
    parser.add_argument("--format", default="auto", metavar="NAME", help="a reader's name, or auto (the default)")
    _add_about_source(parser)


def _add_about_source(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--benchmark", metavar="NAME", help="benchmark of all rows, where the input does not name one")
    parser.add_argument("--model", metavar="NAME", help="model of all rows, where the input does not name one")
    parser.add_argument(
        "--items", metavar="PATH", help="all items of the benchmark, one id a line, where the input lists only some"
    )
    parser.add_argument(
        "--mapping", metavar="FILE", help="TOML file of this source, laid over [ingest] of the configuration"
    )


_QUARANTINE = {
    "list": "Show what was refused, by reason and file, with examples.",
    "resubmit": "Read the files of refused rows again, and take out of quarantine what is not refused any more.",
    "drop": "Remove refused rows from quarantine for good.",
}


def _add_quarantine(commands: Any) -> None:
    text = "List, read again or remove the rows that ingests refused."
    group = commands.add_parser("quarantine", help=text, description=text, allow_abbrev=False)
    actions = group.add_subparsers(title="commands", required=True, metavar="COMMAND", parser_class=_Parser)
    parsers = {name: _add_command(actions, name, text, "quarantine") for name, text in _QUARANTINE.items()}
    for name, parser in parsers.items():
        parser.set_defaults(action=name)
        parser.add_argument(
            "--reason", action="append", default=[], metavar="NAME", help="only rows refused for it; repeatable"
        )
        parser.add_argument(
            "--source",
            action="append",
            default=[],
            metavar="NAME",
            help="only rows of this file or table as listed, or of files whose path ends so; * is any text; repeatable",
        )
    parsers["list"].add_argument(
        "--limit", type=_count, default=20, metavar="N", help="reasons and files to name (20); the others are counted"
    )
    _add_about_source(parsers["resubmit"])
    parsers["resubmit"].add_argument("--format", metavar="NAME", help="a reader's name, instead of that of the ingest")
    parsers["drop"].add_argument("--all", action="store_true", help="everything, where neither of the above is given")


def _add_rescore(commands: Any) -> None:
    parser = _add_command(
        commands, "rescore", "Fit all scales to all responses so far and publish abilities and items."
    )
    parser.add_argument("--as-of", type=_date, metavar="DATE", help="scored_on, YYYY-MM-DD (default: today in UTC)")
    parser.add_argument(
        "--items-from",
        metavar="RUN_ID",
        help="fit nothing: score models against the item parameters of this published run",
    )
    parser.add_argument(
        "--only-new", action="store_true", help="with --items-from: models that the run scored keep their abilities"
    )
    parser.add_argument(
        "--truth",
        type=Path,
        metavar="FOLDER",
        help="of simulated data: tell how well the parameters kept there were found",
    )
    parser.add_argument(
        "--fresh", action="store_true", help="begin the fit anew, even where a killed run of the day could be resumed"
    )
    parser.add_argument("--take-over", action="store_true", help="take the day from another run that still holds it")
    parser.add_argument("--accept-gates", action="store_true", help="publish although gates fail ([gates])")


def _add_nightly(commands: Any) -> None:
    parser = _add_command(
        commands,
        "nightly",
        "The whole night: ingest of the configured sources, packing, rescore, publishing.",
    )
    parser.add_argument("--as-of", type=_date, metavar="DATE", help="scored_on, YYYY-MM-DD (default: today in UTC)")
    _add_steps(parser, NIGHT_STEPS)
    parser.add_argument("--dry-run", action="store_true", help="say what would be done, write nothing")


def _add_status(commands: Any) -> None:
    parser = _add_command(commands, "status", "One screen: last nights and ingests, who holds a day, sizes.")
    parser.add_argument("--nights", type=_count, default=7, metavar="N", help="runs and ingests listed (default: 7)")


def _add_maintain(commands: Any) -> None:
    parser = _add_command(commands, "maintain", "Upkeep: a copy (--backup), old nights, small files, unneeded files.")
    _add_steps(parser, MAINTAIN_STEPS)
    parser.add_argument("--backup", metavar="URI", help="copy all tables to this new place first")
    parser.add_argument("--tables", type=_names, metavar="NAME,…", help="copy only these tables")
    parser.add_argument("--dry-run", action="store_true", help="say what would be done, write nothing")


def _add_steps(parser: _Parser, steps: Sequence[str]) -> None:
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--skip", type=_names, metavar="STEP,…", help=f"leave these out: {', '.join(steps)}")
    which.add_argument("--only", type=_names, metavar="STEP,…", help="do only these")


def _names(text: str) -> list[str]:
    return [name for name in (each.strip() for each in text.split(",")) if name]


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1")
    return int(text)


def _add_backfill(commands: Any) -> None:
    parser = _add_command(
        commands, "backfill", "Score a whole history: the leaderboard as it stood, one published run a date."
    )
    parser.add_argument("--from", dest="first", type=_date, metavar="DATE", help="first date (default: first result)")
    parser.add_argument("--to", dest="last", type=_date, metavar="DATE", help="last date (default: last result)")
    parser.add_argument(
        "--every",
        choices=("day", "week", "month", "change"),
        help="distance of the dates (default: week); change: the days on which something was evaluated",
    )
    parser.add_argument("--dates", metavar="LIST", help="the dates instead: a file, or dates separated by commas")
    parser.add_argument("--stale", action="store_true", help="instead the published days whose past has changed since")
    parser.add_argument("--list-stale", action="store_true", help="only list those days")
    parser.add_argument("--replace", action="store_true", help="score days again that are published already")
    parser.add_argument(
        "--no-link", action="store_true", help="leave every date on its own scale instead of one reference scale"
    )
    parser.add_argument("--take-over", action="store_true", help="take days from other runs that still hold them")


def _date(text: str) -> datetime.date:
    try:
        return datetime.date.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a date, write it as YYYY-MM-DD") from None
